"""A partition that begins again in each slice, and gets no further before it ends, is helped and named."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.copy.lane import Lane
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.documents.copy import PartitionResult
from airflow_provider_kafka_migration.errors import BrokerBusy
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress, LocalRunner
from airflow_provider_kafka_migration.lanes.slice_begin import next_slice_seconds
from airflow_provider_kafka_migration.storage.local import LocalStore
from tests.spark_support import make_job


def two_topics(source: SimulatedCluster) -> None:
    for topic in ("holes", "plain"):
        source.create(topic)
        source.produce(topic, [b"%d" % number for number in range(10)])


def test_slices_become_long_enough_for_a_partition_that_needs_many_answers(worlds: Worlds) -> None:
    """The clusters are slow: a slice ends before the lane has the token for the first marker of a hole.

    The partition without holes needs fewer answers and is copied in each slice.
    """
    copy = worlds.copy(two_topics)
    assert copy.slice()["holes"].done
    for _ in range(4):
        copy.source.log(("holes", 0)).write_marker(5, 0, commit=True)
    for topic in ("holes", "plain"):
        copy.source.produce(topic, [b"more"] * 50)
    copy.target.fault("delay", apis.LIST_OFFSETS, times=10**6, seconds=0.2)
    copy.target.fault("delay", apis.INIT_PRODUCER_ID, times=10**6, seconds=2.0)
    job = copy.job("tail", until={"holes": 64, "plain": 60}, slice_seconds=2, stop_key="stop")
    seconds: list[float] = []

    def stop() -> bool:
        return len(seconds) > 40

    def on_progress(document: dict[str, object]) -> None:
        seconds.append(float(document["seconds"]))  # type: ignore[arg-type]

    with copy.clients() as clients:
        document = LocalRunner(clients, stop=stop).run(job, on_progress=on_progress)
    assert document["finished"], document["partitions"]
    copy.assert_equal("holes")


# -- who begins -------------------------------------------------------------------------------------------------------


def test_partitions_that_waited_begin_before_the_others_of_their_lane(worlds: Worlds) -> None:
    copy = worlds.copy(two_topics)
    job = copy.job()
    (lane,) = job.lanes
    first = lane.model_copy(update={"goes_first": [("plain", 0), ("gone", 3)]})
    with copy.clients() as clients, clients.wire("source") as source, clients.wire("target") as target:
        running = Lane(
            job,
            first,
            source=source,
            target=target,
            map_store=copy.store,
            archive_store=None,
            limits=SliceLimits(time.monotonic() + 3600, lambda copy: copy.spec.until_offset),
        )
        assert [item.key for item in running.copies] == [("plain", 0), ("holes", 0)]
        results = {item.topic: item for item in running.run()}
    waited, other = running.copies
    assert waited.progressed_at is not None
    assert other.progressed_at is not None
    assert waited.progressed_at < other.progressed_at
    assert all(item.done for item in results.values())


def test_one_that_has_nothing_to_copy_holds_up_nobody(worlds: Worlds) -> None:
    copy = worlds.copy(two_topics)
    assert copy.slice()["plain"].done
    copy.source.produce("holes", [b"more"] * 5)
    job = copy.job("tail", until={"holes": 15, "plain": 10**6}, slice_seconds=3600)
    job = job.model_copy(update={"lanes": [job.lanes[0].model_copy(update={"goes_first": [("plain", 0)]})]})
    began = time.monotonic()

    def stop() -> bool:
        return copy.target.log(("holes", 0)).log_end == 15

    copy.slice(job, stop=stop, seconds=3600.0)
    assert time.monotonic() - began < 600


@pytest.mark.parametrize(("begin", "expected"), [(-1.0, 20), (1.0, 20), (6.0, 20), (10.0, 30), (20.0, 60), (300.0, 60)])
def test_the_next_slice_is_three_times_as_long_as_the_last_one_took_to_begin(begin: float, expected: int) -> None:
    assert next_slice_seconds(20, begin) == expected


# -- the driver -------------------------------------------------------------------------------------------------------


class Driver:
    """The progress of a job under a clock of the test; one slice takes 20 s."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "tail") -> None:
        job = make_job(name, "file:///unused", 1, 2, None).model_copy(update={"slice_seconds": 20})
        self.progress = JobProgress(job, LocalStore(folder))
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def after(self, *results: PartitionResult, seconds: float = 20.0) -> list[dict[str, Any]]:
        self.now += seconds
        self.progress.record(results)
        return self.progress.progress()["troubles"]  # type: ignore[return-value]


