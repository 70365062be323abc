"""A target's log end that goes back is said, whether a copier, a slice or a whole driver has seen it before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.documents.copy import CopyJob, PartitionResult
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.storage.local import LocalStore
from tests.spark_support import make_job


def job(name: str = "tail") -> CopyJob:
    return make_job(name, "file:///unused", 1, 1, None)


def result(target_offset: int, resumed_offset: int, **changes: Any) -> PartitionResult:
    return PartitionResult(
        lane=0,
        topic="orders",
        partition=0,
        source_offset=target_offset,
        target_offset=target_offset,
        resumed_offset=resumed_offset,
        verdict="equal",
        **changes,
    )


def went_back(coordinator: JobProgress) -> Any:
    (partition,) = coordinator.progress()["partitions"]  # type: ignore[misc, attr-defined]
    return partition["went_back"]


def test_within_a_slice_and_between_slices(tmp_path: Path) -> None:
    coordinator = JobProgress(job(), LocalStore(tmp_path))
    coordinator.record([result(100, 0)])
    coordinator.record([result(120, 100)])
    assert went_back(coordinator) == []
    coordinator.record([result(0, -1)])  # no take-over: nobody answered
    coordinator.record([result(130, 90, went_back=[(125, 110)])])
    assert went_back(coordinator) == [[120, 90], [125, 110]]


def test_between_two_drivers(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    seed = JobProgress(job("seed"), store)
    seed.record([result(100, 0)])
    seed.write_progress()
    tail = JobProgress(job(), store)
    tail.record([result(110, 80)])
    tail.record([result(115, 110)])
    assert went_back(tail) == [[100, 80]]
    tail.write_progress()
    # A take-over that never happened adds nothing, and the next driver still says what has happened.
    other = JobProgress(job(), store)
    other.record([result(-1, -1)])
    assert went_back(other) == [[100, 80]]
    assert other.progress()["partitions_went_back"] == 1


def test_what_the_copier_has_noted_itself_is_said_once(tmp_path: Path) -> None:
    coordinator = JobProgress(job(), LocalStore(tmp_path))
    coordinator.record([result(100, 0)])
    coordinator.record([result(130, 90, went_back=[(100, 90)])])
    assert went_back(coordinator) == [[100, 90]]
