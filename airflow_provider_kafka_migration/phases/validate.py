"""Validation: six checks, the third over all records. Nothing on the target is deleted before it passed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import Boundary
from airflow_provider_kafka_migration.documents.groups import GroupsResult
from airflow_provider_kafka_migration.documents.offset_map import OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.proof import (
    CheckResult,
    Outcome,
    PartitionContent,
    ValidationResult,
    worst,
)
from airflow_provider_kafka_migration.errors import FreezeFailed, Terminal, Transient, ValidationFailed
from airflow_provider_kafka_migration.evidence.publish import publish_failure
from airflow_provider_kafka_migration.freeze.late_writes import read_late_writes
from airflow_provider_kafka_migration.freeze.sentinel_records import sentinels_between
from airflow_provider_kafka_migration.groups import commit, offsets
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.phases import validate_checks as checks
from airflow_provider_kafka_migration.phases import validate_drift
from airflow_provider_kafka_migration.phases.validate_late import with_late_partitions
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import passed_content
from airflow_provider_kafka_migration.record.boundary import boundary_ends, load_boundary
from airflow_provider_kafka_migration.record.content_ranges import content_ranges
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.facts import get_result, partition_name, put_result
from airflow_provider_kafka_migration.record.offset_maps import closed_maps, load_document
from airflow_provider_kafka_migration.record.overtaken import with_overtaken
from airflow_provider_kafka_migration.record.passed_content import compared_log_starts, load_passed, save_passed
from airflow_provider_kafka_migration.record.timing import iso
from airflow_provider_kafka_migration.record.validate_result import RESULT, STEP, passed_result
from airflow_provider_kafka_migration.topics import copy_settings

PHASE = "validating"
#: A KRaft broker describes configs as of the metadata that it has applied, which may lag behind the controller that
#: has just put them back. A difference is one only if it stays for so long.
CONFIGS_VISIBLE_SECONDS = 5.0
#: Of the first finding of a check, in the summary; all are in results/validation.json.
_SHOWN_CHARACTERS = 300


def run(context: PhaseContext) -> PhaseResult:
    """All checks; the result goes to ``results/validation.json`` and the journal.

    A passed validation is not run again. After a failed one, each run repeats every check, except for content that
    is proven: once all of it has passed, configs that delete data are put back, and log starts move.

    :raises ValidationFailed: source and target differ; the evidence of it is stored as an attempt.
    """
    result = passed_result(context)
    if result is not None:
        return _phase_result(result, already_done=True)
    result = _validate(context)
    key = put_result(context, RESULT, result)
    details = {
        "outcome": result.outcome.value,
        "digest": result.digest(),
        "result": key,
        "checks": {check.name: check.outcome.value for check in result.checks},
    }
    context.journal.step(STEP, details=details, reason=_summary(result))
    if result.outcome is Outcome.FAILED:
        publish_failure(context)
        raise failed(context, result)
    return _phase_result(result)


def _summary(result: ValidationResult) -> str:
    return f"validation {result.outcome}: {', '.join(_outcome(check) for check in result.checks)}"


def _outcome(check: CheckResult) -> str:
    """A check in the summary; one that has not passed says why, and how much more there is."""
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


def failed(context: PhaseContext, result: ValidationResult) -> ValidationFailed:
    """The error of a failed validation: what failed first, and how much."""
    bad = [check for check in result.checks if check.outcome is Outcome.FAILED]
    findings = [finding for check in bad for finding in check.findings]
    return ValidationFailed(
        f"source and target differ: {', '.join(check.name for check in bad)}; {findings[0] if findings else ''}",
        where=context.where(PHASE),
        next_step=f"see all {len(findings)} findings in results/validation.json; nothing was deleted on the target; "
        "correct them, then clear validate",
        details={"checks": {check.name: check.findings[:50] for check in bad}},
    )


def _validate(context: PhaseContext) -> ValidationResult:
    started = iso(context.now())
    document, boundary = _document(context), load_boundary(context)
    ends = boundary_ends(context, boundary)
    ranges = content_ranges(document)
    passed = load_passed(context, ranges)
    contents = passed.contents if passed is not None else compare(context, document)
    content = checks.check_content(contents, list(ends))
    counts = _counts(context, document, ends, contents, compared_log_starts(context, ranges, passed))
    sentinels = passed.sentinels if passed is not None else _sentinels(context, document, boundary)
    if passed is None and worst([content.outcome, sentinels.outcome]) is not Outcome.FAILED:
        # Before anything may be deleted: a run that dies from here on is completed by one that need not read again.
        target_keys = [(item.target_topic, item.partition) for item in ranges]
        starts = context.target.wire.list_offsets(target_keys, "earliest")
        save_passed(context, ranges, contents, sentinels, starts)
    proven = worst([content.outcome, counts.outcome, sentinels.outcome]) is not Outcome.FAILED
    results = [
        _parity(context, proven=proven),
        counts,
        with_overtaken(context, content),
        sentinels,
        _groups(context),
        validate_drift.check(context),
    ]
    return ValidationResult(
        migration_id=context.migration_id,
        outcome=worst(check.outcome for check in results),
        checks=results,
        started_at=started,
        finished_at=iso(context.now()),
    )


def _document(context: PhaseContext) -> OffsetMapDocument:
    document = load_document(context)
    if document is None:
        raise FreezeFailed(
            "there is no offset-map.json, so nothing can be compared",
            where=context.where(PHASE),
            next_step="clear cutover.final_drain",
        )
    return document


# -- content ---------------------------------------------------------------------------------------------------------


def compare(context: PhaseContext, document: OffsetMapDocument) -> list[PartitionContent]:
    """Run the comparison of all records; one result per partition that was answered, ascending.

    :raises Transient: partitions could not be read, and trying again may help.
    """
    if context.verifier is None:
        raise Terminal(
            "there is nobody to compare the contents: no verifier was given",
            where=context.where(PHASE),
            next_step="give a verifier (Spark or local) when the migration is opened",
        )
    found = sorted(context.verifier.verify(content_ranges(document)), key=lambda item: item.key)
    retriable = [item for item in found if item.error is not None and item.error.get("kind") == "transient"]
    if retriable:
        first = retriable[0]
        raise Transient(
            f"{len(retriable)} partitions could not be read: {(first.error or {}).get('what')}",
            where=context.where(PHASE, topic=first.topic, partition=first.partition),
            next_step="clear validate: what was compared is kept",
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
    rules = checks.CountRules(
        tolerance=section.count_tolerance,
        late_writes={key: str(item) for key, item in late.items()},
        # Whoever lets producers go on after the freeze has accepted that what they write is left behind.
        on_late_writes="warn" if context.spec.cutover.on_bypass == "continue" else section.on_late_writes,
        retention_is_back=context.journal.find_step(passed_content.DELETING_RESTORED) is not None,
        compared_log_starts=compared_starts,
    )
    return checks.check_counts(
        document,
        ends,
        source_ends,
        _ends(context.target.wire, target_keys),
        {item.key: item for item in contents},
        rules,
    )


def _ends(wire: Any, keys: list[TopicPartition]) -> dict[TopicPartition, checks.Ends]:
    starts, ends = wire.list_offsets(keys, "earliest"), wire.list_offsets(keys, "latest")
    return {key: checks.Ends(starts[key], ends[key]) for key in keys}


# -- the other checks ------------------------------------------------------------------------------------------------


def _parity(context: PhaseContext, *, proven: bool) -> CheckResult:
    """Configs that delete data are put back only when the content is proven; then everything must be as planned."""
    if not proven:
        return CheckResult(
            name="topic_parity",
            outcome=Outcome.FAILED,
            summary="not checked: retention is not put back before the content is proven",
            findings=["the copy-time configs that keep data are still set, because the content is not proven"],
        )
    copy_settings.restore_deleting(context)
    plan = context.load_plan()
    source = context.source.admin.describe_topics([topic.name for topic in plan.topics])
    late = follow.born_late(context)
    counts = {
        name: sum(partition_name((name, part.partition)) not in late for part in item.partitions)
        for name, item in source.items()
        if item.error is None
    }
    deadline = time.monotonic() + CONFIGS_VISIBLE_SECONDS
    while True:
        check = checks.check_topic_parity(plan.topics, counts, _target_topics(context, plan))
        if check.outcome is not Outcome.FAILED or time.monotonic() >= deadline:
            return with_late_partitions(context, check)
        time.sleep(0.5)


def _target_topics(context: PhaseContext, plan: Plan) -> dict[str, checks.TargetTopic]:
    names = [topic.target_name for topic in plan.topics]
    facts = context.target.admin.describe_topics(names)
    configs = context.target.admin.topic_configs(names)
    return {
        name: checks.TargetTopic(
            len(facts[name].partitions) if name in facts and facts[name].error is None else 0,
            configs[name].overrides if name in configs else {},
        )
        for name in names
    }


def _sentinels(context: PhaseContext, document: OffsetMapDocument, boundary: Boundary) -> CheckResult:
    if boundary.mode == "end_offsets":
        return checks.check_sentinels(boundary, {}, {})
    maps = closed_maps(document)
    target_topics = {(item.topic, item.partition): item.target_topic for item in document.partitions}
    expected = {
        (item.topic, item.partition): maps[item.topic, item.partition].translate(item.offset).target_offset
        for item in boundary.sentinels
        if (item.topic, item.partition) in maps
    }
    starts = {(target_topics[key], key[1]): offset for key, offset in expected.items() if offset is not None}
    ends = {key: offset + 1 for key, offset in starts.items()}
    log_ends = context.target.wire.list_offsets(list(starts), "latest") if starts else {}
    reachable = {key: offset for key, offset in starts.items() if offset < log_ends[key]}
    found = sentinels_between(context.target.wire, context.migration_id, reachable, ends) if reachable else {}
    seen = {key: found.get((target_topics[key], key[1])) for key in expected}
    everywhere: dict[TopicPartition, int | None] = dict.fromkeys(target_topics)
    return checks.check_sentinels(boundary, {**everywhere, **expected}, seen)


def _groups(context: PhaseContext) -> CheckResult:
    data = get_result(context, commit.FINAL_GROUPS) or get_result(context, commit.RESULT)
    if data is None:
        return CheckResult(
            name="groups", outcome=Outcome.FAILED, summary="no groups were committed", findings=["no result of groups"]
        )
    result = GroupsResult.parse(data)
    states = offsets.target_states(context, {item.group: item.type for item in result.groups})
    commits = {
        name: checks.TargetCommits(
            state=state.state,
            is_empty=state.is_empty,
            offsets={key: value.offset for key, value in state.offsets.items()},
            error=str(state.error or ""),
        )
        for name, state in states.items()
    }
    keys = sorted({(item.target_topic, item.partition) for group in result.groups for item in group.offsets})
    keys = [key for key in keys if key[0]]
    ends = context.target.wire.list_offsets(keys, "latest") if keys else {}
    return checks.check_groups(result.groups, commits, ends, result.active_on_source)
