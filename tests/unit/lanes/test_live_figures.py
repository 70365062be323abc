"""Figures of slices under way: written by copiers, added by readers until the driver has merged the slice."""

from __future__ import annotations

from typing import Any

import pytest
from job_documents import job, lane, partition, result

from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy
from airflow_provider_kafka_migration.lanes import figures
from airflow_provider_kafka_migration.lanes.figures import FiguresWriter, live_lanes, with_live_figures
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.storage.local import LocalStore
from harness.processes import wait_for

LANE = lane(0, partition("a", 0), partition("a", 1))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "WRITE_SECONDS", 0.01)


def copies(records: int) -> list[PartitionCopy]:
    made = [PartitionCopy(spec, 0) for spec in LANE.partitions]
    made[0].figures.records, made[0].figures.copied_bytes = records, records * 10
    return made


def run_slice(store: LocalStore, number: int, records: int) -> None:
    """A slice from its beginning to the last figures of it."""
    with FiguresWriter(store, "m1", "tail", 0, number).watching(copies(records)):
        pass
    wait_for(
        "the figures",
        lambda: any(item.slice_number == number for found in live_lanes(store, "m1", "tail") for item in found.slices),
        60,
    )


def shown(store: LocalStore, driver: JobProgress) -> tuple[Any, Any]:
    document = with_live_figures(store, driver.progress())
    return document["records"], document["all_runs"]["records"]


def test_what_a_slice_moves_is_seen_before_its_end(local_store: LocalStore) -> None:
    driver = JobProgress(job([LANE]), local_store)
    driver.begin()
    with FiguresWriter(local_store, "m1", "tail", 0, 1).watching(copies(40)):
        wait_for("the first figures", lambda: shown(local_store, driver) == (40, 40), 60)
        assert with_live_figures(local_store, driver.progress())["records_per_second"] > 0
    driver.record([result(LANE, "a", 0, records=42, slice_number=1)])
    assert shown(local_store, driver) == (42, 42), "merged is not counted twice"


def test_a_slice_that_waits_to_be_merged_is_not_forgotten_for_the_next_one(local_store: LocalStore) -> None:
    driver = JobProgress(job([LANE]), local_store)
    run_slice(local_store, 1, 5)
    run_slice(local_store, 2, 7)
    assert shown(local_store, driver) == (12, 12)


def test_the_next_driver_counts_what_a_killed_one_has_not_merged(local_store: LocalStore) -> None:
    first = JobProgress(job([LANE]), local_store)
    first.record([result(LANE, "a", 0, records=3, slice_number=1)])
    first.write_progress()
    run_slice(local_store, 2, 40)
    second = JobProgress(job([LANE]), local_store)
    assert shown(local_store, second) == (0, 43)
    second.record([result(LANE, "a", 0, records=2, slice_number=3)])
    assert shown(local_store, second) == (2, 45)


def test_documents_that_cannot_be_read_do_no_harm(local_store: LocalStore) -> None:
    local_store.put("m1/progress/tail/lane-000000.json", b'{"version":1}')
    assert with_live_figures(local_store, JobProgress(job([LANE]), local_store).progress())["records"] == 0
    assert with_live_figures(local_store, {}) == {}


def test_a_driver_that_begins_keeps_what_is_known_of_log_ends(local_store: LocalStore) -> None:
    """Else a log that went back between two drivers would not be noticed if the second one is killed at once."""
    first = JobProgress(job([LANE]), local_store)
    first.record([result(LANE, "a", 0, target_offset=90, resumed_offset=0)])
    first.write_progress()
    JobProgress(job([LANE]), local_store).begin()
    third = JobProgress(job([LANE]), local_store)
    third.record([result(LANE, "a", 0, target_offset=80, resumed_offset=70)])
    found = third.progress()["partitions"]
    assert isinstance(found, list)
    assert found[0]["went_back"] == [[90, 70]]


@pytest.mark.parametrize("timestamp", [1_700_000_000_000_000_000, 2**63 - 1])
def test_a_timestamp_in_nanoseconds_takes_no_figures_away(local_store: LocalStore, timestamp: int) -> None:
    made = copies(7)
    made[0].figures.mirrored_ms = timestamp
    made[0].state, made[0].read.last_stable_offset = CopyState.RUNNING, 10
    with FiguresWriter(local_store, "m1", "tail", 0, 1).watching(made):
        wait_for("the figures", lambda: live_lanes(local_store, "m1", "tail"), 60)
    (found,) = live_lanes(local_store, "m1", "tail")
    assert found.slices[-1].records == 7
    assert timestamp in found.standing["a"]
