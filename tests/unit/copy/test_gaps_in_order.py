"""A gap that retention has made never overtakes what was read before it and is still on its way into the archive."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from copy_specs import IDS, orders
from job_documents import job as job_document
from source_logs import record

from airflow_provider_kafka_migration.copy.archive import SegmentIndex, SegmentWriter, build_manifest, read_gaps
from airflow_provider_kafka_migration.copy.lane import Lane
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy, ResumePoint, Trouble
from airflow_provider_kafka_migration.copy.read_watch import Answered, read_overtaken
from airflow_provider_kafka_migration.copy.resuming.agreement import chunks_of_archive, read_source
from airflow_provider_kafka_migration.copy.target import TargetSink
from airflow_provider_kafka_migration.copy.transform import Append, BatchTransformer, Chunk, CopyOp
from airflow_provider_kafka_migration.documents.copy import (
    CopyJob,
    CopyLane,
    LaneReading,
    PartitionReading,
    TombstoneSettings,
)
from airflow_provider_kafka_migration.errors import MigrationError, SourceGap, StorageUnavailable
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch, read_batches
from airflow_provider_kafka_migration.storage.base import ObjectStore


class Held:
    """A store whose puts of segments wait until they are let through, and then may fail."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.opened = threading.Event()
        self.fails = False

    def put_new(self, key: str, data: bytes, *, sha256: str | None = None) -> None:
        if key.endswith(".log"):
            assert self.opened.wait(20)
            if self.fails:
                raise StorageUnavailable("503 SlowDown")
        self.store.put_new(key, data, sha256=sha256)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Wire:
    """A target of which nobody is asked anything but its name; leaders are forgotten."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the target is asked for {name}")


class SourceWire:
    """A source of which only the leaders are forgotten."""

    def forget_leaders(self, _keys: object) -> None:
        return


def backup_copier(store: ObjectStore) -> tuple[Lane, PartitionCopy]:
    """A backup's copier without brokers, with one partition that was read up to offset 0."""
    spec = orders()
    lane = CopyLane(lane=0, partitions=[spec], transactional_id="m1-0")
    job = job_document([lane], "backup", on_source_gap="note")
    copier = Lane(
        job,
        lane,
        source=SourceWire(),  # type: ignore[arg-type]
        target=None,
        map_store=store,
        archive_store=store,
        limits=SliceLimits(time.monotonic() + 600, lambda _: None),
    )
    (copy,) = copier.copies
    return copier, copy


def settle(copier: Lane, copy: PartitionCopy, error: MigrationError) -> None:
    """An error is noted, and settled as between two rounds of the loop."""
    copier.recovery.note(Trouble.of(copy, error))
    copier.recovery.settle()
    take(copier)


def take(copier: Lane) -> None:
    """The loop takes what the source side has."""
    for item in copier.source.poll():
        copier._take(item)


def archived_until(copier: Lane, copy: PartitionCopy) -> int:
    """Where the archive ends, as a backup resumes there."""
    point = copier.sink.resume([copy])[copy]
    assert isinstance(point, ResumePoint)
    return point.source_offset


def test_a_backup_goes_on_behind_what_it_had_archived_meanwhile(local_store: ObjectStore) -> None:
    copier, copy = backup_copier(local_store)
    copy.state, copy.read.next_offset = CopyState.RUNNING, 10
    writer = SegmentWriter(local_store, "m1", "orders", 0)
    for first, until in ((0, 10), (10, 20)):
        batch = encode_batch([record(offset) for offset in range(first, until)], 0)
        writer.put(batch, [], first, until)
    settle(copier, copy, SourceGap("deleted", details={"log_start_offset": 30}))
    assert (copy.state, copy.figures.gaps, read_gaps([local_store], "m1")) == (CopyState.RESUMING, [], {})
    # Behind it there is a gap, which is named and covered by a segment of its own.
    copy.state, copy.read.next_offset = CopyState.RUNNING, archived_until(copier, copy)
    settle(copier, copy, SourceGap("deleted", details={"log_start_offset": 30}))
    # The put may have ended before the source was polled.
    for waiting in copier.source._working.values():
        for _, future in waiting:
            future.result(20)
    take(copier)
    assert (copy.figures.gaps, copy.write.source_offset) == ([(20, 30)], 30)
    index = SegmentIndex(local_store, "m1", "orders", 0)
    assert (index.until_offset(0), index.read_until_offset(0)) == (30, 20)
    copier.close()


