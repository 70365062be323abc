"""Mirror: copy from the end of the seed on, until a person pauses, promotes or ends it.

The copy is the tail's. A person's request reaches whoever holds the mirror (:mod:`~.mirrors.requests`): it gives the
copiers a stop, their job ends by itself, and ``finish`` does what was asked for. So a request outlives a kill at any
moment, and the next run carries it out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.documents.mirror import MirrorRequest
from airflow_provider_kafka_migration.errors import (
    HANDS_OFF,
    CopyFailed,
    CopyStalled,
    IllegalTransition,
    MigrationError,
    StillFrozen,
    Transient,
)
from airflow_provider_kafka_migration.freeze import stops
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase, Step, job_ref
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.mirrors import (
    deletions,
    ending,
    missed_tombstones,
    promotion_freeze,
    requests,
)
from airflow_provider_kafka_migration.mirrors.group_sync import GroupSync, sync_once
from airflow_provider_kafka_migration.mirrors.last_looks import SourceMovedError, SourceWatch
from airflow_provider_kafka_migration.mirrors.mirror_maker_state import (
    Checkpoints,
    HeartbeatPasses,
    write_for_the_last_time,
)
from airflow_provider_kafka_migration.mirrors.retention import TargetRetention
from airflow_provider_kafka_migration.planning import late_ids, tail_job
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import JobRef, PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics.large_batches import make_room
from airflow_provider_kafka_migration.topics.recopy import make_missing, recopy

log = logging.getLogger(__name__)

PHASE: Final = "mirror"
#: The name of its job, of its progress and of its stop.
JOB: Final = tail_job.PHASE
#: How often copiers that have ended early are sent to the same stop again, for one request.
_MAX_ROUNDS = 3
#: Pauses between the tries of the last sync of groups, in seconds.
_LAST_SYNC_PAUSES = (1.0, 3.0, 10.0)


def run(context: PhaseContext) -> PhaseResult:
    """Mirror until a person asks for something else, and do that.

    :raises CopyFailed: some partitions could not be copied.
    """
    return JOB_PHASE.run(context)


def prepare(context: PhaseContext) -> Step:
    """Write the job; a result if the last request needs none."""
    record = context.record
    if (promoted := ending.complete_promotion(context)) is not None:
        return promoted
    request = _settled(context)
    if request.want == "ended":
        return ending.end(context, request)
    _enter(context, request)
    if request.want == "paused":
        return ending.pause(context, request)
    if request.want == "promoted" and request.source_gone:
        return ending.promote_without_source(context, request)
    if request.want == "run" or promotion_freeze.waits(record, request):
        requests.withdraw_stop(record)
    written = tail_job.write(record, context.source, record.job(JOB))
    missed_tombstones.note_risk(context, written)
    recopy(context, JOB, written)
    late_ids.before_copied_again(context, JOB, written)
    make_missing(context, JOB, written)
    make_room(context, JOB)
    # Before the job begins: a short job could otherwise end before anybody has told it where to stop.
    requests.stop_if_asked(record, context.source)
    return job_ref(record, JOB)


def _settled(context: PhaseContext) -> MirrorRequest:
    """Return the last request, after a freeze was lifted that may not go on with it.

    :raises StillFrozen: it cannot be lifted, and nothing tries again after this request. A mirror that goes on does.
    """
    request = requests.in_time(context, by=PHASE)
    try:
        return promotion_freeze.settle(context, request)
    except StillFrozen as error:
        if request.want in ("paused", "ended"):
            raise
        log.warning("Producers could not be freed yet; the mirror goes on and tries again: %s", error)
        return request


def enter(context: PhaseContext) -> None:
    """Move the mirror to where it mirrors, for the job of an earlier process that was not prepared again."""
    request = requests.read(context.journal_store, context.migration_id)
    context.journal.refresh()
    # What ends a mirror leaves its last state by itself.
    if request.want != "ended" and context.journal.find_step(steps.PROMOTED) is None:
        _enter(context, request)


def _enter(context: PhaseContext, request: MirrorRequest) -> None:
    """Move the mirror to where it mirrors; a failed one re-enters what has failed.

    :raises IllegalTransition: earlier phases have not run yet.
    """
    journal = context.journal
    journal.refresh()
    if journal.tip_state is State.FAILED and journal.working_state is not None:
        journal.transition(journal.working_state, "mirror is run again")
    state = journal.tip_state
    if state is State.SEED and journal.find_step(steps.SEED_DONE) is not None:
        journal.transition(State.TAIL, "mirroring starts")
    elif state is State.PAUSED and request.want != "paused" and not request.source_gone:
        by = f" by {request.requested_by}" if request.requested_by else ""
        journal.transition(State.TAIL, f"resumed{by}", from_states={State.PAUSED})
    elif state not in (State.TAIL, State.PAUSED):
        raise IllegalTransition(
            f"mirroring cannot start: the mirror is in state {state}",
            where=context.where(PHASE),
            next_step="run the earlier phases first (kafka-migration mirror run FILE)",
        )


def finish(context: PhaseContext, _job: JobRef) -> Step:
    """Do what was asked for, after the copiers have stopped; return the job again if mirroring goes on.

    :raises CopyFailed: the job has ended although nobody asked for it, or before it had copied everything.
    """
    record = context.record
    if (promoted := ending.complete_promotion(context)) is not None:
        return promoted
    request = _settled(context)
    if request.want == "paused":
        return ending.pause(context, request)
    if request.want == "ended":
        return ending.end(context, request)
    if request.want == "promoted" and request.source_gone:
        return ending.promote_without_source(context, request)
    if record.tail_stop() is None:
        raise CopyFailed(
            "the mirror's job has ended, but no stop was set for it",
            where=context.where(PHASE),
            next_step="clear the task: it continues from the target's log ends",
        )
    # Its process may have died behind the state `paused` and before the job was taken up.
    _enter(context, request)
    if request.want != "promoted" or promotion_freeze.waits(record, request):
        return _go_on(context)
    return _promote_or_go_on(context, request)


def _go_on(context: PhaseContext) -> JobRef:
    requests.withdraw_stop(context.record)
    return job_ref(context.record, JOB)


def _as_asked_since(context: PhaseContext) -> JobRef:
    """Let the copiers do what somebody has asked for while a promotion was prepared."""
    if requests.stop_if_asked(context.record, context.source).want == "run":
        requests.withdraw_stop(context.record)
    return job_ref(context.record, JOB)


def _promote_or_go_on(context: PhaseContext, request: MirrorRequest) -> Step:
    """Promote. If that fails while the mirror keeps producers stopped, it frees them, says why, and goes on."""
    attempt = promotion_freeze.in_force(context.record)
    try:
        return _promote(context, request, attempt)
    except (*HANDS_OFF, StillFrozen):
        raise
    except MigrationError as error:
        if attempt is None or not promotion_freeze.call_off_after(context, attempt, request, error):
            raise
        log.warning("The mirror is not promoted, and goes on: %s", error)
    except Exception as error:
        if attempt is not None:
            promotion_freeze.call_off_after(context, attempt, request, error)
        raise
    return _as_asked_since(context)


def _promote(context: PhaseContext, request: MirrorRequest, attempt: FreezeAttempt | None) -> Step:
    """Promote, if everything is copied and the source stands still; else the mirror goes on and says why.

    :param attempt: the freeze that keeps producers stopped; None: people have stopped them.
    """
    record, source = context.record, context.source
    if attempt is not None:
        stops.check_deadline(record, attempt)
        requests.stop_at_frozen_ends(record, request.number)
    else:
        # The copiers may have ended at the stop of an earlier request, such as a pause that nobody has answered.
        requests.stop_at_the_end(record, source, request.number)
    stop, job = record.tail_stop(), record.job(JOB)
    assert stop is not None
    assert job is not None
    left = tail_job.behind(record, context.target, job, stop, source=source)
    if left:
        return _once_more(context, request, left)
    watch = SourceWatch(context, stop)
    try:
        # Before anything else, so that a request that is refused changes nothing.
        watch.begin()
        problems = _last_syncs(context, attempt)
        ends = watch.wait()
    except SourceMovedError as error:
        return _refuse(context, request, attempt, str(error))
    if requests.read(context.journal_store, context.migration_id).number != request.number:
        return _as_asked_since(context)
    return ending.promote(context, request, ends, problems, attempt)


def _last_syncs(context: PhaseContext, attempt: FreezeAttempt | None) -> list[str]:
    """Do what has to be done before the last look at the source; return what is left for a person."""
    problems = _sync_for_the_last_time(context) if context.spec.mirror.sync_groups else []
    problems += write_for_the_last_time(context)
    if attempt is None:
        write_grants.see(context.record, context.source, context.target)
    else:
        # Before the last look, which sees everything that was written until then.
        stops.hold(context, attempt)
    return problems


def _sync_for_the_last_time(context: PhaseContext) -> list[str]:
    """Bring the groups to the end of the copy; return what is left for a person, because no other round follows.

    A failure may pass by itself, such as a coordinator that is loading: it is tried again for some seconds.
    """
    for pause in (*_LAST_SYNC_PAUSES, None):
        result = sync_once(context)
        if result is None:
            return []
        failed = [item for item in result.groups if item.failures]
        if not failed or pause is None:
            break
        time.sleep(pause)
    return [f"group {item.group}: {item.failures[0].get('what', 'its offsets were not written')}" for item in failed]


def _once_more(context: PhaseContext, request: MirrorRequest, left: Mapping[TopicPartition, tuple[int, int]]) -> JobRef:
    """Return the job again, to the same stop; the rounds are journaled, because any process may count them.

    :raises CopyFailed: the job has ended early too often.
    """
    journal = context.journal
    (topic, partition), (position, until) = sorted(left.items())[0]
    done = [entry for entry in journal.steps(steps.PROMOTION_ROUND) if entry.details["request"] == request.number]
    if len(done) >= _MAX_ROUNDS:
        raise CopyFailed(
            f"{len(left)} partitions have not reached the source's end; the first is at {position} of {until}",
            where=context.where(PHASE, topic=topic, partition=partition, offset=position),
            next_step="clear the task: it continues from the target's log ends",
        )
    number = len(done) + 1
    journal.step(
        steps.PROMOTION_ROUND,
        key=f"{request.number}/{number}",
        details={"request": request.number, "partitions": [partition_name(key) for key in sorted(left)]},
        reason=f"{len(left)} partitions have not reached the source's end; the first, {topic}-{partition}, is at "
        f"{position} of {until}",
    )
    return job_ref(context.record, JOB)


def _refuse(context: PhaseContext, request: MirrorRequest, attempt: FreezeAttempt | None, why: str) -> JobRef:
    """Turn the request down; the mirror goes on, unless somebody has asked for something else since."""
    if attempt is None:
        requests.turn_down(context, request, why, by=PHASE)
    else:
        promotion_freeze.call_off(context, attempt, request, why)
    return _go_on(context)


@contextmanager
def _beside(context: PhaseContext) -> Iterator[None]:
    with (
        _lifted_if_copiers_fail(context),
        tail_job.beside(context, deletions.carry_out),
        requests.RequestWatch(context, promotion_freeze.advance),
        GroupSync(context),
        TargetRetention(context),
        Checkpoints(context),
        HeartbeatPasses(context),
    ):
        yield


@contextmanager
def _lifted_if_copiers_fail(context: PhaseContext) -> Iterator[None]:
    """Call a promotion off whose copiers fail for good: what follows may be up to a person."""
    try:
        yield
    except Exception as error:
        _lift_after_failure(context, error)
        raise


def _lift_after_failure(context: PhaseContext, error: Exception) -> None:
    """Call a promotion off after an error of its copiers, unless it may pass.

    :raises StillFrozen: the producers could not be freed.
    """
    if isinstance(error, (*HANDS_OFF, Transient)):
        return
    attempt = promotion_freeze.in_force(context.record)
    if attempt is not None:
        request = requests.read(context.journal_store, context.migration_id)
        promotion_freeze.call_off_after(context, attempt, request, error)


def _follow(context: PhaseContext, memory: dict[str, Any]) -> None:
    requests.RequestWatch(context, promotion_freeze.advance).once()
    tail_job.follow(context, memory, deletions.carry_out)
    GroupSync(context).once(memory)
    TargetRetention(context).once(memory)
    Checkpoints(context).once(memory)
    HeartbeatPasses(context).once(memory)


def _is_enough(context: PhaseContext, error: MigrationError) -> bool:
    """Whether copiers may end with failed partitions: somebody asks for something that needs no more of any.

    Without that, a partition that a person has to mend would keep the mirror from being paused for just that.
    """
    if not isinstance(error, CopyFailed | CopyStalled) or not error.details.get("partitions"):
        return False
    request = requests.read(context.journal_store, context.migration_id)
    return request.want != "run" and not requests.is_planned_promotion(request)


JOB_PHASE: Final = JobPhase(
    jobs=(JOB,),
    prepare=prepare,
    finish=finish,
    run_job=copy_jobs.run_job,
    enter=enter,
    beside=_beside,
    follow=_follow,
    read_progress=copy_jobs.copy_progress,
    is_enough=_is_enough,
    after_failure=_lift_after_failure,
)
