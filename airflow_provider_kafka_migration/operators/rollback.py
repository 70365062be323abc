"""Task ``rollback``, also a DAG of its own."""

from __future__ import annotations

from airflow_provider_kafka_migration.operators.base import MigrationOperator


class KafkaMigrationRollbackOperator(MigrationOperator):
    """Ends a migration before its cutover: stops the tail, lifts a freeze, puts back what was changed for the copy.

    Topics and data on the target stay and are listed in ``rollback-report.json``. Once clients may
    switch it is refused, and nothing is claimed.

    .. seealso:: docs/operators.md
    """

    phase = "rollback"
