"""What the first migration has to know of its way back, which may run while the first one is still validated.

The way back writes to the old cluster, and sets configs there. The first migration's checks would otherwise take both
for what strangers did to its source after the cutover.
"""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.way_back.derived_spec import SUFFIX


def _journal(record: MigrationRecord) -> Journal:
    return Journal(record.journal_store, f"{record.migration_id}{SUFFIX}")


def producer_ids(record: MigrationRecord) -> frozenset[int]:
    """Return the producer ids with which the way back writes records to the old cluster; empty: it has none yet."""
    entry = _journal(record).find_step(steps.PRODUCER_IDS)
    if entry is None:
        return frozenset()
    return frozenset({ProducerIds.model_validate(dict(entry.details)).data_producer_id})


def has_set_configs(record: MigrationRecord) -> bool:
    """Whether the way back was about to set configs of the old topics, or has."""
    return _journal(record).find_step(steps.COPY_SETTINGS) is not None
