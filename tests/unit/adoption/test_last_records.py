"""The last records of two logs: equal under the map, or different by name; what is deleted proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from simulated import apis
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


@pytest.mark.parametrize("where", [0, 1, MANY // 2, MANY - 1])
def test_a_record_that_only_the_target_has_is_a_difference_down_to_the_log_start(clusters: Pair, where: int) -> None:
    """The source's log start explains nothing that lies above it, however much is compared."""
    clusters[0].log(KEY).compact([where])
    assert f"the source has no record that the target has at {where}" in compared(clusters, whole=True).difference
    assert not compared(clusters, whole=True, may_lack=(True, False)).difference


def test_the_same_in_a_topic_that_is_smaller_than_the_first_window(clusters: Pair) -> None:
    for cluster in clusters:
        cluster.log(KEY).delete_until(MANY - 100)
    clusters[0].log(KEY).compact([MANY - 50])
    assert "the source has no record" in compared(clusters).difference


def test_a_source_that_has_lost_all_of_them_is_a_difference(clusters: Pair) -> None:
    clusters[0].log(KEY).compact(range(MANY))
    assert "the source has no record that the target has" in compared(clusters, whole=True).difference


def test_what_the_source_deletes_while_it_is_compared_is_no_difference(clusters: Pair) -> None:
    deleted = clusters[0].fault("act", apis.FETCH, times=1)
    deleted.action = lambda: clusters[0].log(KEY).delete_until(MANY - 20)
    clusters[0].log(KEY).delete_until(MANY - 100)
    assert not compared(clusters).difference


def test_where_the_map_is_not_exact_only_what_has_a_place_is_compared(clusters: Pair) -> None:
    def place(offset: int) -> int | None:
        return offset if offset >= MANY - 100 else None

    with wire(clusters[0]) as source, wire(clusters[1]) as target:
        sides = [Side(item, KEY, 0, MANY, False) for item in (source, target)]
        found = compare_last(*sides, place, count=64, timestamps="visible", whole=True, has_all_places=False)
    assert found == Compared(100)


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