def result(partition: int = 0, *, position: int = 100, lag: int = 500, **fields: Any) -> PartitionResult:
    return PartitionResult(
        lane=0,
        topic="orders",
        partition=partition,
        source_offset=position,
        target_offset=position,
        resumed_offset=position,
        verdict="equal",
        lag=lag,
        **fields,
    )


def test_a_partition_that_three_slices_have_passed_over_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, monkeypatch)
    other = result(1, lag=0, records=1000, begin_seconds=1.0)
    assert driver.after(result(), other) == []
    assert driver.progress.waiting([0]) == [("orders", 0)]
    assert driver.after(result(), other) == []
    (trouble,) = driver.after(result(), other)
    assert (trouble["topic"], trouble["partition"], trouble["state"]) == ("orders", 0, "stuck")
    assert trouble["code"] == "PARTITION_STARVED"
    assert "3 slices have ended without copying anything" in trouble["what"]
    assert trouble["seconds"] == 60.0
    assert driver.progress.progress()["partitions_stuck"] == 1
    assert driver.after(result(position=150, records=50), other) == []
    assert driver.progress.waiting([0]) == []


def test_the_time_that_a_partition_of_a_seed_waited_is_no_time_of_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first transient error must not end it, as a partition that has failed for so long."""
    driver = Driver(tmp_path, monkeypatch, "seed")
    for _ in range(30):
        driver.after(result())
    assert driver.progress.progress()["troubles"][0]["code"] == "PARTITION_STARVED"  # type: ignore[index]
    error = BrokerBusy("not now", next_step="-").as_dict()
    (trouble,) = driver.after(result(error=error))
    assert (trouble["code"], trouble["state"]) == ("BROKER_BUSY", "stuck")
    assert driver.progress.progress()["partitions_failed"] == 0


def test_the_marker_that_a_hole_begins_with_is_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path, monkeypatch)
    for number in range(2):
        assert driver.after(result(position=100 + number, holes=1)) == []
    assert driver.after(result(position=102, holes=1))[0]["code"] == "PARTITION_STARVED"
    assert driver.after(result(position=112, holes=10)) == []


@pytest.mark.parametrize(
    "fields", [{"lag": 0}, {"lag": 0, "held_back": 10, "is_held": True}, {"done": True}], ids=["idle", "held", "done"]
)
def test_one_without_anything_to_copy_is_not_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    driver = Driver(tmp_path, monkeypatch)
    for _ in range(10):
        assert driver.after(result(**fields)) == []


def test_in_a_tail_a_source_that_never_answers_in_time_is_seen_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, monkeypatch)
    for _ in range(2):
        assert driver.after(result(lag=-1)) == []
    assert "the source has not answered" in driver.after(result(lag=-1))[0]["what"]


def test_in_a_seed_partitions_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path, monkeypatch, "seed")
    for _ in range(10):
        assert driver.after(result(lag=-1)) == []


def test_many_short_slices_are_no_long_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is stopped again and again ends its slices early."""
    driver = Driver(tmp_path, monkeypatch)
    for _ in range(5):
        assert driver.after(result(), seconds=1.0) == []


def test_slices_get_longer_for_the_lane_that_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path, monkeypatch)
    assert driver.progress.slice_seconds([0]) == 20
    driver.after(result(begin_seconds=19.9))
    assert driver.progress.slice_seconds([0]) == 59
    assert driver.progress.slice_seconds([7]) == 20
    driver.after(result(begin_seconds=2.0))
    assert driver.progress.slice_seconds([0, 7]) == 20
