"""The archive: round trips, crashes while writing, damage, races, growth, the manifest."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from source_logs import legacy, marker, record

from airflow_provider_kafka_migration.copy.archive import SegmentIndex, SegmentWriter, build_manifest
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.documents.copy import Manifest, SegmentEntry
from airflow_provider_kafka_migration.errors import BatchMalformed, SegmentTampered, StorageUnavailable, TopicRecreated
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.storage.base import ObjectStore


def batch(first: int, count: int, **options: object) -> bytes:
    return encode_batch([record(first + delta) for delta in range(count)], 3, leader_epoch=4, **options)  # type: ignore[arg-type]


def writer(store: ObjectStore, topic: str = "orders", topic_id: str = "id-1") -> SegmentWriter:
    return SegmentWriter(store, "m1", topic, 0, topic_id)


def index(store: ObjectStore, topic: str = "orders", topic_id: str = "id-1") -> SegmentIndex:
    return SegmentIndex(store, "m1", topic, 0, topic_id)


def keys(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list()]


def test_round_trip(store: ObjectStore) -> None:
    data = batch(10, 5, producer_id=7, transactional=True) + marker(15, 7, commit=False)
    entry = writer(store).put(data, [(7, 10), (5, 2), (7, 10)], 8, 20, log_start_offset=3, last_stable_offset=30)
    found = index(store).find(12)
    assert found == entry
    assert (found.batch_count, found.record_count, found.size_bytes) == (2, 5, len(data))
    assert found.aborted == [(5, 2), (7, 10)]
    chunk = index(store).read(found)
    assert bytes(chunk.batches) == data, "exactly as fetched, leader epoch included"
    assert chunk == Chunk(
        "orders", 0, 8, 20, memoryview(data), [(5, 2), (7, 10)], 30, 3, origin="segment", source_bytes=0
    )


def test_names_tell_content(store: ObjectStore) -> None:
    entry = writer(store).put(batch(0, 2), [], 0, 2)
    assert entry.key == f"m1/segments/orders/0/{0:020d}.{2:020d}.{entry.sha256[:16]}.log"
    assert keys(store) == [entry.key.replace(".log", ".json"), entry.key]


def test_a_truncated_last_batch_is_left_out(store: ObjectStore) -> None:
    first = batch(0, 2)
    entry = writer(store).put(first + batch(2, 2)[:-5], [], 0, 2)
    assert bytes(index(store).read(entry).batches) == first


def test_a_stretch_without_batches(store: ObjectStore) -> None:
    entry = writer(store).put(b"", [], 5, 9)
    assert (entry.size_bytes, entry.batch_count) == (0, 0)
    assert len(index(store).read(entry).batches) == 0


def test_old_formats_are_counted(store: ObjectStore) -> None:
    data = legacy(0, 1, 3, [record(0), record(1), record(4)]) + legacy(5, 0, 0, [record(5)])
    assert writer(store).put(data, [], 0, 6).record_count == 4


def test_writing_twice_changes_nothing(store: ObjectStore) -> None:
    first = writer(store).put(batch(0, 2), [(1, 0)], 0, 2, last_stable_offset=5)
    before = keys(store)
    again = writer(store).put(batch(0, 2), [], 0, 2, last_stable_offset=9)
    assert again == first, "the entry that counts is the first one"
    assert keys(store) == before


class Breaking:
    """A store that fails at the n-th create."""

    def __init__(self, store: ObjectStore, good_puts: int) -> None:
        self.store = store
        self.good_puts = good_puts

    def put_new(self, key: str, data: bytes, *, sha256: str | None = None) -> None:
        if self.good_puts == 0:
            raise StorageUnavailable("503 SlowDown")
        self.good_puts -= 1
        self.store.put_new(key, data, sha256=sha256)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@pytest.mark.parametrize("good_puts", [0, 1])
def test_half_a_put_does_not_count(store: ObjectStore, good_puts: int) -> None:
    with pytest.raises(StorageUnavailable):
        writer(Breaking(store, good_puts)).put(batch(0, 2), [], 0, 2)  # type: ignore[arg-type]
    assert index(store).find(0) is None
    assert build_manifest(store, "m1").partitions == []
    writer(store).put(batch(0, 2), [], 0, 2)
    assert index(store).find(0) is not None


def test_a_torn_segment_that_never_counted_is_written_again(local_store: ObjectStore) -> None:
    entry = writer(local_store).put(batch(0, 2), [], 0, 2)
    torn = type(local_store)(local_store.folder.parent / "other")  # type: ignore[attr-defined]
    torn.put_new(entry.key, b"torn")
    assert writer(torn).put(batch(0, 2), [], 0, 2) == entry
    assert torn.get(entry.key) == batch(0, 2)


def test_damaged_batches_are_not_archived(local_store: ObjectStore) -> None:
    data = bytearray(batch(0, 2))
    data[-1] ^= 1
    with pytest.raises(BatchMalformed, match="CRC"):
        writer(local_store).put(bytes(data), [], 0, 2)
    assert keys(local_store) == []


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[:-1], "bytes instead of"),
        (lambda data: data + b"x", "bytes instead of"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "SHA-256"),
        (lambda data: b"", "bytes instead of"),
    ],
)
def test_an_altered_segment_is_named(store: ObjectStore, damage: Any, why: str) -> None:
    entry = writer(store).put(batch(0, 2), [], 0, 2)
    store.put(entry.key, damage(store.get(entry.key)))
    with pytest.raises(SegmentTampered, match=why) as caught:
        index(store).read(entry)
    assert caught.value.where.path == entry.key
    assert entry.key in caught.value.what
    with pytest.raises(SegmentTampered):
        writer(store).put(batch(0, 2), [], 0, 2)


def test_a_segment_that_is_gone_is_named(local_store: ObjectStore) -> None:
    entry = writer(local_store).put(batch(0, 2), [], 0, 2)
    (local_store.folder / entry.key).unlink()  # type: ignore[attr-defined]
    with pytest.raises(SegmentTampered, match="is missing"):
        index(local_store).read(entry)


@pytest.mark.parametrize(
    "change",
    [
        {"aborted": []},
        {"from_offset": 1},
        {"until_offset": 3},
        {"sha256": "0" * 64},
        {"size_bytes": 1},
        {"key": "m1/segments/orders/0/other.log"},
        {"topic": "payments"},
        {"unknown": 1},
    ],
)
def test_an_altered_entry_is_named(store: ObjectStore, change: dict[str, object]) -> None:
    entry = writer(store).put(batch(0, 2), [(1, 0)], 0, 2)
    key = entry.key.replace(".log", ".json")
    store.put(key, json.dumps({**json.loads(entry.canonical()), **change}).encode())
    with pytest.raises(SegmentTampered, match="altered") as caught:
        index(store).find(0)
    assert caught.value.where.path == key


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff"])
def test_an_entry_that_is_no_entry(local_store: ObjectStore, data: bytes) -> None:
    entry = writer(local_store).put(batch(0, 2), [], 0, 2)
    local_store.put(entry.key.replace(".log", ".json"), data)
    with pytest.raises(SegmentTampered, match="fields of its entry"):
        index(local_store).find(0)


def test_a_recreated_topic_is_not_new_data(local_store: ObjectStore) -> None:
    writer(local_store, topic_id="id-2").put(batch(0, 2), [], 0, 2)
    with pytest.raises(TopicRecreated, match="id-2"):
        index(local_store).find(0)


def put_ranges(store: ObjectStore, *ranges: tuple[int, int], topic: str = "orders") -> None:
    for first, until in ranges:
        writer(store, topic).put(batch(first, until - first), [], first, until)


def found_range(found: SegmentEntry | None) -> tuple[int, int] | None:
    return None if found is None else (found.from_offset, found.until_offset)


def test_the_largest_of_those_that_cover_an_offset(store: ObjectStore) -> None:
    put_ranges(store, (0, 10), (0, 50), (10, 30), (50, 80), (90, 95))
    found = index(store)
    assert found_range(found.find(0)) == (0, 50)
    assert found_range(found.find(15)) == (0, 50)
    assert found_range(found.find(50)) == (50, 80)
    assert found.find(80) is None
    assert found.find(85) is None
    assert found_range(found.find(94)) == (90, 95)
    assert [found_range(entry) for entry in found.chain(0)] == [(0, 50), (50, 80)]
    assert found.until_offset(0) == 80
    assert found.until_offset(200) == 200


def test_a_growing_archive_is_followed(store: ObjectStore) -> None:
    put_ranges(store, (0, 10))
    found = index(store)
    assert found_range(found.find(5)) == (0, 10)
    assert found.find(10) is None
    put_ranges(store, (10, 12))
    assert found_range(found.find(10)) == (10, 12)
    put_ranges(store, (10, 40))  # a slower writer from the same place
    assert found.until_offset(0) == 40
    assert found_range(found.find(12)) == (10, 40)


def test_an_entry_far_below_is_found_in_the_end(local_store: ObjectStore) -> None:
    put_ranges(local_store, (0, 10), (10, 20), (20, 30))
    found = index(local_store)
    assert found.find(30) is None
    put_ranges(local_store, (5, 35))
    tries = [found.find(30) for _ in range(found.FULL_LISTING_EVERY)]
    assert found_range(tries[-1]) == (5, 35)


def test_following_lists_only_new_names(local_store: ObjectStore) -> None:
    put_ranges(local_store, *((first, first + 1) for first in range(30)))
    listed: list[str | None] = []

    class Counting:
        def list(self, prefix: str, *, start_after: str | None = None) -> Any:
            listed.append(start_after)
            return local_store.list(prefix, start_after=start_after)

        def __getattr__(self, name: str) -> Any:
            return getattr(local_store, name)

    found = index(Counting())  # type: ignore[arg-type]
    assert len(list(found.chain(0))) == 30
    assert listed == [None, f"m1/segments/orders/0/{29:020d}"]


@pytest.mark.parametrize("seed", range(20))
def test_an_index_that_grew_knows_what_a_new_one_knows(local_store: ObjectStore, seed: int) -> None:
    """Writers that race, from the same and from other places; looked at in between, also beyond the end."""
    rng = random.Random(seed)
    grown, ends = index(local_store), [0]
    for _ in range(rng.randrange(1, 12)):
        first = rng.choice(ends[-3:])
        ends.append(first + rng.randrange(1, 9))
        put_ranges(local_store, (first, ends[-1]))
        grown.until_offset(rng.choice([0, *ends, max(ends) + 1]))
    for _ in range(grown.FULL_LISTING_EVERY):
        grown.until_offset(max(ends) + 1)
    fresh = index(local_store)
    for position in range(max(ends) + 2):
        covering = list(fresh.chain(position))
        assert list(grown.chain(position)) == covering
        assert bool(covering) == (position < max(ends))


@pytest.mark.parametrize("seed", range(20))
def test_records_are_found_wherever_a_segment_has_them(local_store: ObjectStore, seed: int) -> None:
    """Writers that race, some of which met gaps of the source: no offset is left to a segment without batches."""
    rng = random.Random(seed)
    grown, full, empty = index(local_store), set[int](), set[int]()
    for _ in range(rng.randrange(2, 10)):
        first = rng.randrange(20)
        until = first + rng.randrange(1, 9)
        if rng.random() < 0.5:
            put_ranges(local_store, (first, until))
            full |= set(range(first, until))
        else:
            writer(local_store).put(b"", [], first, until, log_start_offset=until)
            empty |= set(range(first, until))
        grown.until_offset(rng.randrange(30))
    for _ in range(grown.FULL_LISTING_EVERY):
        grown.until_offset(40)
    for known in (grown, index(local_store)):
        for position in range(30):
            found = known.find(position)
            assert (found is not None) == (position in full | empty)
            if found is not None:
                assert (found.record_count > 0) == (position in full)
                assert found.from_offset <= position < found.until_offset
                assert found.record_count > 0 or not full & set(range(position, found.until_offset))
            undisputed = known.find_undisputed(position)
            assert (undisputed is None) == (found is None)
            assert undisputed is None or (undisputed.record_count > 0) == (position not in empty)
            reach = known.read_until_offset(position)
            assert set(range(position, reach)) <= full - empty
            assert reach not in full - empty
    (found_partition,) = build_manifest(local_store, "m1").partitions
    covered = [set(range(entry.from_offset, entry.until_offset)) for entry in found_partition.segments]
    records = [offsets for offsets, entry in zip(covered, found_partition.segments, strict=True) if entry.record_count]
    assert (set().union(*covered), set().union(*records)) == (full | empty, full)


@pytest.mark.parametrize("topic", [".tmp-x", "..", ".", "a.b_c-D", "x" * 249])
def test_all_topic_names_make_keys(store: ObjectStore, topic: str) -> None:
    put_ranges(store, (0, 2), topic=topic)
    assert found_range(index(store, topic).find(0)) == (0, 2)
    assert [partition.topic for partition in build_manifest(store, "m1").partitions] == [topic]


def test_the_manifest(store: ObjectStore) -> None:
    put_ranges(store, (0, 10), (0, 50), (10, 30), (50, 80), (90, 95))
    put_ranges(store, (7, 9), topic="a")
    put_ranges(store, (0, 5), (4, 9), (8, 12), topic="b")
    manifest = build_manifest(store, "m1")
    assert [(found.topic, found.partition, found.from_offset, found.until_offset) for found in manifest.partitions] == [
        ("a", 0, 7, 9),
        ("b", 0, 0, 12),
        ("orders", 0, 0, 95),
    ]
    orders = manifest.partitions[2]
    assert [found_range(entry) for entry in orders.segments] == [(0, 50), (50, 80), (90, 95)]
    assert (orders.gaps, orders.superseded, orders.topic_id, orders.record_count) == ([(80, 90)], 2, "id-1", 85)
    assert [found_range(entry) for entry in manifest.partitions[1].segments] == [(0, 5), (4, 9), (8, 12)]
    assert manifest.size_bytes == sum(part.size_bytes for part in manifest.partitions)
    assert manifest.record_count == 85 + 2 + 14
    assert Manifest.parse(manifest.canonical()) == manifest
    assert build_manifest(store, "m1").digest() == manifest.digest()
    assert build_manifest(store, "other").partitions == []
