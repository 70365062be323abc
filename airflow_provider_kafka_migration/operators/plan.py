"""Task ``plan``."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.links.storage import JournalLink, PlanLink
from airflow_provider_kafka_migration.operators.approval import MigrationApprovalOperator
from airflow_provider_kafka_migration.operators.base import MigrationOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.spec import MigrationSpec


class KafkaMigrationPlanOperator(MigrationOperator):
    """Makes ``plan.json`` from the spec and the live clusters, and its digest. Writes to neither cluster.

    .. seealso:: docs/operators.md
    """

    phase = "plan"
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(), PlanLink())

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase, unless this DAG cannot end the migration.

        :raises SpecInvalid: the spec asks two people, and the DAG has no task for the second one.
        """
        _check_second_approval(self.migration_spec(context), context)
        return super().execute(context)


def _check_second_approval(spec: MigrationSpec, context: Context) -> None:
    """Said at the start, and not when the producers are about to be frozen."""
    dag = context.get("dag")
    approvals = [task for task in getattr(dag, "tasks", ()) if isinstance(task, MigrationApprovalOperator)]
    if spec.approvals.second_users and approvals and not any(task.first_task_id for task in approvals):
        raise SpecInvalid(
            "approvals.second_users asks two people, but this DAG has no approval tasks for the second one",
            where=Where(migration_id=spec.migration_id, path="approvals.second_users"),
            next_step="use a DAG built from the spec (a YAML file, or build_migration_dag(spec)), or leave it out",
        )
