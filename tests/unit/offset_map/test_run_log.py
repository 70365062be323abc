"""Runs written ahead: crashes, zombies, races, checkpoints, damaged objects."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import ObjectExists, OffsetMapConflict, OffsetMapInvalid
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from airflow_provider_kafka_migration.offset_map.store import RunLog
from airflow_provider_kafka_migration.storage.base import ObjectInfo, ObjectStore

BASE = OffsetRange(0, 0)


class MemoryStore:
    """Objects in a dict; ``uri`` and the rules of :class:`ObjectStore`."""

    uri = "memory://"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put_new(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise ObjectExists("there")
        self.objects[key] = data

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def list(self, prefix: str = "", *, start_after: str | None = None):  # type: ignore[no-untyped-def]
        for key in sorted(self.objects):
            if key.startswith(prefix) and (start_after is None or key > start_after):
                yield ObjectInfo(key, len(self.objects[key]))


def log_of(store: ObjectStore, topic: str = "orders") -> RunLog:
    return RunLog(store, "m1", topic, 3, BASE, topic_id="id")


def runs_of(store: ObjectStore) -> list[OffsetRange]:
    return list(log_of(store).load().runs())


def test_a_partition_without_objects_has_its_base_run(store: ObjectStore) -> None:
    assert runs_of(store) == [BASE]
    log = log_of(store)
    assert list(log.take_over(10).runs()) == [BASE]
    assert list(store.list()) == [], "no object without need"


def starts(runs: Iterable[OffsetRange]) -> list[tuple[int, int]]:
    return [(run.source_start, run.target_start) for run in runs]


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [True, False])
def test_take_overs_for_years(local_store: ObjectStore, forgets: bool) -> None:
    """A mapped partition is taken over in each slice. A reader between any two of them finds the same map."""
    expected, reader = [BASE], None
    for number in range(400):
        log = log_of(local_store)
        log.forgets = forgets
        log.take_over(10 * number)
        if number % 100 == 1:
            expected.append(OffsetRange(11 * number, 10 * number))
            log.write_ahead([expected[-1]])
        if reader is not None:
            assert starts(reader()) == starts(expected)
        names = log_of(local_store)._names()
        reader = None if number % 100 in (0, 99) else lambda names=names: log_of(local_store)._fold(names).runs()
    assert starts(runs_of(local_store)) == starts(expected)
    count = len(list(local_store.list()))
    assert count < 100 if forgets else count > 400


def test_runs_are_found_by_others(store: ObjectStore) -> None:
    log = log_of(store)
    log.take_over(10)
    log.write_ahead([OffsetRange(15, 10), OffsetRange(40, 30)])
    log.write_ahead([OffsetRange(60, 45)])
    assert runs_of(store) == [
        OffsetRange(0, 0, 10),
        OffsetRange(15, 10, 20),
        OffsetRange(40, 30, 15),
        OffsetRange(60, 45, None),
    ]
    keys = [info.key for info in store.list()]
    assert keys == [
        "m1/offset-map/orders/3/00000000000000000010-000001.json",
        "m1/offset-map/orders/3/00000000000000000045-000001.json",
        "m1/offset-map/orders/3/takeover-000001.json",
    ]


@pytest.mark.parametrize("topic", [".tmp-x", "..", ".", "a.b_c-D", "x" * 249])
def test_all_topic_names_make_keys(store: ObjectStore, topic: str) -> None:
    log = log_of(store, topic)
    log.take_over(0)
    log.write_ahead([OffsetRange(5, 1)])
    assert list(log_of(store, topic).load().runs()) == [OffsetRange(0, 0, 1), OffsetRange(5, 1, None)]


def test_runs_that_were_never_appended_are_void_after_a_take_over(store: ObjectStore) -> None:
    crashed = log_of(store)
    crashed.take_over(10)
    crashed.write_ahead([OffsetRange(15, 10), OffsetRange(40, 30)])
    resumed = log_of(store)
    found = resumed.take_over(20)
    assert list(found.runs()) == [OffsetRange(0, 0, 10), OffsetRange(15, 10, None)]
    assert runs_of(store) == list(found.runs()), "durable at once, for the copier goes past 30 without another run"
    resumed.write_ahead([OffsetRange(50, 28)])
    assert runs_of(store)[-1] == OffsetRange(50, 28)


def test_the_same_place_may_be_decided_otherwise(store: ObjectStore) -> None:
    crashed = log_of(store)
    crashed.take_over(10)
    crashed.write_ahead([OffsetRange(15, 10)])
    resumed = log_of(store)
    assert list(resumed.take_over(10).runs()) == [BASE]
    resumed.write_ahead([OffsetRange(17, 10)])  # 15 and 16 were compacted away meanwhile
    assert runs_of(store) == [OffsetRange(0, 0, 10), OffsetRange(17, 10, None)]


def test_a_late_object_of_an_older_copier_is_void(store: ObjectStore) -> None:
    zombie = log_of(store)
    zombie.take_over(0)
    zombie.write_ahead([OffsetRange(5, 2)])
    owner = log_of(store)
    owner.take_over(100)
    owner.write_ahead([OffsetRange(300, 200)])
    zombie.write_ahead([OffsetRange(110, 102)])
    zombie.write_ahead([OffsetRange(400, 210)])
    assert runs_of(store) == [OffsetRange(0, 0, 2), OffsetRange(5, 2, 198), OffsetRange(300, 200, None)]


def test_two_who_begin_to_write_at_once(store: ObjectStore) -> None:
    first, second = log_of(store), log_of(store)
    first.take_over(10)
    second.take_over(10)
    first.write_ahead([OffsetRange(15, 10)])
    with pytest.raises(OffsetMapConflict, match="another copier has begun"):
        second.write_ahead([OffsetRange(16, 10)])
    assert runs_of(store)[-1] == OffsetRange(15, 10)


def test_attempts_are_claimed_once(store: ObjectStore) -> None:
    writer = log_of(store)
    writer.take_over(0)
    writer.write_ahead([OffsetRange(5, 1)])
    logs = [log_of(store) for _ in range(4)]
    for log in logs:
        log.take_over(20)
    assert [log.attempt for log in logs] == [2, 3, 4, 5]


def test_runs_can_be_taken_back_by_their_own_copier(store: ObjectStore) -> None:
    log = log_of(store)
    log.take_over(10)
    log.write_ahead([OffsetRange(15, 10), OffsetRange(40, 30)])
    log.write_ahead([OffsetRange(22, 15)])  # more markers than expected: what comes later lies elsewhere
    assert runs_of(store) == [OffsetRange(0, 0, 10), OffsetRange(15, 10, 5), OffsetRange(22, 15, None)]
    log.write_ahead([OffsetRange(23, 15)])
    assert runs_of(store)[-1] == OffsetRange(23, 15)
    assert log.attempt == 3


def test_who_was_taken_over_cannot_take_back(store: ObjectStore) -> None:
    zombie = log_of(store)
    zombie.take_over(10)
    zombie.write_ahead([OffsetRange(15, 10)])
    log_of(store).take_over(12)
    with pytest.raises(OffsetMapConflict, match="taken over"):
        zombie.write_ahead([OffsetRange(16, 10)])


def test_writing_the_same_twice_is_fine_where_the_answer_was_lost() -> None:
    class Forgetful(MemoryStore):
        def put_new(self, key: str, data: bytes) -> None:
            super().put_new(key, data)
            if "takeover" not in key:
                super().put_new(key, data)  # the store's own retry meets its own object

    store = Forgetful()
    log = log_of(store)
    log.take_over(10)
    log.write_ahead([OffsetRange(15, 10)])
    assert runs_of(store)[-1] == OffsetRange(15, 10)


def test_other_content_at_the_same_place_is_a_conflict() -> None:
    store = MemoryStore()
    log = log_of(store)
    log.take_over(10)
    store_key = "m1/offset-map/orders/3/00000000000000000010-000001.json"
    original = store.put_new

    def intruding(key: str, data: bytes) -> None:
        if key == store_key:
            store.objects[key] = b"{}"
        original(key, data)

    store.put_new = intruding  # type: ignore[method-assign]
    with pytest.raises(OffsetMapConflict, match="same target offsets") as caught:
        log.write_ahead([OffsetRange(15, 10)])
    assert caught.value.where.path == store_key


def test_a_take_over_of_many_objects_writes_a_checkpoint() -> None:
    store = MemoryStore()
    log = log_of(store)
    log.take_over(0)
    for index in range(1, 51):
        log.write_ahead([OffsetRange(3 * index, index)])
    before = log_of(store).load()
    log_of(store).take_over(1000)
    reads: list[str] = []
    original = store.get
    store.get = lambda key: reads.append(key) or original(key)  # type: ignore[method-assign, func-returns-value]
    assert log_of(store).load() == before
    assert reads == ["m1/offset-map/orders/3/checkpoint-000002.json"]


def test_the_base_run_stays_when_nothing_was_appended(store: ObjectStore) -> None:
    log = log_of(store)
    log.take_over(0)
    log.write_ahead([OffsetRange(7, 0)])  # the source begins with a hole
    assert runs_of(store) == [OffsetRange(0, 0, 0), OffsetRange(7, 0, None)]
    again = log_of(store)
    assert list(again.take_over(0).runs()) == [BASE]
    assert again.load().source_position(0) == 0, "the hole is decided anew"


def test_write_ahead_needs_take_over(local_store: ObjectStore) -> None:
    with pytest.raises(ValueError, match="take_over"):
        log_of(local_store).write_ahead([OffsetRange(5, 1)])


@pytest.mark.parametrize(
    ("key", "data", "why"),
    [
        ("m1/offset-map/orders/3/strange.json", b"{}", "not that of a map object"),
        ("m1/offset-map/orders/3/takeover-000001.json", b"{", "fields are invalid"),
        ("m1/offset-map/orders/3/takeover-000001.json", b"{}", "fields are invalid"),
    ],
)
def test_damaged_objects_are_named(local_store: ObjectStore, key: str, data: bytes, why: str) -> None:
    local_store.put(key, data)
    with pytest.raises(OffsetMapInvalid, match=why) as caught:
        log_of(local_store).load()
    assert caught.value.where.path == key


def test_objects_of_another_partition_are_named(local_store: ObjectStore) -> None:
    log = log_of(local_store, "other")
    log.take_over(0)
    log.write_ahead([OffsetRange(5, 1)])
    for info in list(local_store.list()):
        local_store.put(info.key.replace("other", "orders"), local_store.get(info.key) or b"")
    with pytest.raises(OffsetMapInvalid, match="other-3"):
        log_of(local_store).load()


@given(st.data())
def test_any_history_of_crashes_tells_what_was_appended(data: st.DataObject) -> None:
    """Copiers append records and skip holes; each dies anywhere, also between writing ahead and appending."""
    store = MemoryStore()
    appended: dict[int, int] = {}  # source offset -> target offset
    target_end = 0
    for _ in range(data.draw(st.integers(1, 6))):
        log = log_of(store)
        position = log.take_over(target_end).source_position(target_end)
        assert position == max(appended, default=-1) + 1
        current = log.load()
        for _ in range(data.draw(st.integers(0, 5))):
            position += data.draw(st.sampled_from([0, 0, 1, 4]))
            last = current.last_run
            assert last is not None
            if position - target_end != last.shift:
                log.write_ahead([OffsetRange(position, target_end)])
                current.override(target_end, [OffsetRange(position, target_end)])
                if data.draw(st.booleans()):
                    break  # killed before the append
            appended[position] = target_end
            position, target_end = position + 1, target_end + 1
    found = log_of(store).load().closed(max(appended, default=-1) + 1, target_end)
    for source, target in appended.items():
        assert found.translate(source).target_offset == target
    assert isinstance(found, PartitionMap)