class World:
    """A lane's copier without brokers: chunks and errors are handed to it as the source side does."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        via: str = "s3",
        policy: str = "note",
        position: int = 100,
        tombstones: TombstoneSettings | None = None,
    ) -> None:
        self.plain, self.archive = store, Held(store)
        spec = orders(topic_id="id-1", until_offset=1_000_000)
        lane = CopyLane(lane=0, partitions=[spec], transactional_id="m1-0")
        job = CopyJob.model_validate(
            {
                "migration_id": "m1",
                "name": "seed",
                "generation": 1,
                "journal_location": "file:///j",
                "archive_location": "file:///a",
                "via": via,
                "producers": IDS,
                "lanes": [lane],
                "on_source_gap": policy,
                "tombstones": tombstones,
            }
        )
        self.copier = Lane(
            job,
            lane,
            source=None,
            target=Wire(),  # type: ignore[arg-type]
            map_store=store,
            archive_store=self.archive,  # type: ignore[arg-type]
            limits=SliceLimits(time.monotonic() + 600, lambda _: 1_000_000),
        )
        (self.copy,) = self.copier.copies
        self.resume(position)

    def resume(self, position: int) -> None:
        """The target's log says that the copy stands here."""
        self.copy.resume(ResumePoint(position, position, position, 0))
        sink = self.copier.sink
        assert isinstance(sink, TargetSink)
        sink._transformers[self.copy] = BatchTransformer(position)

    def read(self, first: int, until: int) -> None:
        data = memoryview(encode_batch([record(offset) for offset in range(first, until)], 0))
        chunk = Chunk("orders", 0, first, until, data, last_stable_offset=until, source_bytes=len(data))
        self.copier.source.take(self.copy, chunk)
        take(self.copier)

    def lose(self, until: int) -> None:
        """The fetch at the copy's position finds that the source's log begins further on."""
        first = self.copy.read.next_offset
        gap = SourceGap("deleted", details={"from_offset": first, "log_start_offset": until, "log_end_offset": until})
        settle(self.copier, self.copy, gap)

    def put(self) -> None:
        """All that was gathered gets into the archive, or fails to; then the copier takes note of it."""
        self.copier.source.flush()
        self.archive.opened.set()
        for waiting in list(self.copier.source._working.values()):
            for _, future in waiting:
                future.exception(20)
        take(self.copier)

    @property
    def decided(self) -> list[tuple[str, int, int]]:
        """What goes to the target: records or holes, and which offsets."""
        return [
            ("records", step.source_offset, step.source_offset + step.record_count)
            if isinstance(step, Append)
            else ("hole", step.source_offset, step.source_offset + step.count)
            for step in self.copy.write.pending
        ]

    @property
    def archived(self) -> list[tuple[int, int, int]]:
        """(from, until, records) of the segments, without a gap from offset 100 on."""
        index = SegmentIndex(self.plain, "m1", "orders", 0, "id-1")
        return [(entry.from_offset, entry.until_offset, entry.record_count) for entry in index.chain(100)]


@pytest.fixture
def worlds(local_store: ObjectStore) -> Iterator[Any]:
    made: list[World] = []

    def make(**options: Any) -> World:
        made.append(World(local_store, **options))
        return made[-1]

    yield make
    for world in made:
        world.archive.opened.set()
        world.copier.close()


@pytest.mark.parametrize("is_put", [False, True], ids=["gathered", "on its way"])
def test_records_on_their_way_into_the_archive_get_to_the_target_before_the_gap(worlds: Any, is_put: bool) -> None:
    world = worlds()
    world.read(100, 200)
    if is_put:
        world.copier.source.flush()
    world.lose(300)
    assert world.decided == [], "nothing is durable yet"
    world.read(300, 310)
    world.put()
    assert world.decided == [("records", 100, 200), ("hole", 200, 300), ("records", 300, 310)]
    assert world.copy.figures.gaps == [(200, 300)]
    assert read_gaps([world.plain], "m1") == {("orders", 0): [(200, 300)]}


def test_the_archive_goes_on_behind_a_gap(worlds: Any) -> None:
    """Whoever resumes before the gap finds it, and what lies behind it, in the archive: it is not asked for again."""
    world = worlds()
    world.read(100, 200)
    world.lose(300)
    world.read(300, 310)
    world.put()
    # The gap is a segment of its own: what a broker did not have is told from what it had no records in.
    assert world.archived == [(100, 200, 100), (200, 300, 0), (300, 310, 10)]
    gap = SegmentIndex(world.plain, "m1", "orders", 0).find(200)
    assert gap is not None
    assert gap.log_start_offset == 300


