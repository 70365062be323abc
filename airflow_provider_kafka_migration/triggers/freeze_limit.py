"""Looks at a migration's freeze until it is overdue, or there is none to look at any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    def open_watch(self, spec: MigrationSpec, resolver: Resolver) -> Watch:
        """What looks."""
        from airflow_provider_kafka_migration.migration import FreezeWatch

        return FreezeWatch.open(spec, resolver)
