"""The archive as one side of the content check, and the plan with what came to it later."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from source_logs import record

from airflow_provider_kafka_migration.compare.logs import ArchiveLog, CommittedLog
from airflow_provider_kafka_migration.copy.archive import SegmentIndex, SegmentWriter
from airflow_provider_kafka_migration.errors import SegmentTampered
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, Record, encode_batch, records
from airflow_provider_kafka_migration.storage.base import ObjectStore

ABORT = Record(29, 5, b"\0\0\0\0", b"\0\0\0\0\0\0", [])


@pytest.fixture
def archive(local_store: ObjectStore) -> ObjectStore:
    """[10, 20) plain, [20, 29) aborted and its marker, a hole up to 40, [40, 45) plain, a hole up to 50."""
    writer = SegmentWriter(local_store, "m1", "orders", 0, "id-1")
    writer.put(encode_batch([record(offset) for offset in range(10, 20)], 0), [], 10, 20)
    aborted = encode_batch(
        [record(offset) for offset in range(20, 29)],
        0,
        producer_id=9,
        producer_epoch=1,
        base_sequence=0,
        transactional=True,
    )
    marker = encode_batch([ABORT], producer_id=9, producer_epoch=1, transactional=True, control=True)
    writer.put(aborted + marker, [(9, 20)], 20, 40)
    writer.put(encode_batch([record(offset) for offset in range(40, 45)], 0), [], 40, 50)
    return local_store


def offsets(batches: Iterator[AnyBatch]) -> list[int]:
    return [item.offset for batch in batches for item in records(batch)]  # type: ignore[arg-type]


def test_committed_records_of_an_archive(archive: ObjectStore) -> None:
    log: CommittedLog = ArchiveLog(SegmentIndex(archive, "m1", "orders", 0, "id-1"), 10)
    assert offsets(log.batches(0, 50)) == [*range(10, 20), *range(40, 45)]
    assert (log.log_start_offset(), log.last_stable_offset()) == (10, 50)
    assert offsets(log.batches(40, 50)) == list(range(40, 45))
    assert log.read_bytes > 0


def test_an_archive_that_ends_too_early_is_named(archive: ObjectStore) -> None:
    log = ArchiveLog(SegmentIndex(archive, "m1", "orders", 0, "id-1"), 10)
    with pytest.raises(SegmentTampered, match="no segment covers offset 50"):
        offsets(log.batches(10, 51))
