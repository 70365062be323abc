"""A job of 10,000 partitions in 400 lanes on 100 executors: what grows with it, and what must not.

Counted, not timed: how often each partition is looked at, how many bytes are written, how large documents are.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle

from airflow_provider_kafka_migration.documents.copy import (
    CopyJob,
    CopyLane,
    CopyPartition,
    PartitionResult,
    ProducerIds,
)
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.lanes import job_progress
from airflow_provider_kafka_migration.lanes.assignment import assign_lanes
from airflow_provider_kafka_migration.lanes.figures import LaneFigures, SliceFigures, live_lanes
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.spark.drivers import Merger
from airflow_provider_kafka_migration.spark.rows import SliceOutcome
from airflow_provider_kafka_migration.spark.slice_loop import group_lanes, lane_weights
from airflow_provider_kafka_migration.spark.worker import JobPointer, JobReferences, make_copy_slice
from airflow_provider_kafka_migration.storage.base import ObjectInfo

pytestmark = pytest.mark.slow

PARTITIONS, LANES, EXECUTORS, CORES = 10_000, 400, 100, 4
JOB_KEY, PROGRESS_KEY = "m/jobs/{}.json", "m/progress/{}.json"


class Store:
    """Objects in memory, with the traffic per key."""

    uri = "memory://m"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.written: dict[str, int] = {}
        self.read: dict[str, int] = {}
        self.threads: set[str] = set()

    def put(self, key: str, data: Any) -> None:
        self.objects[key] = bytes(data)
        self.written[key] = self.written.get(key, 0) + len(data)

    def get(self, key: str) -> bytes | None:
        self.threads.add(threading.current_thread().name)
        data = self.objects.get(key)
        self.read[key] = self.read.get(key, 0) + len(data or b"")
        return data

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return iter([ObjectInfo(key, len(self.objects[key])) for key in sorted(self.objects) if key.startswith(prefix)])


class Clock:
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(job_progress.time, "monotonic", made.monotonic)
    return made


def make_job(name: str, partitions: int = PARTITIONS, lanes: int = LANES) -> CopyJob:
    """Partitions of 1 to 7 GB, in the lanes that a plan would give them."""
    specs = {}
    for number in range(partitions):
        topic = f"team-{number // 500:02d}.orders.created.{number // 50:04d}.v1"
        spec = CopyPartition(
            topic=topic,
            target_topic=topic,
            topic_id="AbCdEfGhIjKlMnOpQrStUv",
            partition=number % 50,
            source_start_offset=1_000_000,
            target_start_offset=1_000_000,
            verdict=Verdict.EQUAL,
            until_offset=500_000_000 if name == "seed" else None,
            size_bytes=(1 + number % 7) * 10**9,
        )
        specs[spec.key] = spec
    plans = assign_lanes({key: spec.size_bytes for key, spec in specs.items()}, lanes)
    return CopyJob(
        migration_id="m",
        name=name,  # type: ignore[arg-type]
        generation=1,
        journal_location="memory://m",
        archive_location="memory://m/archive",
        via="direct",
        producers=ProducerIds(data_producer_id=1, data_producer_epoch=0, filler_producer_id=2, filler_producer_epoch=0),
        lanes=[
            CopyLane(
                lane=plan.lane,
                transactional_id=f"kafka-migration.m.lane-{plan.lane}",
                partitions=[specs[(topic, number)] for topic, number in plan.partitions],
            )
            for plan in plans
        ],
        stop_key="m/control/tail-stop.json" if name == "tail" else None,
    )


def results(lane: CopyLane, slice_number: int, *, done: bool = False) -> list[PartitionResult]:
    """What a task returns after a slice."""
    return [
        PartitionResult(
            lane=lane.lane,
            topic=spec.topic,
            partition=spec.partition,
            source_offset=spec.source_start_offset + 250_000 * slice_number,
            target_offset=spec.target_start_offset + 250_000 * slice_number,
            records=250_000,
            copied_bytes=167_000_000,
            source_bytes=167_000_000,
            done=done,
            verdict=spec.verdict,
            lag=12_345,
            slice_number=slice_number,
            total_records=250_000 * slice_number,
        )
        for spec in lane.partitions
    ]


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often it is asked whether a partition is over."""
    looks = [0]
    is_over = JobProgress._is_over

    def counted(self: JobProgress, key: Any) -> bool:
        looks[0] += 1
        return is_over(self, key)

    monkeypatch.setattr(JobProgress, "_is_over", counted)
    return looks


