"""A copy that has read the archive asks the source's leaders for the epoch of what it has read there."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
from copy_specs import orders
from job_documents import job as job_document
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from source_logs import legacy, record

from airflow_provider_kafka_migration.copy import lane as lane_module
from airflow_provider_kafka_migration.copy.archive import SegmentWriter
from airflow_provider_kafka_migration.copy.lane import Lane
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy, ResumePoint, Trouble
from airflow_provider_kafka_migration.copy.read_ahead import SourceReader
from airflow_provider_kafka_migration.copy.read_watch import ReadWatch
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.documents.copy import (
    CopyLane,
    LaneReading,
    PartitionReading,
)
from airflow_provider_kafka_migration.errors import MigrationError, SourceTruncated
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.transactional import Position
from airflow_provider_kafka_migration.storage.base import ObjectStore

KEY = ("orders", 0)
#: Of the source's present leader, which has appended nothing yet: it has to be asked.
LEADER_EPOCH = 9


def of_epoch(epoch: int, first: int, count: int = 10) -> bytes:
    return encode_batch([record(first + delta) for delta in range(count)], 0, leader_epoch=epoch)


class FakeSource:
    """A leader that answers from a log's leader epochs, as a broker does.

    :param ends: end offset by epoch.
    """

    def __init__(self, ends: dict[int, int]) -> None:
        self.config = SimpleNamespace(name="source")
        self.ends = ends
        self.asked: list[tuple[int, int]] = []
        self._connection = SimpleNamespace(
            api_versions={OffsetForLeaderEpochRequest.API_KEY: (0, 4)},
            call=self._call,
            closed=False,
            close=lambda: None,
        )

    def metadata(self, _topics: object) -> dict[str, Any]:
        return {KEY[0]: SimpleNamespace(leaders={KEY[1]: 1}, error_code=0)}

    def connection(self, _broker_id: int) -> Any:
        return self._connection

    open_connection = connection

    def present_leaders(self, keys: Any) -> dict[tuple[str, int], int]:
        return dict.fromkeys(keys, 1)

    def leader_epochs(self, keys: Any) -> dict[tuple[str, int], int]:
        return dict.fromkeys(keys, LEADER_EPOCH)

    def forget_leaders(self, keys: Any) -> None:
        pass

    def _call(self, request: Any, *, version: int) -> Any:
        (partition,) = request.topics[0].partitions
        epoch = max((known for known in self.ends if known <= partition.leader_epoch), default=-1)
        self.asked.append((partition.leader_epoch, epoch))
        found = SimpleNamespace(partition=KEY[1], error_code=0, leader_epoch=epoch, end_offset=self.ends.get(epoch, -1))
        return SimpleNamespace(topics=[SimpleNamespace(topic=KEY[0], partitions=[found])])


class Slice:
    """A slice through the archive; the target takes everything at once."""

    def __init__(self, store: ObjectStore, source: FakeSource, *, at: int, epoch: int = -1) -> None:
        spec = orders(topic_id="id-1", until_offset=1_000_000)
        job = job_document([CopyLane(lane=0, transactional_id="x", partitions=[spec])], "seed")
        self.troubles: list[MigrationError] = []
        self.copy = PartitionCopy(spec, 0)
        self.watch = ReadWatch(job, 0, store, [self.copy])
        self.watch.load()
        self.copy.resume(ResumePoint(at, at, 5, 0, source_epoch=epoch))
        self.feed = SourceReader(
            job,
            source,  # type: ignore[arg-type]
            store,
            copies=[self.copy],
            limits=SliceLimits(math.inf, lambda _: None),
            wake=lambda: None,
            watch=self.watch,
        )

    def _on_chunk(self, copy: PartitionCopy, chunk: Chunk) -> None:
        copy.write.source_offset = copy.write.confirmed_offset = chunk.until_offset

    def read_archive(self) -> None:
        """Read what the archive has, then go over to the source."""
        self.feed.attach([self.copy])
        self.feed._choose_active()
        while self.copy in self.feed._from_archive:
            for copy in list(self.feed._from_archive):
                if copy not in self.feed._working:
                    self.feed._look_into_archive(copy)
            for _, future in self.feed._working[self.copy]:
                future.exception(60)
            self._poll()

    def _poll(self) -> None:
        for item in self.feed.poll():
            if isinstance(item, Trouble):
                self.troubles.append(item.error)
            else:
                self._on_chunk(item.copy, item.chunk)

    def end(self) -> None:
        self.watch.save()
        self.feed.close()


def archive(store: ObjectStore, from_offset: int, until_offset: int, data: bytes) -> None:
    chunk = Chunk("orders", 0, from_offset, until_offset, memoryview(data), last_stable_offset=1_000_000)
    SegmentWriter(store, "m1", "orders", 0, "id-1").put_chunk(chunk)


def test_behind_a_leader_change_in_the_archive_nothing_is_lost(local_store: ObjectStore) -> None:
    """The target ends at 10, below the change at 20; the archive ends at 30, above it."""
    archive(local_store, 10, 30, of_epoch(3, 10) + of_epoch(5, 20))
    source = FakeSource({3: 20, 5: 40})
    first = Slice(local_store, source, at=10, epoch=3)
    first.read_archive()
    assert first.troubles == []
    assert source.asked == [(5, 5)]
    assert (first.copy.read.next_offset, first.copy.read.leader_epoch) == (30, 5)
    first.end()
    # And so in the next slice, which knows of the epoch only what was stored.
    assert Slice(local_store, source, at=30).copy.read.before == (30, 5)


def test_what_the_source_has_lost_behind_the_leader_change_is_found(local_store: ObjectStore) -> None:
    archive(local_store, 10, 30, of_epoch(3, 10) + of_epoch(5, 20))
    world = Slice(local_store, FakeSource({3: 20, 5: 25}), at=10, epoch=3)
    world.read_archive()
    world.feed.close()
    (error,) = world.troubles
    assert isinstance(error, SourceTruncated)
    assert error.details["truncated_offset"] == 25


@pytest.mark.parametrize("data", [b"", legacy(20, 1, 0, [record(20)])], ids=["no batches", "no epochs"])
def test_where_the_archive_tells_no_epoch_none_is_asked_for_and_none_is_stored(
    local_store: ObjectStore, data: bytes
) -> None:
    archive(local_store, 10, 20, of_epoch(3, 10))
    archive(local_store, 20, 30, data)
    source = FakeSource({3: 20, 5: 40})
    world = Slice(local_store, source, at=10, epoch=3)
    world.read_archive()
    world.end()
    assert (world.copy.read.next_offset, world.troubles, source.asked) == (30, [], [])
    assert Slice(local_store, source, at=30).copy.read.before is None


def backup_of(store: ObjectStore, source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> Lane:
    """A backup's copier that has looked where its archive ends."""
    monkeypatch.setattr(lane_module, "fail_recreated", lambda *_: {})
    spec = orders(topic_id="id-1")
    lane = CopyLane(lane=0, transactional_id="x", partitions=[spec])
    job = job_document([lane], "backup")
    limits = SliceLimits(time.monotonic() + 600, lambda _: None)
    copier = Lane(
        job,
        lane,
        source=source,  # type: ignore[arg-type]
        target=None,
        map_store=store,
        archive_store=store,
        limits=limits,
    )
    copier._watch.load()
    copier._resume_due(time.monotonic())
    for item in copier.source.poll():
        copier._take(item)
    copier.recovery.settle()
    return copier


