"""Task ``precheck``."""

from __future__ import annotations

from airflow_provider_kafka_migration.operators.base import MigrationOperator


class KafkaMigrationPrecheckOperator(MigrationOperator):
    """Looks for what would stop the migration, and probes what the target accepts. Read-only on the source.

    All findings are in the task's log, with their codes and what to do. Blockers fail the task; clear it when they are
    gone. Warnings may be waived by their codes in the spec.

    .. seealso:: docs/operators.md
    """

    phase = "precheck"
