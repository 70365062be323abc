"""Deadline alerts for the freezes and lags of all migrations and mirrors in the folders of YAML files."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.providers.common.compat.sdk import conf

# Airflow looks for the words "airflow" and "dag" before it reads a file.
from airflow_provider_kafka_migration.watch_dag import load_watch_dags


def _folder(option: str, name: str) -> str | Path:
    return conf.get("kafka_migration", option, fallback="") or Path(__file__).parent / name


load_watch_dags(
    globals(),
    _folder("migrations_folder", "kafka_migrations"),
    _folder("mirrors_folder", "kafka_mirrors"),
    # Change these to what your producers and consumers can wait for.
    freeze_within=timedelta(minutes=2),
    lag_within=timedelta(minutes=10),
    lag_limit=timedelta(minutes=1),
    # Nothing is watched before somebody unpauses its DAG.
    is_paused_upon_creation=True,
)
