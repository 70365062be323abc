"""Precheck of the freeze webhook: whether its address and its secret are found. It is not called."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_kafka_migration.documents.findings import Finding
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.freeze import freeze_methods
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding


def check_receiver(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Find what the references lead to in this process; what they lead to may be a secret and is never shown."""
    try:
        freeze_methods.check_receiver(context)
    except MigrationError as error:
        yield finding("B041", error.what, subject=error.where.path or "", fix=error.next_step)
