"""Which lanes run together and when, with a runner that drives tasks in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import CopyFailed, ExecutorUnfit, SparkJobFailed, Terminal
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.spark import tail as tail_module
from airflow_provider_kafka_migration.spark.rows import SliceOutcome
from airflow_provider_kafka_migration.spark.seed import SeedDriver
from airflow_provider_kafka_migration.spark.tail import TailDriver
from airflow_provider_kafka_migration.spark.tasks import Columns, Row, TaskFunction
from tests.spark_support import StoredJob, store_job


class ThreadRunner:
    """Runs a task where it is asked to.

    :param slots: how many tasks Spark would run; changes when a test sets it.
    """

    def __init__(self, slots: int = 2, before: Callable[[str], None] | None = None) -> None:
        self.free = slots
        self.groups: list[str] = []
        self.descriptions: list[str] = []
        self.cancelled: list[str] = []
        self.was_cancelled = threading.Event()
        self._before = before

    def run(
        self, function: TaskFunction, columns: Columns, numbers: Sequence[int], *, group: str, description: str
    ) -> list[Row]:
        self.groups.append(group)
        self.descriptions.append(description)
        if self._before is not None:
            self._before(group)
        return [dict(zip(columns, row, strict=True)) for number in numbers for row in function(number)]

    def slots(self) -> int:
        return self.free

    def cancel(self, group: str) -> None:
        self.cancelled.append(group)
        self.was_cancelled.set()

    def stop(self) -> None:
        raise AssertionError("a driver does not stop Spark")


class Lanes:
    """A task that "copies" 50 offsets of each partition, and notes which lanes it drove together."""

    def __init__(self, until: int | None = None) -> None:
        self.until = until
        self.offsets: dict[int, int] = {}
        self.slices: list[int] = []
        self.during: Callable[[CopyLane], None] = lambda lane: None
        self._lock = threading.Lock()

    def __call__(
        self, job: CopyJob, lane: CopyLane, secrets: dict[str, Any], attempt: int, stop: Callable[[], bool]
    ) -> list[PartitionResult]:
        with self._lock:
            self.slices.append(lane.lane)
        self.during(lane)
        return [self._copy(lane.lane, spec.partition, spec.until_offset) for spec in lane.partitions]

    def _copy(self, lane: int, partition: int, until: int | None) -> PartitionResult:
        limit = until if until is not None else self.until
        offset = self.offsets.get(partition, 0) + 50
        offset = offset if limit is None else min(offset, limit)
        self.offsets[partition] = offset
        return PartitionResult(
            lane=lane,
            topic="orders",
            partition=partition,
            source_offset=offset,
            target_offset=offset,
            records=50,
            done=offset == limit,
            verdict=Verdict.EQUAL,
        )


def assert_soon(event: threading.Event) -> None:
    assert event.wait(60)


def tail_of(stored: StoredJob, runner: ThreadRunner, lanes: Lanes) -> TailDriver:
    return TailDriver(runner, stored.job, stored.pointer, stored.coordinator(), run=lanes)


def test_a_seed_is_a_unit_per_lane(tmp_path: Path) -> None:
    stored, runner, lanes = store_job(tmp_path, lanes=3, partitions=2, until_offset=120), ThreadRunner(), Lanes()
    SeedDriver(runner, stored.job, stored.pointer, stored.coordinator(), run=lanes).run()
    assert sorted(lanes.slices) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sorted(runner.groups) == sorted([f"orders-move/seed/lane-000{lane}" for lane in range(3)] * 3)
    assert runner.descriptions[0].startswith("seed of orders-move: lane 0, slice 1")
    assert any(", slice 3 (seed: " in description for description in runner.descriptions)


def test_a_tail_is_a_unit_per_slot(tmp_path: Path) -> None:
    stored = store_job(tmp_path, "tail", lanes=5, partitions=1, until_offset=None)
    runner, lanes = ThreadRunner(slots=2), Lanes(until=50)
    tail_of(stored, runner, lanes).run()
    assert sorted(runner.groups) == ["orders-move/tail/lane-0000", "orders-move/tail/lane-0001"]
    assert runner.descriptions[0].startswith("tail of orders-move: lanes 0, 2, 4, slice 1")


def test_a_tail_spreads_over_slots_that_come_later(tmp_path: Path) -> None:
    stored = store_job(tmp_path, "tail", lanes=4, partitions=1, until_offset=None)
    runner, lanes = ThreadRunner(slots=1), Lanes(until=200)
    lanes.during = lambda lane: setattr(runner, "free", 4)
    tail_of(stored, runner, lanes).run()
    first, *others = runner.descriptions
    assert "lanes 0, 1, 2, 3, slice 1" in first
    assert {text.split(": ")[1].split(",")[0] for text in others} == {f"lane {lane}" for lane in range(4)}


def test_a_tail_moves_together_when_slots_go(tmp_path: Path) -> None:
    stored = store_job(tmp_path, "tail", lanes=4, partitions=1, until_offset=None)
    runner, lanes = ThreadRunner(slots=4), Lanes(until=400)
    both = threading.Barrier(4)

    def lose_slots(lane: CopyLane) -> None:
        if len(lanes.slices) <= 4:
            both.wait(30)
            runner.free = 1

    lanes.during = lose_slots
    tail_of(stored, runner, lanes).run()
    assert set(lanes.offsets.values()) == {400}
    assert "lanes 0, 1, 2, 3, slice" in runner.descriptions[-1]


def test_a_slice_is_as_long_as_its_lane_needs_to_begin_and_those_that_waited_go_first(tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=2, partitions=1, until_offset=100)
    seen: dict[int, list[tuple[int, list[tuple[str, int]]]]] = {}
    lanes = Lanes()

    def run(
        job: CopyJob, lane: CopyLane, secrets: dict[str, Any], attempt: int, stop: Callable[[], bool]
    ) -> list[PartitionResult]:
        seen.setdefault(lane.lane, []).append((job.slice_seconds, lane.goes_first))
        results = lanes(job, lane, secrets, attempt, stop)
        if len(seen[lane.lane]) > 1 or lane.lane:
            return results
        # The first slice of lane 0 has ended before it got anywhere.
        nothing = {"source_offset": 0, "records": 0, "lag": 100, "begin_seconds": 1000.0}
        lanes.offsets[results[0].partition] = 0
        return [results[0].model_copy(update=nothing)]

    SeedDriver(ThreadRunner(), stored.job, stored.pointer, stored.coordinator(), run=run).run()
    seconds = stored.job.slice_seconds
    key = stored.job.lanes[0].partitions[0].key
    assert seen[0][:2] == [(seconds, []), (3 * seconds, [key])]
    assert all(item == (seconds, []) for lane in seen if lane for item in seen[lane])


def test_a_lane_that_is_done_rests_and_ends_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "_DONE_SECONDS", 3600.0)
    stored = store_job(tmp_path, "tail", lanes=2, partitions=1, until_offset=None)
    runner, lanes = ThreadRunner(slots=2), Lanes(until=50)
    first_ended = threading.Event()

    def slow_one(lane: CopyLane) -> None:
        if lane.lane == 1:
            first_ended.wait(30)

    lanes.during = slow_one
    progress = stored.coordinator()
    record = progress.record

    def note(results: Iterable[PartitionResult]) -> None:
        record(results)
        first_ended.set()

    monkeypatch.setattr(progress, "record", note)
    TailDriver(runner, stored.job, stored.pointer, progress, run=lanes).run()
    # Its next slice was put off for an hour, and the end of the job did not wait for it.
    assert sorted(lanes.slices) == [0, 1]


def test_a_unit_of_done_and_failing_lanes_rests(tmp_path: Path) -> None:
    stored, lanes = store_job(tmp_path, "tail", lanes=2, partitions=1, until_offset=None), Lanes(until=50)
    driver = tail_of(stored, ThreadRunner(), lanes)
    unit = driver._unit([0, 1], None)
    done, going = lanes._copy(0, 0, None), lanes._copy(1, 1, 100)
    error = Terminal("wrong password", next_step="correct it")
    wrong = going.model_copy(update={"error": error.as_dict()})
    assert done.done
    assert not going.done
    for outcome, rest in (
        (SliceOutcome([done], {1: error}), 1.0),
        (SliceOutcome([done, wrong]), 1.0),
        (SliceOutcome([done, going]), 0.0),
        (SliceOutcome([going], {0: error}), 0.0),
    ):
        assert driver._rest(unit, outcome) == rest


def test_spark_may_fail_once_but_not_twice_in_a_row(tmp_path: Path) -> None:
    stored, lanes = store_job(tmp_path, lanes=1, partitions=1, until_offset=150), Lanes()
    fails = [True, False, True, False, False]

    def fail(_group: str) -> None:
        if fails.pop(0):
            raise PySparkException("Job aborted")

    SeedDriver(ThreadRunner(before=fail), stored.job, stored.pointer, stored.coordinator(), run=lanes).run()
    assert lanes.slices == [0, 0, 0]
    fails[:] = [True, True]
    again = store_job(tmp_path, lanes=1, partitions=1, until_offset=250)
    with pytest.raises(SparkJobFailed, match="lane 0, slice 2"):
        SeedDriver(ThreadRunner(before=fail), again.job, again.pointer, again.coordinator(), run=lanes).run()


def test_an_unfit_executor_ends_the_job_at_once_and_cancels_the_others(tmp_path: Path) -> None:
    stored, lanes = store_job(tmp_path, lanes=2, partitions=1, until_offset=50), Lanes()
    failed = threading.Event()

    def unfit(group: str) -> None:
        if group.endswith("0001"):
            failed.set()
            raise PySparkException("ImportError: an executor's Python lacks boto3")
        failed.wait(30)

    runner = ThreadRunner(before=unfit)
    lanes.during = lambda lane: assert_soon(runner.was_cancelled)
    with pytest.raises(ExecutorUnfit, match="lacks boto3"):
        SeedDriver(runner, stored.job, stored.pointer, stored.coordinator(), run=lanes).run()
    assert set(runner.cancelled) == {"orders-move/seed/lane-0000"}


def test_a_terminal_error_of_one_lane_leaves_the_others(tmp_path: Path) -> None:
    stored, lanes = store_job(tmp_path, lanes=2, partitions=1, until_offset=100), Lanes()

    def refuse(lane: CopyLane) -> None:
        if lane.lane == 0:
            raise Terminal("wrong password", next_step="correct it")

    lanes.during = refuse
    with pytest.raises(CopyFailed, match="1 of 2 partitions could not be copied"):
        SeedDriver(ThreadRunner(), stored.job, stored.pointer, stored.coordinator(), run=lanes).run()
    assert lanes.slices.count(0) == 1
    assert lanes.offsets == {1: 100}


def test_a_tail_that_gets_work_while_it_ends_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All had reached their stop, and a slice that still ran reports that the stop is withdrawn: it is copied again."""
    stored = store_job(tmp_path, "tail", lanes=1, partitions=1, until_offset=None)
    driver = tail_of(stored, ThreadRunner(slots=1), Lanes(until=50))
    has_finished = [True, False]
    monkeypatch.setattr(JobProgress, "finished", property(lambda self: has_finished.pop(0)))
    with ThreadPoolExecutor(1) as pool:
        driver._start_units(pool)
        assert driver._open == {}
        driver._start_units(pool)
        (slice_,) = driver._open
        assert [result.source_offset for result in slice_.result(60).results] == [50]