def test_a_put_that_fails_before_a_gap_takes_the_gap_with_it(worlds: Any) -> None:
    world = worlds()
    world.read(100, 200)
    world.archive.fails = True
    world.lose(300)
    world.put()
    assert world.decided == []
    world.copier.sink.detach = lambda _copy: None
    world.copier.recovery.settle()
    assert world.copy.state is CopyState.RESUMING
    # It resumes where the target stands, and meets a longer gap: that one is named as a whole.
    world.archive.fails = False
    world.resume(100)
    world.lose(300)
    world.put()
    assert world.decided == [("hole", 100, 300)]
    assert read_gaps([world.plain], "m1") == {("orders", 0): [(100, 300)]}


@pytest.mark.parametrize("policy", ["stop", "note"])
def test_what_an_earlier_life_has_archived_is_no_gap(worlds: Any, policy: str) -> None:
    """Its put ended after the present one had looked into the archive; the source has deleted the records since."""
    world = worlds(policy=policy)
    world.read(100, 200)
    world.copier.source.flush()
    ((_, left_behind),) = world.copier.source._working[world.copy]
    world.copy.reset(resume_at=0.0)
    world.copier.source.reset(world.copy)
    world.resume(50)
    world.read(50, 100)
    world.archive.opened.set()
    left_behind.result(20)
    world.lose(200)
    assert (world.copy.state, world.copy.figures.gaps, read_gaps([world.plain], "m1")) == (CopyState.RUNNING, [], {})
    world.put()
    assert world.decided == [("records", 50, 100)]
    world.copier.source.fetch_more(time.monotonic(), world.copier._has_room)
    world.put()
    assert world.decided == [("records", 50, 100), ("records", 100, 200)]


def left_behind(world: World, first: int, until: int) -> Any:
    """A put that an earlier life of the copy has begun, and that has not ended yet."""
    world.read(first, until)
    world.copier.source.flush()
    _, future = world.copier.source._working[world.copy][-1]
    return future


@pytest.mark.parametrize("policy", ["stop", "note"])
def test_a_put_that_is_still_on_its_way_is_waited_for_before_there_is_a_gap(worlds: Any, policy: str) -> None:
    """Else the archive would have the records and a gap of the same range, and the target a hole."""
    world = worlds(policy=policy)
    world.copier.sink.detach = lambda _copy: None
    put = left_behind(world, 100, 200)
    world.copy.reset(resume_at=0.0)
    world.copier.source.reset(world.copy)
    world.resume(100)
    world.lose(300)
    assert (world.copy.state, world.decided, world.copy.figures.gaps) == (CopyState.RESUMING, [], [])
    assert read_gaps([world.plain], "m1") == {}
    world.archive.opened.set()
    put.result(20)
    world.resume(100)
    world.lose(300)
    assert world.copy.state is CopyState.RUNNING
    world.copier.source.fetch_more(time.monotonic(), world.copier._has_room)
    world.put()
    assert world.decided == [("records", 100, 200)]
    if policy == "note":
        world.lose(300)
        world.put()
        assert world.decided == [("records", 100, 200), ("hole", 200, 300)]
        assert world.copy.figures.gaps == [(200, 300)]
        assert world.archived == [(100, 200, 100), (200, 300, 0)]


def test_puts_behind_one_that_has_failed_are_waited_for_as_well(worlds: Any) -> None:
    world = worlds()
    world.copier.sink.detach = lambda _copy: None
    world.read(100, 200)
    world.copier.source.flush()
    ((incarnation, ended),) = world.copier.source._working[world.copy]
    failed: Any = type(ended)()
    failed.set_exception(StorageUnavailable("503 SlowDown"))
    world.copier.source._working[world.copy][0] = (incarnation, failed)
    second = left_behind(world, 200, 250)
    take(world.copier)
    world.copier.recovery.settle()
    world.resume(100)
    world.lose(300)
    assert (world.copy.state, world.decided) == (CopyState.RESUMING, [])
    world.archive.opened.set()
    second.result(20)


def test_a_gap_ends_where_the_archive_has_records_again(worlds: Any) -> None:
    """Of two puts of an earlier life the second has ended, and the first never will."""
    world = worlds()
    data = encode_batch([record(offset) for offset in range(200, 250)], 0)
    SegmentWriter(world.plain, "m1", "orders", 0, "id-1").put(data, [], 200, 250)
    world.lose(300)
    world.put()
    assert world.decided == [("hole", 100, 200)]
    assert world.copy.figures.gaps == [(100, 200)]
    world.lose(300)
    world.copier.source.fetch_more(time.monotonic(), world.copier._has_room)
    world.put()
    assert world.decided == [("hole", 100, 200), ("records", 200, 250)]
    world.lose(300)
    world.put()
    assert world.copy.figures.gaps == [(100, 200), (250, 300)]
    assert world.archived == [(100, 200, 0), (200, 250, 50), (250, 300, 0)]


