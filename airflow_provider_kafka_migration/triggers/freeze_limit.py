"""Checks a migration's freeze until it is overdue, or until no freeze can follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import TriggerEvent

from airflow_provider_kafka_migration.errors import UNREADABLE, MigrationError, Transient
from airflow_provider_kafka_migration.triggers.drain import MAX_FAILED_LOOKS, DrainTrigger, Patience, failed

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.migration import Watch
    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.spec import MigrationSpec


#: While nothing is frozen, a worker checks after this long. It may reach a journal that the triggerer cannot reach,
#: and a freeze may have begun there.
BLIND_SECONDS = 600.0


class FreezeLimitTrigger(DrainTrigger):
    """Reads only the journal: it contacts no cluster and writes nothing.

    :param spec: the migration, as JSON-serializable data.
    :param poll_seconds: time between two checks.
    :param nothing_to_lift: no freeze was open at the last read of the journal.
    """

    #: A freeze lasts for about a minute: while one is possible, the pause after a failed check is never longer than
    #: this, and after so many failures the task itself checks and notifies people.
    max_failed_looks: ClassVar[int] = 24
    longest_pause_seconds: ClassVar[float] = 5.0
    #: Treated like other failed checks: the task also reads the connections again, and does not end because of them.
    max_refused_looks: ClassVar[int] = MAX_FAILED_LOOKS
    needs_clusters: ClassVar[bool] = False
    passing: ClassVar[tuple[type[MigrationError], ...]] = (Transient, *UNREADABLE)

    def __init__(self, *, nothing_to_lift: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._nothing_to_lift = nothing_to_lift

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path, arguments = super().serialize()
        return path, {**arguments, "nothing_to_lift": self._nothing_to_lift}

    @property
    def nothing_to_lift(self) -> bool:
        """Whether no freeze was open at the last read of the journal."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        return not self._present.may_be_frozen if isinstance(self._present, FreezeWatch) else self._nothing_to_lift

    def patience(self) -> Patience:
        """Return the current patience. While nothing is frozen, pauses are long: an outage may last.

        A freeze that begins in the meantime is journaled first, so any reader of the journal sees it. The triggerer may
        be the only process that cannot read it: then the task checks on a worker.
        """
        if not self.nothing_to_lift:
            return super().patience()
        return Patience(DrainTrigger.max_failed_looks, DrainTrigger.longest_pause_seconds, BLIND_SECONDS)

    def may_pass(self, error: MigrationError) -> bool:
        """Wait also for refused credentials while nothing is frozen: else the task would check without any pause."""
        return super().may_pass(error) or (self.nothing_to_lift and isinstance(error, UNREADABLE))

    def ended_by(self, error: MigrationError) -> TriggerEvent:
        """Return the event, with what the task has to know if it cannot read the journal either."""
        return TriggerEvent({**failed(error).payload, "nothing_to_lift": self.nothing_to_lift})

    def open_watch(self, spec: MigrationSpec, resolver: Resolver) -> Watch:
        """Open the watch that performs the checks."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        return FreezeWatch.open(spec, resolver)

    async def _open(self) -> Watch:
        from airflow_provider_kafka_migration.migration import FreezeWatch

        watch = await super()._open()
        if self._nothing_to_lift and isinstance(watch, FreezeWatch):
            watch.see(None)
        return watch

    def hand_over(self, former: Watch, opened: Watch) -> None:
        """Pass on the known freeze: while the journal is unreachable, only this shows when the freeze is overdue."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        if isinstance(former, FreezeWatch) and isinstance(opened, FreezeWatch):
            opened.follow(former)
