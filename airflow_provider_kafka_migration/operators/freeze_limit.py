"""Task ``cutover.freeze_limit``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.errors import CREDENTIALS_REFUSED, MigrationError, Transient
from airflow_provider_kafka_migration.operators.migration import MigrationOperator
from airflow_provider_kafka_migration.provider.connections import airflow_resolver
from airflow_provider_kafka_migration.provider.task import plain_spec
from airflow_provider_kafka_migration.triggers.drain import event_error
from airflow_provider_kafka_migration.triggers.freeze_limit import FreezeLimitTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class KafkaMigrationFreezeLimitOperator(MigrationOperator):
    """Lifts a freeze that lasts longer than ``max_producer_freeze`` when no step of the cutover does it.

    It stands beside approval and cutover from ``drain_ready`` on, deferred: the triggerer reads the journal, and no
    slot is taken. It ends when the clients may switch, or the migration has ended, and fails when it had to lift.

    :param deferrable: False waits in the worker, for an Airflow without a triggerer.
    :param poll_seconds: time between two looks.
    :param patience_seconds: for how long one try of the task goes on trying to lift a freeze that it cannot lift,
        before the task fails with what a person has to do, and Airflow's retries go on.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.freeze_limit"
    #: Producers may be frozen.
    takes_recorded = True

    def __init__(
        self, *, deferrable: bool = True, poll_seconds: float = 5.0, patience_seconds: float = 60.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.poll_seconds = poll_seconds
        self.patience_seconds = patience_seconds

    def execute(self, context: Context) -> dict[str, Any]:
        """Lift what is overdue; watch on while there may be a freeze.

        :raises FreezeFailed: a freeze was lifted.
        :raises StillFrozen: it could not be lifted; Airflow tries again.
        """
        return self._watch(context, nothing_to_lift=False)

    def _watch(self, context: Context, *, nothing_to_lift: bool) -> dict[str, Any]:
        """:param nothing_to_lift: no freeze was open when the journal was read last."""
        pointers, nothing_to_lift = self._run_patiently(context, nothing_to_lift)
        while pointers is None and not self.deferrable:
            time.sleep(self.poll_seconds)
            pointers, nothing_to_lift = self._run_patiently(context, nothing_to_lift)
        if pointers is not None:
            return pointers
        spec = plain_spec(self.migration_spec(context)) or {}
        trigger = FreezeLimitTrigger(spec=spec, poll_seconds=self.poll_seconds, nothing_to_lift=nothing_to_lift)
        self.defer(trigger=trigger, method_name="execute_complete")
        raise AssertionError("defer never returns")

    def _run_patiently(self, context: Context, nothing_to_lift: bool) -> tuple[dict[str, Any] | None, bool]:
        """Run the phase: (pointers, or None to watch on; whether no freeze was open when the journal was read last).

        What is transient is tried again for a while, since producers may be frozen all the time, each time with
        freshly read connections. While no freeze was open it costs no try of the task: an outage may last for
        longer than they do, and they are for the freeze.

        :raises StillFrozen: credentials stay refused: a terminal error would end the tries, and the watch with them.
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
            except (Transient, *CREDENTIALS_REFUSED) as error:
                if time.monotonic() >= until:
                    if nothing_to_lift and self._is_nothing_to_lift(context, error):
                        self.log.error(
                            "The look of this worker failed, too. As far as the journal could be read no freeze is "
                            "open, so the watch goes on: %s",
                            error,
                        )
                        return None, True
                    if isinstance(error, Transient):
                        raise
                    raise journal_unreachable(self.migration_spec(context), error) from error
                self.log.error("Tried again in %.0f s: %s", self.poll_seconds, error)
            time.sleep(self.poll_seconds)

    def _is_nothing_to_lift(self, context: Context, error: MigrationError) -> bool:
        """Whether no freeze is open, as far as the journal can be read; what was read earlier counts if it cannot.

        :param error: of the phase. If it came after the journal was opened, there may be a freeze that it knew of.
        """
        from airflow_provider_kafka_migration.migration import FreezeWatch
        from airflow_provider_kafka_migration.phases.freeze_limit import is_journal_unreachable

        watch = FreezeWatch.open(self.migration_spec(context), airflow_resolver())
        try:
            if is_journal_unreachable(error):
                watch.see(None)
            watch.check()
        except (Transient, *CREDENTIALS_REFUSED) as away:
            self.log.warning("The journal cannot be read: %s", away)
        finally:
            watch.close()
        return not watch.may_be_frozen

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Something is to be done, or the trigger could not look any more: the task itself looks then.

        :raises MigrationError: what the trigger met, where looking again cannot help.
        """
        error = event_error(event)
        if error is not None and not isinstance(error, (Transient, *CREDENTIALS_REFUSED)):
            raise error
        return self._watch(context, nothing_to_lift=bool(event.get("nothing_to_lift")))