def test_a_backup_waits_for_a_put_that_is_still_on_its_way(local_store: ObjectStore) -> None:
    held = Held(local_store)
    copier, copy = backup_copier(held)  # type: ignore[arg-type]
    copy.state, copy.read.next_offset = CopyState.RUNNING, 100
    data = memoryview(encode_batch([record(offset) for offset in range(100, 200)], 0))
    copier.source.take(copy, Chunk("orders", 0, 100, 200, data))
    copier.source.flush()
    ((_, put),) = copier.source._working[copy]
    copy.reset(resume_at=0.0)
    copier.source.reset(copy)
    copy.state, copy.read.next_offset = CopyState.RUNNING, 100
    settle(copier, copy, SourceGap("deleted", details={"log_start_offset": 300}))
    assert (copy.state, copy.figures.gaps, read_gaps([local_store], "m1")) == (CopyState.RESUMING, [], {})
    assert copier.source._working == {}
    held.opened.set()
    put.result(20)
    assert archived_until(copier, copy) == 0, "it begins at 0 and the archive does not"
    copier.close()


def late_records(store: ObjectStore) -> SegmentIndex:
    """A killed copier's put of records ends after its successor has archived a gap of the same start."""
    writer = SegmentWriter(store, "m1", "orders", 0)
    for first, until in ((0, 100), (300, 310)):
        writer.put(encode_batch([record(offset) for offset in range(first, until)], 0), [], first, until)
    writer.put(b"", [], 100, 300, log_start_offset=300)
    index = SegmentIndex(store, "m1", "orders", 0)
    assert [(entry.from_offset, entry.until_offset) for entry in index.chain(0)] == [(0, 100), (100, 300), (300, 310)]
    for first, until in ((100, 150), (200, 250)):
        writer.put(encode_batch([record(offset) for offset in range(first, until)], 0), [], first, until)
    return index


@pytest.mark.parametrize("is_known", [False, True], ids=["new index", "index that knew the gap"])
def test_archived_records_win_over_a_gap_of_the_same_range(local_store: ObjectStore, is_known: bool) -> None:
    index = late_records(local_store)
    if not is_known:
        index = SegmentIndex(local_store, "m1", "orders", 0)
    decider = BatchTransformer(0)
    steps: list[CopyOp] = []
    for entry in index.chain(0):
        steps += decider.decide_chunk(index.read(entry))
    copied = [(step.source_offset, step.record_count) for step in steps if isinstance(step, Append)]
    assert copied == [(0, 100), (100, 50), (200, 50), (300, 10)]
    assert decider.next_offset == 310
    assert index.until_offset(0) == 310


def test_the_manifest_has_records_rather_than_a_gap(local_store: ObjectStore) -> None:
    late_records(local_store)
    (found,) = build_manifest(local_store, "m1").partitions
    ranges = [(entry.from_offset, entry.until_offset, entry.record_count) for entry in found.segments]
    assert ranges == [(0, 100, 100), (100, 150, 50), (100, 300, 0), (200, 250, 50), (300, 310, 10)]
    assert (found.record_count, found.superseded, found.gaps) == (210, 0, [])


def test_what_was_passed_as_a_gap_is_no_evidence_against_a_target(local_store: ObjectStore) -> None:
    """A copy went on behind the gap before the records came: they are missing on its target, and named."""
    index = late_records(local_store)
    assert index.read_until_offset(0) == 100
    assert index.read_until_offset(100) == 100
    assert index.read_until_offset(300) == 310
    read = chunks_of_archive(index)
    span = read_source(read, 90, 310, "visible")
    assert sorted(span.committed) == [*range(90, 100), *range(300, 310)]


def test_a_source_whose_log_begins_later_than_planned(worlds: Any) -> None:
    """Nothing was copied, so nothing is lost, whatever the policy is; the archive covers it from the start."""
    world = worlds(policy="stop", position=0)
    world.lose(100)
    world.read(100, 110)
    world.put()
    assert world.decided == [("hole", 0, 100), ("records", 100, 110)]
    assert world.copy.figures.gaps == []
    assert read_gaps([world.plain], "m1") == {}
    entry = SegmentIndex(world.plain, "m1", "orders", 0).find(0)
    assert entry is not None
    assert (entry.until_offset, entry.record_count) == (100, 0)


