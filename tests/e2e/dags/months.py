"""The DAG of a mirror in fast motion: a run lasts a minute instead of a day, and wakes up every quarter of a minute."""

from __future__ import annotations

from datetime import timedelta

# Airflow looks for the words "airflow" and "dag" before it reads a file.
from airflow_provider_kafka_migration import mirror_dag
from airflow_provider_kafka_migration.operators import spark_job

mirror_dag.LEAST_RUN_FOR = timedelta(0)
spark_job._WAKE_SECONDS = 15.0

dag = mirror_dag.build_mirror_dag(
    dag_id="months", run_for=timedelta(minutes=1), task_args={"mirror": {"deferrable": True}}
)
