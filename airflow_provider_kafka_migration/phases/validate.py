"""Validation: seven checks, the third over all records. Nothing on the target is deleted before it has passed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from airflow_provider_kafka_migration.documents.copy import MappedPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.cutover import Boundary, GroupResult, TranslatedOffset
from airflow_provider_kafka_migration.documents.plan import Plan, TopicPlan, Verdict
from airflow_provider_kafka_migration.documents.proof import (
    CheckResult,
    Outcome,
    PartitionContent,
    PassedContent,
    ValidationResult,
    worst,
)
from airflow_provider_kafka_migration.drift import source_drift
from airflow_provider_kafka_migration.errors import FreezeFailed, Terminal, Transient, ValidationFailed
from airflow_provider_kafka_migration.evidence.publish import publish_failure
from airflow_provider_kafka_migration.freeze.late_writes import read_late_writes
from airflow_provider_kafka_migration.freeze.sentinel_records import sentinels_between
from airflow_provider_kafka_migration.groups import offsets
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.planning import follow, late_ids
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.jobs import content_jobs
from airflow_provider_kafka_migration.record.context import Cluster, JobRef, PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.freeze_attempt import boundary_ends
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase, Step, job_ref
from airflow_provider_kafka_migration.record.offset_maps import closed_maps
from airflow_provider_kafka_migration.record.overtaken import with_overtaken
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.passed_content import (
    compared_log_starts,
    content_ranges,
    load_passed,
    save_passed,
)
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.schemas.check import check_schemas, prepare
from airflow_provider_kafka_migration.topics import copy_settings

# -- validate checks --------------------------------------------------------------------------------------------------
#
# The checks of a validation, except for reading the content: facts in, :class:`CheckResult` out. Pure: no I/O.


@dataclass(frozen=True)
class TargetTopic:
    """A topic as it is on the target; ``partitions`` is 0 if it does not exist."""

    partitions: int
    overrides: Mapping[str, str]


def check_topic_parity(
    topics: Sequence[TopicPlan], source_partitions: Mapping[str, int], targets: Mapping[str, TargetTopic]
) -> CheckResult:
    """Check that partition counts equal the source's, and that configs equal the plan's and no others are set.

    :param source_partitions: current partition counts by source topic.
    :param targets: by target topic.
    """
    rows: list[dict[str, Any]] = []
    findings: list[str] = []
    for topic in sorted(topics, key=lambda item: item.name):
        target = targets.get(topic.target_name, TargetTopic(0, {}))
        problems = _parity_problems(topic, source_partitions.get(topic.name), target)
        rows.append(
            {
                "topic": topic.name,
                "target_topic": topic.target_name,
                "partitions": target.partitions,
                "configs": len(topic.target_configs),
                "outcome": (Outcome.FAILED if problems else Outcome.PASSED).value,
                "problems": problems,
            }
        )
        findings += [f"{topic.target_name}: {problem}" for problem in problems]
    outcome = Outcome.FAILED if findings else Outcome.PASSED
    summary = f"{len(rows)} topics: partitions and configs" + (" equal" if not findings else " DIFFER")
    return CheckResult(name="topic_parity", outcome=outcome, summary=summary, partitions=rows, findings=findings)


def _parity_problems(topic: TopicPlan, source_count: int | None, target: TargetTopic) -> list[str]:
    if not target.partitions:
        return ["the topic is not on the target"]
    problems = []
    expected = source_count if source_count is not None else len(topic.partitions)
    if target.partitions < expected or (target.partitions != expected and not topic.shared):
        problems.append(f"the target has {target.partitions} partitions, the source has {expected}")
    for name in sorted(topic.target_configs.keys() | target.overrides.keys()):
        wanted, seen = topic.target_configs.get(name), target.overrides.get(name)
        if wanted != seen:
            problems.append(
                f"{name} is {seen if seen is not None else 'not set'}, "
                f"planned {wanted if wanted is not None else 'not set'}"
            )
    return problems


@dataclass(frozen=True)
class Ends:
    """Log start and end of one partition."""

    start: int
    end: int


@dataclass(frozen=True)
class CountRules:
    """What the check of counts tolerates.

    :param tolerance: number of records by which counts may differ.
    :param late_writes: by source partition, a description of what was written to the source after the boundary.
    :param on_late_writes: whether late writes fail the check.
    :param retention_is_back: configs that delete data are in force on the target again, so log starts may move.
    :param compared_log_starts: by source partition, the target's log start that was seen after the comparison.
    """

    tolerance: int = 0
    late_writes: Mapping[TopicPartition, str] = field(default_factory=dict)
    on_late_writes: Literal["fail", "warn"] = "fail"
    retention_is_back: bool = False
    compared_log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)


def check_counts(
    document: OffsetMapDocument,
    boundary: Mapping[TopicPartition, int],
    source: Mapping[TopicPartition, Ends],
    target: Mapping[TopicPartition, Ends],
    contents: Mapping[TopicPartition, PartitionContent],
    rules: CountRules,
) -> CheckResult:
    """Check that both logs end equal (given the map), nothing was cut off, and both sides have as many records.

    :param boundary: exclusive source ends of the cutover; like ``source`` and ``contents``, keyed by source topic.
    :param target: keyed by target topic.
    """
    rows: list[dict[str, Any]] = []
    findings: list[str] = []
    outcomes = []
    floor_violations = 0
    for item in document.partitions:
        key = (item.topic, item.partition)
        ends = target[item.target_topic, item.partition]
        errors, warnings = _count_problems(item, boundary[key], source.get(key), ends, contents.get(key), rules)
        floor_violations += sum("first copied" in error for error in errors)
        outcome = Outcome.FAILED if errors else Outcome.WARNING if warnings else Outcome.PASSED
        outcomes.append(outcome)
        content = contents.get(key)
        rows.append(
            {
                "topic": item.topic,
                "partition": item.partition,
                "verdict": item.verdict,
                "source_end_offset": boundary[key],
                "target_start_offset": ends.start,
                "target_end_offset": item.target_end_offset,
                "source_records": content.source_records if content else -1,
                "target_records": content.target_records if content else -1,
                "explained": dict(content.explained) if content else {},
                "uncompared_records": content.uncompared_records if content else -1,
                "outcome": outcome.value,
                "problems": errors + warnings,
            }
        )
        findings += [f"{item.topic}-{item.partition}: {problem}" for problem in errors + warnings]
    records = sum(max(row["target_records"], 0) for row in rows)
    summary = f"{len(rows)} partitions, {records} records, offset_floor_violations={floor_violations}"
    return CheckResult(
        name="counts_and_offsets", outcome=worst(outcomes), summary=summary, partitions=rows, findings=findings
    )


def _moved_start(
    item: MappedPartition, target: Ends, content: PartitionContent | None, rules: CountRules
) -> tuple[list[str], list[str]]:
    """Judge a log start past the first copied offset. Records that were compared before their deletion are no loss.

    :returns: errors and warnings.
    """
    first, last = item.target_start_offset or 0, item.target_end_offset or 0
    if target.start <= first or last <= first:
        return [], []
    text = f"the log starts at {target.start}, past the first copied offset {first}"
    if content is None or not content.is_equal:
        return [text], []
    if rules.retention_is_back:
        return [], []
    since = "the records were deleted on the target since (DeleteRecords)"
    if content.is_proven:
        return [], [f"{text}: all records had been compared before; {since}"]
    seen = rules.compared_log_starts.get((item.topic, item.partition))
    if seen is None or seen > first:
        return [text], []
    return [], [f"{text}: all records that the source still had were there at the comparison; {since}"]


def _target_problems(item: MappedPartition, target: Ends, first: int, last: int) -> list[str]:
    errors = []
    if target.start < first and item.verdict != Verdict.TRANSACTIONAL:
        errors.append(
            f"the log starts at {target.start}, below the start of the copied range, {first}: fillers can be read "
            "again (a broker has crashed just after they were deleted); delete the records below that offset"
        )
    if target.end < last:
        errors.append(f"the log ends at {target.end}, before the end of the copied range {last}")
    return errors


def _count_problems(
    item: MappedPartition,
    boundary_end: int,
    source: Ends | None,
    target: Ends,
    content: PartitionContent | None,
    rules: CountRules,
) -> tuple[list[str], list[str]]:
    errors: list[str] = []
    warnings: list[str] = []
    first, last = item.target_start_offset, item.target_end_offset
    if first is None or last is None:
        return ["the partition has no offset map"], []
    if item.source_end_offset != boundary_end:
        errors.append(f"the map ends at {item.source_end_offset}, the source ended at {boundary_end}")
    errors += _target_problems(item, target, first, last)
    cut, deleted = _moved_start(item, target, content, rules)
    errors += cut
    warnings += deleted
    late = rules.late_writes.get((item.topic, item.partition))
    if late is not None:
        (warnings if rules.on_late_writes == "warn" else errors).append(late)
    if source is None:
        warnings.append("the source partition no longer exists")
    elif source.end < boundary_end:
        errors.append(f"the source now ends at {source.end}, but at the cutover it ended at {boundary_end}")
    if content is not None and content.error is None:
        explained = sum(content.explained.values())
        off = abs(content.target_records - explained - content.uncompared_records - content.source_records)
        if off > rules.tolerance:
            errors.append(
                f"{content.target_records} records on the target ({explained} of them explained, "
                f"{content.uncompared_records} that the source has deleted), {content.source_records} on the source"
            )
    return errors, warnings


def check_content(contents: Sequence[PartitionContent], wanted: Sequence[TopicPartition]) -> CheckResult:
    """Check that every partition was compared, and that every record is equal or explained.

    Records that the source had deleted before they could be compared are a warning that names their ranges. A partition
    that has records of which none was compared is a warning, too.
    """
    by_key = {item.key: item for item in contents}
    findings = []
    rows = []
    for key in sorted(wanted):
        item = by_key.get(key)
        outcome, problem = _content_outcome(item)
        if problem:
            findings.append(f"{key[0]}-{key[1]}: {problem}")
        row = item.model_dump(mode="json") if item else {"topic": key[0], "partition": key[1]}
        rows.append({**row, "outcome": outcome.value})
    outcome = worst(Outcome(row["outcome"]) for row in rows)
    summary = _content_summary(contents, len(rows), len(findings))
    return CheckResult(name="content", outcome=outcome, summary=summary, partitions=rows, findings=findings)


def _content_summary(contents: Sequence[PartitionContent], partitions: int, findings: int) -> str:
    explained = sum(sum(item.explained.values()) for item in contents)
    archived = sum(item.archive_records for item in contents)
    uncompared = [item for item in contents if item.uncompared]
    summary = f"{sum(item.compared for item in contents)} records equal in {partitions - findings} of "
    summary += f"{partitions} partitions"
    summary += f", {archived} of them compared with the archive" if archived else ""
    summary += f", {explained} more on the target, as expected" if explained else ""
    if uncompared:
        records = sum(item.uncompared_records for item in uncompared)
        summary += f", NOT COMPARED: {records} records in {len(uncompared)} partitions (deleted on the source)"
    return summary


def _content_outcome(item: PartitionContent | None) -> tuple[Outcome, str]:
    """Return the outcome of a partition, and its problem, if any."""
    problem = _content_problem(item)
    if problem or item is None:
        return Outcome.FAILED, problem
    if item.uncompared:
        shown = ", ".join(f"{start}..{until - 1}" for start, until in item.uncompared[:5])
        more = f" and {len(item.uncompared) - 5} more ranges" if len(item.uncompared) > 5 else ""
        reason = item.uncompared_reason or "there is no archive"
        return (
            Outcome.WARNING,
            f"source offsets {shown}{more} were deleted on the source before they were compared ({reason}): the "
            f"target has {item.uncompared_records} records there, {item.compared} other records are equal",
        )
    if not item.is_proven:
        return Outcome.WARNING, f"none of its {item.target_records} records could be compared: all are explained"
    return Outcome.PASSED, ""


def _content_problem(item: PartitionContent | None) -> str:
    if item is None:
        return "the partition was not compared"
    if item.error is not None:
        return f"the partition could not be compared: {item.error.get('what', item.error)}"
    if item.difference_count:
        shown = ", ".join(
            f"{difference.kind} at source offset {difference.source_offset}, target offset {difference.target_offset}"
            for difference in item.differences[:3]
        )
        return f"{item.difference_count} differences: {shown}"
    if item.source_digest != item.target_digest and not item.explained:
        return "the digests differ"
    return ""


def check_sentinels(
    boundary: Boundary,
    expected: Mapping[TopicPartition, int | None],
    on_target: Mapping[TopicPartition, int | None],
) -> CheckResult:
    """Check that every sentinel is on the target, at the offset that the map gives.

    :param expected: target offset of the sentinel by source partition; None: the map has no offset for it.
    :param on_target: target offset at which it was found; None: it was not found.
    """
    if boundary.mode == "end_offsets":
        return CheckResult(
            name="sentinels",
            outcome=Outcome.PASSED,
            summary="none were written (sentinel: end_offsets); the recorded ends are checked with the offsets",
        )
    rows: list[dict[str, Any]] = []
    findings = []
    for sentinel in sorted(boundary.sentinels, key=lambda item: (item.topic, item.partition)):
        key = (sentinel.topic, sentinel.partition)
        wanted, seen = expected.get(key), on_target.get(key)
        good = wanted is not None and wanted == seen
        if not good:
            place = "not found" if seen is None else f"at offset {seen}"
            findings.append(f"{key[0]}-{key[1]}: the sentinel is {place} on the target, expected at offset {wanted}")
        rows.append(
            {
                "topic": key[0],
                "partition": key[1],
                "source_offset": sentinel.offset,
                "target_offset": seen,
                "outcome": (Outcome.PASSED if good else Outcome.FAILED).value,
            }
        )
    missing = sorted(expected.keys() - {(item.topic, item.partition) for item in boundary.sentinels})
    findings += [f"{topic}-{partition}: no sentinel was written" for topic, partition in missing]
    return CheckResult(
        name="sentinels",
        outcome=Outcome.FAILED if findings else Outcome.PASSED,
        summary=f"{len(rows) - len(findings) + len(missing)} of {len(expected)} sentinels at the expected offset",
        partitions=rows,
        findings=findings,
    )


@dataclass(frozen=True)
class TargetCommits:
    """The current state of a group on the target, and its committed offsets by target partition."""

    state: str
    is_empty: bool
    offsets: Mapping[TopicPartition, int]
    error: str = ""


def check_groups(
    groups: Sequence[GroupResult],
    commits: Mapping[str, TargetCommits],
    ends: Mapping[TopicPartition, int],
    active_on_source: Sequence[str] = (),
) -> CheckResult:
    """Check that every translated offset is committed on the target, or that a consumer has advanced past it.

    :param groups: result of the last sync.
    :param commits: what the target has now, by group.
    :param ends: target log ends by target partition.
    """
    rows: list[dict[str, Any]] = []
    findings: list[str] = []
    outcomes = []
    for group in sorted(groups, key=lambda item: item.group):
        outcome, problems, counted = _group(group, commits.get(group.group), ends)
        outcomes.append(outcome)
        row = {"group": group.group, "type": group.type, "outcome": outcome.value, **counted, "problems": problems}
        rows.append(row)
        findings += [f"{group.group}: {problem}" for problem in problems]
    for name in sorted(active_on_source):
        outcomes.append(Outcome.WARNING)
        findings.append(f"{name}: the group had members on the source when the client switch was acknowledged")
    total = sum(row["partitions"] for row in rows)
    good = sum(row["right"] + row["advanced"] for row in rows)
    summary = f"{len(rows)} groups, {good} of {total} committed offsets correct"
    return CheckResult(name="groups", outcome=worst(outcomes), summary=summary, partitions=rows, findings=findings)


def _group(
    group: GroupResult, commits: TargetCommits | None, ends: Mapping[TopicPartition, int]
) -> tuple[Outcome, list[str], dict[str, int]]:
    counted = {"partitions": 0, "right": 0, "advanced": 0}
    if group.failures:
        return Outcome.FAILED, [f"the group was not committed: {group.failures[0].get('what', '')}"], counted
    if group.skipped_reason:
        needed = any(item.target_offset is not None for item in group.offsets)
        return (
            (Outcome.WARNING, [f"left alone: {group.skipped_reason}"], counted)
            if needed
            else (
                Outcome.PASSED,
                [],
                counted,
            )
        )
    if commits is None or commits.error:
        why = commits.error if commits else "no answer"
        return Outcome.FAILED, [f"the group cannot be read on the target: {why}"], counted
    outcomes = [Outcome.PASSED]
    problems = []
    for item in group.offsets:
        if item.target_offset is None:
            outcomes.append(Outcome.WARNING)
            problems.append(f"{item.topic}-{item.partition} was skipped: {item.reason}")
            continue
        outcome, problem = _committed(item, commits, ends, counted)
        outcomes.append(outcome)
        problems += [problem] if problem else []
    return worst(outcomes), problems, counted


def _committed(
    item: TranslatedOffset, commits: TargetCommits, ends: Mapping[TopicPartition, int], counted: dict[str, int]
) -> tuple[Outcome, str]:
    key = (item.target_topic, item.partition)
    wanted, seen = item.target_offset, commits.offsets.get(key)
    counted["partitions"] += 1
    name = f"{key[0]}-{key[1]}"
    if seen is None:
        return Outcome.FAILED, f"{name} has no committed offset, expected {wanted}"
    if seen == wanted:
        counted["right"] += 1
        return Outcome.PASSED, ""
    assert wanted is not None
    if seen < wanted:
        return Outcome.FAILED, f"{name} is at {seen}, before {wanted}: records would be read again"
    if seen > ends.get(key, seen):
        return Outcome.FAILED, f"{name} is at {seen}, beyond the log's end {ends[key]}"
    counted["advanced"] += 1
    if item.reason or not commits.is_empty:
        # The group was ahead from the start, or its consumers run on the target and have advanced.
        return Outcome.PASSED, ""
    return Outcome.WARNING, f"{name} is at {seen}, past {wanted}: a consumer has advanced, or someone moved the offset"


# -- validate drift ---------------------------------------------------------------------------------------------------
#
# The check that topic configs and access rights that changed on the source since the plan are on the target, too.


_FIX = "make both clusters equal, or set topology.on_source_drift: ignore"
_WITHDRAWN = "this change removes write access on the source; if it should apply to the target, too, make it by hand"


def check(record: MigrationRecord, source: Cluster, target: Cluster) -> CheckResult:
    """Check what changed on the source: differing configs and ACLs fail, users and quotas warn; ``ignore`` only warns.

    A change that removes write access is a warning, too: it stops producers, or keeps them off the source for good
    after the switch, while on the target they are meant to write. Changes before the freeze were checked there.
    What cannot be read is a failure, too, because it may have changed.
    """
    serious = Outcome.WARNING if record.spec.topology.on_source_drift == "ignore" else Outcome.FAILED
    plan = record.plan()
    try:
        drift = source_drift.read_drift(record, source, target, plan)
    except Terminal as error:
        finding = f"the changes on the source could not be read: {error.what}; {error.next_step}"
        return CheckResult(name="source_drift", outcome=serious, summary="not checked", findings=[finding])
    drift, withdrawn = source_drift.split(drift)
    rows = [{"what": line, "outcome": serious.value} for line in (*drift.config_lines, *drift.acl_lines)]
    rows += [{"what": f"{line}: {_WITHDRAWN}", "outcome": Outcome.WARNING.value} for line in withdrawn.lines]
    rows += [{"what": line, "outcome": Outcome.WARNING.value} for line in drift.other_lines]
    rows += [{"what": f"{what}: {why}", "outcome": Outcome.WARNING.value} for what, why in sorted(drift.named.items())]
    findings = [f"{row['what']} ({_FIX})" if row["outcome"] == Outcome.FAILED else row["what"] for row in rows]
    if access := _access_unchecked(record):
        findings.append(access)
        rows.append({"what": access, "outcome": Outcome.WARNING.value})
    return CheckResult(
        name="source_drift",
        outcome=worst(Outcome(row["outcome"]) for row in rows),
        summary=_drift_summary(record, len(plan.topics), len(rows)),
        partitions=[dict(row) for row in rows],
        findings=findings,
    )


def _copied(record: MigrationRecord) -> bool:
    return record.is_access_copied()


def _access_unchecked(record: MigrationRecord) -> str:
    """Return why ACLs were not compared; empty if they were, or if the spec does not copy them."""
    section = record.spec.acls
    if section.policy == "skip":
        return ""
    if not _copied(record):
        return "ACLs, users and quotas were not compared: the journal has no entry that they were copied"
    if section.target_auth == "iam":
        return "ACLs were not compared: the target's rights are IAM policies, which a person applies"
    return ""


def _drift_summary(record: MigrationRecord, topics: int, differences: int) -> str:
    section = record.spec.acls
    parts = [f"configs of {topics} topics"]
    if _copied(record):
        parts += ["ACLs"] if section.policy != "skip" and section.target_auth == "kafka" else []
        parts += ["users"] + (["quotas"] if section.quotas != "skip" else [])
    text = f"{', '.join(parts)} compared with the source"
    return text + (f": {differences} findings" if differences else ": nothing differs")


# -- validate late ----------------------------------------------------------------------------------------------------
#
# Partitions of migrated topics that appeared too late to be copied: the parity check never ignores them.


def with_late_partitions(record: MigrationRecord, source: Cluster, check: CheckResult) -> CheckResult:
    """Add to the parity check the partitions that the freeze named as not part of the migration.

    An empty one is a warning: the source topic has more partitions than its copy, so keys map to other partitions. One
    that holds records is an unexplained difference, unless ``cutover.on_bypass: continue`` accepts such writes.
    """
    late = follow.born_late(record)
    if not late:
        return check
    topics = [topic.name for topic in record.plan().topics]
    keys: list[TopicPartition] = [
        (name, part.partition)
        for name, facts in sorted(source.admin.describe_topics(topics).items())
        for part in facts.partitions
        if partition_name((name, part.partition)) in late
    ]
    ends = source.wire.list_offsets(keys, "log_end") if keys else {}
    accepted = record.spec.cutover.on_bypass == "continue"
    findings = [f"{partition_name(key)} appeared in the freeze and was not copied: {_holds(ends[key])}" for key in keys]
    outcomes = [Outcome.FAILED if ends[key] and not accepted else Outcome.WARNING for key in keys]
    return check.model_copy(
        update={"outcome": worst([check.outcome, *outcomes]), "findings": [*check.findings, *findings]}
    )


def _holds(end_offset: int) -> str:
    return f"it holds {end_offset} offsets" if end_offset else "it is empty"


# -- validate ---------------------------------------------------------------------------------------------------------


PHASE = "validating"
#: A KRaft broker describes configs as of the metadata that it has applied, which may lag behind the controller that
#: has just restored them. So a difference counts only if it lasts this long.
CONFIGS_VISIBLE_SECONDS = 5.0
_PARITY_LEFT_OUT = "not checked: retention is not restored before the content is proven"
#: Characters of a check's first finding in the summary; results/validation.json has all findings in full.
_SHOWN_CHARACTERS = 300


def run(context: PhaseContext) -> PhaseResult:
    """Run all checks; write the result to ``results/validation.json`` and the journal.

    A passed validation is not run again. After a failed one, each run repeats every check except that of proven
    content: once all content has passed, configs that delete data are restored, and log starts move.

    :raises ValidationFailed: source and target differ; the evidence of the failure is stored as an attempt.
    """
    result = context.record.passed_validation()
    if result is not None:
        return _phase_result(result, already_done=True)
    started = _begin(context)
    passed = _load_passed(context)
    contents = passed.contents if passed is not None else compare(context, _document(context.record))
    return _conclude(context, started, contents, passed)


def prepare_job(context: PhaseContext) -> Step:
    """Write the job that compares the contents; if they were compared before, run all other checks at once."""
    result = context.record.passed_validation()
    if result is not None:
        return _phase_result(result, already_done=True)
    started = _begin(context)
    passed = _load_passed(context)
    if passed is not None:
        return _conclude(context, started, passed.contents, passed)
    content_jobs.write_content_job(context.record, context.source, content_ranges(_document(context.record)))
    return job_ref(context.record, content_jobs.JOB)


def finish(context: PhaseContext, ended: JobRef) -> Step:
    """Judge what the job has compared, and run all other checks.

    :raises ValidationFailed: source and target differ.
    """
    # Sampled again here: nothing but the job's name comes from ``prepare_job``, which may have been days ago.
    started = _begin(context)
    contents = _readable(context, content_jobs.read_results(context.record, ended.name))
    return _conclude(context, started, contents, None)


@dataclass(frozen=True)
class _Started:
    """When a validation began, and the schema ids that were found late."""

    at: str
    late: late_ids.LateIds


def _begin(context: PhaseContext) -> _Started:
    at = iso(context.now())
    prepare(context)
    # Before the contents are compared: kept ids that have appeared are gathered by the comparison.
    return _Started(at, late_ids.judge_again(context))


def _load_passed(context: PhaseContext) -> PassedContent | None:
    return load_passed(context.record, context.target, content_ranges(_document(context.record)))


def _conclude(
    context: PhaseContext, started: _Started, contents: Sequence[PartitionContent], passed: PassedContent | None
) -> PhaseResult:
    result = _validate(context, started, contents, passed)
    key = context.record.put_result(keys.VALIDATION, result)
    details = {
        "outcome": result.outcome.value,
        "digest": result.digest(),
        "result": key,
        "checks": {check.name: check.outcome.value for check in result.checks},
    }
    context.journal.step(steps.VALIDATED, details=details, reason=_summary(result))
    if result.outcome is Outcome.FAILED:
        publish_failure(context)
        raise failed(context.record, result)
    return _phase_result(result)


def _summary(result: ValidationResult) -> str:
    return f"validation {result.outcome}: {', '.join(_outcome(check) for check in result.checks)}"


def _outcome(check: CheckResult) -> str:
    """Format a check for the summary; if it has not passed, with its first finding and the number of others."""
    if check.outcome is Outcome.PASSED or not check.findings:
        return f"{check.name} {check.outcome}"
    more = f"; and {len(check.findings) - 1} more" if len(check.findings) > 1 else ""
    return f"{check.name} {check.outcome} ({check.findings[0][:_SHOWN_CHARACTERS]}{more})"


def _phase_result(result: ValidationResult, *, already_done: bool = False) -> PhaseResult:
    details: dict[str, Any] = {
        "outcome": result.outcome.value,
        "checks": {check.name: {"outcome": check.outcome.value, "summary": check.summary} for check in result.checks},
        "findings": [finding for check in result.checks for finding in check.findings][:100],
    }
    return PhaseResult(PHASE, _summary(result), details, already_done=already_done)


def failed(record: MigrationRecord, result: ValidationResult) -> ValidationFailed:
    """Return the error of a failed validation, with the failed checks, the first finding and their number."""
    bad = [check for check in result.checks if check.outcome is Outcome.FAILED]
    # A check that was left out follows from the failure of another one, so it never explains the failure.
    bad.sort(key=lambda check: check.summary == _PARITY_LEFT_OUT)
    findings = [finding for check in bad for finding in check.findings]
    return ValidationFailed(
        f"source and target differ: {', '.join(check.name for check in bad)}; {findings[0] if findings else ''}",
        where=record.where(PHASE),
        next_step=f"read all {len(findings)} findings in results/validation.json and correct their causes, then clear "
        "validate; nothing was deleted on the target",
        details={"checks": {check.name: check.findings[:50] for check in bad}},
    )


def _validate(
    context: PhaseContext, started: _Started, contents: Sequence[PartitionContent], passed: PassedContent | None
) -> ValidationResult:
    record = context.record
    document, boundary = _document(record), record.boundary()
    ends = boundary_ends(record, boundary)
    ranges = content_ranges(document)
    content = check_content(contents, list(ends))
    counts = _counts(context, document, ends, contents, compared_log_starts(record, ranges, passed))
    sentinels = passed.sentinels if passed is not None else _sentinels(record, context.target, document, boundary)
    if passed is None and worst([content.outcome, sentinels.outcome]) is not Outcome.FAILED:
        # Before anything may be deleted: if this run dies later, the next one completes it without reading again.
        target_keys = [(item.target_topic, item.partition) for item in ranges]
        starts = context.target.wire.list_offsets(target_keys, "earliest")
        save_passed(record, ranges, contents, sentinels, starts)
    proven = worst([content.outcome, counts.outcome, sentinels.outcome]) is not Outcome.FAILED
    results = [
        _parity(record, context.source, context.target, proven=proven),
        counts,
        with_overtaken(record, content),
        sentinels,
        _groups(record, context.target),
        check(record, context.source, context.target),
        check_schemas(context, contents, started.late.missed, started.late.unread),
    ]
    return ValidationResult(
        migration_id=context.migration_id,
        outcome=worst(check.outcome for check in results),
        checks=results,
        started_at=started.at,
        finished_at=iso(context.now()),
    )


def _document(record: MigrationRecord) -> OffsetMapDocument:
    document = record.offset_map()
    if document is None:
        raise FreezeFailed(
            "there is no offset-map.json, so nothing can be compared",
            where=record.where(PHASE),
            next_step="clear cutover.final_drain",
        )
    return document


# -- content ---------------------------------------------------------------------------------------------------------


def compare(context: PhaseContext, document: OffsetMapDocument) -> list[PartitionContent]:
    """Compare all records; return one result per partition that the verifier answered for, ascending.

    :raises Transient: some partitions could not be read, and trying again may help.
    """
    if context.verifier is None:
        raise Terminal(
            "the contents cannot be compared, because no verifier was given",
            where=context.where(PHASE),
            next_step="pass a verifier (Spark or local) when opening the migration",
        )
    return _readable(context, context.verifier.verify(content_ranges(document)))


def _readable(context: PhaseContext, contents: Iterable[PartitionContent]) -> list[PartitionContent]:
    """Return the results, ascending.

    :raises Transient: some partitions could not be read, and trying again may help.
    """
    found = sorted(contents, key=lambda item: item.key)
    retriable = [item for item in found if item.error is not None and item.error.get("kind") == "transient"]
    if retriable:
        first = retriable[0]
        raise Transient(
            f"{len(retriable)} partitions could not be read: {(first.error or {}).get('what')}",
            where=context.where(PHASE, topic=first.topic, partition=first.partition),
            next_step="clear validate: partitions that were compared are not compared again",
        )
    return found


def _counts(
    context: PhaseContext,
    document: OffsetMapDocument,
    ends: Mapping[TopicPartition, int],
    contents: Sequence[PartitionContent],
    compared_starts: Mapping[TopicPartition, int],
) -> CheckResult:
    section = context.spec.validation
    target_keys = [(item.target_topic, item.partition) for item in document.partitions]
    source_ends = _ends(context.source.wire, list(ends))
    late = read_late_writes(context.source.wire, ends, {key: item.end for key, item in source_ends.items()})
    rules = CountRules(
        tolerance=section.count_tolerance,
        late_writes={key: str(item) for key, item in late.items()},
        # ``on_bypass: continue`` accepts that what producers write after the freeze is left behind.
        on_late_writes="warn" if context.spec.cutover.on_bypass == "continue" else section.on_late_writes,
        retention_is_back=context.record.is_retention_restored(),
        compared_log_starts=compared_starts,
    )
    return check_counts(
        document,
        ends,
        source_ends,
        _ends(context.target.wire, target_keys),
        {item.key: item for item in contents},
        rules,
    )


def _ends(wire: Any, keys: list[TopicPartition]) -> dict[TopicPartition, Ends]:
    starts, ends = wire.list_offsets(keys, "earliest"), wire.list_offsets(keys, "latest")
    return {key: Ends(starts[key], ends[key]) for key in keys}


# -- the other checks ------------------------------------------------------------------------------------------------


def _parity(record: MigrationRecord, source: Cluster, target: Cluster, *, proven: bool) -> CheckResult:
    """Check parity, but only once the content is proven: then configs that delete data are restored first."""
    if not proven:
        return CheckResult(
            name="topic_parity",
            outcome=Outcome.FAILED,
            summary=_PARITY_LEFT_OUT,
            findings=["the copy-time configs that keep data are still set, because the content is not proven"],
        )
    copy_settings.restore_deleting(record, target)
    plan = record.plan()
    described = source.admin.describe_topics([topic.name for topic in plan.topics])
    late = follow.born_late(record)
    counts = {
        name: sum(partition_name((name, part.partition)) not in late for part in item.partitions)
        for name, item in described.items()
        if item.error is None
    }
    deadline = time.monotonic() + CONFIGS_VISIBLE_SECONDS
    while True:
        check = check_topic_parity(plan.topics, counts, _target_topics(target, plan))
        if check.outcome is not Outcome.FAILED or time.monotonic() >= deadline:
            return with_late_partitions(record, source, check)
        time.sleep(0.5)


def _target_topics(target: Cluster, plan: Plan) -> dict[str, TargetTopic]:
    names = [topic.target_name for topic in plan.topics]
    facts = target.admin.describe_topics(names)
    configs = target.admin.topic_configs(names)
    return {
        name: TargetTopic(
            len(facts[name].partitions) if name in facts and facts[name].error is None else 0,
            configs[name].overrides if name in configs else {},
        )
        for name in names
    }


def _sentinels(
    record: MigrationRecord, target: Cluster, document: OffsetMapDocument, boundary: Boundary
) -> CheckResult:
    if boundary.mode == "end_offsets":
        return check_sentinels(boundary, {}, {})
    maps = closed_maps(document)
    target_topics = {(item.topic, item.partition): item.target_topic for item in document.partitions}
    expected = {
        (item.topic, item.partition): maps[item.topic, item.partition].translate(item.offset).target_offset
        for item in boundary.sentinels
        if (item.topic, item.partition) in maps
    }
    starts = {(target_topics[key], key[1]): offset for key, offset in expected.items() if offset is not None}
    ends = {key: offset + 1 for key, offset in starts.items()}
    log_ends = target.wire.list_offsets(list(starts), "latest") if starts else {}
    reachable = {key: offset for key, offset in starts.items() if offset < log_ends[key]}
    found = sentinels_between(target.wire, record.migration_id, reachable, ends) if reachable else {}
    seen = {key: found.get((target_topics[key], key[1])) for key in expected}
    everywhere: dict[TopicPartition, int | None] = dict.fromkeys(target_topics)
    return check_sentinels(boundary, {**everywhere, **expected}, seen)


def _groups(record: MigrationRecord, target: Cluster) -> CheckResult:
    result = record.final_groups()
    if result is None:
        return CheckResult(
            name="groups", outcome=Outcome.FAILED, summary="no groups were committed", findings=["no group results"]
        )
    states = offsets.target_states(target, {item.group: item.type for item in result.groups})
    commits = {
        name: TargetCommits(
            state=state.state,
            is_empty=state.is_empty,
            offsets={key: value.offset for key, value in state.offsets.items()},
            error=str(state.error or ""),
        )
        for name, state in states.items()
    }
    places = sorted({(item.target_topic, item.partition) for group in result.groups for item in group.offsets})
    places = [place for place in places if place[0]]
    ends = target.wire.list_offsets(places, "latest") if places else {}
    return check_groups(result.groups, commits, ends, result.active_on_source)


def _run_job(context: PhaseContext, job: JobRef) -> None:
    content_jobs.run_content_job(context, job)


JOB_PHASE: Final = JobPhase(
    jobs=(content_jobs.JOB,),
    prepare=prepare_job,
    finish=finish,
    run_job=_run_job,
    read_progress=content_jobs.content_progress,
)