def test_records_that_are_on_their_way_make_a_copy_one_that_has_begun(worlds: Any) -> None:
    world = worlds(policy="stop", position=0)
    world.read(0, 10)
    world.lose(100)
    assert world.copy.state is CopyState.FAILED
    assert isinstance(world.copy.error, SourceGap)


def test_without_an_archive_a_gap_is_decided_at_once(worlds: Any) -> None:
    world = worlds(via="direct")
    world.read(100, 200)
    world.lose(300)
    world.read(300, 310)
    assert world.decided == [("records", 100, 200), ("hole", 200, 300), ("records", 300, 310)]
    assert world.archived == []


def test_a_gap_in_the_archive_proves_nothing(local_store: ObjectStore) -> None:
    """Deleted before it was read: a comparison with the archive ends there."""
    writer = SegmentWriter(local_store, "m1", "orders", 0)
    index = SegmentIndex(local_store, "m1", "orders", 0)
    data = encode_batch([record(offset) for offset in range(10)], 0)
    writer.put(data, [], 0, 10)
    writer.put(b"", [], 10, 20, log_start_offset=3)
    writer.put(b"", [], 20, 30, log_start_offset=30)
    writer.put(b"", [], 30, 40, log_start_offset=30)
    assert index.until_offset(0) == 40
    assert index.read_until_offset(0) == 20
    assert index.read_until_offset(20) == 20
    assert index.read_until_offset(30) == 40
    assert index.read_until_offset(50) == 50


def tombstones_of_an_hour() -> TombstoneSettings:
    return TombstoneSettings(on_overtaken="stop", retention_ms={"orders": 3_600_000})


def answer(world: World, *, first: int, until: int, end: int) -> None:
    """The source answers at the copy's position; offsets below the first one were compacted away."""
    batch = encode_batch([record(offset) for offset in range(first, until)], 0)
    world.copier._watch.note(world.copy, Answered(read_batches(batch)[0], until, end, time.time()))


@pytest.mark.parametrize("former", [True, False], ids=["copied again", "copied first"])
def test_a_copy_begins_where_the_log_begins_by_then(worlds: Any, local_store: ObjectStore, *, former: bool) -> None:
    """Retention has passed the planned start, so the topic that was deleted says nothing of this copy."""
    if former:
        dead = PartitionReading(
            topic="orders",
            partition=0,
            caught_up_at=time.time() - 86_400,
            caught_up_offset=200,
            retention_ms=3_600_000,
            source_offset=400,
            source_epoch=7,
        )
        document = LaneReading(migration_id="m1", lane=0, partitions=[dead])
        local_store.put("m1/reading/lane-000000.json", document.canonical())
    world = worlds(via="direct", policy="stop", position=0, tombstones=tombstones_of_an_hour())
    world.copier._watch.load()
    world.lose(300)
    # It goes on from there, also where that was deleted before it was read.
    world.lose(310)
    assert (world.copy.is_fresh, world.copy.read.next_offset, world.copy.figures.gaps) == (True, 310, [])
    answer(world, first=312, until=320, end=330)
    assert (world.copy.figures.overtaken, read_overtaken([local_store], "m1"), world.copy.read.before) == ([], [], None)
    # Stored before the first record is copied.
    data = local_store.get("m1/reading/lane-000000.json")
    assert data is not None
    (stored,) = LaneReading.parse(data).partitions
    assert (stored.caught_up_offset, stored.source_epoch) == (310, -1)


def test_a_copy_that_is_resumed_at_its_planned_start_finds_the_beginning_again(worlds: Any) -> None:
    world = worlds(via="direct", policy="stop", position=0)
    world.lose(300)
    world.resume(0)
    assert world.copy.is_fresh
    # Once records are copied, what is deleted before it was read is lost.
    world.lose(300)
    world.read(300, 310)
    assert not world.copy.is_fresh
    world.copier.sink.detach = lambda _copy: None
    world.lose(400)
    assert (world.copy.state, world.copy.figures.gaps) == (CopyState.FAILED, [])


def test_a_backup_begins_where_the_log_begins_by_then(local_store: ObjectStore) -> None:
    copier, copy = backup_copier(local_store)
    copy.state = CopyState.RUNNING
    for log_start in (30, 40):
        settle(copier, copy, SourceGap("deleted", details={"log_start_offset": log_start}))
    assert (copy.read.next_offset, copy.read.start_offset, copy.figures.gaps) == (40, 40, [])
    copier.close()
