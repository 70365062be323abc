"""Looks at a migration's freeze until it is overdue, or there is none to look at any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import TriggerEvent

from airflow_provider_kafka_migration.errors import CREDENTIALS_REFUSED, MigrationError
from airflow_provider_kafka_migration.triggers.drain import MAX_FAILED_LOOKS, DrainTrigger, Patience, failed

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.migration import Watch
    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.spec import MigrationSpec


#: While nothing is frozen: after so long a worker looks. It may reach a journal that the triggerer does not reach, and
#: a freeze may have begun there.
BLIND_SECONDS = 600.0


class FreezeLimitTrigger(DrainTrigger):
    """Reads the journal only: no cluster is asked, nothing is written.

    :param spec: the migration, JSON-able.
    :param poll_seconds: time between two looks.
    :param nothing_to_lift: no freeze was open when the journal was read last.
    """

    #: A freeze lasts for a minute or so: while there may be one, a look that failed is never waited for longer than
    #: this, and after so many the task itself looks, and tells somebody.
    max_failed_looks: ClassVar[int] = 24
    longest_pause_seconds: ClassVar[float] = 5.0
    #: As other failed looks: the task reads the connections again, too, and does not end for them.
    max_refused_looks: ClassVar[int] = MAX_FAILED_LOOKS
    needs_clusters: ClassVar[bool] = False

    def __init__(self, *, nothing_to_lift: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._nothing_to_lift = nothing_to_lift

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        path, arguments = super().serialize()
        return path, {**arguments, "nothing_to_lift": self._nothing_to_lift}

    @property
    def nothing_to_lift(self) -> bool:
        """No freeze was open when the journal was read last."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        return not self._present.may_be_frozen if isinstance(self._present, FreezeWatch) else self._nothing_to_lift

    def patience(self) -> Patience:
        """While nothing is frozen, pauses are long: an outage may last.

        A freeze that begins meanwhile is journaled first, so whoever can read the journal sees it. The triggerer may be
        the only one that cannot: then the task looks on a worker.
        """
        if not self.nothing_to_lift:
            return super().patience()
        return Patience(DrainTrigger.max_failed_looks, DrainTrigger.longest_pause_seconds, BLIND_SECONDS)

    def may_pass(self, error: MigrationError) -> bool:
        """Refused credentials, too, while nothing is frozen: else the task would have no pause between its looks."""
        return super().may_pass(error) or (self.nothing_to_lift and isinstance(error, CREDENTIALS_REFUSED))

    def ended_by(self, error: MigrationError) -> TriggerEvent:
        """With what the task has to know if it cannot read the journal either."""
        return TriggerEvent({**failed(error).payload, "nothing_to_lift": self.nothing_to_lift})

    def open_watch(self, spec: MigrationSpec, resolver: Resolver) -> Watch:
        """What looks."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        return FreezeWatch.open(spec, resolver)

    async def _open(self) -> Watch:
        from airflow_provider_kafka_migration.migration import FreezeWatch

        watch = await super()._open()
        if self._nothing_to_lift and isinstance(watch, FreezeWatch):
            watch.see(None)
        return watch

    def hand_over(self, former: Watch, opened: Watch) -> None:
        """The freeze that is known of: with the journal away nothing else tells when it is overdue."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        if isinstance(former, FreezeWatch) and isinstance(opened, FreezeWatch):
            opened.follow(former)