def test_an_error_survives_a_spark_that_cannot_cancel_any_more(tmp_path: Path) -> None:
    """The cluster has ended the application: each further call fails, and must not hide why the driver ends."""
    stored, lanes = store_job(tmp_path, lanes=2, partitions=1, until_offset=50), Lanes()
    failed, asked = threading.Event(), threading.Event()

    def unfit(group: str) -> None:
        if group.endswith("0001"):
            failed.set()
            raise PySparkException("ImportError: an executor's Python lacks boto3")
        assert_soon(failed)
        assert_soon(asked)

    class Stopped(ThreadRunner):
        def cancel(self, group: str) -> None:
            asked.set()
            raise PySparkException("Cannot call methods on a stopped SparkContext")

    runner = Stopped(before=unfit)
    with pytest.raises(ExecutorUnfit, match="lacks boto3"):
        SeedDriver(runner, stored.job, stored.pointer, stored.coordinator(), run=lanes).run()


def test_a_slice_that_reaches_spark_after_its_cancellation_is_cancelled_too(tmp_path: Path) -> None:
    stored, lanes = store_job(tmp_path, lanes=2, partitions=1, until_offset=50), Lanes()
    failed, again = threading.Event(), threading.Event()

    def unfit(group: str) -> None:
        if group.endswith("0001"):
            failed.set()
            raise PySparkException("ImportError: an executor's Python lacks boto3")

    class Late(ThreadRunner):
        def cancel(self, group: str) -> None:
            super().cancel(group)
            if len(self.cancelled) > 1:
                again.set()

    runner = Late(before=unfit)
    lanes.during = lambda lane: assert_soon(again)
    with pytest.raises(ExecutorUnfit):
        SeedDriver(runner, stored.job, stored.pointer, stored.coordinator(), run=lanes).run()
    assert len(runner.cancelled) >= 2


def test_a_tail_whose_spark_was_stopped_from_outside_has_a_named_error(tmp_path: Path) -> None:
    stored = store_job(tmp_path, "tail", lanes=1, partitions=1, until_offset=None)

    class Stopped(ThreadRunner):
        def slots(self) -> int:
            raise PySparkException("Cannot call methods on a stopped SparkContext")

    with pytest.raises(SparkJobFailed, match="stopped SparkContext"):
        tail_of(stored, Stopped(), Lanes(until=50)).run()


def test_a_seed_rests_after_a_slice_that_reports_nothing(tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=1, partitions=1, until_offset=50)
    driver = SeedDriver(ThreadRunner(), stored.job, stored.pointer, stored.coordinator(), run=Lanes())
    unit = driver._unit([0], None)
    ended: Future[SliceOutcome] = Future()
    ended.set_result(SliceOutcome())
    driver._ended(unit, ended)
    assert driver._unit([0], None).pause > 0
