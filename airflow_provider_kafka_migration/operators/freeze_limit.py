"""Task ``cutover.freeze_limit``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.hooks.task import plain_spec
from airflow_provider_kafka_migration.operators.base import MigrationOperator
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

    .. seealso:: docs/operators.md
    """

    phase = "cutover.freeze_limit"

    def __init__(self, *, deferrable: bool = True, poll_seconds: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.poll_seconds = poll_seconds

    def execute(self, context: Context) -> dict[str, Any]:
        """Lift what is overdue; watch on while there may be a freeze."""
        with self.open_migration(context) as migration:
            result = migration.run(self.phase)
            while result.details.get("watch") and not self.deferrable:
                time.sleep(self.poll_seconds)
                result = migration.run(self.phase)
            self.log.info("%s", result.summary)
            if not result.details.get("watch"):
                return self.pointers(migration, result)
        spec = plain_spec(self.migration_spec(context)) or {}
        self.defer(
            trigger=FreezeLimitTrigger(spec=spec, poll_seconds=self.poll_seconds), method_name="execute_complete"
        )
        raise AssertionError("defer never returns")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Something is to be done.

        :raises MigrationError: what the trigger met.
        """
        error = event_error(event)
        if error is not None:
            raise error
        return self.execute(context)
