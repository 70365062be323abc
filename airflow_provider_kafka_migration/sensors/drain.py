"""Task ``drain_ready``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator

from airflow_provider_kafka_migration.provider.compat import set_retry_policy
from airflow_provider_kafka_migration.provider.progress import Callback, as_callbacks, call_all
from airflow_provider_kafka_migration.provider.task import MigrationTask, SpecSource, plain_spec
from airflow_provider_kafka_migration.triggers.drain import TROUBLE_EVENT, DrainTrigger, event_error

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.record.record import MigrationRecord
    from airflow_provider_kafka_migration.spec import MigrationSpec


#: A deferral with no time left would have no limit; with this one Airflow ends it at its next check.
_LEAST_WAIT = timedelta(seconds=1)


class KafkaMigrationDrainSensor(MigrationTask, BaseSensorOperator):
    """Waits until every partition's lag is at or below the limit for the whole stable window.

    It releases its slot while it waits: the triggerer checks the lags, with two requests per broker. The triggerer may
    restart at any time; then the window begins again.

    :param spec: the migration; None takes it from the Params of the run.
    :param takeover: take the migration over from another owner.
    :param deferrable: False waits in the worker, for an Airflow without a triggerer.
    :param poll_seconds: time between two checks.
    :param on_trouble: called with the task's context when the tail has shown no sign of life for a minute or two.

    .. seealso:: docs/operators.md
    """

    phase = "drain_ready"
    #: Because it waits for days, across upgrades, and only reads.
    takes_recorded = True

    def __init__(
        self,
        *,
        spec: SpecSource = None,
        takeover: bool = False,
        deferrable: bool = True,
        poll_seconds: float = 2.0,
        on_trouble: Callback | Sequence[Callback] | None = (),
        **kwargs: Any,
    ) -> None:
        set_retry_policy(kwargs)
        super().__init__(**kwargs)
        self.spec = plain_spec(spec)
        self.takeover = takeover
        self.deferrable = deferrable
        self.poll_seconds = poll_seconds
        self.on_trouble = as_callbacks(on_trouble)

    def execute(self, context: Context) -> dict[str, Any]:
        """Finish immediately if the migration has moved on; else wait."""
        spec = self.migration_spec(context)
        with self.open_migration(context) as migration:
            if not self.deferrable or _gone_on(migration.context.record):
                return self._finish(migration)
        return self._wait(spec)

    def _wait(self, spec: MigrationSpec, *, deadline: str | None = None, silence_is_told: bool = False) -> NoReturn:
        """Defer for the time left until the deadline; without a deadline the wait begins here."""
        trigger = DrainTrigger(
            spec=plain_spec(spec) or {}, poll_seconds=self.poll_seconds, silence_is_told=silence_is_told
        )
        now, longest = datetime.now(UTC), spec.tail.drain_ready_timeout
        ends = now + longest if deadline is None else datetime.fromisoformat(deadline)
        self.defer(
            trigger=trigger,
            method_name="execute_complete",
            kwargs={"deadline": ends.isoformat()},
            # If a clock was set back, or another worker's differs, the wait is never longer than a new one.
            timeout=min(max(ends - now, _LEAST_WAIT), longest),
        )
        raise AssertionError("defer never returns")

    def execute_complete(self, context: Context, event: dict[str, Any], deadline: str | None = None) -> dict[str, Any]:
        """Check once more, because the event may be old, and journal the result; report a silent tail and keep waiting.

        :param deadline: end of the wait that the event interrupts; None: an earlier version began the wait.
        :raises MigrationError: the trigger's error.
        """
        if event.get("status") == TROUBLE_EVENT:
            self.log.warning("%s", event["summary"])
            call_all(self.on_trouble, context, str(event["summary"]))
            self._wait(self.migration_spec(context), deadline=deadline, silence_is_told=True)
        error = event_error(event)
        if error is not None:
            raise error
        with self.open_migration(context) as migration:
            return self._finish(migration, event=event)

    def _finish(self, migration: Migration, **options: Any) -> dict[str, Any]:
        result = migration.run(self.phase, **options)
        self.log.info("%s%s", "already done: " if result.already_done else "", result.summary)
        return self.pointers(migration, result)


def _gone_on(record: MigrationRecord) -> bool:
    """Return whether there is nothing left to wait for: the cutover has begun, or the migration has ended."""
    from airflow_provider_kafka_migration.state import State

    record.journal.refresh()
    state = record.journal.tip_state
    return record.journal.is_past(State.DRAIN_READY) or (state is not None and state.is_terminal)
