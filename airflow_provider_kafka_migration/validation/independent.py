"""Check: Spark's own Kafka source has read both clusters again, and found the same records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_kafka_migration.documents.independent import IndependentJob, IndependentResult, records_of
from airflow_provider_kafka_migration.documents.proof import CheckResult, Outcome, PartitionContent, worst
from airflow_provider_kafka_migration.jobs import independent_jobs
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext

NAME = "independent"
_SHOWN = 3


def check(context: PhaseContext, contents: Sequence[PartitionContent], *, has_passed: bool) -> CheckResult:
    """Judge what the reader found.

    It is NOT_RUN, by name and with the reason, where it could not run; if the spec asks for it by name, that is a
    warning. Where it has found differences before, it fails until it runs again or is switched off. What a side had
    deleted before Spark read it counts as compared only where the first comparison had proven the partition before.

    :param contents: results of the first comparison.
    :param has_passed: they are those of an earlier attempt; its independent proof counts, and no other one.
    """
    record = context.record
    why_not = "" if has_passed else independent_jobs.why_not(context)
    job = None if why_not else independent_jobs.read_job(record)
    if job is None or job.attempt != independent_jobs.attempt_of(record, has_passed=has_passed):
        nothing = "all content was proven without it" if has_passed else "there was nothing to compare"
        return _not_run(context, why_not or nothing)
    results = independent_jobs.read_results(record, job, whole=False)
    # A difference stays one, whatever has kept the reader from going on.
    if not any(result.reached_offset is None or result.difference_count for result in results):
        return _not_run(context, independent_jobs.read_not_run(record, job) or "it has left no result")
    return _judge(job, results, {item.key: item for item in contents})


def _not_run(context: PhaseContext, reason: str) -> CheckResult:
    is_wanted = context.spec.validation.independent in ("all", "sample")
    outcome = Outcome.WARNING if is_wanted else Outcome.NOT_RUN
    findings = [f"not run: {reason}"]
    if _has_failed_before(context):
        is_off = context.spec.validation.independent == "off"
        outcome = Outcome.WARNING if is_off else Outcome.FAILED
        findings.append(
            "an earlier attempt has found differences, which nothing has refuted: read both sides again, or set "
            "validation.independent: off"
        )
    return CheckResult(name=NAME, outcome=outcome, summary=f"NOT RUN: {reason}", findings=findings)


def _has_failed_before(context: PhaseContext) -> bool:
    """Whether the last validation in which this check said something has failed it."""
    said = (entry.details["checks"].get(NAME) for entry in reversed(context.record.journal.steps(steps.VALIDATED)))
    return next((outcome for outcome in said if outcome not in (None, Outcome.NOT_RUN)), None) == Outcome.FAILED


def _judge(
    job: IndependentJob, results: Sequence[IndependentResult], contents: Mapping[tuple[str, int], PartitionContent]
) -> CheckResult:
    by_key = {result.key: result for result in results}
    rows, findings = [], []
    for item in job.ranges:
        found = by_key.get(item.key)
        outcome, problem = _outcome(found, contents.get(item.key))
        if problem:
            findings.append(f"{item.topic}-{item.partition}: {problem}")
        rows.append(_row(item.key, found, outcome))
    return CheckResult(
        name=NAME,
        outcome=worst(Outcome(row["outcome"]) for row in rows),
        summary=_summary(job, results),
        partitions=rows,
        findings=findings,
    )


def _row(key: tuple[str, int], found: IndependentResult | None, outcome: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": key[0], "partition": key[1], "outcome": outcome.value}
    if found is not None:
        row |= found.model_dump(mode="json", exclude={"version", "migration_id", "job_digest", "range"})
    return row


def _outcome(found: IndependentResult | None, content: PartitionContent | None) -> tuple[Outcome, str]:
    if found is None:
        return Outcome.WARNING, "the partition was not read"
    if found.difference_count:
        shown = ", ".join(
            f"{item.kind} at source offset {item.source_offset}, target offset {item.target_offset}"
            for item in found.differences[:_SHOWN]
        )
        return Outcome.FAILED, f"{found.difference_count} differences: {shown}"
    if found.not_compared:
        return Outcome.WARNING, f"the partition was not compared: {found.not_compared}"
    if found.reached_offset is not None:
        return Outcome.WARNING, f"the partition was compared up to source offset {found.reached_offset} only"
    is_proven = content is not None and content.is_proven
    if found.deleted_records and not is_proven:
        return (
            Outcome.WARNING,
            f"{found.deleted_records} records of the target could not be compared: the source has deleted them",
        )
    if found.target_deleted_records and not is_proven:
        return (
            Outcome.WARNING,
            f"{found.target_deleted_records} records of the source could not be compared: the target has deleted them",
        )
    unread = _unread(found, content)
    return (Outcome.WARNING, unread) if unread else (Outcome.PASSED, "")


def _unread(found: IndependentResult, content: PartitionContent | None) -> str:
    """Say how much the reader has not seen: what it passes over on both sides without a word is no difference."""
    expected = 0 if content is None else content.target_records
    left = expected - found.target_records - found.target_deleted_records
    if left > 0:
        return f"the reader has read {found.target_records} records on the target, the first comparison {expected}"
    records = max(expected, found.target_records)
    if records and not found.compared and not found.explained:
        return f"none of its {records} records could be compared"
    return ""


def _summary(job: IndependentJob, results: Sequence[IndependentResult]) -> str:
    reader = results[0].reader
    text = f"{records_of(results)} records equal in {len(job.ranges)} partitions, read by the {reader}"
    if job.sample_seed is not None:
        text += f"; a sample (seed {job.sample_seed}), {job.left_out} partitions were not drawn"
    explained = sum(sum(result.explained.values()) for result in results)
    text += f"; {explained} more on the target, as expected" if explained else ""
    deleted = sum(result.deleted_records for result in results)
    text += f"; {deleted} records were no longer on the source to compare with" if deleted else ""
    deleted = sum(result.target_deleted_records for result in results)
    return text + (f"; {deleted} records were no longer on the target to compare with" if deleted else "")
