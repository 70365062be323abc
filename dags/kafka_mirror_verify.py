"""The generic DAG that compares mirrors: trigger it with the form, one run is one comparison."""

from __future__ import annotations

# Airflow looks for the words "airflow" and "dag" before it reads a file.
from airflow_provider_kafka_migration.mirror_dag import build_mirror_verify_dag

dag = build_mirror_verify_dag()
