"""A DAG per flow in YAML files of a folder: ``[kafka_migration] mirrors_folder``, or ``kafka_mirrors`` beside it."""

from __future__ import annotations

from pathlib import Path

from airflow.providers.common.compat.sdk import conf

from airflow_provider_kafka_migration.mirror_dag import load_mirror_dags

configured = conf.get("kafka_migration", "mirrors_folder", fallback="")
load_mirror_dags(globals(), configured or Path(__file__).parent / "kafka_mirrors")
