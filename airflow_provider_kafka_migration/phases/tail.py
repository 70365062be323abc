"""Tail: copy from the end of the seed to the cutover, until the offsets in ``control/tail-stop.json``, once it exists.

The tail runs in parallel with the drain sensor, the approval and the first steps of the cutover. So it never moves the
migration's state backwards, and a failed cutover does not stop it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_kafka_migration.documents.copy import CopyJob, StopAt
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.errors import CopyFailed, Terminal
from airflow_provider_kafka_migration.planning.follow import Follower, lanes_with
from airflow_provider_kafka_migration.record import freeze_attempt, jobs
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.facts import load_job, source_gaps
from airflow_provider_kafka_migration.record.offset_maps import MapWriter, job_figures
from airflow_provider_kafka_migration.record.overtaken import overtaken_tombstones
from airflow_provider_kafka_migration.record.tail_health import TAIL_DONE, has_ended
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics.recopy import make_missing, recopy

PHASE: Final = "tail"


def run(context: PhaseContext) -> PhaseResult:
    """Run the job until its stop offsets are reached, and verify that on the brokers.

    :raises CopyFailed: some partitions could not be copied.
    """
    stop = _stop(context)
    job = load_job(context, PHASE)
    if job is not None and stop is not None and _is_copied(context, job, stop):
        if not has_ended(context) and context.journal.tip_state is not State.ROLLED_BACK:
            # The tail was killed between the last record and its journal entry: the copy is done, so journal it now.
            _journal_done(context, job, jobs.progress_document(context, PHASE))
        summary = f"the tail has reached its stop in {len(job.partitions)} partitions"
        return PhaseResult(PHASE, summary, {"summary": summary}, already_done=True)
    written = _write_job(context, job)
    recopy(context, PHASE, written)
    make_missing(context, PHASE, written)
    progress, stop = _run_to_stop(context)
    job = load_job(context, PHASE)
    assert job is not None
    if context.journal.tip_state is State.ROLLED_BACK:
        # The rollback has stopped the tail, as intended: nothing is left to verify, and the journal has ended.
        return PhaseResult(PHASE, "stopped by the rollback", {"summary": "stopped by the rollback"})
    if stop is None:
        raise CopyFailed(
            "the tail has ended, but no stop was set for it",
            where=context.where(PHASE),
            next_step="clear tail: it continues from the target's log ends",
        )
    left = _behind(context, job, stop)
    if left:
        (topic, partition), (position, until) = sorted(left.items())[0]
        raise CopyFailed(
            f"{len(left)} partitions have not reached their stop offsets; the first is at {position} of {until}",
            where=context.where(PHASE, topic=topic, partition=partition, offset=position),
            next_step="clear tail: it continues from the target's log ends",
        )
    details = _journal_done(context, job, progress)
    return PhaseResult(PHASE, str(details["summary"]), details)


def _is_copied(context: PhaseContext, job: CopyJob, stop: StopAt) -> bool:
    """Whether nothing is left to copy and the last driver has reported its figures; else a short run reports them."""
    if _is_over(context):
        return True
    told = context.journal.find_step(TAIL_DONE) is not None or jobs.progress_document(context, PHASE).get("finished")
    return bool(told) and not _behind(context, job, stop)


def _journal_done(context: PhaseContext, job: CopyJob, progress: Mapping[str, Any]) -> dict[str, Any]:
    figures = job_figures(context, job, progress, after="seed")
    details = {
        "summary": f"tail complete: {figures['records']} records",
        **figures,
        "gaps": source_gaps(context),
        "overtaken_tombstones": overtaken_tombstones(context),
    }
    context.journal.step(TAIL_DONE, details=details)
    return details


def _run_to_stop(context: PhaseContext) -> tuple[dict[str, Any], StopAt | None]:
    """Run the job until it ends at a stop that is in force; lifting a freeze withdraws its stop."""
    while True:
        lifted = len(context.journal.steps(freeze_attempt.LIFTED))
        with Follower(context, take_over.follow), MapWriter(context):
            progress = jobs.run_job(context, "tail")
        stop = _stop(context)
        context.journal.refresh()
        if stop is not None or len(context.journal.steps(freeze_attempt.LIFTED)) == lifted:
            return progress, stop


def _is_over(context: PhaseContext) -> bool:
    """Whether the cutover is over: applications write to the target then, and its ends no longer measure the tail."""
    return context.journal.is_past(State.CUTOVER)


def _stop(context: PhaseContext) -> StopAt | None:
    return StopAt.in_force(context.journal_store.get(context.key(freeze_attempt.TAIL_STOP)))


def _write_job(context: PhaseContext, former: CopyJob | None) -> CopyJob:
    if _is_over(context):
        raise Terminal(
            "the cutover is over, so nothing is copied any more",
            where=context.where(PHASE),
            next_step="nothing needs to be done; validate reports records that are missing",
        )
    base = former or load_job(context, "seed")
    if base is None:
        raise Terminal("there is no seed job", where=context.where(PHASE), next_step="run seed first")
    lanes = [
        lane.model_copy(
            update={"partitions": [item.model_copy(update={"until_offset": None}) for item in lane.partitions]}
        )
        for lane in base.lanes
        if lane.half != "backup"
    ]
    job = jobs.build_job(context, "tail", lanes, base)
    planned = jobs.planned_partitions(context, context.load_plan())
    # Partitions that were dropped from the plan are no longer copied; the follower picks up those that were added.
    job = job.model_copy(update={"lanes": lanes_with(job, planned, {})})
    context.journal.check_holds()
    context.journal_store.put(jobs.job_key(context, PHASE), job.canonical())
    return job


def _behind(context: PhaseContext, job: CopyJob, stop: StopAt) -> dict[tuple[str, int], tuple[int, int]]:
    until = {item.key: stop.offset(*item.key) for item in job.partitions}
    return jobs.behind(context, job, {key: 0 if value is None else value for key, value in until.items()})
