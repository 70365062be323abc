"""Retry steps of the cutover inside the freeze, for as long as its limit allows.

A scheduler's retries take no account of a freeze: four tries are used up while a broker restarts, and minutes between
two tries are minutes of frozen producers. So a step that met a transient error is run again here, in the same process.
When the limit has passed, the freeze is lifted without the clusters or documents that the step could not reach.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from airflow_provider_kafka_migration.errors import (
    ClaimLost,
    DrainTimeout,
    FreezeFailed,
    Interrupted,
    JournalTampered,
    MigrationError,
    PhaseOver,
    StillFrozen,
    StorageUnavailable,
    Transient,
)
from airflow_provider_kafka_migration.freeze import by_hand, frozen, stops, words
from airflow_provider_kafka_migration.freeze.deny_acls import planned_acls
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.changes import Standing
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)

PHASE = "cutover"
#: Pauses before the second, third ... try, seconds; the last one repeats.
PAUSES = (1.0, 2.0, 3.0, 5.0)

#: Transient, but trying the step again inside the same freeze cannot help.
_NOT_AGAIN = (Interrupted, DrainTimeout)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class FreezePatience:
    """Runs one step of the cutover until it ends, or until the freeze has to end.

    :param open_context: opens a context that needs only the journal; called again after a failure.
    :param show: called after each failed try.
    :param may_be_ready: the step journals READY: while the journal is unreachable, READY may have been written although
        the answer was lost.
    """

    def __init__(
        self,
        spec: MigrationSpec,
        open_context: Callable[[], PhaseContext],
        show: Callable[[Progress], None],
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = _utc_now,
        may_be_ready: bool = False,
    ) -> None:
        self._may_be_ready = may_be_ready
        self._spec = spec
        self._open_context = open_context
        self._show = show
        self._sleep = sleep
        self._now = now
        self._began = now()
        #: the last attempt in the journal, and the same while it is open
        self._last: FreezeAttempt | None = None
        self._attempt: FreezeAttempt | None = None
        self._acls: list[Acl] = []
        #: it has ended, also by people who abandoned the migration after READY
        self._is_over = False
        self._is_known = False
        self._tries = 0

    def run(self, step: Callable[[], PhaseResult]) -> PhaseResult:
        """Run the step, and run it again after each transient failure.

        :raises FreezeFailed: the limit passed before the step could end; the freeze was lifted.
        :raises StillFrozen: the freeze could not be lifted; the error says what a person has to do.
        :raises MigrationError: the step's error, if it is not transient or nothing is frozen.
        """
        while True:
            try:
                return step()
            except StillFrozen as error:
                # The step has failed for good and could not lift the freeze: only the lift is left to do.
                self._lift_patiently(error)
            except _NOT_AGAIN:
                raise
            except JournalTampered as error:
                raise self._tampered(error) from error
            except Transient as error:
                self._look()
                if self._attempt is None and self._is_known:
                    raise
                if self._left() <= 0:
                    self._end(error)
                self._pause(error)

    # -- what is known of the freeze ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the open freeze from the journal; keep what is known if the journal cannot be read."""
        try:
            context = self._open_context()
            context.journal.refresh()
            attempt = context.record.freeze()
        except Transient as error:
            log.warning("The journal cannot be read, so it is not known whether producers are frozen: %s", error)
            return
        self._see(context.record, attempt)

    def _see(self, record: MigrationRecord, attempt: FreezeAttempt | None) -> None:
        self._last = attempt
        self._acls = planned_acls(record, attempt.key) if attempt is not None else []
        self._is_over = attempt is not None and stops.standing(record, attempt) is Standing.OVER
        self._attempt = attempt if attempt is not None and attempt.is_open else None
        self._is_known = True

    def _deadline(self) -> datetime:
        """Return when the freeze has to end.

        If that is unknown, it is ``max_producer_freeze`` after the start of this step: no freeze that began before the
        step may last longer.
        """
        if self._attempt is not None:
            return self._attempt.deadline
        longest: timedelta = self._spec.cutover.max_producer_freeze
        return self._began + longest

    def _left(self) -> float:
        return (self._deadline() - self._now()).total_seconds()

    def _pause(self, error: MigrationError) -> None:
        pause = PAUSES[min(self._tries, len(PAUSES) - 1)]
        self._tries += 1
        left = self._left()
        log.warning("Retrying in %.0f s; %.0f s of the freeze are left: %s", pause, left, error)
        self._show(Progress(PHASE, f"{error.what}; trying again, {left:.0f} s of the freeze are left"))
        self._sleep(max(min(pause, left), 0.0))

    # -- the end of the limit ----------------------------------------------------------------------------------------

    def _end(self, error: MigrationError) -> None:
        """Lift the freeze, because its limit has passed; never returns."""
        if self._attempt is None:
            raise self._unknown(error) from error
        reason = f"max_producer_freeze had passed before the step could end: {error.what}"
        try:
            context = self._open_context()
            details = frozen.lift(context, self._attempt, reason=reason)
        except StillFrozen as problem:
            raise self._still_frozen(problem) from error
        except Transient as problem:
            raise self._unknown(problem) from error
        raise FreezeFailed(
            f"freeze {self._attempt.number} was lifted after {details['frozen_seconds']:.0f} s: {reason}",
            where=error.where,
            next_step=f"{words.lifted(self._attempt.method)}. First: {error.next_step}. Then {words.again(self._spec)}",
            details={"attempt": self._attempt.number, "cause": error.as_dict(), **details},
        ) from error

    def _lift_patiently(self, error: StillFrozen) -> None:
        """Try to lift until the limit has passed, at least once; never returns.

        Whatever the journal says, producers are called free only after an ``unfreeze`` of this process has succeeded.
        """
        last = error
        while True:
            self._look()
            if self._last is not None:
                self._check_not_ready(self._last, error)
                last = self._lift(self._last, last)
            if self._left() <= 0:
                raise last from error
            self._pause(last)

    def _check_not_ready(self, attempt: FreezeAttempt, error: StillFrozen) -> None:
        """Raise :class:`PhaseOver` if clients may be on the target: the step had journaled it before it failed."""
        if attempt.ready and not self._is_over:
            raise PhaseOver(
                f"{steps.READY} is journaled, so producers stay stopped",
                where=error.where,
                next_step="clear cutover.floor_guard, which continues from there; do not free the producers",
                details={"cause": error.as_dict()},
            ) from error

    def _lift(self, attempt: FreezeAttempt, error: StillFrozen) -> StillFrozen:
        """Try to lift once; return why it failed."""
        try:
            context = self._open_context()
            if attempt.is_open:
                self._lift_open(context, attempt)
            else:
                # Somebody else has lifted it. This frees those whom a request of this process has stopped after that.
                stops.take_back(context, attempt)
        except StillFrozen as problem:
            return self._still_frozen(problem)
        except Transient as problem:
            return self._unknown(problem)
        raise self._lifted_meanwhile(error) from error

    @staticmethod
    def _lift_open(context: PhaseContext, attempt: FreezeAttempt) -> None:
        try:
            frozen.lift(context, attempt, reason="a step of the cutover failed for good")
        except ClaimLost as lost:
            # Another owner decides about the freeze, unless it has ended: then nobody may stay stopped for it.
            if stops.standing(context.record, attempt) is not Standing.OVER:
                raise
            stops.take_back(context, attempt)
            lost.add_next_step("producers whom this run had stopped too late are free again")
            raise

    def _lifted_meanwhile(self, error: MigrationError) -> FreezeFailed:
        method = self._last.method if self._last else self._spec.cutover.freeze
        return FreezeFailed(
            "a step of the cutover failed for good, and the freeze is lifted now",
            where=error.where,
            next_step=f"{words.lifted(method)}. Find the failure before this one in the log and fix its cause; then "
            f"{words.again(self._spec)}",
            details={"cause": error.as_dict()},
        )

    def _still_frozen(self, error: StillFrozen) -> StillFrozen:
        """Return the error of a lift; if the journal is unreachable, it must not tell a person to free producers."""
        cause = error.__cause__
        return self._unknown(cause) if self._may_be_ready and isinstance(cause, StorageUnavailable) else error

    def _unknown(self, cause: MigrationError) -> StillFrozen:
        """Return the error for an unreachable journal: it is unknown whether producers may be freed."""
        attempt = self._attempt
        if self._may_be_ready:
            method = attempt.method if attempt else self._spec.cutover.freeze
            deadline = attempt.deadline if attempt else None
            return by_hand.maybe_ready(self._spec, cause, method=method, deadline=deadline)
        return by_hand.still_frozen(
            self._spec,
            "the journal cannot be read or written, so the migration must not free producers by itself"
            + (f" (freeze {attempt.number} was to end at {iso(attempt.deadline)})" if attempt else ""),
            cause,
            method=attempt.method if attempt else self._spec.cutover.freeze,
            deadline=attempt.deadline if attempt else None,
            acls=self._acls,
            held=attempt.held if attempt else False,
        )

    def _tampered(self, error: JournalTampered) -> MigrationError:
        """Return the error for a journal that cannot be trusted: if producers may be stopped, it says how to free them.

        What this process has read before counts; then the last attempt is still known.
        """
        try:
            record = self._open_context().record
            self._see(record, record.freeze())
            self._is_known = True
        except MigrationError as problem:
            log.warning("It is not known whether producers are frozen: %s", problem)
        return error if self._is_known and self._attempt is None else self._unknown(error)
