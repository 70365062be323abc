"""The watch on a freeze's limit: it enforces ``max_producer_freeze`` even if every task of the cutover has died.

While a step of the cutover runs, it lifts a freeze that lasts too long itself (:mod:`~.freeze.frozen`). A step that
failed for good with time left, was killed, or waits for its retry cannot. This watch runs in parallel, writes nothing
while all is well, and lifts the freeze a few seconds after its deadline. In a mirror it does the same for promotions,
and goes on: the mirror does, too, and another promotion may follow.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.errors import (
    UNREADABLE,
    FreezeFailed,
    JournalTampered,
    MigrationError,
    PhaseOver,
    StillFrozen,
    Transient,
)
from airflow_provider_kafka_migration.freeze import by_hand, frozen, stops, words
from airflow_provider_kafka_migration.mirrors import promotion_freeze, requests
from airflow_provider_kafka_migration.record import rolling_back, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State

PHASE = "freeze_limit"
#: The steps lift at the deadline; the watch waits this much longer.
LATE_SECONDS = 5.0

REASON = "max_producer_freeze has passed, and no step of the cutover has lifted the freeze"

#: The same for the promotion of a mirror.
_PROMOTED_TEXT = (
    f"producers stay stopped: {steps.PROMOTED} is journaled; whoever runs the mirror completes that; "
    f"{words.MIRROR_WAY_OUT}"
)

_NOT_OPENED = "journal_not_opened"

#: For the time until the last step ends: it fences the copiers, and only then may clients be told to switch.
_READY_TEXT = (
    f"producers stay stopped: {steps.READY} is journaled, so the freeze will not be lifted; "
    f"if cutover.floor_guard has failed, clear it; {words.WAY_OUT}"
)


def check_limit(record: MigrationRecord) -> dict[str, Any]:
    """Check once and return ``{"ready", "summary"}``; ready: there is something to do, or nothing left to watch.

    :raises MigrationError: the journal cannot be read, and no known freeze is overdue.
    """
    try:
        record.journal.refresh()
    except (Transient, *UNREADABLE) as error:
        return without_journal(record.freeze(), record.now(), error)
    attempt = record.freeze()
    if _is_over(record):
        return {"ready": True, "summary": _over_text(record)}
    if attempt is not None and attempt.ready:
        return {"ready": False, "summary": _ready_text(record, attempt)}
    if attempt is None or not attempt.is_open:
        return {"ready": False, "summary": "nothing is frozen"}
    left = stops.seconds_left(record, attempt)
    if left > 0 and not _overdue(record, attempt):
        return {"ready": False, "summary": f"freeze {attempt.number}: {left:.0f} s are left"}
    summary = f"freeze {attempt.number} was to end at {iso(attempt.deadline)}"
    return {"ready": _overdue(record, attempt), "summary": summary}


def without_journal(attempt: FreezeAttempt | None, now: datetime, error: MigrationError) -> dict[str, Any]:
    """Check once while the journal cannot be read, from what an earlier check has seen.

    :param attempt: the last known freeze.
    :raises MigrationError: the given error, because no known freeze is overdue.
    """
    if attempt is None or not attempt.is_open or not _is_late(attempt, now):
        raise error
    # A person must hear of it: the task tries to lift the freeze, and its error says what a person has to do.
    summary = f"freeze {attempt.number} was to end at {iso(attempt.deadline)}, but the journal cannot be read"
    return {"ready": True, "summary": f"{summary}: {error.what}"}


def is_overdue(context: PhaseContext) -> bool:
    """Whether a freeze should have ended and has not, per the journal as last read."""
    attempt = context.record.freeze()
    return (
        not _is_over(context.record) and attempt is not None and attempt.is_open and _overdue(context.record, attempt)
    )


def run(context: PhaseContext) -> PhaseResult:
    """Lift a freeze that is overdue.

    ``details["watch"]``: whether to continue to watch; ``details["nothing_to_lift"]``: no freeze is open.

    :raises FreezeFailed: a freeze was lifted; the failure draws a person's attention to it.
    :raises StillFrozen: the producers could not be freed; the error says what a person has to do. The next call tries
        again.
    """
    try:
        context.journal.refresh()
    except JournalTampered as error:
        raise _tampered(context, error) from error
    if _is_over(context.record):
        return _result(_over_text(context.record), watch=False)
    attempt = context.record.freeze()
    is_mirror = context.spec.kind == "mirror"
    if is_mirror and not context.spec.freezes_promotion and (attempt is None or not attempt.is_open):
        return _result("this mirror stops no producers", watch=False)
    if attempt is not None and attempt.ready:
        return _result(_ready_text(context.record, attempt), watch=True, nothing_to_lift=True)
    if attempt is None or not attempt.is_open or not _overdue(context.record, attempt):
        return _result("no freeze is overdue", watch=True, nothing_to_lift=attempt is None or not attempt.is_open)
    if attempt.request is not None:
        return _lift_promotion(context, attempt)
    try:
        # Leave ``cutover`` first, then unfreeze: after that no step can journal READY.
        frozen.back_to_tail(context.record, REASON, unless_ready=attempt)
    except PhaseOver:
        # READY_FOR_CLIENT_SWITCH was journaled in this very moment: from then on the source is never unfrozen.
        return _result(_READY_TEXT, watch=True, nothing_to_lift=True)
    try:
        details = frozen.lift(context, attempt, reason=REASON)
    except PhaseOver as over:
        # Somebody else was faster, and the next freeze has a limit, too.
        return _result(over.what, watch=True)
    if taken_back := write_grants.take_back_if_lifted(context):
        details["write_grants_taken_back"] = taken_back
    raise FreezeFailed(
        f"freeze {attempt.number} was lifted after {details['frozen_seconds']:.0f} s: {REASON}",
        where=context.where(PHASE),
        next_step=f"{words.lifted(attempt.method)}. Find out why the red task of the cutover failed, or, "
        f"if none did: {stops.too_slow(context.record, attempt)}; then {words.again(context.spec)}",
        details={"attempt": attempt.number, **details},
    )


def _lift_promotion(context: PhaseContext, attempt: FreezeAttempt) -> PhaseResult:
    """Call a mirror's promotion off, unless it is to be promoted without its source.

    :raises StillFrozen: the producers could not be freed.
    """
    request = requests.read(context.journal_store, context.migration_id)
    promotion_freeze.settle(context, request)
    now = context.record.freeze()
    if now is None or not now.lifted:
        return _result("the promotion goes on without the source", watch=True)
    seconds = (context.now() - attempt.stopped_at).total_seconds()
    summary = (
        f"freeze {attempt.number} was lifted after {seconds:.0f} s: {promotion_freeze.OVERDUE}; the mirror goes on"
    )
    return _result(f"{summary}; {words.lifted(attempt.method)}", watch=True, nothing_to_lift=True)


def _ready_text(record: MigrationRecord, attempt: FreezeAttempt) -> str:
    if rolling_back.is_abandoned(record.journal):
        how = rolling_back.next_step(record.spec, abandoned=True)
        return f"the {record.spec.kind} is abandoned, and that frees the producers: if it did not, {how}"
    return _READY_TEXT if attempt.request is None else _PROMOTED_TEXT


def by_hand_without_journal(spec: MigrationSpec) -> str:
    """Return how people free producers if nothing is known about a freeze but how it would stop them."""
    return by_hand.instructions(spec, method=spec.cutover.freeze, deadline=None, acls=[])


def journal_unreachable(spec: MigrationSpec, cause: MigrationError) -> StillFrozen:
    """Return the error of a watch that cannot open the journal, and so knows neither of a freeze nor of its end."""
    error = by_hand.still_frozen(
        spec,
        "the journal cannot be opened, so it is not known whether producers are frozen, and no freeze can be lifted",
        cause,
        method=spec.cutover.freeze,
        deadline=None,
        acls=[],
    )
    error.details[_NOT_OPENED] = True
    return error


def _tampered(context: PhaseContext, cause: JournalTampered) -> MigrationError:
    """Return the error of a journal that cannot be trusted any more, by what was read of it before."""
    attempt = context.record.freeze()
    if attempt is None or not attempt.is_open:
        return cause
    what = "the journal cannot be trusted, so the migration must not free producers by itself"
    return stops.still_frozen(context.record, attempt, cause, what=what)


def is_journal_unreachable(error: MigrationError) -> bool:
    """Whether an error is that of :func:`journal_unreachable`: the check learned nothing about a freeze."""
    return bool(error.details.get(_NOT_OPENED))


def _is_over(record: MigrationRecord) -> bool:
    state = record.journal.tip_state
    return record.journal.is_past(State.CUTOVER) or (state is not None and state.is_terminal)


def _over_text(record: MigrationRecord) -> str:
    """Say why there is no limit to watch any more; producers may be stopped for clients that switch."""
    attempt, state = record.freeze(), record.journal.tip_state
    is_switching = state in (State.AWAITING_CLIENT_SWITCH, State.PROMOTED)
    if attempt is None or not attempt.ready or attempt.lifted or not is_switching:
        return f"nothing is frozen any more: the state is {state}"
    stopped = words.stopped(attempt.method, attempt.stopped_at)
    way_out = words.way_out(is_mirror=attempt.request is not None)
    return f"no limit is in force any more: {stopped}, until they are started on the target; {way_out}"


def _overdue(record: MigrationRecord, attempt: FreezeAttempt) -> bool:
    return _is_late(attempt, record.now())


def _is_late(attempt: FreezeAttempt, now: datetime) -> bool:
    """Whether a freeze should have ended: by its limit, or because it was given up and not lifted."""
    return (now - attempt.deadline).total_seconds() > LATE_SECONDS or frozen.was_left(attempt, now)


def _result(summary: str, *, watch: bool, nothing_to_lift: bool = False) -> PhaseResult:
    details = {"watch": watch, "nothing_to_lift": nothing_to_lift}
    return PhaseResult(PHASE, summary, details, already_done=not watch)
