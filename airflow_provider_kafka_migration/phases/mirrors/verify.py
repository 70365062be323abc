"""Verify: compare the contents of both sides of a mirror on Spark. It reads only, and makes no claim.

It runs beside the mirror, in a run of its own. Killed at any moment, another attempt of the same run continues: what
was found equal is not compared again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from airflow_provider_kafka_migration.documents.mirror import MirrorVerification, VerifiedPartition
from airflow_provider_kafka_migration.errors import ContentsDiffer, ContentsUnchecked, Transient
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase, Step, job_ref
from airflow_provider_kafka_migration.mirrors import comparison_job
from airflow_provider_kafka_migration.mirrors.verification import Scope, in_order, note_of
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import JobRef, PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.partition_names import partition_name

log = logging.getLogger(__name__)

PHASE: Final = "verify"
#: Partitions that the log names one by one, and those that the error names.
_LOGGED, _NAMED = 50, 3


def run(
    context: PhaseContext, *, run: str, topics: Sequence[str] = (), last: int | None = None, independent: bool = False
) -> PhaseResult:
    """Compare, and store the result as ``results/verification.json``.

    :param context: a context that only reads.
    :param run: who compares; another call with the same text continues what was not completed.
    :param topics: regular expressions for whole topic names, on either side; empty: all.
    :param last: only the last offsets of each partition; None: all that both sides still have.
    :param independent: Spark's own Kafka source reads both sides, and nothing of the code that copies.
    :raises ContentsDiffer: something differs.
    :raises ContentsUnchecked: not everything could be compared, or there was nothing to compare.
    """
    return JOB_PHASE.run(context, run=run, topics=topics, last=last, independent=independent)


def prepare(
    context: PhaseContext, *, run: str, topics: Sequence[str] = (), last: int | None = None, independent: bool = False
) -> Step:
    """Write the job, or find the one of an earlier attempt; judge without one if nothing is to be compared."""
    job = comparison_job.write(context, Scope(tuple(topics), last), run, independent=independent)
    ref = job_ref(context.record, job.name)
    return ref if job.ranges else finish(context, ref)


def finish(context: PhaseContext, ended: JobRef) -> PhaseResult:
    """Store what the job has found, and judge it.

    :raises Transient: partitions could not be compared, and another attempt may help.
    :raises ContentsDiffer: something differs.
    :raises ContentsUnchecked: not everything could be compared, or there was nothing to compare.
    """
    record = context.record
    job = comparison_job.load(record, ended.name)
    why = comparison_job.read_not_run(record, job)
    if why and not comparison_job.has_results(record, job):
        # No result: an earlier one says more than this one would.
        comparison_job.remove(record, ended.name)
        raise ContentsUnchecked(
            f"the independent comparison was NOT RUN: {why}",
            where=context.where(PHASE),
            next_step="correct that and compare again, or compare without it; nothing was read",
        )
    found, errors = comparison_job.collect(context, job)
    key = record.put_result(keys.VERIFICATION, found)
    _log(found)
    again = comparison_job.retriable(errors)
    if again and not found.count("different"):
        # The job stays: the next attempt compares only what is not known to be equal.
        raise Transient(
            f"{len(again)} partitions could not be compared: {again[0].what}",
            where=again[0].where,
            next_step="clear the task: what was found equal is not compared again",
        )
    comparison_job.remove(record, ended.name)
    _judge(context, found)
    details = {"uri": f"{record.journal_store.uri}/{key}", "digest": found.digest()}
    return PhaseResult(PHASE, _summary(found), details)


def _judge(context: PhaseContext, found: MirrorVerification) -> None:
    if found.is_equal:
        return
    different = found.count("different")
    bad = [item for item in in_order(found) if item.outcome == ("different" if different else "unchecked")]
    named = "; ".join(f"{_name(item)}: {note_of(item)}" for item in bad[:_NAMED])
    more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    details = {"partitions": [_name(item) for item in bad]}
    where = context.where(PHASE)
    if different:
        besides = f", and {found.count('unchecked')} could not be checked" if found.count("unchecked") else ""
        raise ContentsDiffer(
            f"{different} of {len(found.partitions)} partitions differ{besides}: {named}{more}",
            where=where,
            next_step="read results/verification.json and docs/runbook.md; clear the task to compare again",
            details=details,
        )
    if bad:
        raise ContentsUnchecked(
            f"{len(bad)} of {len(found.partitions)} partitions could not be checked: {named}{more}",
            where=where,
            next_step="correct what the reasons in results/verification.json name; clear the task to compare again",
            details=details,
        )
    raise ContentsUnchecked(
        "nothing was compared, which proves nothing: neither side has anything in what was selected",
        where=where,
        next_step="select other topics or more offsets, or wait until something is mirrored; then clear the task",
    )


def _log(found: MirrorVerification) -> None:
    rows = [item for item in in_order(found) if item.outcome != "equal" or item.notes]
    for item in rows[:_LOGGED]:
        level = logging.WARNING if item.outcome in ("different", "unchecked") else logging.INFO
        log.log(level, "%s is %s: %s", _name(item), item.outcome, note_of(item))
    if len(rows) > _LOGGED:
        log.info("and %d more partitions; results/verification.json has all of them", len(rows) - _LOGGED)


def _summary(found: MirrorVerification) -> str:
    records = sum(item.compared for item in found.partitions)
    return f"{found.count('equal')} of {len(found.partitions)} partitions are equal, {records} records compared"


def _name(item: VerifiedPartition) -> str:
    return partition_name((item.topic, item.partition))


JOB_PHASE: Final = JobPhase(
    # Without a claim no submission is journaled, so there is none to find.
    jobs=(),
    prepare=prepare,
    finish=finish,
    run_job=comparison_job.run_job,
    read_progress=comparison_job.read_progress,
)
