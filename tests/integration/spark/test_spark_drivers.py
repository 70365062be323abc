"""The drivers on a real Spark, with tasks that copy nothing: rounds, retries, errors, ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext, TaskContext

from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    ConnectionInvalid,
    CopyFailed,
    SparkJobFailed,
    SparkSettingsRefused,
    Terminal,
)
from airflow_provider_kafka_migration.lanes import job_progress as coordinator_module
from airflow_provider_kafka_migration.spark.seed import SeedDriver
from airflow_provider_kafka_migration.spark.session import open_runner
from airflow_provider_kafka_migration.spark.tail import TailDriver
from airflow_provider_kafka_migration.spark.tasks import ContextRunner, job_group
from airflow_provider_kafka_migration.spark.worker import RunLane
from tests.spark_support import StoredJob, store_job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Behaviour = Callable[[CopyLane, int, Path], None]


def copying(folder: Path, behaviour: Behaviour | None = None, *, per_slice: int = 50) -> RunLane:
    """A task that "copies" ``per_slice`` offsets of each partition; state is in files, as processes come and go."""
    root = str(folder)

    def run(
        job: CopyJob, lane: CopyLane, secrets: dict[str, Any], attempt: int, stop: Callable[[], bool]
    ) -> list[PartitionResult]:
        here = Path(root)
        assert secrets["source"] == {"k": "source-secret"}
        (here / f"began-{lane.lane}-{time.time():.6f}").write_text(f"{os.getpid()} {attempt} {len(lane.partitions)}")
        if behaviour is not None:
            behaviour(lane, attempt, here)
        stop_at = here / "stop"
        results = []
        for spec in lane.partitions:
            state = here / f"offset-{spec.partition}"
            offset = int(state.read_text()) if state.exists() else 0
            until = spec.until_offset if spec.until_offset is not None else 10**9
            if stop_at.exists():
                until = int(stop_at.read_text())
            copied = max(0, min(per_slice, until - offset))
            state.write_text(str(offset + copied))
            results.append(
                PartitionResult(
                    lane=lane.lane,
                    topic=spec.topic,
                    partition=spec.partition,
                    source_offset=offset + copied,
                    target_offset=offset + copied,
                    records=copied,
                    copied_bytes=10 * copied,
                    done=offset + copied >= until,
                    verdict=spec.verdict,
                    lag=max(until - offset - copied, 0) if until < 10**9 else 3,
                )
            )
        return results

    return run


def set_stop(folder: Path, offset: int) -> None:
    """Tell the tasks where to stop; a reader never sees half of it."""
    part = folder / f"stop-{os.getpid()}-{time.monotonic_ns()}"
    part.write_text(str(offset))
    part.replace(folder / "stop")


def began(stored: StoredJob, lane: int) -> list[tuple[int, int, int]]:
    """(process, attempt, partitions) of each slice of a lane, in order."""
    found = sorted(stored.folder.glob(f"began-{lane}-*"))
    return [tuple(map(int, path.read_text().split())) for path in found]  # type: ignore[misc]


def seed(spark: ContextRunner, stored: StoredJob, behaviour: Behaviour | None = None) -> dict[str, object]:
    coordinator = stored.coordinator()
    SeedDriver(spark, stored.job, stored.pointer, coordinator, run=copying(stored.folder, behaviour)).run()
    return coordinator.progress()


def test_each_number_is_a_task_of_its_own(spark: ContextRunner) -> None:
    def where(number: int) -> list[tuple[int, int]]:
        context = TaskContext.get()
        assert context is not None
        return [(number, context.partitionId())]

    rows = spark.run(where, {"number": "bigint", "task": "int"}, [30, 10, 20], group="g", description="d")
    assert rows == [{"number": 30, "task": 0}, {"number": 10, "task": 1}, {"number": 20, "task": 2}]


def test_seed_runs_slices_until_all_is_copied(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=3, partitions=2, until_offset=120)
    progress = seed(spark, stored)
    assert (progress["finished"], progress["partitions_done"], progress["records"]) == (True, 6, 720)
    assert [len(began(stored, lane)) for lane in range(3)] == [3, 3, 3]
    assert stored.store.get("orders-move/progress/seed.json") is not None


def test_a_finished_lane_does_not_wait_for_a_slow_one(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=2, partitions=1, until_offset=150)

    def slow_zero(lane: CopyLane, _attempt: int, here: Path) -> None:
        # Lane 0 stays in its first slice until lane 1 has done all of its three.
        deadline = time.monotonic() + 120
        while lane.lane == 0 and len(list(here.glob("began-1-*"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)

    assert seed(spark, stored, slow_zero)["partitions_done"] == 2
    first_of_zero_ended = (stored.folder / "offset-0").stat().st_mtime
    third_of_one = float(sorted(path.name for path in stored.folder.glob("began-1-*"))[2].rsplit("-", 1)[1])
    assert third_of_one <= first_of_zero_ended


def test_partitions_that_are_over_are_not_given_to_tasks_again(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=1, partitions=2, until_offset=100)
    (stored.folder / "offset-0").write_text("60")
    assert seed(spark, stored)["partitions_done"] == 2
    assert [partitions for _, _, partitions in began(stored, 0)] == [2, 1]


@pytest.mark.soak
def test_a_killed_worker_is_tried_again_by_spark(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=2, partitions=1, until_offset=50)

    def die_once(lane: CopyLane, attempt: int, _here: Path) -> None:
        if lane.lane == 1 and attempt == 0:
            os.kill(os.getpid(), 9)

    assert seed(spark, stored, die_once)["partitions_done"] == 2
    assert [attempt for _, attempt, _ in began(stored, 1)] == [0, 1]


@pytest.mark.soak
def test_a_worker_that_always_dies_ends_the_job_with_a_named_error(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=1, partitions=1, until_offset=50)

    def die(_lane: CopyLane, _attempt: int, _here: Path) -> None:
        os.kill(os.getpid(), 9)

    with pytest.raises(SparkJobFailed, match="lane 0, slice 2"):
        seed(spark, stored, die)
    assert [attempt for _, attempt, _ in began(stored, 0)] == [0, 1, 2, 3] * 2


@pytest.mark.soak
def test_a_transient_error_of_a_lane_is_tried_again_in_the_next_slice(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=1, partitions=1, until_offset=50)

    def fail_twice(lane: CopyLane, _attempt: int, here: Path) -> None:
        if len(list(here.glob("began-0-*"))) <= 2:
            raise BrokerUnreachable("no answer")

    assert seed(spark, stored, fail_twice)["partitions_done"] == 1
    assert [attempt for _, attempt, _ in began(stored, 0)] == [0, 0, 0]


@pytest.mark.soak
def test_a_terminal_error_fails_its_lane_and_the_others_go_on(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=2, partitions=2, until_offset=120)

    def refuse(lane: CopyLane, _attempt: int, _here: Path) -> None:
        if lane.lane == 0:
            raise Terminal("wrong password", next_step="correct it")

    with pytest.raises(CopyFailed, match=r"2 of 4 partitions could not be copied.*wrong password") as caught:
        seed(spark, stored, refuse)
    assert {item["partition"] for item in caught.value.details["partitions"]} == {0, 1}
    assert (stored.folder / "offset-3").read_text() == "120"
    assert len(began(stored, 0)) == 1


@pytest.mark.soak
def test_a_mistake_in_a_task_is_named(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=1, partitions=1)

    def mistake(_lane: CopyLane, _attempt: int, _here: Path) -> None:
        raise ValueError("no such thing")

    with pytest.raises(SparkJobFailed, match="ValueError: no such thing"):
        seed(spark, stored, mistake)


@pytest.mark.soak
def test_references_that_vanish_fail_all_lanes_by_name(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=2, partitions=1)
    (tmp_path / "references.json").unlink()
    with pytest.raises(CopyFailed, match="the file cannot be read"):
        seed(spark, stored)
    with pytest.raises(ConnectionInvalid):
        stored.pointer.references.resolve()


# --- tail -----------------------------------------------------------------------------------------------------------


def tail(spark: ContextRunner, stored: StoredJob, behaviour: Behaviour | None = None) -> dict[str, object]:
    coordinator = stored.coordinator()
    TailDriver(spark, stored.job, stored.pointer, coordinator, run=copying(stored.folder, behaviour)).run()
    return coordinator.progress()


def stop_after(slices: int, at_offset: int) -> Behaviour:
    """Writes the stop object at the beginning of a slice."""

    def behave(lane: CopyLane, _attempt: int, here: Path) -> None:
        if len(list(here.glob(f"began-{lane.lane}-*"))) >= slices:
            set_stop(here, at_offset)

    return behave


@pytest.mark.soak
def test_tail_runs_slices_until_the_stop_offsets_and_ends_by_itself(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, "tail", lanes=3, partitions=2, until_offset=None)
    # The stop lies ahead of the lane that is the first to begin its third slice.
    progress = tail(spark, stored, stop_after(3, 170))
    assert (progress["finished"], progress["partitions_done"], progress["records"]) == (True, 6, 6 * 170)
    assert len(began(stored, 0)) >= 4


@pytest.mark.soak
def test_lanes_of_one_slot_are_driven_at_the_same_time(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, "tail", lanes=4, partitions=1, until_offset=None)

    def meet(lane: CopyLane, _attempt: int, here: Path) -> None:
        (here / f"here-{lane.lane}").touch()
        deadline = time.monotonic() + 120
        while len(list(here.glob("here-*"))) < 4:
            assert time.monotonic() < deadline, "the four lanes do not run at the same time"
            time.sleep(0.02)
        set_stop(here, 50)

    assert tail(spark, stored, meet)["partitions_done"] == 4


@pytest.mark.soak
def test_a_killed_tail_worker_is_tried_again(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, "tail", lanes=2, partitions=1, until_offset=None)

    def die_once(lane: CopyLane, attempt: int, here: Path) -> None:
        count = len(list(here.glob("began-1-*")))
        if lane.lane == 1 and count == 2 and attempt == 0:
            os.kill(os.getpid(), 9)
        if count >= 4:
            set_stop(here, 300)

    assert tail(spark, stored, die_once)["partitions_done"] == 2
    assert [attempt for _, attempt, _ in began(stored, 1)][:4] == [0, 0, 1, 0]


def test_a_tail_tries_a_lane_again_however_often_its_cluster_was_away(
    spark: ContextRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lane lives all the time, another one's cluster outlasts every budget; a person has healed the third."""
    monkeypatch.setattr(coordinator_module, "MAX_TRANSIENT_ROUNDS", 1)
    stored = store_job(tmp_path, "tail", lanes=3, partitions=1, until_offset=None)
    stop = stop_after(5, 400)
    seen: list[tuple[int, int]] = []

    def away(lane: CopyLane, attempt: int, here: Path) -> None:
        slices = len(list(here.glob(f"began-{lane.lane}-*")))
        if lane.lane == 0 and slices <= 3:
            raise BrokerUnreachable("no broker of the target answers", next_step="start it")
        if lane.lane == 2 and slices == 1:
            raise Terminal("a missing right", next_step="grant it")
        if lane.lane == 1:
            stop(lane, attempt, here)

    coordinator = stored.coordinator()
    record = coordinator.record

    def note(results: Iterable[PartitionResult]) -> None:
        record(results)
        found = coordinator.progress()
        seen.append((int(str(found["partitions_failed"])), int(str(found["partitions_stuck"]))))

    monkeypatch.setattr(coordinator, "record", note)
    TailDriver(spark, stored.job, stored.pointer, coordinator, run=copying(stored.folder, away)).run()
    # Lane 0 is stuck for three slices and never fails, however long that is; lane 2 has failed until it was healed.
    assert max(failed for failed, _ in seen) == 1
    assert max(stuck for _, stuck in seen) == 1
    assert seen[-1] == (0, 0)
    assert coordinator.progress()["partitions_done"] == 3


