"""Looks at a migration's freeze until it is overdue, or there is none to look at any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from airflow_provider_kafka_migration.triggers.drain import MAX_FAILED_LOOKS, DrainTrigger

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.migration import Watch
    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.spec import MigrationSpec


class FreezeLimitTrigger(DrainTrigger):
    """Reads the journal only: no cluster is asked, nothing is written.

    :param spec: the migration, JSON-able.
    :param poll_seconds: time between two looks.
    """

    #: A freeze lasts for a minute or so: while there may be one, a look that failed is never waited for longer than
    #: this, and after so many the task itself looks, and tells somebody.
    max_failed_looks: ClassVar[int] = 24
    longest_pause_seconds: ClassVar[float] = 5.0
    #: As other failed looks: the task reads the connections again, too, and does not end for them.
    max_refused_looks: ClassVar[int] = MAX_FAILED_LOOKS
    needs_clusters: ClassVar[bool] = False

    def patience(self) -> tuple[int, float]:
        """While nothing is frozen an outage is waited out: the task's tries are for the freeze.

        A freeze that begins meanwhile is journaled first, so it is seen once the journal can be read again; until then
        its own steps keep its limit.
        """
        from airflow_provider_kafka_migration.migration import FreezeWatch

        if isinstance(self._present, FreezeWatch) and not self._present.may_be_frozen:
            return DrainTrigger.max_failed_looks, DrainTrigger.longest_pause_seconds
        return super().patience()

    def open_watch(self, spec: MigrationSpec, resolver: Resolver) -> Watch:
        """What looks."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        return FreezeWatch.open(spec, resolver)

    def hand_over(self, former: Watch, opened: Watch) -> None:
        """The freeze that is known of: with the journal away nothing else tells when it is overdue."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        if isinstance(former, FreezeWatch) and isinstance(opened, FreezeWatch):
            opened.follow(former)