def test_a_round_of_slices_looks_at_each_partition_a_few_times(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once per slice that ends: that would be 400 times 10,000, twice a minute."""
    job, store = make_job("seed"), Store()
    progress = JobProgress(job, store)  # type: ignore[arg-type]
    merger = Merger(progress)
    progress.begin()
    looks = count_looks(monkeypatch)
    for lane in job.lanes:
        clock.now += 60 / LANES
        merger.merge(SliceOutcome(results=results(lane, 1)))
        assert len(progress.remaining_lanes()) == LANES
        assert not progress.finished
    assert PARTITIONS <= looks[0] <= 4 * PARTITIONS


def test_progress_of_a_minute_is_some_megabytes(clock: Clock) -> None:
    job, store = make_job("seed"), Store()
    progress = JobProgress(job, store)  # type: ignore[arg-type]
    progress.begin()
    for lane in job.lanes:
        clock.now += 60 / LANES
        progress.record(results(lane, 1))
        progress.tick({})
    size = len(store.objects[PROGRESS_KEY.format("seed")])
    assert size < 450 * PARTITIONS
    assert store.written[PROGRESS_KEY.format("seed")] <= 6 * size, "every 15 s, and once at the beginning"


def test_a_small_job_writes_as_often_as_ever(clock: Clock) -> None:
    progress = JobProgress(make_job("seed", 100, 4), Store())  # type: ignore[arg-type]
    assert progress._progress_seconds == 2.0
    assert progress._refresh_seconds == 1.0


def test_the_end_is_written_at_once(clock: Clock) -> None:
    job, store = make_job("seed"), Store()
    progress = JobProgress(job, store)  # type: ignore[arg-type]
    progress.begin()
    for lane in job.lanes:
        progress.record(results(lane, 1, done=True))
    assert progress.finished
    assert json.loads(store.objects[PROGRESS_KEY.format("seed")])["partitions_done"] == PARTITIONS


def test_a_tail_reads_its_job_again_every_ten_seconds(clock: Clock) -> None:
    job, store = make_job("tail"), Store()
    data = job.canonical()
    store.put(JOB_KEY.format("tail"), data)
    progress = JobProgress(job, store)  # type: ignore[arg-type]
    for lane in job.lanes:
        clock.now += 60 / LANES
        progress.record(results(lane, 1))
    assert len(data) < 400 * PARTITIONS
    assert store.read[JOB_KEY.format("tail")] <= 6 * len(data)


def test_a_task_is_sent_its_own_partitions_and_returns_a_row_for_each() -> None:
    job = make_job("seed")
    lane = job.lanes[0]
    pointer = JobPointer("s3://bucket/prefix", "m/jobs/seed.json", JobReferences("file:/run/references.json"))
    task = make_copy_slice(pointer, [lane.lane], left=[spec.key for spec in lane.partitions])
    assert len(cloudpickle.dumps(task)) < 10_000
    rows = sum(len(result.model_dump_json()) for lane in job.lanes for result in results(lane, 7))
    assert rows < 1000 * PARTITIONS, "a round brings the driver less than 10 MB"


def test_lanes_and_slots_are_balanced() -> None:
    job = make_job("tail")
    weights = lane_weights(job.lanes)
    mean = sum(weights.values()) / LANES
    assert max(weights.values()) < 1.1 * mean
    assert max(len(lane.partitions) for lane in job.lanes) <= 2 * PARTITIONS / LANES
    units = group_lanes(weights, EXECUTORS * CORES)
    assert len(units) == LANES
    fewer = group_lanes(weights, EXECUTORS)
    assert max(sum(weights[lane] for lane in unit) for unit in fewer) < 1.1 * sum(weights.values()) / EXECUTORS


def test_figures_of_many_lanes_are_read_at_the_same_time() -> None:
    store = Store()
    for lane in range(LANES):
        figures = LaneFigures(lane=lane, slices=[SliceFigures(slice_number=1, records=lane)])
        store.put(f"m/progress/seed/lane-{lane:06d}.json", figures.canonical())
    found = live_lanes(store, "m", "seed")  # type: ignore[arg-type]
    assert [item.lane for item in found] == list(range(LANES))
    assert len(store.threads) > 1
    assert threading.current_thread().name not in store.threads


def test_what_is_left_follows_every_change() -> None:
    """Lanes that changed are looked through again: done, failed for good, and well again after a failure."""
    job = make_job("seed", 8, 2)
    progress = JobProgress(job, Store())  # type: ignore[arg-type]
    first, second = job.lanes
    terminal = {"code": "SOURCE_GAP", "what": "gone", "kind": "terminal", "next_step": "decide"}
    one, *others = results(first, 1)
    progress.record([one.model_copy(update={"done": True}), *others])
    assert [len(lane.partitions) for lane in progress.remaining_lanes()] == [3, 4]
    progress.record([results(first, 2)[1].model_copy(update={"error": terminal})])
    assert [len(lane.partitions) for lane in progress.remaining_lanes()] == [2, 4]
    progress.record([results(first, 3)[1]])
    assert [len(lane.partitions) for lane in progress.remaining_lanes()] == [3, 4]
    progress.record(results(first, 4, done=True) + results(second, 4, done=True))
    assert progress.remaining_lanes() == []
    assert progress.finished
