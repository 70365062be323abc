"""The freeze per the journal: its attempts, their deadline, the steps within it, and how a freeze is lifted.

A cutover is one or more *attempts*. An attempt begins with a journal step before the first producer is stopped, and
ends either with READY_FOR_CLIENT_SWITCH or lifted. Every step of the cutover runs inside :func:`frozen_step`. When the
limit has passed, or when the step has failed for good, it lifts the freeze and takes the migration back to ``tail``
(producers never stay stopped for a migration that does not continue, docs/decisions/0007).

The promotion of a mirror has attempts, too, which end with the step ``promoted`` or lifted. Its steps are not here but
in :mod:`~.mirrors.promotion_freeze`; the methods, the limit and the lift are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.errors import (
    HANDS_OFF,
    FreezeFailed,
    GroupsIncomplete,
    MigrationError,
    PhaseOver,
    StillFrozen,
    Transient,
)
from airflow_provider_kafka_migration.freeze import source_registry, stops, tail_stop, words
from airflow_provider_kafka_migration.record import rolling_back, steps
from airflow_provider_kafka_migration.record.changes import open_changes, wait_for_open
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State

PHASE = "cutover"
log = logging.getLogger(__name__)
#: How long whoever gives a freeze up may take to lift it, before others finish it.
GIVEN_UP_SECONDS = 60.0
#: Failures that a person may fix while producers are still frozen, if enough time is left.
_HEALABLE = (GroupsIncomplete,)


def verified_attempt(record: MigrationRecord, step: str) -> FreezeAttempt:
    """Return the attempt that a step of the cutover belongs to.

    :raises FreezeFailed: nothing is frozen.
    """
    attempt = record.freeze()
    if attempt is None or attempt.lifted or attempt.given_up or attempt.verified is None:
        is_over = attempt is not None and (attempt.lifted or attempt.given_up)
        state = "was lifted" if is_over else "is not verified"
        error = FreezeFailed(
            f"the freeze {state}, so the step {step} must not run",
            where=record.where(PHASE),
            next_step=words.again(record.spec),
        )
        if attempt is not None and attempt.lifted:
            error.add_next_step(words.lifted(attempt.method))
        raise error
    return attempt


@contextmanager
def frozen_step(context: PhaseContext, name: str) -> Iterator[FreezeAttempt]:
    """Run a step of the cutover while producers are frozen.

    If the step raises, the freeze is lifted if the step failed for good or the limit has passed. With time left, a
    transient failure keeps the freeze, since a retry is cheaper for all than a second freeze.
    """
    attempt = verified_attempt(context.record, name)
    with lifting(context, attempt):
        stops.check_deadline(context.record, attempt)
        yield attempt


@contextmanager
def lifting(context: PhaseContext, attempt: FreezeAttempt) -> Iterator[None]:
    """Lift the freeze of an attempt when the block fails, under the conditions of :func:`frozen_step`."""
    try:
        yield
    except (*HANDS_OFF, StillFrozen):
        # StillFrozen: freeing them has just failed, and perhaps after the claim was lost. Its advice must be seen.
        raise
    except Exception as error:
        if attempt.ready or may_be_tried_again(context.record, attempt, error):
            raise
        lift(context, attempt, reason=_reason(error))
        if isinstance(error, MigrationError):
            error.add_next_step(f"the freeze is lifted: {words.lifted(attempt.method)}")
        raise


def may_be_tried_again(record: MigrationRecord, attempt: FreezeAttempt, error: Exception) -> bool:
    """Whether a failed step may be run again while producers stay stopped: a retry is cheaper than a second freeze."""
    from_outside = isinstance(error, Transient) and error.code != "DRAIN_TIMEOUT"
    return (from_outside or isinstance(error, _HEALABLE)) and stops.seconds_left(record, attempt) > 0


def _reason(error: Exception) -> str:
    return error.what if isinstance(error, MigrationError) else f"{type(error).__name__} in the migration's code"


def lift(context: PhaseContext, attempt: FreezeAttempt, *, reason: str, ends: bool = False) -> dict[str, Any]:
    """Go back to ``tail`` and free the producers. Idempotent: any part may have been done before.

    The migration leaves ``cutover`` before the first producer is freed: whatever dies or cannot be journaled after
    that, no step of the cutover runs while producers write again. The tail's stop is withdrawn, so that a running tail
    continues: before, unless the attempt may have restored configs that producers notice. Then the topics first get
    their copy-time settings again (:mod:`~.freeze.tail_stop`), for which the producers do not wait. A mirror stays in
    its state, and journals that it gives the attempt up; its stop is withdrawn once its copiers have reached it.

    :param ends: the migration ends, so nothing has to continue.
    :raises StillFrozen: the freeze could not be lifted, or not journaled as lifted; the error says what a person has
        to do, and the next call tries again.
    :raises PhaseOver: READY_FOR_CLIENT_SWITCH or another freeze is journaled, or that the mirror is promoted.
    """
    record = context.record
    is_cutover = attempt.request is None
    try:
        # A process that has lost the migration must not free producers, and no process may do so once clients may be on
        # the target: writes to the source would make the clusters diverge. Without the journal neither is known.
        context.journal.check_holds()
        _check_not_ready(record, attempt)
        if (known := _lifted(record, attempt)) is not None:
            return {**known, **source_registry.put_back_or_name(context, attempt.key)}
        _leave(record, attempt, reason)
        is_restored = is_cutover and tail_stop.may_be_restored(record, attempt)
        if is_cutover and not is_restored:
            tail_stop.clear_tail_stop(record)
        done = stops.free(context, attempt)
        # They are free now, unless a request to stop them is still under way in another process, or was sent by one
        # that is dead. Nothing says "lifted" before that is over and they were freed again.
        if wait_for_open(context.journal, attempt.key, now=context.now, sleep=context.sleep):
            _check_not_ready(record, attempt)
            done = stops.free(context, attempt)
    except (*HANDS_OFF, PhaseOver):
        raise
    except MigrationError as error:
        raise stops.still_frozen(record, attempt, error) from error
    details = {"reason": reason, **done}
    details["frozen_seconds"] = round((context.now() - attempt.stopped_at).total_seconds(), 3)
    if is_restored:
        details |= tail_stop.lift(context, ends=ends)
    try:
        entry = _journal_lifted(context, attempt, details)
    except Transient as error:
        what = f"freeze {attempt.number} was lifted, but that cannot be journaled"
        raise stops.still_frozen(record, attempt, error, what=what) from error
    # Producers are free and that is journaled: a registry that cannot be reached delays neither.
    return {**entry.details, **source_registry.put_back_or_name(context, attempt.key)}


def _journal_lifted(context: PhaseContext, attempt: FreezeAttempt, details: dict[str, Any]) -> JournalEntry:
    """Journal the lift, unless another process was faster: of an attempt there is one, until a stop comes late."""
    entry = context.journal.step_once(steps.FREEZE_LIFTED, attempt.key, details, again_after=steps.FREEZE_CAME_LATE)
    done = entry.details
    seconds, reason = float(done.get("frozen_seconds", 0.0)), str(done.get("reason", ""))
    context.announce(words.over(attempt.number, seconds, reason, attempt.method))
    return entry


def _lifted(record: MigrationRecord, attempt: FreezeAttempt) -> dict[str, Any] | None:
    """Return the details of the lift if another process has lifted the freeze since this attempt was read."""
    now = record.freeze()
    if now is None or now.number != attempt.number or not now.lifted:
        return None
    entry = record.journal.find_step(steps.FREEZE_LIFTED, attempt.key)
    return None if entry is None else dict(entry.details)


def free_abandoned(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    """Free the producers of a migration that was abandoned after READY, or of such a promotion. Idempotent.

    The journal has the step ``abandoned``, so no client is told to switch any more.

    :raises StillFrozen: the producers could not be freed; the error says what a person has to do. Call it again.
    """
    if attempt.lifted:
        return {}
    record = context.record
    try:
        context.journal.check_holds()
        done = stops.free(context, attempt)
        # A receiver may have been asked behind READY to keep them stopped, by a process that is slow, or dead.
        if wait_for_open(context.journal, attempt.key, now=context.now, sleep=context.sleep):
            done = stops.free(context, attempt)
    except HANDS_OFF:
        raise
    except MigrationError as error:
        raise stops.still_frozen(record, attempt, error, abandoned=True) from error
    details = {"reason": "abandoned", **done}
    details["frozen_seconds"] = round((context.now() - attempt.stopped_at).total_seconds(), 3)
    entry = _journal_lifted(context, attempt, details)
    return {**entry.details, **source_registry.put_back_or_name(context, attempt.key)}


def free_after_end(context: PhaseContext) -> str:
    """Free producers whom a late request may have stopped after the end; return how they were stopped, or nothing.

    The outcome of that request is not in the journal, which is closed. No claim is needed.

    :raises StillFrozen: they could not be freed.
    """
    attempt = context.record.freeze()
    is_ready = attempt is not None and attempt.ready and not rolling_back.is_abandoned(context.journal)
    if attempt is None or is_ready or not open_changes(context.journal, attempt.key):
        return ""
    stops.take_back(context, attempt)
    return attempt.method


def finish_given_up(context: PhaseContext) -> None:
    """Finish the lift of a freeze that somebody has given up and not lifted: whoever runs does it. Idempotent.

    Whoever gave it up has :data:`GIVEN_UP_SECONDS` to do it. A failure is logged; the next caller tries again.

    :raises ClaimLost: another owner has taken over.
    """
    attempt, state = context.record.freeze(), context.journal.tip_state
    if attempt is None or not attempt.is_open or not was_left(attempt, context.now()):
        return
    if state is None or state.is_terminal:
        return
    try:
        lift(context, attempt, reason="it was given up before, but its end was not journaled")
    except PhaseOver as error:
        log.info("Freeze %s is not lifted: %s", attempt.number, error)
    except StillFrozen as error:
        log.error("%s", error)
    else:
        log.warning("Freeze %s, which was given up, is lifted: %s", attempt.number, words.lifted(attempt.method))


def was_left(attempt: FreezeAttempt, now: datetime) -> bool:
    """Whether an attempt was given up so long ago that nobody may be lifting it any more."""
    return attempt.given_up_at is not None and (now - attempt.given_up_at).total_seconds() > GIVEN_UP_SECONDS


def _leave(record: MigrationRecord, attempt: FreezeAttempt, reason: str) -> None:
    """Make sure that no step of the attempt follows any more.

    :raises PhaseOver: the attempt's last step is journaled.
    """
    if attempt.request is None:
        back_to_tail(record, f"freeze {attempt.number} is lifted: {reason}", unless_ready=attempt)
    elif record.journal.find_step(steps.FREEZE_GIVEN_UP, attempt.key) is None:
        record.journal.step(
            steps.FREEZE_GIVEN_UP,
            key=attempt.key,
            details={"reason": reason},
            reason=f"freeze {attempt.number} is lifted: {reason}",
            unless_step=attempt.last_step,
        )


def _check_not_ready(record: MigrationRecord, attempt: FreezeAttempt) -> None:
    (name, key) = attempt.last_step
    stops.check_not_followed(record, attempt)
    if record.journal.find_step(name, key) is not None:
        raise PhaseOver(
            f"freeze {attempt.number} ended with {name}: it is too late to free the producers",
            where=record.where(words.phase_of(record.spec)),
            next_step=f"nothing needs to be done: the {record.spec.kind} has continued, and clients may be on the "
            f"target; {words.way_out(is_mirror=attempt.request is not None)}",
        )


def back_to_tail(
    record: MigrationRecord,
    reason: str,
    details: dict[str, Any] | None = None,
    *,
    unless_ready: FreezeAttempt | None = None,
) -> None:
    """Go from ``cutover`` to ``tail``: the copy continues, and a new cutover begins with drain_ready and an approval.

    :raises PhaseOver: the attempt ``unless_ready`` has reached READY_FOR_CLIENT_SWITCH meanwhile.
    """
    journal = record.journal
    journal.refresh()
    if journal.tip_state is State.FAILED and journal.working_state is State.CUTOVER:
        journal.transition(State.CUTOVER, reason)
    if journal.tip_state is State.CUTOVER:
        unless = (steps.READY, unless_ready.key) if unless_ready else None
        journal.transition(State.TAIL, reason, details, from_states={State.CUTOVER}, unless_step=unless)


@dataclass(frozen=True)
class StepTimer:
    """Measures one step of the cutover for the journal."""

    record: MigrationRecord
    attempt: FreezeAttempt
    name: str
    started: datetime

    @classmethod
    def start(cls, record: MigrationRecord, attempt: FreezeAttempt, name: str) -> StepTimer:
        """Start measuring."""
        return cls(record, attempt, name, record.now())

    def done(self, details: dict[str, Any]) -> dict[str, Any]:
        """Journal the step with its seconds; return the details as journaled."""
        finished = self.record.now()
        full = {
            **details,
            "started_at": iso(self.started),
            "finished_at": iso(finished),
            "seconds": round((finished - self.started).total_seconds(), 3),
        }
        self.record.journal.step(steps.CUTOVER_STEP, key=f"{self.attempt.key}/{self.name}", details=full)
        return full