def store_reading(store: ObjectStore, offset: int, epoch: int) -> None:
    item = PartitionReading(topic="orders", partition=0, source_offset=offset, source_epoch=epoch)
    document = LaneReading(migration_id="m1", lane=0, partitions=[item])
    store.put("m1/reading/lane-000000.json", document.canonical())


def test_a_backup_finds_again_what_was_lost_while_it_had_read_ahead(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had read up to 30 when the source was cut at 15; the archive ends at 20."""
    archive(local_store, 0, 20, of_epoch(3, 0) + of_epoch(5, 10))
    store_reading(local_store, 30, 5)
    for _ in range(2):  # and once more in the next slice
        copier = backup_of(local_store, FakeSource({3: 15, 8: 100}), monkeypatch)
        (copy,) = copier.copies
        assert isinstance(copy.error, SourceTruncated)
        copier._watch.save()
        copier.close()


@pytest.mark.parametrize(("stored", "asked"), [(20, [(5, 5)]), (25, [(5, 5)]), (15, [])])
def test_a_backup_asks_for_no_epoch_of_an_earlier_offset(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, stored: int, asked: list[tuple[int, int]]
) -> None:
    archive(local_store, 0, 20, of_epoch(5, 0, 20))
    store_reading(local_store, stored, 5)
    source = FakeSource({5: 100})
    copier = backup_of(local_store, source, monkeypatch)
    (copy,) = copier.copies
    assert (copy.error, copy.state, copy.read.next_offset, source.asked) == (None, CopyState.RUNNING, 20, asked)
    copier.close()


def test_a_committed_position_does_not_keep_the_epoch_of_an_earlier_one() -> None:
    position = Position(0, 0, OffsetRange(0, 0)).extended([OffsetRange(0, 0, 5)], 5, 1, 1, 3)
    assert position.source_epoch == 3
    assert position.extended([], 30, 1, 2, -1).source_epoch == -1
