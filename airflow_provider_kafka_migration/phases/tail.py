"""Tail: copy from the end of the seed to the cutover, until the offsets in ``control/tail-stop.json``, once it exists.

The tail runs in parallel with the drain sensor, the approval and the first steps of the cutover. So it never moves the
migration's state backwards, and a failed cutover does not stop it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from airflow_provider_kafka_migration.documents.copy import CopyJob, StopAt
from airflow_provider_kafka_migration.errors import CopyFailed, Terminal
from airflow_provider_kafka_migration.freeze import frozen, tail_stop
from airflow_provider_kafka_migration.groups.early import EarlyGroupSync
from airflow_provider_kafka_migration.jobs import copy_jobs, target_losses
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase, Step, job_ref
from airflow_provider_kafka_migration.planning import late_ids, tail_job
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Cluster, JobRef, PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.offset_maps import job_figures
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.schemas.settings_left import try_to_put_back_target
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics.large_batches import make_room
from airflow_provider_kafka_migration.topics.recopy import make_missing, recopy
from airflow_provider_kafka_migration.way_back.old_groups import OldGroupSync

PHASE: Final = "tail"


def run(context: PhaseContext) -> PhaseResult:
    """Run the job until its stop offsets are reached, and verify that on the brokers.

    :raises CopyFailed: some partitions could not be copied.
    """
    return JOB_PHASE.run(context)


def prepare(context: PhaseContext) -> Step:
    """Write the job; a result if the stop offsets are reached already."""
    record = context.record
    context.journal.refresh()
    if context.journal.tip_state is not State.ROLLED_BACK:
        tail_stop.continue_after_lift(record, context.target)
    stop = record.tail_stop()
    job = record.job(PHASE)
    if job is not None and stop is not None and _is_copied(record, context.target, job, stop):
        if not record.has_tail_ended() and context.journal.tip_state is not State.ROLLED_BACK:
            # The tail was killed between the last record and its journal entry: the copy is done, so journal it now.
            _journal_done(record, context.target, job, record.job_progress(PHASE))
        if context.journal.tip_state is not State.ROLLED_BACK:
            # It may also have been killed in the middle of a pass over the schemas.
            try_to_put_back_target(context)
        summary = f"the tail has reached its stop in {len(job.partitions)} partitions"
        return PhaseResult(PHASE, summary, {"summary": summary}, already_done=True)
    if _is_over(record):
        raise Terminal(
            "the cutover is over, so nothing is copied any more",
            where=record.where(PHASE),
            next_step="nothing needs to be done; validate reports records that are missing",
        )
    written = tail_job.write(record, context.source, job)
    recopy(context, PHASE, written)
    late_ids.before_copied_again(context, PHASE, written)
    make_missing(context, PHASE, written)
    make_room(context, PHASE)
    return job_ref(record, PHASE)


def finish(context: PhaseContext, ended: JobRef) -> Step:
    """Verify on the brokers that the stop offsets are reached, and journal it.

    :returns: the same job, if its stop was withdrawn: lifting a freeze does that, and the tail goes on.
    :raises CopyFailed: some partitions have not reached their stop offsets.
    """
    record = context.record
    stop = record.tail_stop()
    context.journal.refresh()
    job = record.job(PHASE)
    assert job is not None
    if context.journal.tip_state is State.ROLLED_BACK:
        # The rollback has stopped the tail, as intended: nothing is left to verify, and the journal has ended.
        return PhaseResult(PHASE, "stopped by the rollback", {"summary": "stopped by the rollback"})
    if tail_stop.continue_after_lift(record, context.target):
        return job_ref(record, PHASE)
    if stop is None:
        if any(entry.seq > ended.since for entry in record.freezes_lifted()):
            return job_ref(record, PHASE)
        raise CopyFailed(
            "the tail has ended, but no stop was set for it",
            where=context.where(PHASE),
            next_step="clear tail: it continues from the target's log ends",
        )
    left = tail_job.behind(record, context.target, job, stop)
    if left:
        (topic, partition), (position, until) = sorted(left.items())[0]
        raise CopyFailed(
            f"{len(left)} partitions have not reached their stop offsets; the first is at {position} of {until}",
            where=context.where(PHASE, topic=topic, partition=partition, offset=position),
            next_step="clear tail: it continues from the target's log ends",
        )
    details = _journal_done(record, context.target, job, record.job_progress(PHASE))
    return PhaseResult(PHASE, str(details["summary"]), details)


def _is_copied(record: MigrationRecord, target: Cluster, job: CopyJob, stop: StopAt) -> bool:
    """Whether nothing is left to copy and the last driver has reported its figures; else a short run reports them."""
    if _is_over(record):
        return True
    told = record.journal.find_step(steps.TAIL_DONE) is not None or record.job_progress(PHASE).get("finished")
    return bool(told) and not tail_job.behind(record, target, job, stop)


def _journal_done(
    record: MigrationRecord, target: Cluster, job: CopyJob, progress: Mapping[str, Any]
) -> dict[str, Any]:
    figures = job_figures(record, target, job, progress, after="seed")
    details = {
        "summary": f"tail complete: {figures['records']} records",
        **figures,
        "gaps": record.gaps(),
        "overtaken_tombstones": record.overtaken(),
        "target_losses": target_losses.found(record),
    }
    record.journal.step(steps.TAIL_DONE, details=details)
    return details


def _is_over(record: MigrationRecord) -> bool:
    """Whether the cutover is over: applications write to the target then, and its ends no longer measure the tail."""
    return record.journal.is_past(State.CUTOVER)


@contextmanager
def _beside(context: PhaseContext) -> Iterator[None]:
    with tail_job.beside(context, frozen.finish_given_up), OldGroupSync(context), EarlyGroupSync(context):
        yield


def _follow(context: PhaseContext, memory: dict[str, Any]) -> None:
    tail_job.follow(context, memory, frozen.finish_given_up)
    OldGroupSync(context).once(memory)
    EarlyGroupSync(context).once(memory)


JOB_PHASE: Final = JobPhase(
    jobs=(PHASE,),
    prepare=prepare,
    finish=finish,
    run_job=copy_jobs.run_job,
    beside=_beside,
    follow=_follow,
    read_progress=copy_jobs.copy_progress,
)
