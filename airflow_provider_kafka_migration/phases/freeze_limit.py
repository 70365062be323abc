"""The limit of a freeze when nobody is left to keep it: ``max_producer_freeze`` holds although every task has died.

The steps of the cutover lift a freeze that lasts too long themselves (:mod:`~.freeze.frozen`), as long as one of them
runs. A step that failed for good with time left, was killed, or waits for its retry, does not. This watch stands beside
them, writes nothing while all is well, and lifts the freeze a few seconds after its deadline.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.errors import (
    CREDENTIALS_REFUSED,
    FreezeFailed,
    MigrationError,
    PhaseOver,
    StillFrozen,
    Transient,
)
from airflow_provider_kafka_migration.freeze import by_hand, frozen, words
from airflow_provider_kafka_migration.record import freeze_attempt
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, iso
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State

PHASE = "freeze_limit"
#: The steps lift at the deadline; the watch comes after them.
LATE_SECONDS = 5.0

REASON = "max_producer_freeze is over, and no step of the cutover has lifted the freeze"

_NOT_OPENED = "journal_not_opened"

#: While the last step has not ended: it fences the copiers, and only then clients may be told.
_READY_TEXT = (
    f"producers stay stopped: {freeze_attempt.READY} is journaled, so the freeze is not lifted any more; "
    "if cutover.floor_guard has failed, clear it"
)


def check_limit(context: PhaseContext) -> dict[str, Any]:
    """One look: ``{"ready", "summary"}``; ready: there is something to do, or nothing left to watch.

    :raises MigrationError: the journal cannot be read, and no freeze that is known of is overdue.
    """
    try:
        context.journal.refresh()
    except (Transient, *CREDENTIALS_REFUSED) as error:
        return without_journal(freeze_attempt.current_attempt(context), context.now(), error)
    attempt = freeze_attempt.current_attempt(context)
    if _is_over(context):
        return {"ready": True, "summary": f"nothing is frozen any more: {context.journal.tip_state}"}
    if attempt is not None and attempt.ready:
        return {"ready": False, "summary": _READY_TEXT}
    if attempt is None or not attempt.is_open:
        return {"ready": False, "summary": "nothing is frozen"}
    left = frozen.seconds_left(context, attempt)
    if left > 0:
        return {"ready": False, "summary": f"freeze {attempt.number}: {left:.0f} s are left"}
    summary = f"freeze {attempt.number} was to end at {iso(attempt.deadline)}"
    return {"ready": _overdue(context, attempt), "summary": summary}


def without_journal(attempt: FreezeAttempt | None, now: datetime, error: MigrationError) -> dict[str, Any]:
    """A look while the journal cannot be read, from what an earlier one has seen.

    :param attempt: the last freeze that is known of.
    :raises MigrationError: the error; no freeze that is known of is overdue.
    """
    if attempt is None or not attempt.is_open or not _is_late(attempt, now):
        raise error
    # Somebody has to know: the task tries to lift, and fails with what a person has to do.
    summary = f"freeze {attempt.number} was to end at {iso(attempt.deadline)}, and the journal cannot be read"
    return {"ready": True, "summary": f"{summary}: {error.what}"}


def is_overdue(context: PhaseContext) -> bool:
    """Whether a freeze should have ended and has not, as the journal is known."""
    attempt = freeze_attempt.current_attempt(context)
    return not _is_over(context) and attempt is not None and attempt.is_open and _overdue(context, attempt)


def run(context: PhaseContext) -> PhaseResult:
    """Lift a freeze that is overdue.

    ``details["watch"]``: whether to go on watching; ``details["nothing_to_lift"]``: no freeze is open.

    :raises FreezeFailed: a freeze was lifted, so that somebody looks.
    :raises StillFrozen: the producers could not be freed; says what a person has to do. The next call tries again.
    """
    context.journal.refresh()
    if _is_over(context):
        return _result(f"nothing is frozen any more: {context.journal.tip_state}", watch=False)
    attempt = freeze_attempt.current_attempt(context)
    if attempt is not None and attempt.ready:
        return _result(_READY_TEXT, watch=True, nothing_to_lift=True)
    if attempt is None or not attempt.is_open or not _overdue(context, attempt):
        return _result("no freeze is overdue", watch=True, nothing_to_lift=attempt is None or not attempt.is_open)
    try:
        # First out of ``cutover``, then unfreeze: no step can say READY after that.
        frozen.back_to_tail(context, REASON, unless_ready=attempt)
    except PhaseOver:
        # READY_FOR_CLIENT_SWITCH was reached in this very moment: from there on nobody unfreezes the source.
        return _result(_READY_TEXT, watch=True, nothing_to_lift=True)
    details = frozen.lift(context, attempt, reason=REASON)
    raise FreezeFailed(
        f"freeze {attempt.number} was lifted after {details['frozen_seconds']:.0f} s: {REASON}",
        where=context.where(PHASE),
        next_step=f"{words.lifted(attempt.method)}. Look at the red task of the cutover; then clear drain_ready "
        "and everything below it (tail, too, if it has ended): the cutover begins again with an approval",
        details={"attempt": attempt.number, **details},
    )


def journal_unreachable(spec: MigrationSpec, cause: MigrationError) -> StillFrozen:
    """The error of a watch that cannot open the journal: it knows of no freeze, and of no end of one either."""
    error = by_hand.still_frozen(
        spec,
        "the journal cannot be opened, so it is not known whether producers are frozen, and nothing can be lifted",
        cause,
        method=spec.cutover.freeze,
        deadline=None,
        acls=[],
    )
    error.details[_NOT_OPENED] = True
    return error


def is_journal_unreachable(error: MigrationError) -> bool:
    """Whether it is the error of :func:`journal_unreachable`: its look has learned nothing of a freeze."""
    return bool(error.details.get(_NOT_OPENED))


def _is_over(context: PhaseContext) -> bool:
    state = context.journal.tip_state
    return context.journal.is_past(State.CUTOVER) or (state is not None and state.is_terminal)


def _overdue(context: PhaseContext, attempt: FreezeAttempt) -> bool:
    return _is_late(attempt, context.now())


def _is_late(attempt: FreezeAttempt, now: datetime) -> bool:
    return (now - attempt.deadline).total_seconds() > LATE_SECONDS


def _result(summary: str, *, watch: bool, nothing_to_lift: bool = False) -> PhaseResult:
    details = {"watch": watch, "nothing_to_lift": nothing_to_lift}
    return PhaseResult(PHASE, summary, details, already_done=not watch)
