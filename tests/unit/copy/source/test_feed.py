"""Through the archive: chunks come out in order whatever ends first, durable before anybody sees them, and bounded."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import pytest
from feed_world import World
from source_logs import record

from airflow_provider_kafka_migration.copy import read_ahead as feed_module
from airflow_provider_kafka_migration.copy.partition import PartitionCopy
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.errors import StorageUnavailable
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.storage.base import ObjectStore


@pytest.fixture
def size() -> int:
    return len(encode_batch([record(delta) for delta in range(10)], 0))


@pytest.fixture
def world(local_store: ObjectStore, size: int) -> Any:
    found = World(local_store, segment_max_bytes=size)
    yield found
    found.open(*found.store.gates)
    found.feed.close()


def test_chunks_are_given_on_in_order_and_durable(world: World) -> None:
    for first in (0, 10, 20):
        world.read(first)
    # Two are on their way; the third is gathered, and nothing more is wanted meanwhile.
    assert not world.feed._may_fetch(world.copy)
    world.open(10)
    waiting = world.feed._working[world.copy]
    assert waiting[1][1].result(20) is not None
    world.poll()
    assert world.given == [], "the first one is not durable yet"
    world.open(0)
    world.settle(2)
    assert world.given == [(0, 10), (10, 20)]
    assert world.durable == [True, True]
    assert world.feed._may_fetch(world.copy)
    assert world.copy.read.undecided_bytes == world.feed._gathered[world.copy].size_bytes


def test_nothing_overtakes_a_failed_put(world: World) -> None:
    for first in (0, 10, 20):
        world.read(first)
    world.store.failing.add(0)
    world.open(0, 10)
    world.settle(0)
    assert [error.code for error in world.troubles] == [StorageUnavailable.code]
    assert world.copy not in world.feed._working


def test_what_was_read_before_a_reset_is_dropped(world: World) -> None:
    for first in (0, 10):
        world.read(first)
    world.copy.reset(resume_at=0.0)
    world.open(0)
    world.settle(0)
    assert world.given == []


def test_gathered_bytes_do_not_hold_the_answer_they_came_in(local_store: ObjectStore, size: int) -> None:
    world = World(local_store, segment_max_bytes=10 * size)
    frame = bytearray(encode_batch([record(delta) for delta in range(10)], 0))
    chunk = Chunk("orders", 0, 0, 10, memoryview(frame), aborted=[(5, 1), (5, 1)], source_bytes=len(frame))
    world.feed.take(world.copy, chunk)
    world.feed.take(world.copy, replace(chunk, from_offset=10, until_offset=25, aborted=[(4, 1)]))
    del chunk
    frame.pop()  # raises BufferError while there are views of it
    joined = world.feed._gathered[world.copy].joined()
    assert (joined.from_offset, joined.until_offset) == (0, 25)
    assert joined.aborted == [(4, 1), (5, 1)]
    assert len(joined.batches) == joined.source_bytes == 2 * size
    world.feed.close()


def test_small_answers_share_a_segment_however_small_segments_are(local_store: ObjectStore, size: int) -> None:
    world = World(local_store, segment_max_bytes=10 * size)
    for first in range(0, 50, 10):
        world.read(first)
        world.fetch_more(0.0)
        assert world.copy not in world.feed._working
    world.read(50)
    world.fetch_more(0.0)
    world.open(0)
    world.settle(1)
    assert world.given == [(0, 60)], "one more answer might not fit"
    world.feed.close()


def test_segments_shrink_when_many_partitions_share_the_buffer(local_store: ObjectStore) -> None:
    world = World(local_store, segment_max_bytes=32 * 1024 * 1024)
    assert world.feed._segment_bytes() == 32 * 1024 * 1024
    world.feed._active = frozenset(PartitionCopy(world.copy.spec, lane) for lane in range(4))
    assert world.feed._segment_bytes() == feed_module.ARCHIVE_BUFFER_BYTES // 8
    world.feed._active = frozenset(PartitionCopy(world.copy.spec, lane) for lane in range(500))
    assert world.feed._segment_bytes() == 4 * 1024 * 1024
    world.feed.close()


def test_a_closed_reader_leaves_puts_alone_and_still_has_its_errors(local_store: ObjectStore) -> None:
    """The slice ends while puts wait for a thread: they were cancelled, and are no error."""
    world = World(local_store, segment_max_bytes=1_000)
    for number in range(feed_module.ARCHIVE_THREADS + 4):
        world.read(10 * number)
        world.feed.flush()
    world.feed._report(world.copy, StorageUnavailable("503 SlowDown"))
    world.feed.close()
    world.open(*(10 * number for number in range(feed_module.ARCHIVE_THREADS + 4)))
    puts = [future for _, future in world.feed._working[world.copy]]
    wait([future for future in puts if not future.cancelled()], 20)
    assert [future.cancelled() for future in puts].count(True) == 4
    (trouble,) = world.feed.last_troubles()
    assert isinstance(trouble.error, StorageUnavailable)