@pytest.mark.soak
def test_failed_partitions_do_not_stop_the_tail_of_the_others(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, "tail", lanes=2, partitions=1, until_offset=None)
    stop = stop_after(3, 170)

    def refuse(lane: CopyLane, attempt: int, here: Path) -> None:
        if lane.lane == 0:
            raise Terminal("foreign data")
        stop(lane, attempt, here)

    with pytest.raises(CopyFailed, match=r"1 of 2 partitions could not be copied.*foreign data"):
        tail(spark, stored, refuse)
    assert (stored.folder / "offset-1").read_text() == "170"


@pytest.mark.soak
def test_a_tail_that_spark_gives_up_is_a_named_error(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, "tail", lanes=1, partitions=1, until_offset=None)

    def die(_lane: CopyLane, _attempt: int, _here: Path) -> None:
        os.kill(os.getpid(), 9)

    with pytest.raises(SparkJobFailed, match="tail of orders-move: lane 0, slice 2"):
        tail(spark, stored, die)


@pytest.mark.soak
def test_lanes_of_a_tail_do_not_wait_for_each_other(spark: ContextRunner, tmp_path: Path) -> None:
    """One slot's lanes stay in their first slice while the other slot's go through five."""
    stored = store_job(tmp_path, "tail", lanes=4, partitions=1, until_offset=None)

    def slow_zero(lane: CopyLane, _attempt: int, here: Path) -> None:
        deadline = time.monotonic() + 120
        while lane.lane == 0 and len(list(here.glob("began-1-*"))) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        if len(list(here.glob("began-1-*"))) >= 5:
            set_stop(here, 400)

    assert tail(spark, stored, slow_zero)["partitions_done"] == 4
    fifth_of_one = float(sorted(path.name for path in stored.folder.glob("began-1-*"))[4].rsplit("-", 1)[1])
    second_of_zero = float(sorted(path.name for path in stored.folder.glob("began-0-*"))[1].rsplit("-", 1)[1])
    assert fifth_of_one < second_of_zero


