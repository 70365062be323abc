"""Imports what tasks need before Airflow forks its workers, so that tasks start immediately during a freeze."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence

from airflow_provider_kafka_migration.phase_table import CUTOVER

log = logging.getLogger(__name__)

#: What a task of the cutover imports: the DAG, the core with its clients, S3 through Airflow's connection.
TASK_MODULES = (
    "airflow_provider_kafka_migration.dag",
    "airflow_provider_kafka_migration.migration",
    *dict.fromkeys(row.module for row in CUTOVER),
    "airflow_provider_kafka_migration.provider.connections",
    "airflow.providers.amazon.aws.hooks.base_aws",
    "boto3",
)


def wanted() -> bool:
    """Return the setting ``[kafka_migration] preload``."""
    from airflow.configuration import conf

    return bool(conf.getboolean("kafka_migration", "preload", fallback=False))


def preload(modules: Sequence[str] = TASK_MODULES) -> list[str]:
    """Import modules; leave a broken one to the task that needs it. Return the names of the imported modules.

    Forked workers (LocalExecutor, Celery's prefork pool) inherit them; for other workers this makes no difference.
    """
    done = []
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            log.warning("preload: %s cannot be imported; the task that needs it reports why", name, exc_info=True)
        else:
            done.append(name)
    return done
