"""Task ``rollback``, also a DAG of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_kafka_migration.operators.base import MigrationOperator
from airflow_provider_kafka_migration.provider.recorded import recorded_run_spec

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.spec import MigrationSpec


class KafkaMigrationRollbackOperator(MigrationOperator):
    """Ends a migration before its cutover: stops the tail, lifts a freeze, puts back what was changed for the copy.

    Without a spec of its own it reads the migration's spec from the journal, which the run's Params name. Topics and
    data on the target stay and are listed in ``rollback-report.json``. Once clients may switch it is refused, and
    nothing is claimed.

    .. seealso:: docs/operators.md
    """

    phase = "rollback"
    takes_recorded = True

    def migration_spec(self, context: Context) -> MigrationSpec:
        """The task's own spec, or the one in the journal.

        :raises IllegalTransition: there is no such migration.
        """
        if self.spec is None:
            return recorded_run_spec(context["params"])
        return super().migration_spec(context)

    def told_spec(self, context: Context) -> MigrationSpec:
        """The same: the run's Params alone are no spec."""
        return self.migration_spec(context)
