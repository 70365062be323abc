"""Task ``tail``."""

from __future__ import annotations

from airflow_provider_kafka_migration.provider.lineage import TellsLineage
from airflow_provider_kafka_migration.provider.spark_job import SparkMigrationOperator


class KafkaMigrationTailOperator(TellsLineage, SparkMigrationOperator):
    """Follows the source from where the target ends, until the cutover says where to stop and that is reached.

    It runs beside ``drain_ready`` and the approval, so the executor needs two slots. A failed cutover leaves it
    running. It tells OpenLineage which topics it read and wrote.

    .. seealso:: docs/operators.md
    """

    phase = "tail"
    main = "tail.py"
