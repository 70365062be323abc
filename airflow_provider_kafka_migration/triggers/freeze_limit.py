"""Looks at a migration's freeze until it is overdue, or there is none to look at any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from airflow_provider_kafka_migration.triggers.drain import DrainTrigger

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.migration import Watch
    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.spec import MigrationSpec


class FreezeLimitTrigger(DrainTrigger):
    """Reads the journal only: no cluster is asked, nothing is written.

    :param spec: the migration, JSON-able.
    :param poll_seconds: time between two looks.
    """

    #: A freeze lasts for a minute or so: a look that failed is never waited for longer than this.
    max_failed_looks: ClassVar[int] = 24
    longest_pause_seconds: ClassVar[float] = 5.0
    needs_clusters: ClassVar[bool] = False

    def open_watch(self, spec: MigrationSpec, resolver: Resolver) -> Watch:
        """What looks."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        return FreezeWatch.open(spec, resolver)

    def hand_over(self, former: Watch, opened: Watch) -> None:
        """The freeze that is known of: with the journal away nothing else tells when it is overdue."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        if isinstance(former, FreezeWatch) and isinstance(opened, FreezeWatch):
            opened.known = former.known
