"""The generic DAG of mirrors: trigger it with the form. Each run starts the next one after a day."""

from __future__ import annotations

from datetime import timedelta

# Airflow looks for the words "airflow" and "dag" before it reads a file.
from airflow_provider_kafka_migration.mirror_dag import build_mirror_dag

dag = build_mirror_dag(run_for=timedelta(days=1))
