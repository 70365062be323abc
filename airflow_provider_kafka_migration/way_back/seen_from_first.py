"""What the first migration has to know of its way back, which may run while the first one is still validated.

The way back writes to the old cluster, and sets configs there; at its end, clients do. The first migration's checks
would otherwise take all that for what strangers did to its source after the cutover.
"""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.errors import DocumentUnreadable
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.way_back.derived_spec import SUFFIX


def _way_back(record: MigrationRecord) -> MigrationRecord:
    """Return the record of the way back, to be read only."""
    spec = record.spec.model_copy(update={"migration_id": f"{record.migration_id}{SUFFIX}"})
    stores = (record.journal_store, record.archive_store, record.evidence_store)
    journal = _journal(record)
    journal.refresh()
    return MigrationRecord(spec, journal, *stores, now=record.now)


def returned_at(record: MigrationRecord) -> dict[TopicPartition, int]:
    """Return where clients that have returned go on, by (source topic, partition); empty: they may not return yet.

    Whatever lies on the old cluster from these offsets on was written after the way back had brought everything and
    fenced its copiers, so it is no late write of this migration's cutover.

    :raises DocumentUnreadable: clients may have returned, but where is not known any more.
    """
    back = _way_back(record)
    if back.journal.find_step(steps.READY_FOR_CLIENT_RETURN) is None:
        return {}
    document = back.offset_map()
    if document is None:
        raise DocumentUnreadable(
            f"clients may have returned by {back.migration_id}, but its offset map is missing: late writes cannot be "
            "told from theirs",
            where=record.where("validate", path=f"{record.evidence_store.uri}/{back.migration_id}/offset-map.json"),
            next_step="restore the object from an earlier version in the bucket; then clear validate",
        )
    ends = {
        (item.target_topic, item.partition): item.target_end_offset
        for item in document.partitions
        if item.target_end_offset is not None
    }
    fence = back.fence()
    return ends | ({key: offset + 1 for key, offset in fence.markers.items()} if fence is not None else {})


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
