"""What Airflow loads as a plugin: the links of our tasks. No web application: those are mounted without a log-in."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_kafka_migration.links.storage import EvidenceLink, JournalLink, PlanLink
from airflow_provider_kafka_migration.provider import preload


class KafkaMigrationPlugin(AirflowPlugin):
    """Registers the links, so that a scheduler and an API server know them without importing DAG files."""

    name = "kafka_migration"
    operator_extra_links = [EvidenceLink(), JournalLink(), PlanLink()]

    @classmethod
    def on_load(cls, *_args: Any, **_kwargs: Any) -> None:
        """Called once per component of Airflow, in the scheduler before its executor forks the workers."""
        if preload.wanted():
            preload.preload()
