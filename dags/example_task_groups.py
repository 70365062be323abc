"""An example to copy from: a migration between two tasks of your own. `kafka-migration dags` leaves it out."""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_provider_kafka_migration.dag import migration_task_group

with DAG("example_kafka_migration_group", schedule=None, max_active_runs=1, tags=["example"]) as dag:
    orders = migration_task_group(
        {
            "migration_id": "orders-2026",
            "source": {"conn_id": "kafka_source"},
            "target": {"conn_id": "kafka_target"},
            "storage": {"conn_id": "aws_migrations", "journal": "s3://migrations/orders"},
        },
        group_id="orders",
        task_args={"seed": {"pool": "source-cluster"}},
    )
    # `announce` runs when the migration is finalized, and is skipped after Abort or Back out.
    EmptyOperator(task_id="create_target") >> orders >> EmptyOperator(task_id="announce")
