"""The pace of the comparison in the background, and when it does not run at all."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from content_support import COMPACTED, NOW_MS, MemoryLog, content_range, copy_of, log_of, rewrite
from fake_partition import FakeClients, FakePartition
from id_support import SHIFT, at, log_with, map_document, prefixed, uses

from airflow_provider_kafka_migration.compare import lane_prover, runner
from airflow_provider_kafka_migration.compare.archive import NOT_ARCHIVED
from airflow_provider_kafka_migration.compare.lane_prover import LaneProver, Pace
from airflow_provider_kafka_migration.compare.proven import load_proven
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, CopyPartition, ProducerIds, ProofSettings
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import (
    ContentJob,
    ContentRange,
    PartitionContent,
    ProvenPartition,
    TopicRules,
)
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings, TopicIdSettings
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, Record
from airflow_provider_kafka_migration.storage.base import ObjectStore


def test_the_pace_holds_readers_back_to_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = Pace(1_000, wait)
    for _ in range(20):
        pace(500)
    # 10,000 bytes at 1,000 per second.
    assert now[0] - 100.0 == pytest.approx(10.0)
    # Idle time is not saved up beyond one second.
    now[0] += 1_000
    began = now[0]
    pace(1_000)
    assert now[0] == began
    pace(3_000)
    assert now[0] - began == pytest.approx(3.0)


def test_without_a_limit_nobody_waits() -> None:
    def never(seconds: float) -> None:
        raise AssertionError(f"waits {seconds} s")

    Pace(None, never)(10**12)


def tail_job(verdict: Verdict = Verdict.EQUAL, rules: TopicRules | None = None) -> CopyJob:
    spec = CopyPartition(
        topic="orders",
        target_topic="orders",
        partition=0,
        source_start_offset=0,
        target_start_offset=0,
        verdict=verdict,
    )
    return CopyJob(
        migration_id="m1",
        name="tail",
        generation=1,
        journal_location="file:///tmp",
        archive_location="file:///tmp",
        via="direct",
        producers=ProducerIds(data_producer_id=1, data_producer_epoch=0, filler_producer_id=2, filler_producer_epoch=0),
        lanes=[CopyLane(lane=0, transactional_id="x", partitions=[spec])],
        proof=ProofSettings(topics={"orders": rules} if rules else {}),
    )


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"proof": None}, Verdict.EQUAL),
        ({"name": "restore"}, Verdict.EQUAL),
        ({"name": "seed"}, Verdict.EQUAL),
        ({}, Verdict.TRANSACTIONAL),
    ],
)
def test_only_a_tail_that_is_told_to_compares(
    local_store: ObjectStore, changes: dict[str, Any], verdict: Verdict
) -> None:
    class Nothing(Clients):
        def wire(self, name: str, **_: Any) -> Any:
            raise AssertionError(f"{name} was opened")

    job = tail_job(verdict).model_copy(update=changes)
    (lane,) = job.lanes
    (spec,) = lane.partitions
    prover = LaneProver(job, lane, Nothing({}), local_store, time.monotonic() + 60)
    assert prover.runs is False
    with prover:
        pass
    assert LaneProver(
        job.model_copy(update={"name": "tail", "proof": ProofSettings()}),
        lane.model_copy(update={"partitions": [spec.model_copy(update={"verdict": Verdict.EQUAL})]}),
        Nothing({}),
        local_store,
        time.monotonic() + 60,
    ).runs


# -- compacted partitions --------------------------------------------------------------------------------------------


def stored(store: ObjectStore) -> ProvenPartition:
    compared: ContentRange = content_range(0, 60)
    return load_proven(store, "m1", compared)


def prover_of(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, source: MemoryLog, target: MemoryLog, rules: TopicRules
) -> LaneProver:
    """A prover over logs in memory; nothing runs by itself."""
    job = tail_job(rules=rules)
    clients = FakeClients(FakePartition([1] * 60), FakePartition([3] * 60), store)
    monkeypatch.setattr(lane_prover, "KafkaLog", lambda wire, *_: target if wire is clients.sides["target"] else source)
    return LaneProver(job, job.lanes[0], clients, store, time.monotonic() + 600)


class LookedUp(MemoryLog):
    """A source that tells when it is read once more: for later records of keys."""

    def __init__(self, log: MemoryLog, then: Callable[[], None]) -> None:
        super().__init__(log.stored, log.log_start)
        self.then = then

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        for number, batch in enumerate(super().batches(start_offset, stop_offset)):
            if self.reads == 2 and number == 1:
                self.then()
            yield batch


def compacted() -> tuple[MemoryLog, MemoryLog]:
    """The source has lost older records of keys since, the target has them."""
    log = log_of(60, key_every=20)
    return rewrite(log, dict.fromkeys(range(20))), copy_of(log)


def test_looking_for_later_records_ends_with_the_slice(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = compacted()
    monkeypatch.setattr(lane_prover, "PIECE_SECONDS", 0.0)

    def slice_ends() -> None:
        prover._deadline = time.monotonic()

    looked_up = LookedUp(source, slice_ends)
    prover = prover_of(local_store, monkeypatch, looked_up, target, COMPACTED)
    monkeypatch.setattr(prover, "_enough", lambda: False)
    assert prover._round()
    assert looked_up.reads == 2
    found = stored(local_store)
    assert (found.proven, found.differing) == (None, None)
    assert "takes longer than a slice" in found.postponed
    assert not prover._prove(prover._specs[0], 60), "left alone for a while"


def test_looking_for_later_records_keeps_the_pace(local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = compacted()
    paced: list[int] = []
    prover = prover_of(local_store, monkeypatch, source, target, COMPACTED)
    monkeypatch.setattr(prover, "_pace", paced.append)
    assert prover._round()
    assert source.reads == 2
    assert sum(paced) == source.read_bytes + target.read_bytes
    found = stored(local_store)
    assert found.proven is not None
    assert found.proven.content.explained == {"compacted": 20}


def test_a_comparison_that_was_left_behind_stores_nothing(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(60)
    prover = prover_of(local_store, monkeypatch, log, copy_of(log), TopicRules(compacted=False))
    prover._thread = None
    prover.__exit__()
    monkeypatch.setattr(prover, "_deadline", time.monotonic() + 600)
    monkeypatch.setattr(prover, "_enough", lambda: False)
    prover._round()
    assert list(local_store.list("m1/proven/")) == []


def test_no_second_comparison_begins_while_one_was_left_behind(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(60)
    go_on = threading.Event()
    monkeypatch.setattr(LaneProver, "_run", lambda self: go_on.wait(60))
    first, second, third = (
        prover_of(local_store, monkeypatch, log, copy_of(log), TopicRules(compacted=False)) for _ in range(3)
    )
    try:
        with first:
            left_behind = first._thread
        assert left_behind is not None
        with second:
            assert not second.runs
    finally:
        go_on.set()
    left_behind.join(60)
    with third:
        assert third.runs


def with_tombstone() -> tuple[MemoryLog, MemoryLog]:
    """A value at 5, its tombstone at 35; the source has dropped both, the target has them."""
    log = rewrite(
        log_of(60),
        {5: Record(5, NOW_MS - 60_000, b"gone", b"v", []), 35: Record(35, NOW_MS - 60_000, b"gone", None, [])},
    )
    return rewrite(log, {5: None, 35: None}), copy_of(log)


@pytest.mark.parametrize(
    ("change", "differs"),
    [({}, False), ({7: None}, True), ({7: Record(7, NOW_MS, b"k", b"other", [])}, True)],
    ids=["a later tombstone", "missing", "changed"],
)
def test_a_piece_that_was_cut_before_a_tombstone_does_not_differ(
    local_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[int, Record | None],
    *,
    differs: bool,
) -> None:
    source, target = with_tombstone()
    target = rewrite(target, change)
    prover = prover_of(local_store, monkeypatch, source, target, COMPACTED)
    monkeypatch.setattr(lane_prover, "PIECE_SECONDS", 0.0)
    compare = lane_prover.compare_stretch
    two_batches = sum(batch.size_bytes for batch in target.stored[:2])

    def cut_at_30(*arguments: Any) -> Any:
        options = dataclasses.replace(arguments[5], enough=lambda: target.read_bytes > two_batches)
        stretch = compare(*arguments[:5], options)
        assert 10 <= stretch.compared.source_end_offset <= 35
        return stretch

    monkeypatch.setattr(lane_prover, "compare_stretch", cut_at_30)
    prover._round()
    found = stored(local_store)
    assert found.proven is None
    assert (found.differing is not None) is differs
    assert ("tombstones beyond the piece" in found.postponed) is not differs
    if not differs:
        monkeypatch.setattr(lane_prover, "compare_stretch", compare)
        monkeypatch.setattr(lane_prover, "PIECE_SECONDS", 60.0)
        monkeypatch.setattr(lane_prover, "POSTPONE", timedelta(0))
        prover._known.clear()
        prover._round()
        healed = stored(local_store)
        assert healed.proven is not None, "all of it together is equal"
        assert (healed.proven.source_end_offset, healed.postponed) == (60, "")


def test_what_only_the_target_has_is_a_difference_if_nothing_may_go(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = with_tombstone()
    prover = prover_of(local_store, monkeypatch, source, target, TopicRules(compacted=False))
    prover._round()
    found = stored(local_store)
    assert found.differing is not None
    assert not found.postponed


@pytest.mark.parametrize(
    ("reason", "grows"), [("access to the archive is denied", False), (NOT_ARCHIVED, True)], ids=["denied", "ended"]
)
def test_what_the_archive_could_not_tell_is_asked_again(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, reason: str, *, grows: bool
) -> None:
    """Else the range would be taken for what can be known, and no validation would ask the archive again."""
    log = log_of(60)
    source, target = MemoryLog(log.stored, log_start=20), copy_of(log)
    prover = prover_of(local_store, monkeypatch, source, target, TopicRules(compacted=False))
    prover._settings = prover._settings.model_copy(update={"archive_of_deleted": "file:///archive"})
    monkeypatch.setattr(
        lane_prover, "compare_deleted", lambda found, *_: found.model_copy(update={"uncompared_reason": reason})
    )
    prover._round()
    found = stored(local_store)
    assert found.differing is None
    assert (found.proven is not None) is grows
    assert (reason in found.postponed) is not grows


@pytest.mark.parametrize("is_denied", [True, False])
def test_a_validation_asks_the_archive_again(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, *, is_denied: bool
) -> None:
    source, target = FakePartition([1] * 30, start_offset=10), FakePartition([3] * 30)
    reason = "access denied" if is_denied else NOT_ARCHIVED
    asked: list[int] = []

    def from_archive(found: PartitionContent, *_: Any) -> PartitionContent:
        asked.append(1)
        return found.model_copy(update={"uncompared_reason": reason})

    monkeypatch.setattr(runner, "compare_deleted", from_archive)
    job = ContentJob(
        migration_id="m1",
        journal_location="file:///tmp",
        start_from_proven=True,
        archive_of_deleted="file:///archive",
        ranges=[content_range(0, 30)],
    )
    with runner.ContentChecker(job, FakeClients(source, target, local_store), local_store) as checker:
        for _ in range(2):
            assert checker.check(content_range(0, 30)).uncompared == [(0, 10)]
    assert len(asked) == (2 if is_denied else 1)


def test_the_background_compares_under_the_id_map(local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    source = log_with(lambda offset: at(offset, prefixed(1)), 60)
    target = log_with(lambda offset: at(offset, prefixed(1 + SHIFT)), 60)
    settings = SchemaIdSettings(
        id_map_key="m1/schemas/id-map.json", topics={"orders": TopicIdSettings(parts="value", rewrite=True)}
    )
    prover = prover_of(local_store, monkeypatch, source, target, TopicRules(compacted=False))
    prover._job = prover._job.model_copy(update={"schema_ids": settings})
    local_store.put("m1/schemas/id-map.json", map_document([1]).canonical())
    assert prover._round()
    found = stored(local_store)
    assert found.differing is None
    assert found.proven is not None
    assert uses(found.proven.content) == [("value", "id32", 1, 60, 0)]
    prover._job = prover._job.model_copy(update={"schema_ids": None})
    prover._known.clear()
    prover._round()
    again = stored(local_store)
    assert again.differing is not None, "under other settings, what was proven does not count"
