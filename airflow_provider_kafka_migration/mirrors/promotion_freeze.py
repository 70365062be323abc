"""The freeze of a planned promotion: the mirror stops the producers itself, for a limited time.

The order, and what a process that dies in between leaves:

1. A person asks for the promotion. The copiers go on until no partition lags by more than
   ``tail.drain_max_partition_lag``; nobody is stopped before that.
2. The attempt is journaled with its deadline, then producers are stopped, then the source's ends stand still and are
   journaled (:func:`advance`). A process that follows goes on from the last of these.
3. The copiers stop at these ends, the groups are synced, the source is read once more, and ``promoted`` is journaled
   (:mod:`~.phases.mirrors.mirror`). From there on the freeze is never lifted.

What cannot go on is called off (:func:`call_off`): first the journal says that the attempt is given up, so that no
process can promote the mirror any more; then producers are freed; then the request is turned down. The limit is kept by
whoever runs the mirror, and by the phase ``freeze_limit`` beside it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.documents.mirror import MirrorRequest
from airflow_provider_kafka_migration.errors import (
    HANDS_OFF,
    ConnectionInvalid,
    FreezeFailed,
    FreezeUnconfirmed,
    MigrationError,
    PhaseOver,
    Transient,
)
from airflow_provider_kafka_migration.freeze import deny_acls, frozen, stops, webhook_spec, words
from airflow_provider_kafka_migration.freeze.stand_still import POLL_SECONDS, Watch, verify
from airflow_provider_kafka_migration.mirrors import requests
from airflow_provider_kafka_migration.planning import follow, tail_job
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State

log = logging.getLogger(__name__)

PHASE: Final = "mirror"
#: Why a freeze ends at its limit.
OVERDUE: Final = "max_producer_freeze has passed, and the mirror is not promoted yet"


class _AskedMeanwhileError(Exception):
    """Somebody has asked for something else while the source was watched."""


# -- what is in force -------------------------------------------------------------------------------------------------


def in_force(record: MigrationRecord) -> FreezeAttempt | None:
    """Return the attempt whose steps may follow, per the journal as last read."""
    attempt = record.freeze()
    return attempt if attempt is not None and attempt.is_in_force else None


def waits(record: MigrationRecord, request: MirrorRequest) -> bool:
    """Whether a planned promotion waits for producers to be stopped, so that its copiers have to go on."""
    if not requests.is_planned_promotion(request) or record.journal.find_step(steps.PROMOTED) is not None:
        return False
    attempt = in_force(record)
    return record.spec.freezes_promotion and (attempt is None or attempt.verified is None)


def settle(context: PhaseContext, request: MirrorRequest) -> MirrorRequest:
    """End a freeze that may not go on: its limit has passed, or somebody asks for something else.

    A promotion without the source leaves a freeze as it is: producers must not write there any more.

    :param request: the last one.
    :returns: the request that counts then.
    :raises StillFrozen: the producers could not be freed; the next call tries again.
    """
    record = context.record
    context.journal.refresh()
    attempt = record.freeze()
    if attempt is None or attempt.ready or (request.want == "promoted" and request.source_gone):
        return request
    if attempt.is_open:
        reason = _why_over(record, attempt, request)
        return call_off(context, attempt, request, reason) if reason else request
    if requests.is_planned_promotion(request) and request.number <= (attempt.request or 0):
        # Whoever has lifted it died before the request was turned down.
        return _turn_down(context, attempt, request, _given_up_for(record, attempt))
    return request


def _why_over(record: MigrationRecord, attempt: FreezeAttempt, request: MirrorRequest) -> str:
    """Say why an open attempt may not go on; empty: it may."""
    if attempt.given_up:
        return _given_up_for(record, attempt)
    if request.want != "promoted":
        return f"{request.requested_by or 'somebody'} has asked for {request.want}"
    return "" if stops.seconds_left(record, attempt) > 0 else OVERDUE


def _given_up_for(record: MigrationRecord, attempt: FreezeAttempt) -> str:
    entry = record.journal.find_step(steps.FREEZE_GIVEN_UP, attempt.key)
    return "its promotion was given up" if entry is None else str(entry.details["reason"])


# -- the end of an attempt --------------------------------------------------------------------------------------------


def call_off(context: PhaseContext, attempt: FreezeAttempt, request: MirrorRequest, reason: str) -> MirrorRequest:
    """Free the producers, and turn down a request to promote; the mirror goes on. Idempotent.

    :returns: the request that counts then.
    :raises StillFrozen: the producers could not be freed, and the request stays; the next call tries again.
    """
    try:
        frozen.lift(context, attempt, reason=reason)
    except PhaseOver:
        # It was promoted in this very moment: producers stay stopped.
        return request
    log.warning("Freeze %s is lifted: %s", attempt.number, reason)
    if requests.is_planned_promotion(request):
        return _turn_down(context, attempt, request, reason)
    return request


def _turn_down(context: PhaseContext, attempt: FreezeAttempt, request: MirrorRequest, reason: str) -> MirrorRequest:
    requests.turn_down(
        context, request, f"freeze {attempt.number} is lifted: {reason}; {words.lifted(attempt.method)}", by=PHASE
    )
    return requests.read(context.journal_store, context.migration_id)


def call_off_after(context: PhaseContext, attempt: FreezeAttempt, request: MirrorRequest, error: Exception) -> bool:
    """Call the promotion off after an error of it, if it failed for good or the limit has passed.

    :param attempt: was in force when the step began that has failed.
    :returns: whether the attempt is given up now; if not, the step may be tried again, or the mirror is promoted.
    :raises StillFrozen: the producers could not be freed.
    """
    context.journal.refresh()
    if context.journal.find_step(*attempt.last_step) is not None:
        return False
    is_given_up = context.journal.find_step(steps.FREEZE_GIVEN_UP, attempt.key) is not None
    if not is_given_up and frozen.may_be_tried_again(context.record, attempt, error):
        return False
    call_off(context, attempt, request, _given_up_for(context.record, attempt) if is_given_up else _why(error))
    return True


def _why(error: Exception) -> str:
    if not isinstance(error, MigrationError):
        return f"{type(error).__name__} in the mirror's code"
    return f"{error.what}. Next: {error.next_step}" if error.next_step else error.what


def hold_if_open(context: PhaseContext, *, source_gone: bool) -> list[str]:
    """Have a webhook forget its deadline once the mirror is promoted, unless it has confirmed that before.

    :param source_gone: it was promoted without its source. Then the journal's step only says that a process was about
        to ask the receiver; a planned promotion follows the receiver's answer.
    :returns: what is left for a person.
    """
    attempt = context.record.freeze()
    if attempt is None or attempt.lifted or (attempt.held and not source_gone):
        return []
    try:
        stops.hold(context, attempt)
    except (FreezeFailed, FreezeUnconfirmed, ConnectionInvalid, PhaseOver) as error:
        return [f"freeze: it is not confirmed that producers stay stopped: {error.what}"]
    return []


def described(context: PhaseContext) -> tuple[str, dict[str, Any]]:
    """Return how producers are stopped when the mirror is promoted: the end of its summary, and details."""
    record, attempt = context.record, context.record.freeze()
    if attempt is None or attempt.lifted:
        return ("; nobody has stopped the producers" if record.spec.freezes_promotion else ""), {}
    seconds = round((context.now() - attempt.stopped_at).total_seconds(), 3)
    bindings = len(deny_acls.planned_acls(record, attempt.key))
    details = {"attempt": attempt.number, "method": attempt.method, "seconds": seconds, "deny_acls": bindings}
    how = f"by {bindings} DENY ACLs on the source" if attempt.method == "acl" else "by the freeze webhook"
    return f"; producers are stopped {how} and stay so, {seconds:.1f} s so far", {"freeze": details}


# -- its steps --------------------------------------------------------------------------------------------------------


def advance(context: PhaseContext, request: MirrorRequest) -> None:
    """Do what the last request needs of a freeze while copiers run: begin one, verify it, or lift it. Idempotent.

    :raises MigrationError: it failed; if it may not be tried again, producers are free and the request is turned down.
    :raises StillFrozen: the producers could not be freed; the next call tries again.
    """
    record = context.record
    known = record.freeze()
    if not requests.is_planned_promotion(request) and (known is None or not known.is_open):
        return
    request = settle(context, request)
    if not waits(record, request):
        return
    attempt = in_force(record) or _begin(context, request)
    if attempt is None:
        return
    try:
        _stop_and_verify(context, attempt, request)
    except _AskedMeanwhileError:
        return
    except PhaseOver as over:
        # Whoever has lifted the freeze turns the request down, too: there is nothing to try again.
        log.warning("%s; the mirror goes on", over.what)
        return
    except HANDS_OFF:
        raise
    except Exception as error:
        call_off_after(context, attempt, request, error)
        raise
    requests.stop_at_frozen_ends(record, request.number)


def _begin(context: PhaseContext, request: MirrorRequest) -> FreezeAttempt | None:
    """Journal a new attempt. No producer is stopped before this step is in the journal.

    :returns: None: the copiers are not close enough yet, or the request was turned down, or is not the last one.
    """
    record = context.record
    try:
        lag = _largest_lag(context)
        if lag > context.spec.tail.drain_max_partition_lag:
            context.progress(Progress(PHASE, f"to be promoted once the largest lag is small: it is {lag} offsets"))
            return None
        follow.check_all_followed(record, context.source)
        webhook_spec.check_receiver(context)
        write_grants.see(record, context.source, context.target)
    except (Transient, *HANDS_OFF):
        raise
    except MigrationError as error:
        why = f"{error.what}; {words.not_begun(context.spec.cutover.freeze)}"
        requests.turn_down(context, request, why, by=PHASE)
        return None
    if requests.read(context.journal_store, context.migration_id).number != request.number:
        return None
    former = record.freeze()
    seen = stops.wait_for_frees(context, former)
    now = context.now()
    attempt = FreezeAttempt(
        former.number + 1 if former else 1,
        context.spec.cutover.freeze,
        requested_at=now,
        deadline=now + context.spec.cutover.max_producer_freeze,
        stopped_at=now,
        request=request.number,
    )
    details = {
        "method": attempt.method,
        "requested_at": iso(now),
        "stopped_at": iso(now),
        "deadline": iso(attempt.deadline),
        "lag": lag,
        "request": request.number,
    }
    context.journal.step(steps.FREEZE_REQUESTED, key=attempt.key, details=details, only_in={State.TAIL})
    stops.wait_for_frees(context, former, behind=seen)
    return attempt


def _largest_lag(context: PhaseContext) -> int:
    """Return the largest number of source offsets that a partition lacks on the target."""
    record, job = context.record, context.record.job(tail_job.PHASE)
    assert job is not None
    ends = context.source.wire.list_offsets([item.key for item in job.partitions], "stable")
    stop = StopAt(migration_id=record.migration_id, offsets={partition_name(key): end for key, end in ends.items()})
    left = tail_job.behind(record, context.target, job, stop)
    return max((until - position for position, until in left.values()), default=0)


def _stop_and_verify(context: PhaseContext, attempt: FreezeAttempt, request: MirrorRequest) -> None:
    record = context.record
    stops.check_not_given_up(context, attempt)
    stops.check_deadline(record, attempt)
    method = stops.freeze(context, attempt)
    watch = Watch(POLL_SECONDS, _pauses(context, request), time.monotonic)
    result = verify(record, context.source, attempt, method, watch)
    context.journal.step(
        steps.FREEZE_VERIFIED,
        key=attempt.key,
        details={"result": result.model_dump(mode="json")},
        reason=f"producers frozen ({attempt.method}), {len(result.ends)} partitions verified",
        unless_step=(steps.FREEZE_GIVEN_UP, attempt.key),
    )


def _pauses(context: PhaseContext, request: MirrorRequest) -> Callable[[float], None]:
    """Return a ``sleep`` that raises :class:`_AskedMeanwhileError` once another request has come."""
    looked_at = time.monotonic()

    def pause(seconds: float) -> None:
        nonlocal looked_at
        time.sleep(seconds)
        if time.monotonic() - looked_at < requests.POLL_SECONDS:
            return
        looked_at = time.monotonic()
        if requests.read(context.journal_store, context.migration_id).number != request.number:
            raise _AskedMeanwhileError

    return pause
