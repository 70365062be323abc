"""Imports what the tasks need before Airflow forks its workers, so that a task during the freeze starts at once."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence

log = logging.getLogger(__name__)

#: What a task of the cutover imports: parsing the DAG, the core with its clients, S3 by Airflow's connection.
TASK_MODULES = (
    "airflow_provider_kafka_migration.dag",
    "airflow_provider_kafka_migration.migration",
    "airflow_provider_kafka_migration.phases.freeze",
    "airflow_provider_kafka_migration.phases.sentinels",
    "airflow_provider_kafka_migration.phases.final_drain",
    "airflow_provider_kafka_migration.phases.groups",
    "airflow_provider_kafka_migration.phases.floor_guard",
    "airflow_provider_kafka_migration.provider.connections",
    "airflow.providers.amazon.aws.hooks.base_aws",
    "boto3",
)


def wanted() -> bool:
    """``[kafka_migration] preload``."""
    from airflow.configuration import conf

    return bool(conf.getboolean("kafka_migration", "preload", fallback=False))


def preload(modules: Sequence[str] = TASK_MODULES) -> list[str]:
    """Import modules; a broken one is left to the task that needs it. Returns the names of those that were imported.

    Forked workers (LocalExecutor, Celery's prefork pool) inherit them; others are none the worse for it.
    """
    done = []
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            log.warning("preload: %s cannot be imported; the task that needs it will say why", name, exc_info=True)
        else:
            done.append(name)
    return done
