"""The generic DAG: trigger it with the form, one run is one migration."""

from __future__ import annotations

# Airflow looks for the words "airflow" and "dag" before it reads a file.
from airflow_provider_kafka_migration.dag import build_migration_dag

dag = build_migration_dag()
