"""The task of a watch's DAG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_kafka_migration.deadline_watch import Watched
from airflow_provider_kafka_migration.provider.task import SpecSource, plain_spec
from airflow_provider_kafka_migration.triggers.deadline import DeadlineEndTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class KafkaMigrationDeadlineSensor(BaseSensorOperator):
    """Waits until a freeze is over, or until the lag is within its limit again.

    It starts and ends in the triggerer: it needs no slot, not even to begin. It reads only the storage.

    :param spec: the migration or the mirror.
    :param watched: ``freeze`` or ``lag``.
    :param lag_limit_seconds: largest lag of a partition in seconds, for ``lag``; None: any.
    :param lag_limit_records: largest lag of a partition in records, for ``lag``; None: any.
    :param poll_seconds: time between two checks.

    .. seealso:: docs/monitoring.md
    """

    #: The spec is data and is never rendered.
    template_fields = ()
    start_from_trigger = True

    def __init__(
        self,
        *,
        spec: SpecSource,
        watched: Watched,
        lag_limit_seconds: float | None = None,
        lag_limit_records: int | None = None,
        poll_seconds: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._arguments: dict[str, Any] = {
            "spec": plain_spec(spec) or {},
            "watched": watched,
            "lag_limit_seconds": lag_limit_seconds,
            "lag_limit_records": lag_limit_records,
            "poll_seconds": poll_seconds,
        }
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"{DeadlineEndTrigger.__module__}.{DeadlineEndTrigger.__qualname__}",
            trigger_kwargs=self._arguments,
            next_method="execute_complete",
            next_kwargs=None,
            timeout=None,
        )

    def execute(self, context: Context) -> NoReturn:
        """Defer, where a task is started in a worker in spite of ``start_from_trigger`` (``dag.test()``)."""
        self.defer(trigger=DeadlineEndTrigger(**self._arguments), method_name="execute_complete")
        raise AssertionError("defer never returns")

    def execute_complete(self, context: Context, event: Any = None) -> None:
        """Do nothing: the trigger's event says that it is over."""
