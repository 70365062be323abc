"""A feed that follows: a backup writes soon, a restore looks less often where nothing comes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from copy_specs import orders
from job_documents import job as job_document
from source_logs import record

from airflow_provider_kafka_migration.copy.archive import SegmentIndex, SegmentWriter
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy, Trouble
from airflow_provider_kafka_migration.copy.read_ahead import SourceReader
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.storage.base import ObjectStore


class World:
    """One partition and its feed, without a source."""

    def __init__(self, store: ObjectStore, name: Any, **fields: Any) -> None:
        self.store = store
        self.given: list[tuple[int, int]] = []
        self.troubles: list[MigrationError] = []
        job = job_document([], name, stop_key="stop", **fields)
        spec = orders()
        self.copy = PartitionCopy(spec, 0)
        self.copy.state = CopyState.RUNNING
        self.feed = SourceReader(
            job,
            None,
            store,
            copies=[self.copy],
            limits=SliceLimits(math.inf, lambda _: None),
            wake=lambda: None,
        )

    def read(self, first: int, count: int = 10) -> None:
        data = memoryview(encode_batch([record(first + delta) for delta in range(count)], 0))
        self.feed.take(self.copy, Chunk("orders", 0, first, first + count, data, source_bytes=len(data)))

    def settle(self) -> None:
        """One round of the loop, all that it has started included."""
        self.feed.fetch_more(time.monotonic(), lambda _: True)
        for waiting in list(self.feed._working.values()):
            for _, future in waiting:
                future.exception(20)
        for item in self.feed.poll():
            if isinstance(item, Trouble):
                self.troubles.append(item.error)
            else:
                self.given.append((item.chunk.from_offset, item.chunk.until_offset))


@pytest.fixture
def worlds(local_store: ObjectStore) -> Iterator[Any]:
    made: list[World] = []

    def make(name: str, **fields: Any) -> World:
        made.append(World(local_store, name, **fields))
        return made[-1]

    yield make
    for world in made:
        world.feed.close()


def test_a_following_backup_lingers_and_then_writes_though_the_source_goes_on(worlds: Any) -> None:
    world = worlds("backup", segment_linger_seconds=0.3)
    world.copy.read.last_stable_offset = 1_000_000  # never at the end
    world.read(0)
    began = time.monotonic()
    assert 0.0 < world.feed.due_seconds(began) <= 0.3
    world.settle()
    world.read(10)
    world.settle()
    assert world.given == [], "small pieces are gathered"
    while not world.given:
        assert time.monotonic() - began < 60
        time.sleep(world.feed.due_seconds(time.monotonic()))
        world.settle()
    assert time.monotonic() - began >= 0.3
    assert world.given == [(0, 20)], "as one segment"


def test_what_was_gathered_is_put_at_the_end_of_a_slice(worlds: Any, local_store: ObjectStore) -> None:
    world = worlds("backup", segment_linger_seconds=60.0)
    world.copy.read.last_stable_offset = 10
    world.read(0)
    world.settle()
    assert world.given == []
    assert world.feed.flush()
    world.settle()
    assert world.given == [(0, 10)]
    assert not world.feed.flush()
    assert SegmentIndex(local_store, "m1", "orders", 0).until_offset(0) == 10


def test_a_gap_of_the_source_is_covered_by_a_segment_without_batches(worlds: Any, local_store: ObjectStore) -> None:
    world = worlds("backup")
    world.copy.read.last_stable_offset = 10
    world.read(0)
    world.feed.take(world.copy, Chunk("orders", 0, 10, 50, memoryview(b""), log_start_offset=50))
    world.feed.flush()
    world.settle()
    assert world.given == [(0, 50)]
    (entry,) = SegmentIndex(local_store, "m1", "orders", 0).chain(0)
    assert (entry.from_offset, entry.until_offset, entry.record_count) == (0, 50, 10)


def test_a_restore_looks_less_often_where_nothing_comes(worlds: Any, local_store: ObjectStore) -> None:
    world = worlds("restore")
    world.feed.attach([world.copy])
    pauses = []
    for _ in range(8):
        world.feed._look_again = {copy: (0.0, pause) for copy, (_, pause) in world.feed._look_again.items()}
        world.settle()
        pauses.append(world.feed._look_again[world.copy][1])
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2, 3.2]
    world.settle()
    assert world.given == [], "it waits for its time"
    SegmentWriter(local_store, "m1", "orders", 0).put(encode_batch([record(n) for n in range(10)], 0), [], 0, 10)
    world.feed._look_again = {world.copy: (0.0, 3.2)}
    world.settle()
    assert world.given == [(0, 10)]
    assert world.copy not in world.feed._look_again, "from now on it is looked at soon again"
