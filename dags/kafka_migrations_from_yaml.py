"""A DAG per YAML file of a folder: ``[kafka_migration] migrations_folder``, or ``kafka_migrations`` beside it."""

from __future__ import annotations

from pathlib import Path

from airflow.providers.common.compat.sdk import conf

from airflow_provider_kafka_migration.dag import load_migration_dags

configured = conf.get("kafka_migration", "migrations_folder", fallback="")
load_migration_dags(globals(), configured or Path(__file__).parent / "kafka_migrations")
