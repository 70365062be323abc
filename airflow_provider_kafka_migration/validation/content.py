"""Check: the comparison of all records has answered for each partition, and found both sides equal."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_kafka_migration.documents.proof import (
    CheckResult,
    Outcome,
    PartitionContent,
    worst,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition


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
