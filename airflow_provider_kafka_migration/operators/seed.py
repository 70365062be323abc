"""Task ``seed``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.operators.lineage import SeedLineage
from airflow_provider_kafka_migration.operators.spark_job import SparkMigrationOperator

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.phases.context import PhaseResult


class KafkaMigrationSeedOperator(SparkMigrationOperator):
    """Copies everything up to the source's end offsets as seen when it first started.

    Killed at any moment and cleared, it goes on from the target's end. It tells OpenLineage which topics it read and
    wrote.

    .. seealso:: docs/operators.md
    """

    phase = "seed"
    main = "seed.py"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lineage: SeedLineage | None = None

    def _finished(self, migration: Migration, result: PhaseResult) -> None:
        try:
            self._lineage = SeedLineage.of(migration, result)
        except Exception as error:  # the seed is done; what cannot be told about it must not make it red
            self.log.warning("No lineage can be given: %s", error)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Asked by the OpenLineage provider, if it is installed, when the task has ended well."""
        return self._lineage.facets() if self._lineage is not None else None
