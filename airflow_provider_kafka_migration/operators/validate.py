"""Task ``validate``."""

from __future__ import annotations

from airflow_provider_kafka_migration.provider.spark_job import SparkMigrationOperator


class KafkaMigrationValidateOperator(SparkMigrationOperator):
    """The six checks; the third compares the content of all records, on Spark.

    .. seealso:: docs/operators.md
    """

    phase = "validate"
    main = "verify.py"
    runner_argument = "verifier"
