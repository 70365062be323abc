"""The last records of two logs: equal under the map, or different by name; what is deleted proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from simulated.cluster import SimulatedCluster

from airflow_provider_kafka_migration.adoption.last_records import (
    Compared,
    LogEnd,
    Side,
    compare_last,
    read_log_ends,
)
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire

KEY = ("t", 0)
#: Larger than the first window.
MANY = 700


@pytest.fixture
def clusters() -> Iterator[tuple[SimulatedCluster, SimulatedCluster]]:
    with SimulatedCluster(name="source") as source, SimulatedCluster(name="target") as target:
        for cluster in (source, target):
            cluster.create("t")
            cluster.produce("t", [b"%d" % number for number in range(MANY)], batch=50)
        yield source, target


Pair = tuple[SimulatedCluster, SimulatedCluster]


def wire(cluster: SimulatedCluster) -> Wire:
    return Wire(ClientConfig.from_librdkafka(cluster.settings, "source"))


def compared(
    pair: Pair,
    *,
    count: int = 64,
    whole: bool = False,
    may_lack: tuple[bool, bool] = (False, False),
    to_target: Callable[[int], int | None] = lambda offset: offset,
) -> Compared:
    with wire(pair[0]) as source, wire(pair[1]) as target:
        sides = [
            Side(item, KEY, cluster.log(KEY).log_start, cluster.log(KEY).log_end, lack)
            for item, cluster, lack in zip((source, target), pair, may_lack, strict=True)
        ]
        return compare_last(*sides, to_target, count=count, timestamps="visible", whole=whole)


def test_the_last_records_are_equal(clusters: Pair) -> None:
    found = compared(clusters)
    assert not found.difference
    assert 64 <= found.records < MANY, "no more is read than asked for"


def test_all_records_are_equal(clusters: Pair) -> None:
    assert compared(clusters, whole=True) == Compared(MANY)


def test_a_window_without_enough_records_grows(clusters: Pair) -> None:
    assert compared(clusters, count=MANY) == Compared(MANY)


def test_other_content_is_a_difference(clusters: Pair) -> None:
    clusters[1].log(KEY).truncate(MANY - 50)
    clusters[1].produce("t", [b"other"] * 50, batch=50)
    assert "differs from the source's" in compared(clusters).difference


@pytest.mark.parametrize("side", [0, 1])
def test_a_missing_record_is_a_difference_unless_compaction_may_have_removed_it(clusters: Pair, side: int) -> None:
    clusters[side].log(KEY).compact([MANY - 20])
    texts = ("the source has no record that the target has", "the target lacks the source's record")
    assert texts[side] in compared(clusters).difference
    may_lack = (side == 0, side == 1)
    assert not compared(clusters, may_lack=may_lack).difference


def test_a_record_without_a_place_is_a_difference(clusters: Pair) -> None:
    found = compared(clusters, to_target=lambda offset: None if offset == MANY - 5 else offset)
    assert "has no place on the target" in found.difference


def test_what_retention_has_deleted_proves_nothing_and_is_no_difference(clusters: Pair) -> None:
    clusters[1].log(KEY).delete_until(MANY - 10)
    assert compared(clusters, whole=True) == Compared(10)
    clusters[1].log(KEY).delete_until(MANY)
    assert compared(clusters, whole=True) == Compared(0)


def test_aborted_records_do_not_count(clusters: Pair) -> None:
    clusters[0].transaction("t", [b"aborted"] * 3, commit=False)
    for _ in range(4):
        clusters[1].log(KEY).write_marker(9, 0, commit=True)
    assert not compared(clusters).difference


def test_the_ends_of_a_log(clusters: Pair) -> None:
    with wire(clusters[1]) as target:
        end = read_log_ends(target, [KEY])[KEY]
        assert isinstance(end, LogEnd)
        assert end == LogEnd(0, MANY, MANY, MANY)
        assert read_log_ends(target, []) == {}
    assert end.why_not_at(MANY) == ""
    assert "somebody has written there" in end.why_not_at(MANY - 1)
    assert "records were lost" in end.why_not_at(MANY + 1)
    assert "replicas are behind" in LogEnd(0, 10, 9, 9).why_not_at(10)
    assert "a transaction is open" in LogEnd(0, 10, 10, 9).why_not_at(10)
