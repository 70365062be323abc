"""What is known about a job: lags in seconds, limits of the number of series, running slices and ended ones."""

from __future__ import annotations

import pytest
from job_documents import job, lane, partition, result
from job_snapshots import NOW, NOW_MS, entry, samples, snapshot, some_partitions, values

from airflow_provider_kafka_migration.copy.latency import LatencyHistogram
from airflow_provider_kafka_migration.lanes.figures import LaneFigures, PartitionStanding, SliceFigures
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.metrics.snapshot import LatencyWindow, Snapshot, lag_seconds
from airflow_provider_kafka_migration.metrics.table import OTHER
from airflow_provider_kafka_migration.storage.local import LocalStore

LATENCY = "replication_latency_p99_seconds"


@pytest.mark.parametrize(
    ("standing", "seconds"),
    [
        (PartitionStanding(lag=-1, waiting_ms=NOW_MS - 5000), None),
        (PartitionStanding(lag=0, mirrored_ms=NOW_MS - 9_000_000), 0.0),
        (PartitionStanding(lag=3, waiting_ms=NOW_MS - 5000, mirrored_ms=NOW_MS - 9000), 5.0),
        (PartitionStanding(lag=3, mirrored_ms=NOW_MS - 9000), 9.0),
        (PartitionStanding(lag=3), None),
        (PartitionStanding(lag=3, waiting_ms=NOW_MS + 60_000), 0.0),
    ],
    ids=["never read", "idle", "oldest waits", "not read yet", "nothing known", "clock ahead"],
)
def test_lag_in_seconds(standing: PartitionStanding, seconds: float | None) -> None:
    assert lag_seconds(standing, NOW_MS) == seconds


def test_values_of_the_migration(local_store: LocalStore) -> None:
    found = values(
        snapshot(
            local_store,
            entry("a", 0, 5, waited=2.5, held_back=4),
            entry("a", 1, 7, waited=1.0),
            entry("b", 0, -1, verdict=""),
            entry("b", 1, 0, verdict="mapped"),
        )
    )
    assert found[("lag_records",)] == 12
    assert found[("largest_lag_records",)] == 7
    assert found[("lag_seconds",)] == 2.5
    assert found[("lag_unknown_partitions",)] == 1
    assert found[("held_back_records",)] == 4
    assert found[("heartbeat_age_seconds",)] == 5.0
    assert (found[("records",)], found[("records_per_second",)]) == (7, 3.5)
    assert (found[("partitions_failed",)], found[("partitions_stuck",)], found[("stuck_seconds",)]) == (1, 2, 7.5)
    assert {name[1]: value for name, value in found.items() if name[0] == "partitions"} == {
        "equal": 2,
        "mapped": 1,
        "unknown": 1,
    }
    assert ("topic_lag_records", "b") in found
    assert ("partition_lag_records", "b", "0") not in found, "what is not known is not 0"
    assert (LATENCY,) not in found


def test_the_worst_have_series_and_the_others_are_summed(local_store: LocalStore) -> None:
    found = values(snapshot(local_store, *some_partitions(100)), max_topics=2, max_partitions=3)
    lags = {name[1:]: value for name, value in found.items() if name[0] == "partition_lag_records"}
    assert lags == {("t9", "9"): 99, ("t8", "9"): 98, ("t7", "9"): 97, (OTHER, OTHER): sum(range(97))}
    topics = {name[1]: value for name, value in found.items() if name[0] == "topic_lag_records"}
    assert topics == {"t9": sum(range(9, 100, 10)), "t8": sum(range(8, 100, 10)), OTHER: 4950 - 540 - 530}
    assert sum(topics.values()) == sum(lags.values()) == found[("lag_records",)] == 4950
    assert found[("partition_lag_seconds", OTHER, OTHER)] == 96.0, "of seconds the largest, not the sum"
    assert ("partition_source_offset", OTHER, OTHER) not in found


def test_the_number_of_series_is_bounded(local_store: LocalStore) -> None:
    few, many = (len(samples(snapshot(local_store, *some_partitions(count)))) for count in (500, 5000))
    assert few == many


def test_a_flow_is_a_label_of_all(local_store: LocalStore) -> None:
    found = samples(snapshot(local_store, entry("a", 0, 5)), flow="eu->us")
    assert {item.labels.get("flow") for item in found} == {"eu->us"}
    assert all("flow" not in item.labels for item in samples(snapshot(local_store, entry("a", 0, 5))))


def test_running_slices_count_until_they_are_merged(local_store: LocalStore) -> None:
    of = lane(0, partition("a", 0), partition("a", 1))
    driver = JobProgress(job([of]), local_store)
    driver.record([result(of, "a", 0, lag=0, slice_number=1, mirrored_ms=NOW_MS - 4000), result(of, "a", 1, lag=2)])
    driver.write_progress()
    live = LaneFigures(
        lane=0,
        slices=[SliceFigures(slice_number=2, records=3, skipped_records=5, seconds=1.0, latency=[20, 0, 7, 2])],
        standing={"a": [0, 9, 30, 0, -1, -1], "gone": [0, 9, 1000, 0, -1, -1]},
    )
    local_store.put("m1/progress/tail/lane-000000.json", live.canonical())
    read = Snapshot.read(local_store, "m1", "tail")
    assert read is not None
    found = values(read)
    assert (found[("partition_lag_records", "a", "0")], found[("partition_lag_records", "a", "1")]) == (30, 2)
    assert found[("partition_lag_seconds", "a", "0")] == 4.0, "since what the slice before has mirrored"
    assert (found[("lag_records",)], found[("records",)], found[("skipped_records",)]) == (32, 3, 5)
    assert read.latency.count == 2

    driver.record([result(of, "a", 0, lag=1, records=4, skipped_records=6, slice_number=2, latency=[20, 0, 7, 3])])
    driver.write_progress()
    read = Snapshot.read(local_store, "m1", "tail")
    assert read is not None
    found = values(read)
    assert (found[("lag_records",)], found[("records",)], found[("skipped_records",)]) == (3, 4, 6)
    assert read.latency.count == 3


def test_before_the_first_document_nothing_is_known(local_store: LocalStore) -> None:
    assert Snapshot.read(local_store, "m1", "tail") is None


def state(*counts: int) -> LatencyHistogram:
    found = LatencyHistogram()
    for age_ms, count in enumerate(counts):
        found.add(age_ms, count)
    return found


def test_percentiles_are_those_of_the_last_minute() -> None:
    window = LatencyWindow(60)
    assert window.take(state(100), 0).count == 0, "what was before the first look has no time"
    assert window.take(state(100, 5), 30).count == 5
    assert window.take(state(100, 5, 1), 61).count == 6
    assert window.take(state(100, 5, 4), 92).count == 4, "the first five are older than a minute"
    assert window.take(state(0, 0, 0, 2), 95).count == 2, "another driver counts from 0"
    assert window.take(state(0, 0, 0, 3), 100).count == 3


def test_now_is_the_readers_clock(local_store: LocalStore) -> None:
    found = snapshot(local_store, entry("a", 0, 5, waited=2.5))
    assert NOW_MS == NOW * 1000
    assert values(found)[("lag_seconds",)] == 2.5
