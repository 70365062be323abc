"""The freeze as the journal knows it: attempts, their deadline, the steps inside, and how a freeze is lifted.

A cutover is one or more *attempts*. An attempt begins with a journal step before the first producer is stopped, and
ends either READY_FOR_CLIENT_SWITCH or lifted. Every step of the cutover runs inside :func:`frozen_step`, which lifts
the freeze when its time is over or when the step failed for good, and takes the migration back to ``tail``
(seed 001: a failed phase is resumable; producers never stay stopped for a migration that does not go on).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import (
    FreezeFailed,
    GroupsIncomplete,
    MigrationError,
    PhaseOver,
    StillFrozen,
    Transient,
)
from airflow_provider_kafka_migration.freeze import by_hand, freeze_methods, words
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import (
    HANDS_OFF,
    HELD,
    LIFTED,
    READY,
    STEP,
    TAIL_STOP,
    FreezeAttempt,
    current_attempt,
)
from airflow_provider_kafka_migration.record.timing import iso
from airflow_provider_kafka_migration.state import State

log = logging.getLogger(__name__)

PHASE = "cutover"


#: Failures that a person may heal while producers are still frozen, as long as there is time.
_HEALABLE = (GroupsIncomplete,)


def verified_attempt(context: PhaseContext, step: str) -> FreezeAttempt:
    """The attempt that a step of the cutover belongs to.

    :raises FreezeFailed: nothing is frozen.
    """
    attempt = current_attempt(context)
    if attempt is None or attempt.lifted or attempt.given_up or attempt.verified is None:
        is_over = attempt is not None and (attempt.lifted or attempt.given_up)
        state = "was lifted" if is_over else "is not verified"
        error = FreezeFailed(
            f"the freeze {state}, so the step {step} must not run",
            where=context.where(PHASE),
            next_step="clear drain_ready and what follows it: the cutover starts again with a new approval",
        )
        if attempt is not None and attempt.lifted:
            error.add_next_step(words.lifted(attempt.method))
        raise error
    return attempt


def check_deadline(context: PhaseContext, attempt: FreezeAttempt) -> None:
    """Raise :class:`FreezeFailed` when producers have been frozen for longer than ``max_producer_freeze``."""
    over = (context.now() - attempt.deadline).total_seconds()
    if attempt.ready or over <= 0:
        return
    raise FreezeFailed(
        f"producers are frozen for longer than max_producer_freeze "
        f"({context.spec.cutover.max_producer_freeze.total_seconds():g} s), by {over:.1f} s",
        where=context.where(PHASE),
        next_step="find what was slow (the journal has the seconds of each step); raise cutover.max_producer_freeze "
        "or choose a quieter hour; then approve the cutover again",
        details={"attempt": attempt.number, "deadline": iso(attempt.deadline)},
    )


def seconds_left(context: PhaseContext, attempt: FreezeAttempt) -> float:
    """Seconds until the freeze is lifted; never below 0."""
    return max((attempt.deadline - context.now()).total_seconds(), 0.0)


def hold(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    """Have producers kept stopped until they are freed by name: no end that anybody was told of may come after READY.

    Whoever looks at the source after this sees also what was written while the receiver was late. Idempotent.

    :raises PhaseOver: the freeze was given up: producers must not be stopped for it once more.
    :raises FreezeFailed: the webhook's receiver refused, or the freeze is over.
    :raises FreezeUnconfirmed: it did not answer; ask again while the freeze lasts.
    """
    if attempt.method != "webhook":
        return {}
    # References take as long as their backend does, so they are resolved before the checks and not between them.
    receiver = freeze_methods.webhook_receiver(context)
    context.journal.step_once(HELD, key=attempt.key, details={"method": attempt.method}, only_in={State.CUTOVER})
    # Right before the request, and with one that ends before the limit: a late one must not follow an ``unfreeze``.
    if not attempt.ready:
        check_deadline(context, attempt)
    context.journal.check_holds(only_in={State.CUTOVER})
    # Behind READY there is no limit any more, and nobody who asks again.
    within = None if attempt.ready else seconds_left(context, attempt)
    try:
        return freeze_methods.hold_by_method(context, receiver, within_seconds=within)
    finally:
        _free_again_if_lifted(context, attempt)


def _free_again_if_lifted(context: PhaseContext, attempt: FreezeAttempt) -> None:
    """The watch on the limit may have freed producers while the request was under way, which stopped them once more.

    :raises PhaseOver: it has.
    """
    try:
        context.journal.check_holds(only_in={State.CUTOVER})
    except PhaseOver:
        freeze_methods.unfreeze(context, attempt.method, attempt.key, attempt.deadline)
        raise
    except Transient as error:
        log.warning("It is not known whether the freeze was lifted meanwhile: %s", error)


@contextmanager
def frozen_step(context: PhaseContext, name: str) -> Iterator[FreezeAttempt]:
    """Run a step of the cutover while producers are frozen.

    On the way out by an exception the freeze is lifted if the step failed for good or the time is over. With time
    left, a transient failure keeps the freeze, since the retry is cheaper for everybody than a second freeze.
    """
    attempt = verified_attempt(context, name)
    with lifting(context, attempt):
        check_deadline(context, attempt)
        yield attempt


@contextmanager
def lifting(context: PhaseContext, attempt: FreezeAttempt) -> Iterator[None]:
    """Lift the freeze of an attempt when the block fails, as :func:`frozen_step` says."""
    try:
        yield
    except HANDS_OFF:
        raise
    except Exception as error:
        if attempt.ready or _may_be_tried_again(context, attempt, error):
            raise
        lift(context, attempt, reason=_reason(error))
        if isinstance(error, MigrationError):
            error.add_next_step(f"the freeze is lifted: {words.lifted(attempt.method)}")
        raise


def _may_be_tried_again(context: PhaseContext, attempt: FreezeAttempt, error: Exception) -> bool:
    from_outside = isinstance(error, Transient) and error.code != "DRAIN_TIMEOUT"
    return (from_outside or isinstance(error, _HEALABLE)) and seconds_left(context, attempt) > 0


def _reason(error: Exception) -> str:
    return error.what if isinstance(error, MigrationError) else f"{type(error).__name__} in our own code"


def lift(context: PhaseContext, attempt: FreezeAttempt, *, reason: str) -> dict[str, Any]:
    """Go back to ``tail`` and free the producers. Idempotent: every part may be done before.

    The migration leaves ``cutover`` before the first producer is freed: whatever dies or cannot be journaled after
    that, no step of the cutover runs again for producers that write. The tail's stop is taken away before, too, so
    that a tail which is running goes on.

    :raises StillFrozen: the freeze could not be lifted, or not journaled as lifted; says what a person has to do, and
        the next call tries again.
    :raises PhaseOver: READY_FOR_CLIENT_SWITCH is journaled.
    """
    try:
        # Nobody who lost the migration frees producers, and nobody does it once clients may be on the target: a source
        # that is written to again would be a second truth. Without the journal neither is known.
        context.journal.check_holds()
        _check_not_ready(context, attempt)
        back_to_tail(context, f"freeze {attempt.number} is lifted: {reason}", unless_ready=attempt)
        clear_tail_stop(context)
        done = freeze_methods.unfreeze(context, attempt.method, attempt.key, attempt.deadline)
    except (*HANDS_OFF, PhaseOver):
        raise
    except MigrationError as error:
        raise still_frozen(context, attempt, error) from error
    details = {"reason": reason, **done}
    details["frozen_seconds"] = round((context.now() - attempt.stopped_at).total_seconds(), 3)
    try:
        context.journal.step(LIFTED, key=attempt.key, details=details)
    except Transient as error:
        what = f"freeze {attempt.number} was lifted, and that cannot be journaled"
        raise still_frozen(context, attempt, error, what=what) from error
    return details


def _check_not_ready(context: PhaseContext, attempt: FreezeAttempt) -> None:
    if context.journal.find_step(READY, attempt.key) is not None:
        raise PhaseOver(
            f"freeze {attempt.number} ended with {READY}: it is too late to free the producers",
            where=context.where(PHASE),
            next_step="none: the migration has gone on, and clients may be on the target",
        )


def still_frozen(
    context: PhaseContext, attempt: FreezeAttempt, cause: MigrationError, *, what: str = ""
) -> StillFrozen:
    """The error of a freeze that cannot be lifted now, with what a person has to do."""
    return by_hand.still_frozen(
        context.spec,
        what or f"producers are still frozen, and freeze {attempt.number} cannot be lifted",
        cause,
        method=attempt.method,
        deadline=attempt.deadline,
        acls=freeze_methods.planned_acls(context, attempt.key),
        held=attempt.held,
    )


def back_to_tail(
    context: PhaseContext,
    reason: str,
    details: dict[str, Any] | None = None,
    *,
    unless_ready: FreezeAttempt | None = None,
) -> None:
    """From ``cutover`` to ``tail``: the copy goes on, and a new cutover begins with drain_ready and an approval.

    :raises PhaseOver: the attempt ``unless_ready`` has become READY_FOR_CLIENT_SWITCH meanwhile.
    """
    journal = context.journal
    journal.refresh()
    if journal.tip_state is State.FAILED and journal.working_state is State.CUTOVER:
        journal.transition(State.CUTOVER, reason)
    if journal.tip_state is State.CUTOVER:
        unless = (READY, unless_ready.key) if unless_ready else None
        journal.transition(State.TAIL, reason, details, from_states={State.CUTOVER}, unless_step=unless)


def clear_tail_stop(context: PhaseContext) -> None:
    """Let the tail go on, whatever it was told: a StopAt without offsets stops nothing."""
    if StopAt.in_force(context.journal_store.get(context.key(TAIL_STOP))) is not None:
        context.journal.check_holds()
        clear_stop(context)


def clear_stop(context: PhaseContext) -> None:
    """Take the stop away, without a look at who holds the migration."""
    key = context.key(TAIL_STOP)
    if StopAt.in_force(context.journal_store.get(key)) is not None:
        context.journal_store.put(key, StopAt(migration_id=context.migration_id, offsets={}).canonical())


@dataclass(frozen=True)
class StepTimer:
    """Measures one step of the cutover for the journal."""

    context: PhaseContext
    attempt: FreezeAttempt
    name: str
    started: datetime

    @classmethod
    def start(cls, context: PhaseContext, attempt: FreezeAttempt, name: str) -> StepTimer:
        """Begin to measure."""
        return cls(context, attempt, name, context.now())

    def done(self, details: dict[str, Any]) -> dict[str, Any]:
        """Journal the step with its seconds; the details as journaled."""
        finished = self.context.now()
        full = {
            **details,
            "started_at": iso(self.started),
            "finished_at": iso(finished),
            "seconds": round((finished - self.started).total_seconds(), 3),
        }
        self.context.journal.step(STEP, key=f"{self.attempt.key}/{self.name}", details=full)
        return full
