"""The checks of a validation, but for the content: facts in, :class:`CheckResult` out. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_provider_kafka_migration.documents.cutover import Boundary
from airflow_provider_kafka_migration.documents.groups import GroupResult, TranslatedOffset
from airflow_provider_kafka_migration.documents.offset_map import MappedPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import TopicPlan, Verdict
from airflow_provider_kafka_migration.documents.proof import CheckResult, Outcome, PartitionContent, worst
from airflow_provider_kafka_migration.kafka.wire import TopicPartition


@dataclass(frozen=True)
class TargetTopic:
    """A topic as it is on the target; ``partitions`` is 0 where it does not exist."""

    partitions: int
    overrides: Mapping[str, str]


def check_topic_parity(
    topics: Sequence[TopicPlan], source_partitions: Mapping[str, int], targets: Mapping[str, TargetTopic]
) -> CheckResult:
    """Partition counts equal those of the source; configs equal those of the plan, and nothing else is set.

    :param source_partitions: present partition counts by source topic.
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
        return ["it is not on the target"]
    problems = []
    expected = source_count if source_count is not None else len(topic.partitions)
    if target.partitions < expected or (target.partitions != expected and not topic.shared):
        problems.append(f"{target.partitions} partitions, the source has {expected}")
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
    """What the check of counts lets pass.

    :param tolerance: records.
    :param late_writes: by source partition, what was written to the source after the boundary, for people.
    :param on_late_writes: whether that fails the check.
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
    """Both logs end equal (less the map), nothing was cut, and the records of both sides are as many.

    :param boundary: exclusive source ends of the cutover; ``source``, ``contents`` likewise by source topic.
    :param target: by target topic.
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
    """A log start past the first copied offset. What was compared before it was deleted is no loss of the copy."""
    first, last = item.target_start_offset or 0, item.target_end_offset or 0
    if target.start <= first or last <= first:
        return [], []
    text = f"the log starts at {target.start}, past the first copied offset {first}"
    if content is None or not content.is_equal:
        return [text], []
    if rules.retention_is_back:
        return [], []
    since = "somebody has deleted it on the target since (DeleteRecords)"
    if content.is_proven:
        return [], [f"{text}: all of it was compared before; {since}"]
    seen = rules.compared_log_starts.get((item.topic, item.partition))
    if seen is None or seen > first:
        return [text], []
    return [], [f"{text}: it was all there when it was compared, as far as the source still had it; {since}"]


def _target_problems(item: MappedPartition, target: Ends, first: int, last: int) -> list[str]:
    errors = []
    if target.start < first and item.verdict != Verdict.TRANSACTIONAL:
        errors.append(
            f"the log starts at {target.start}, below the start of the copied range, {first}: fillers can be read "
            "again (a broker has crashed just after they were deleted); delete records below that offset"
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
        return ["it has no offset map"], []
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
        warnings.append("the source partition is gone")
    elif source.end < boundary_end:
        errors.append(f"the source ends at {source.end} now, it ended at {boundary_end} at the cutover")
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
    """Everything is equal or explained, and every partition was compared.

    What nobody could compare, because the source had deleted it before, is a warning with its ranges. So is a partition
    with records of which none was compared.
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
    summary += f", {explained} more on the target, as they should be" if explained else ""
    if uncompared:
        records = sum(item.uncompared_records for item in uncompared)
        summary += f", NOT COMPARED: {records} records in {len(uncompared)} partitions (deleted on the source)"
    return summary


def _content_outcome(item: PartitionContent | None) -> tuple[Outcome, str]:
    """The outcome of a partition, and what is not as it should be."""
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
        return "it was not compared"
    if item.error is not None:
        return f"it could not be compared: {item.error.get('what', item.error)}"
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
    """Every sentinel is on the target, at the offset that the map gives.

    :param expected: target offset of the sentinel by source partition; None: the map has no place for it.
    :param on_target: where it was found; None: it was not.
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
            place = "not found" if seen is None else f"at {seen}"
            findings.append(f"{key[0]}-{key[1]}: the sentinel is {place} on the target, expected at {wanted}")
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
        summary=f"{len(rows) - len(findings) + len(missing)} of {len(expected)} sentinels at their place",
        partitions=rows,
        findings=findings,
    )


@dataclass(frozen=True)
class TargetCommits:
    """What a group has on the target now: state, and committed offsets by target partition."""

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
    """Every translated offset is committed on the target, or a consumer has gone on from it.

    :param groups: result of the last refresh; ``commits`` what the target has now, by group.
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
        findings.append(f"{name}: it had members on the source when the client switch was acknowledged")
    total = sum(row["partitions"] for row in rows)
    good = sum(row["right"] + row["advanced"] for row in rows)
    summary = f"{len(rows)} groups, {good} of {total} committed offsets right"
    return CheckResult(name="groups", outcome=worst(outcomes), summary=summary, partitions=rows, findings=findings)


def _group(
    group: GroupResult, commits: TargetCommits | None, ends: Mapping[TopicPartition, int]
) -> tuple[Outcome, list[str], dict[str, int]]:
    counted = {"partitions": 0, "right": 0, "advanced": 0}
    if group.failures:
        return Outcome.FAILED, [f"it was not committed: {group.failures[0].get('what', '')}"], counted
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
        return Outcome.FAILED, [f"it cannot be read on the target: {why}"], counted
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
        # The group was ahead from the start, or its consumers run on the target: they have gone on.
        return Outcome.PASSED, ""
    return Outcome.WARNING, f"{name} is at {seen}, past {wanted}: a consumer has gone on, or somebody moved it"
