"""Task ``cutover.freeze_limit``."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.errors import UNREADABLE, MigrationError, Transient
from airflow_provider_kafka_migration.operators.migration import MigrationOperator
from airflow_provider_kafka_migration.provider.connections import airflow_resolver
from airflow_provider_kafka_migration.provider.task import plain_spec
from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.triggers.drain import event_error
from airflow_provider_kafka_migration.triggers.freeze_limit import FreezeLimitTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class KafkaMigrationFreezeLimitOperator(MigrationOperator):
    """Lifts a freeze that lasts longer than ``max_producer_freeze`` when no step of the cutover does it.

    From ``drain_ready`` on it runs alongside approval and cutover, deferred: the triggerer reads the journal, and the
    task takes no slot. It ends when the clients may switch or the migration has ended, and fails if it had to lift a
    freeze.

    :param deferrable: False waits in the worker, for an Airflow without a triggerer.
    :param poll_seconds: time between two checks.
    :param patience_seconds: how long one attempt of the task keeps trying to lift a freeze that it cannot lift.
        Then the task fails with instructions for a person, and Airflow's retries continue.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.freeze_limit"
    #: Because producers may be frozen.
    takes_recorded = True

    def __init__(
        self, *, deferrable: bool = True, poll_seconds: float = 5.0, patience_seconds: float = 60.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.poll_seconds = poll_seconds
        self.patience_seconds = patience_seconds

    def execute(self, context: Context) -> dict[str, Any]:
        """Lift an overdue freeze; keep watching while a freeze is possible.

        :raises FreezeFailed: a freeze was lifted.
        :raises StillFrozen: it could not be lifted; Airflow retries.
        """
        return self._watch(context, nothing_to_lift=False)

    def _watch(self, context: Context, *, nothing_to_lift: bool) -> dict[str, Any]:
        """Run the phase until it has a result, or defer to the trigger.

        :param nothing_to_lift: no freeze was open at the last read of the journal.
        """
        if why := self.relieved(context):
            self.log.info("%s", why)
            with self.open_migration(context) as migration:
                return self.pointers(migration, PhaseResult(self.phase, why, already_done=True))
        pointers, nothing_to_lift = self._run_patiently(context, nothing_to_lift)
        while pointers is None and not self.deferrable:
            time.sleep(self.poll_seconds)
            if self.relieved(context):
                return self._watch(context, nothing_to_lift=nothing_to_lift)
            pointers, nothing_to_lift = self._run_patiently(context, nothing_to_lift)
        if pointers is not None:
            return pointers
        spec = plain_spec(self.migration_spec(context)) or {}
        look_at = self.look_at(context)
        trigger = FreezeLimitTrigger(
            spec=spec,
            poll_seconds=self.poll_seconds,
            nothing_to_lift=nothing_to_lift,
            look_at=None if look_at is None else look_at.isoformat(),
        )
        self.defer(trigger=trigger, method_name="execute_complete")
        raise AssertionError("defer never returns")

    def relieved(self, _context: Context) -> str:
        """Return why this task need not watch any more, apart from what the journal says; empty: it has to."""
        return ""

    def look_at(self, _context: Context) -> datetime | None:
        """Return when the task has to look by itself; None: only when the trigger finds something."""
        return None

    def _run_patiently(self, context: Context, nothing_to_lift: bool) -> tuple[dict[str, Any] | None, bool]:
        """Run the phase: (pointers, or None to keep watching; whether no freeze was open at the last journal read).

        Transient errors are retried for a while, because producers may be frozen all that time, each time with
        freshly read connections. While no freeze was open, they use up no attempt of the task: an outage may last
        longer than the attempts, which are reserved for the freeze.

        :raises StillFrozen: credentials stay refused: a terminal error would end the attempts and with them the watch.
        """
        from airflow_provider_kafka_migration.phases.freeze_limit import journal_unreachable

        until = time.monotonic() + self.patience_seconds
        while True:
            try:
                with self.open_migration(context) as migration:
                    result = migration.run(self.phase)
                    self.log.info("%s", result.summary)
                    if result.details.get("watch"):
                        return None, bool(result.details.get("nothing_to_lift"))
                    return self.pointers(migration, result), False
            except (Transient, *UNREADABLE) as error:
                if time.monotonic() >= until:
                    if nothing_to_lift and self._is_nothing_to_lift(context, error):
                        self.log.error(
                            "The check on this worker failed as well. As far as the journal could be read, no freeze "
                            "is open, so the watch continues: %s",
                            error,
                        )
                        return None, True
                    if isinstance(error, Transient):
                        raise
                    raise journal_unreachable(self.migration_spec(context), error) from error
                self.log.error("Retrying in %.0f s: %s", self.poll_seconds, error)
            time.sleep(self.poll_seconds)

    def _is_nothing_to_lift(self, context: Context, error: MigrationError) -> bool:
        """Return whether no freeze is open according to the journal, or to its last read if it is unreadable now.

        :param error: the phase's error. If it occurred after the journal was opened, the phase may know of a freeze.
        """
        from airflow_provider_kafka_migration.migration import FreezeWatch
        from airflow_provider_kafka_migration.phases.freeze_limit import is_journal_unreachable

        watch = FreezeWatch.open(self.migration_spec(context), airflow_resolver())
        try:
            if is_journal_unreachable(error):
                watch.see(None)
            watch.check()
        except (Transient, *UNREADABLE) as away:
            self.log.warning("The journal cannot be read: %s", away)
        finally:
            watch.close()
        return not watch.may_be_frozen

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Check in the task itself, because there is something to do or the trigger could no longer check.

        :raises MigrationError: the trigger's error, if another check cannot help.
        """
        error = event_error(event)
        if error is not None and not isinstance(error, (Transient, *UNREADABLE)):
            raise error
        return self._watch(context, nothing_to_lift=bool(event.get("nothing_to_lift")))
