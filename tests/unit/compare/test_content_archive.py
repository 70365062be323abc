"""What the source has deleted is compared with the archive; what the archive lacks stays named."""

from __future__ import annotations

from content_support import MemoryLog, compare, content_range, copy_of, kinds, log_of, record, rewrite
from id_support import SHIFT, at, log_with, prefixed, rewriting, shifting_map, uses

from airflow_provider_kafka_migration.compare.archive import compare_deleted
from airflow_provider_kafka_migration.compare.comparison import ContentOptions, range_map
from airflow_provider_kafka_migration.copy.archive import SegmentIndex, SegmentWriter
from airflow_provider_kafka_migration.documents.proof import ContentRange, PartitionContent
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.storage.base import ObjectStore


def archive(store: ObjectStore, log: MemoryLog, until_offset: int) -> SegmentIndex:
    """Segments of two batches each, up to an offset."""
    writer = SegmentWriter(store, "m1", "orders", 0)
    batches = [item for item in log.stored if isinstance(item, RawBatch) and item.next_offset <= until_offset]
    for first in range(0, len(batches), 2):
        pair = batches[first : first + 2]
        data = b"".join(bytes(item.data) for item in pair)
        writer.put(data, [], pair[0].base_offset, pair[-1].next_offset)
    return SegmentIndex(store, "m1", "orders", 0)


def check(store: ObjectStore, target: MemoryLog, *, archived_until: int, log_start: int = 60) -> PartitionContent:
    """Compare a target with a source that has deleted all below ``log_start``, then with the archive."""
    source = log_of(60)
    index = archive(store, source, archived_until)
    source.stored = [item for item in source.stored if item.next_offset > log_start]
    source.log_start = log_start
    compared: ContentRange = content_range(0, 60)
    content = compare(source, target, compared)
    return compare_deleted(content, compared, range_map(compared), index, target, ContentOptions())


def test_the_archive_proves_what_the_source_has_deleted(local_store: ObjectStore) -> None:
    content = check(local_store, copy_of(log_of(60)), archived_until=60)
    assert content.is_proven
    assert (content.source_records, content.target_records, content.compared) == (60, 60, 60)
    assert (content.archive_records, content.uncompared_records, content.uncompared) == (60, 0, [])
    assert content.source_digest == content.target_digest


def test_half_a_target_differs_from_the_archive(local_store: ObjectStore) -> None:
    target = copy_of(log_of(60))
    del target.stored[3:]
    content = check(local_store, target, archived_until=60)
    assert not content.is_equal
    assert content.difference_count == 30
    assert kinds(content)[0] == ("missing", 30)


def test_a_damaged_record_differs_from_the_archive(local_store: ObjectStore) -> None:
    target = rewrite(copy_of(log_of(60)), {7: record(7, value=b"damaged")})
    content = check(local_store, target, archived_until=60, log_start=25)
    assert kinds(content) == [("changed", 7)]
    assert content.compared == 59


def test_what_the_archive_does_not_reach_stays_uncompared(local_store: ObjectStore) -> None:
    content = check(local_store, copy_of(log_of(60)), archived_until=40, log_start=50)
    assert content.is_equal
    assert not content.is_proven
    assert (content.uncompared, content.uncompared_records) == ([(40, 50)], 10)
    assert (content.compared, content.archive_records) == (50, 40)
    assert content.target_records == 60
    assert content.uncompared_reason == "the archive does not have it"


def test_a_gap_that_the_archive_covers_without_its_records_stays_uncompared(local_store: ObjectStore) -> None:
    """Retention deleted 20..40 before anybody had read it: that the target has nothing there proves nothing."""
    source = log_of(60)
    target = copy_of(source)
    for log in (target, source):
        log.stored = [item for item in log.stored if not 20 <= item.base_offset < 40]
    index = archive(local_store, source, 20)
    SegmentWriter(local_store, "m1", "orders", 0).put(b"", [], 20, 40, log_start_offset=40)
    compared = content_range(0, 60)
    source.stored = [item for item in source.stored if item.base_offset >= 40]
    source.log_start = 40
    content = compare(source, target, compared)
    found = compare_deleted(content, compared, range_map(compared), index, target, ContentOptions())
    assert found.is_equal
    assert not found.is_proven
    assert (found.uncompared, found.uncompared_records, found.archive_records) == ([(20, 40)], 0, 20)


def test_an_archive_that_was_altered_proves_nothing(local_store: ObjectStore) -> None:
    source = log_of(60)
    archive(local_store, source, 60)
    for info in list(local_store.list("m1/segments/")):
        if info.key.endswith(".log"):
            data = local_store.get(info.key)
            assert data is not None
            local_store.put(info.key, data[:-1] + b"x")
    compared = content_range(0, 60)
    emptied = MemoryLog([], log_start=60)
    content = compare(emptied, copy_of(source), compared)
    index = SegmentIndex(local_store, "m1", "orders", 0)
    found = compare_deleted(content, compared, range_map(compared), index, copy_of(source), ContentOptions())
    assert not found.is_proven
    assert (found.uncompared, found.uncompared_records, found.compared) == ([(0, 60)], 60, 0)
    assert "SHA-256" in found.uncompared_reason


def test_what_the_source_has_deleted_is_compared_under_the_id_map(local_store: ObjectStore) -> None:
    """The archive has the source's own bytes; their ids count like those that the source still has."""

    def log(shift: int) -> MemoryLog:
        return log_with(lambda offset: at(offset, prefixed(offset // 30 + 1 + shift)), 60)

    source, target, compared = log(0), log(SHIFT), content_range(0, 60)
    index = archive(local_store, source, 60)
    source.stored, source.log_start = source.stored[4:], 40
    options = ContentOptions(ids=rewriting(shifting_map([1, 2])))
    content = compare(source, target, compared, options=options)
    assert uses(content) == [("value", "id32", 2, 20, 40)]
    found = compare_deleted(content, compared, range_map(compared), index, target, options)
    assert found.is_proven
    assert (found.compared, found.archive_records) == (60, 40)
    assert uses(found) == [("value", "id32", 1, 30, 0), ("value", "id32", 2, 30, 30)]
    assert found.schema_id_rule == content.schema_id_rule != ""
