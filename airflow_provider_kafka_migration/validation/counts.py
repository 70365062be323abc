"""Check: each partition of the target has as many records and offsets as the source had at the boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_provider_kafka_migration.documents.copy import MappedPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import (
    CheckResult,
    Outcome,
    PartitionContent,
    worst,
)
from airflow_provider_kafka_migration.freeze.late_writes import read_late_writes
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.way_back import seen_from_first


@dataclass(frozen=True)
class Ends:
    """Log start and end of one partition."""

    start: int
    end: int


@dataclass(frozen=True)
class CountRules:
    """What the check of counts tolerates.

    :param late_writes: by source partition, a description of what was written to the source after the boundary.
    :param on_late_writes: whether late writes fail the check.
    :param retention_is_back: configs that delete data are in force on the target again, so log starts may move.
    :param compared_log_starts: by source partition, the target's log start that was seen after the comparison.
    :param adopted: source partitions below whose copied range is content of others.
    """

    late_writes: Mapping[TopicPartition, str] = field(default_factory=dict)
    on_late_writes: Literal["stop", "note"] = "stop"
    retention_is_back: bool = False
    compared_log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    adopted: frozenset[TopicPartition] = frozenset()


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


def _target_problems(
    item: MappedPartition, target: Ends, first: int, last: int, adopted: frozenset[TopicPartition]
) -> list[str]:
    errors = []
    is_adopted = (item.topic, item.partition) in adopted
    if target.start < first and item.verdict != Verdict.TRANSACTIONAL and not is_adopted:
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
    errors += _target_problems(item, target, first, last, rules.adopted)
    cut, deleted = _moved_start(item, target, content, rules)
    errors += cut
    warnings += deleted
    late = rules.late_writes.get((item.topic, item.partition))
    if late is not None:
        (warnings if rules.on_late_writes == "note" else errors).append(late)
    if source is None:
        warnings.append("the source partition no longer exists")
    elif source.end < boundary_end:
        errors.append(f"the source now ends at {source.end}, but at the cutover it ended at {boundary_end}")
    if content is not None and content.error is None:
        explained = sum(content.explained.values())
        off = abs(content.target_records - explained - content.uncompared_records - content.source_records)
        if off:
            errors.append(
                f"{content.target_records} records on the target ({explained} of them explained, "
                f"{content.uncompared_records} that the source has deleted), {content.source_records} on the source"
            )
    return errors, warnings


def check(
    context: PhaseContext,
    document: OffsetMapDocument,
    ends: Mapping[TopicPartition, int],
    contents: Sequence[PartitionContent],
    compared_starts: Mapping[TopicPartition, int],
) -> CheckResult:
    """Read the ends of both logs, and check the counts between them.

    :param compared_starts: log starts on the target when its content was compared; see :class:`CountRules`.
    """
    section = context.spec.validation
    target_keys = [(item.target_topic, item.partition) for item in document.partitions]
    source_ends = _ends(context.source.wire, list(ends))
    returned_at = seen_from_first.returned_at(context.record)
    late = read_late_writes(
        context.source.wire,
        ends,
        {key: min(item.end, returned_at.get(key, item.end)) for key, item in source_ends.items()},
        ours=seen_from_first.producer_ids(context.record),
    )
    rules = CountRules(
        late_writes={key: str(item) for key, item in late.items()},
        # ``on_bypass: note`` accepts that what producers write after the freeze is left behind.
        on_late_writes="note" if context.spec.cutover.on_bypass == "note" else section.on_late_writes,
        retention_is_back=context.record.is_retention_restored(),
        compared_log_starts=compared_starts,
        adopted=frozenset(key for key, item in context.record.partitions().items() if item.adopted),
    )
    found = check_counts(
        document,
        ends,
        source_ends,
        _ends(context.target.wire, target_keys),
        {item.key: item for item in contents},
        rules,
    )
    written = sum(key in source_ends and source_ends[key].end > offset for key, offset in returned_at.items())
    return _named(found, returned_at, written) if returned_at else found


def _named(found: CheckResult, returned_at: Mapping[TopicPartition, int], written: int) -> CheckResult:
    """Return the result with a warning that clients returned before it was known."""
    text = (
        f"clients may have returned to the source by the way back: {written} of its {len(returned_at)} partitions have "
        "records from there on, which are theirs and no late writes"
    )
    return found.model_copy(
        update={"outcome": worst([found.outcome, Outcome.WARNING]), "findings": [*found.findings, text]}
    )


def _ends(wire: Any, keys: list[TopicPartition]) -> dict[TopicPartition, Ends]:
    starts, ends = wire.list_offsets(keys, "earliest"), wire.list_offsets(keys, "latest")
    return {key: Ends(starts[key], ends[key]) for key in keys}
