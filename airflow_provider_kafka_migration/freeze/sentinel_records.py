"""Sentinel records: their layout, and the search for them in a log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from airflow_provider_kafka_migration.kafka import fetch
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, LegacyBatch, Record, records
from airflow_provider_kafka_migration.kafka.logs import fetch_many, read_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord

HEADER = b"x-kbe-cutover-sentinel"
KEY = b"__kbe_sentinel__"
_SCAN_BYTES = 256 * 1024


def sentinel_record(migration_id: str, partition: int, timestamp: str, timestamp_ms: int) -> Record:
    """Make the sentinel of a partition (docs/cutover.md has its layout)."""
    value = json.dumps({"migration_id": migration_id, "partition": partition, "timestamp": timestamp})
    return Record(0, timestamp_ms, KEY, value.encode(), [(HEADER, migration_id.encode())])


def is_sentinel(record: Record, migration_id: str) -> bool:
    """Whether a record is a sentinel of this migration."""
    return record.key == KEY and (HEADER, migration_id.encode()) in record.headers


def find_sentinels(
    record: MigrationRecord, source: Cluster, attempt: FreezeAttempt, keys: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Find this migration's sentinels at or after the frozen end, by partition: a killed run has written them.

    One directly before the frozen end counts, too: an attempt that was lifted has left it, and nothing was written
    since, so it still marks the end.
    """
    assert attempt.verified is not None
    keys = sorted(keys)
    ends = source.wire.list_offsets(keys, "latest")
    starts = {}
    for key in keys:
        frozen_end = attempt.verified.ends.get(partition_name(key), ends[key])
        if ends[key] > 0:
            starts[key] = max(min(frozen_end, ends[key]) - 1, 0)
    return sentinels_between(source.wire, record.migration_id, starts, ends)


def sentinels_between(
    wire: Wire, migration_id: str, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Find the offset of the first sentinel of a migration in ``[start, end)`` of each partition that has one."""
    log_starts = wire.list_offsets(list(starts), "earliest")
    wanted = {key: max(offset, log_starts[key]) for key, offset in starts.items()}
    wanted = {key: offset for key, offset in wanted.items() if offset < ends[key]}
    quick = fetch_many(wire, sorted(wanted.items()), isolation=fetch.READ_UNCOMMITTED, max_bytes=_SCAN_BYTES)
    found: dict[TopicPartition, int] = {}
    for key, start in sorted(wanted.items()):
        batches: Iterable[AnyBatch] = quick.get(key, [])
        if key not in quick or quick[key][-1].next_offset < ends[key]:
            batches = read_span(wire, key, start, ends[key], isolation=fetch.READ_UNCOMMITTED)
        for record in _records(batches):
            if start <= record.offset < ends[key] and is_sentinel(record, migration_id):
                found.setdefault(key, record.offset)
    return found


def _records(batches: Iterable[AnyBatch]) -> Iterator[Record]:
    for batch in batches:
        if isinstance(batch, LegacyBatch):
            yield from batch.records()
        elif not batch.is_control:
            yield from records(batch)
