"""When the copy was last at the end of the source's log, what of it lasts, and what is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from copy_specs import IDS, orders
from source_logs import legacy, record

from airflow_provider_kafka_migration.compare.proven import load_proven, store_proven
from airflow_provider_kafka_migration.copy.partition import PartitionCopy, ResumePoint
from airflow_provider_kafka_migration.copy.read_watch import (
    Answered,
    ReadWatch,
    all_times_overtaken,
    first_missing,
    read_overtaken,
    times_overtaken,
)
from airflow_provider_kafka_migration.documents.copy import (
    CopyJob,
    CopyLane,
    LaneReading,
    TombstoneSettings,
)
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange, ProvenPartition
from airflow_provider_kafka_migration.errors import (
    MigrationError,
    SliceExpired,
    StorageUnavailable,
    TombstonesOvertaken,
)
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, encode_batch, read_batches
from airflow_provider_kafka_migration.storage.base import ObjectStore

DAY = 86_400.0
#: Some moment of 2023.
T0 = 1_700_000_000.0


def batches(*runs: tuple[int, int], missing: Sequence[int] = ()) -> list[AnyBatch]:
    """Batches of [first, until), of which some offsets were compacted away."""
    data = b"".join(
        encode_batch(
            [record(offset) for offset in range(first, until) if offset not in missing],
            base_offset=first,
            last_offset=until - 1,
        )
        for first, until in runs
    )
    return read_batches(data)[0]


@pytest.mark.parametrize(
    ("read", "until", "expected"),
    [
        (batches((10, 20)), 20, None),
        (batches((10, 15), (15, 20)), 20, None),
        # The first batch of an answer may begin below what was asked for.
        (batches((5, 20)), 20, None),
        ([], 20, 10),
        (batches((12, 20)), 20, 10),
        (batches((10, 15), (16, 20)), 20, 15),
        (batches((10, 20), missing=[13]), 20, 10),
        (batches((10, 18)), 20, 18),
        (read_batches(legacy(10, 1, 0, [record(10)]))[0], 11, None),
        (read_batches(legacy(11, 1, 0, [record(11)]))[0], 12, 10),
        # What is inside of a wrapper is not looked at.
        (read_batches(legacy(10, 1, 1, [record(10)]))[0], 11, 10),
    ],
)
def test_only_offsets_that_follow_each_other_are_complete(
    read: list[AnyBatch], until: int, expected: int | None
) -> None:
    assert first_missing(10, read, until) == expected


class Slices:
    """Slices of a lane with one partition, whose fetches the test answers. The target takes everything at once."""

    def __init__(self, store: ObjectStore, **job: Any) -> None:
        self.store = store
        self.now = T0
        self.values = job
        self.retention_ms = int(DAY * 1000)
        self.policy = "stop"
        self.position = 0
        self.begin()

    def begin(self, *, at: int | None = None, fresh: bool = False) -> None:
        """The next slice goes on at the position that is safe, or elsewhere."""
        spec = orders()
        fields = {
            "migration_id": "m1",
            "name": "tail",
            "generation": 1,
            "journal_location": "file:///j",
            "archive_location": "file:///a",
            "via": "direct",
            "producers": IDS,
            "lanes": [CopyLane(lane=3, transactional_id="x", partitions=[spec])],
            "stop_key": "stop",
            "tombstones": TombstoneSettings.model_validate(
                {"on_overtaken": self.policy, "retention_ms": {"orders": self.retention_ms}}
            ),
            **self.values,
        }
        self.position = self.position if at is None else at
        self.copy = PartitionCopy(spec, 3)
        self.copy.resume(ResumePoint(self.position, self.position, 0 if fresh or not self.position else 5, 0))
        self.watch = ReadWatch(CopyJob.model_validate(fields), 3, self.store, [self.copy], now=lambda: self.now)
        self.watch.load()

    def answer(self, read: list[AnyBatch], end: int, *, is_safe: bool = True) -> None:
        """One answer to a fetch; what it has is on the target then."""
        until = read[-1].next_offset if read else self.copy.read.next_offset
        self.watch.note(self.copy, Answered(read, until, end, self.now))
        self.copy.read.next_offset = until
        if is_safe:
            self.position = self.copy.write.source_offset = until

    def end(self) -> None:
        self.watch.save()

    @property
    def caught_up(self) -> tuple[float, int]:
        """(seconds since the beginning, offset) as stored."""
        data = self.store.get("m1/reading/lane-000003.json")
        assert data is not None
        (item,) = LaneReading.parse(data).partitions
        return item.caught_up_at - T0, item.caught_up_offset

    @property
    def named(self) -> list[tuple[int, int, float]]:
        found = read_overtaken([self.store], "m1")
        return [(item.from_offset, item.until_offset, item.gap_seconds) for item in found]


@pytest.fixture
def slices(local_store: ObjectStore) -> Slices:
    return Slices(local_store)


def test_the_end_of_the_log_is_reached_when_everything_below_it_is_safe(slices: Slices) -> None:
    slices.answer(batches((0, 10)), 30, is_safe=False)
    assert slices.caught_up == (0, 0), "stored before the first record is copied"
    slices.now += 60
    slices.answer(batches((10, 30)), 35, is_safe=False)
    slices.end()
    assert slices.caught_up == (0, 0), "nothing of it is on the target"
    slices.position = slices.copy.write.source_offset = 30
    slices.now += 60
    slices.answer([], 30)
    slices.end()
    # 30 was the end at the first answer; at the last one it still was.
    assert slices.caught_up == (120, 30)


def test_a_copy_that_is_never_at_the_end_is_late_by_its_lag_only(slices: Slices) -> None:
    """1,000 records behind, for four days."""
    for hour in range(96):
        slices.now = T0 + hour * 3600
        slices.begin()
        # Compacted already: what matters is when it is read.
        slices.answer(batches((hour * 1000 + 1, hour * 1000 + 1000)), hour * 1000 + 2000)
        slices.end()
    assert slices.named == []
    assert slices.caught_up[0] >= 93 * 3600


def pause(slices: Slices, seconds: float) -> None:
    """The first ten records are copied, then nothing is read for a time."""
    slices.answer(batches((0, 10)), 10)
    slices.answer([], 10)
    slices.end()
    slices.now += seconds
    slices.begin()


def test_missing_offsets_read_in_time_are_nothing(slices: Slices) -> None:
    pause(slices, DAY - 1)
    slices.answer(batches((12, 20)), 20)
    assert slices.named == []


def test_complete_offsets_read_too_late_are_nothing(slices: Slices) -> None:
    pause(slices, 3 * DAY)
    slices.answer(batches((10, 20)), 20)
    slices.answer([], 20)
    slices.now += 60
    slices.answer(batches((22, 30)), 30)
    assert slices.named == []


def test_no_new_offset_is_nothing(slices: Slices) -> None:
    pause(slices, 3 * DAY)
    slices.answer([], 10)
    slices.now += 60
    slices.answer(batches((12, 20)), 20)
    assert slices.named == []


def test_missing_offsets_read_too_late_stop_the_partition(slices: Slices) -> None:
    pause(slices, DAY + 7)
    with pytest.raises(TombstonesOvertaken) as raised:
        slices.answer(batches((12, 20)), 40)
    error = raised.value
    assert error.details | {"caught_up_at": "", "gap_seconds": 0} == {
        "from_offset": 10,
        "until_offset": 40,
        "caught_up_at": "",
        "caught_up_offset": 10,
        "gap_seconds": 0,
        "retention_ms": 86_400_000,
    }
    assert "86407 s later" in error.what
    assert (error.where.topic, error.where.partition, error.where.offset) == ("orders", 0, 10)
    assert slices.named == [(10, 40, DAY + 7)]
    # Not forgotten: the next slice stops as well.
    slices.copy.fail(error)
    slices.end()
    slices.begin()
    with pytest.raises(TombstonesOvertaken):
        slices.answer(batches((12, 20)), 40)
    assert slices.named == [(10, 40, DAY + 7)]


def test_a_seed_that_takes_longer_than_tombstones_stay_is_named(slices: Slices) -> None:
    """Values that were read on the first day, tombstones that were written and dropped before the third."""
    slices.answer(batches((0, 10)), 1000)
    for day in range(1, 3):
        slices.now = T0 + day * DAY
        slices.begin()
        if day < 2:
            slices.answer(batches((day * 10, day * 10 + 10), missing=[12]), 1000)
            slices.end()
    with pytest.raises(TombstonesOvertaken) as raised:
        slices.answer(batches((20, 30), missing=[22]), 1000)
    assert (raised.value.details["caught_up_offset"], raised.value.details["from_offset"]) == (0, 20)


def test_the_lowest_value_counts(slices: Slices) -> None:
    """Lowered for an hour in between: tombstones that were cleaned then had the short time."""
    slices.answer(batches((0, 10)), 50)
    slices.end()
    slices.retention_ms = 3_600_000
    slices.now += 1800
    slices.begin()
    slices.answer(batches((10, 20)), 50)
    slices.end()
    slices.retention_ms = int(DAY * 1000)
    slices.now += 2000
    slices.begin()
    with pytest.raises(TombstonesOvertaken) as raised:
        slices.answer(batches((22, 30)), 50)
    assert raised.value.details["retention_ms"] == 3_600_000


def test_by_policy_the_copy_goes_on_and_is_named_once(slices: Slices) -> None:
    pause(slices, 2 * DAY)
    slices.policy = "note"
    slices.begin()
    slices.answer(batches((12, 20)), 40)
    slices.now += 60
    slices.answer(batches((22, 30)), 50)
    assert slices.copy.figures.overtaken == [10]
    assert times_overtaken(slices.store, "m1", "orders", 0) == 1
    slices.now += 60
    slices.answer(batches((31, 45)), 50)
    slices.answer(batches((47, 50)), 50)
    slices.answer([], 50)
    assert slices.named == [(10, 40, 2 * DAY)]
    # Passed: a comparison that began before the end of the stretch was read may have trusted a tombstone in it.
    assert all_times_overtaken(slices.store, "m1") == {("orders", 0): 2}
    slices.end()
    assert slices.caught_up[0] == 2 * DAY + 120


@pytest.mark.parametrize("via", ["direct", "s3"])
def test_a_copy_from_the_start_owes_nothing_to_the_one_before(local_store: ObjectStore, via: str) -> None:
    """Except through the archive, which has what was read then."""
    slices = Slices(local_store, via=via)
    pause(slices, 3 * DAY)
    slices.begin(at=0, fresh=True)
    if via == "direct":
        slices.answer(batches((2, 20)), 20)
        assert slices.named == []
        assert slices.caught_up == (3 * DAY, 0), "stored at once"
        return
    slices.copy.read.next_offset = slices.copy.write.source_offset = 10
    with pytest.raises(TombstonesOvertaken):
        slices.answer(batches((12, 20)), 20)


@pytest.mark.parametrize("what", ["gone", "damaged", "from the future"])
def test_what_is_not_known_is_named_and_stops_nothing(slices: Slices, what: str) -> None:
    pause(slices, 100)
    key = "m1/reading/lane-000003.json"
    if what == "gone":
        slices.store.put(key, LaneReading(migration_id="m1", lane=3).canonical())
    elif what == "damaged":
        slices.store.put(key, b"{")
    else:
        slices.now -= DAY
    slices.begin()
    slices.answer(batches((12, 20)), 20)
    assert slices.named == [(10, 20, -1.0)]
    assert slices.copy.figures.overtaken == [10]


def test_a_partition_that_was_in_another_lane_is_known(slices: Slices) -> None:
    pause(slices, 2 * DAY)
    data = slices.store.get("m1/reading/lane-000003.json")
    assert data is not None
    slices.store.put("m1/reading/lane-000001.json", data)
    slices.store.put("m1/reading/lane-000003.json", LaneReading(migration_id="m1", lane=3).canonical())
    slices.begin()
    with pytest.raises(TombstonesOvertaken):
        slices.answer(batches((12, 20)), 20)


def test_nothing_is_copied_that_cannot_be_named(slices: Slices, monkeypatch: pytest.MonkeyPatch) -> None:
    pause(slices, 2 * DAY)
    slices.policy = "note"
    slices.begin()

    def full(*_: object, **__: object) -> None:
        raise StorageUnavailable("503 SlowDown")

    monkeypatch.setattr(type(slices.store), "put_new", full)
    with pytest.raises(StorageUnavailable):
        slices.answer(batches((12, 20)), 20)


def test_a_copier_that_wakes_up_late_names_nothing(slices: Slices) -> None:
    """Others may have read all of it in time."""
    pause(slices, 2 * DAY)

    def check() -> None:
        raise SliceExpired("the slice has ended")

    slices.watch._check = check
    with pytest.raises(SliceExpired):
        slices.answer(batches((12, 20)), 20)
    assert slices.named == []


def test_topics_that_are_not_compacted_are_not_watched(local_store: ObjectStore) -> None:
    slices = Slices(local_store, tombstones=None)
    slices.answer(batches((0, 10)), 10)
    slices.end()
    assert slices.caught_up == (-1 - T0, -1)
    slices.now += 3 * DAY
    slices.begin()
    slices.answer(batches((12, 20)), 20)
    assert slices.named == []


def test_the_last_leader_epoch_lasts(slices: Slices) -> None:
    slices.answer(batches((0, 10)), 10)
    slices.copy.read.leader_epoch = 7
    slices.end()
    slices.begin()
    assert slices.copy.read.before == (10, 7)
    # What was read and is not safe yet says nothing of the position.
    slices.answer(batches((10, 20)), 20, is_safe=False)
    slices.copy.read.leader_epoch = 8
    slices.end()
    slices.begin()
    assert slices.copy.read.before == (10, 7)


def test_what_was_proven_before_is_not_trusted(slices: Slices) -> None:
    compared = ContentRange(
        topic="orders",
        target_topic="orders",
        partition=0,
        verdict=Verdict.EQUAL,
        source_start_offset=0,
        source_end_offset=10,
        target_start_offset=0,
        target_end_offset=10,
    )
    document = ProvenPartition(
        migration_id="m1",
        topic="orders",
        target_topic="orders",
        partition=0,
        verdict=Verdict.EQUAL,
        postponed="kept",
    )
    store_proven(slices.store, document)
    assert load_proven(slices.store, "m1", compared).postponed == "kept"
    pause(slices, 2 * DAY)
    with pytest.raises(MigrationError):
        slices.answer(batches((12, 20)), 20)
    found = load_proven(slices.store, "m1", compared)
    assert (found.postponed, found.overtaken_times) == ("", 1)
    store_proven(slices.store, found.model_copy(update={"postponed": "again"}))
    assert load_proven(slices.store, "m1", compared).postponed == "again"


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_copy_that_begins_again_has_read_nothing_under_any_epoch(
    local_store: ObjectStore, *, is_compacted: bool
) -> None:
    """Else the source would have lost what the copy before has read."""
    slices = Slices(local_store, **({} if is_compacted else {"tombstones": None}))
    slices.answer(batches((0, 10)), 10)
    slices.copy.read.leader_epoch = 7
    slices.end()
    slices.begin(at=0, fresh=True)
    assert slices.copy.read.before == (10, 7)
    slices.answer(batches((0, 5)), 50)
    slices.begin()  # killed
    assert slices.copy.read.before is None
