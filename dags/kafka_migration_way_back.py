"""Lets clients return to the old cluster after they have switched, or releases it."""

from __future__ import annotations

# Airflow looks for the words "airflow" and "dag" before it reads a file.
from airflow_provider_kafka_migration.dag import build_way_back_dag

dag = build_way_back_dag()
