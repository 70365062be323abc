"""Task ``seed``."""

from __future__ import annotations

from airflow_provider_kafka_migration.provider.lineage import TellsLineage
from airflow_provider_kafka_migration.provider.spark_job import SparkMigrationOperator


class KafkaMigrationSeedOperator(TellsLineage, SparkMigrationOperator):
    """Copies everything up to the source's end offsets as seen when it first started.

    Killed at any moment and cleared, it goes on from the target's end. It tells OpenLineage which topics it read and
    wrote.

    .. seealso:: docs/operators.md
    """

    phase = "seed"
    main = "seed.py"
