"""Validation: eight checks. The third compares all records, and the last one compares them again by other code.

Nothing on the target is deleted before its content has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_kafka_migration.documents.copy import OffsetMapDocument
from airflow_provider_kafka_migration.documents.proof import (
    CheckResult,
    Outcome,
    PartitionContent,
    PassedContent,
    ValidationResult,
    worst,
)
from airflow_provider_kafka_migration.errors import FreezeFailed, MigrationError, Terminal, Transient, ValidationFailed
from airflow_provider_kafka_migration.evidence.publish import publish_failure
from airflow_provider_kafka_migration.jobs import content_jobs, independent_jobs
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase, Step, job_ref
from airflow_provider_kafka_migration.planning import late_ids
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import JobRef, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.freeze_attempt import boundary_ends
from airflow_provider_kafka_migration.record.overtaken import with_overtaken
from airflow_provider_kafka_migration.record.passed_content import (
    compared_log_starts,
    content_ranges,
    load_passed,
    save_passed,
)
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.schemas.check import check_schemas, prepare
from airflow_provider_kafka_migration.validation import (
    content,
    counts,
    groups,
    independent,
    sentinels,
    source_drift,
    topics,
)

PHASE = "validating"
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
    if passed is not None:
        return _conclude(context, started, passed.contents, passed)
    contents = compare(context, _document(context.record))
    _compare_independently(context)
    return _conclude(context, started, contents, None)


def _compare_independently(context: PhaseContext) -> None:
    if not independent_jobs.write_job(context, content_ranges(_document(context.record))):
        return
    try:
        _run_job(context, job_ref(context.record, independent_jobs.JOB))
    except MigrationError as error:
        if not independent_jobs.note_not_run(context.record, error):
            raise


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
    contents = _readable(context, content_jobs.read_results(context.record, content_jobs.JOB))
    is_first = ended.name == content_jobs.JOB
    if is_first and independent_jobs.write_job(context, content_ranges(_document(context.record))):
        return job_ref(context.record, independent_jobs.JOB)
    # Sampled again here: nothing but the job's name comes from ``prepare_job``, which may have been days ago.
    return _conclude(context, _begin(context), contents, None)


def _run_job(context: PhaseContext, job: JobRef) -> None:
    if job.name == content_jobs.JOB:
        content_jobs.run_content_job(context, job)
        return
    runner = independent_jobs.runner_of(context)
    assert runner is not None, "a job of it is written only for a runner"
    runner.run(context.record, job, lambda: independent_jobs.progress(context.record))


def _read_progress(record: MigrationRecord, job: JobRef) -> Progress | None:
    if job.name == content_jobs.JOB:
        return content_jobs.content_progress(record, job)
    return independent_jobs.progress(record)


def _can_do_without(context: PhaseContext, error: MigrationError) -> bool:
    """Whether the job that failed is the independent proof, for a reason for which it counts as not run.

    Nobody can do without the first comparison: as long as it has not answered for all partitions, the job is that one.
    """
    try:
        content_jobs.read_results(context.record, content_jobs.JOB)
    except MigrationError:
        return False
    return independent_jobs.note_not_run(context.record, error)


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
    bad.sort(key=lambda check: check.summary == topics.LEFT_OUT)
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
    compared = content.check_content(contents, list(ends))
    second = independent.check(context, contents, has_passed=passed is not None)
    counted = counts.check(context, document, ends, contents, compared_log_starts(record, ranges, passed))
    if passed is not None:
        found = passed.sentinels
    else:
        found = sentinels.check(record, context.target, document, boundary)
    if passed is None and worst([compared.outcome, found.outcome, second.outcome]) is not Outcome.FAILED:
        # Before anything may be deleted: if this run dies later, the next one completes it without reading again.
        target_keys = [(item.target_topic, item.partition) for item in ranges]
        starts = context.target.wire.list_offsets(target_keys, "earliest")
        save_passed(record, ranges, contents, found, starts)
    proven = worst([compared.outcome, counted.outcome, found.outcome, second.outcome]) is not Outcome.FAILED
    results = [
        topics.check(record, context.source, context.target, proven=proven),
        counted,
        with_overtaken(record, compared),
        found,
        groups.check(record, context.target),
        source_drift.check(record, context.source, context.target),
        check_schemas(context, contents, started.late.missed, started.late.unread),
        second,
    ]
    return ValidationResult(
        migration_id=context.migration_id,
        # A check that was left out says nothing about the migration; its own row says that it did not run.
        outcome=worst(check.outcome for check in results if check.outcome is not Outcome.NOT_RUN),
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


JOB_PHASE: Final = JobPhase(
    jobs=(content_jobs.JOB, independent_jobs.JOB),
    prepare=prepare_job,
    finish=finish,
    run_job=_run_job,
    read_progress=_read_progress,
    is_enough=_can_do_without,
)
