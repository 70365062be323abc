"""The Airflow plugin with the links of our tasks. It has no web application: Airflow mounts those without a login."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_kafka_migration.links.storage import EvidenceLink, JournalLink, PlanLink, VerificationLink
from airflow_provider_kafka_migration.provider import preload


class KafkaMigrationPlugin(AirflowPlugin):
    """Registers the links, so that a scheduler and an API server know them without importing DAG files."""

    name = "kafka_migration"
    operator_extra_links = [EvidenceLink(), JournalLink(), PlanLink(), VerificationLink()]

    @classmethod
    def on_load(cls, *_args: Any, **_kwargs: Any) -> None:
        """Preload modules. Airflow calls this once per component, in the scheduler before workers are forked."""
        if preload.wanted():
            preload.preload()