@pytest.mark.soak
def test_a_finished_tail_starts_no_slice(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, "tail", lanes=1, partitions=1, until_offset=None)
    coordinator = stored.coordinator()
    coordinator.record(
        [
            PartitionResult(
                lane=0, topic="orders", partition=0, source_offset=5, target_offset=5, done=True, verdict="equal"
            )
        ]
    )
    TailDriver(spark, stored.job, stored.pointer, coordinator, run=copying(stored.folder)).run()
    assert began(stored, 0) == []


# --- session --------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_job_groups_end_with_their_block(spark: ContextRunner) -> None:
    context = spark.context
    with job_group(context, "a-group", "what it does"):
        assert context.getLocalProperty("spark.jobGroup.id") == "a-group"
        assert context.getLocalProperty("spark.job.description") == "what it does"
    assert context.getLocalProperty("spark.jobGroup.id") is None


@pytest.mark.soak
def test_a_worker_dies_with_its_parent(spark: ContextRunner, tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=1, partitions=1, until_offset=50)

    def kill_daemon(_lane: CopyLane, attempt: int, here: Path) -> None:
        if attempt == 0:
            (here / "orphan").write_text(str(os.getpid()))
            os.kill(os.getppid(), 9)
            time.sleep(60)
            (here / "outlived").touch()

    assert seed(spark, stored, kill_daemon)["partitions_done"] == 1
    orphan = int((stored.folder / "orphan").read_text())
    deadline = time.monotonic() + 120
    while Path(f"/proc/{orphan}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{orphan}").exists()
    assert not (stored.folder / "outlived").exists()


@pytest.mark.soak
def test_refused_settings_leave_no_context_behind(spark: ContextRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []
    monkeypatch.setattr(SparkContext, "stop", lambda self: stopped.append(self))
    spark.context._conf.set("spark.speculation", "true")
    try:
        with pytest.raises(SparkSettingsRefused):
            open_runner("refused", master="local[2,4]")
    finally:
        spark.context._conf.set("spark.speculation", "false")
    assert len(stopped) == 1
