"""The offset map of real copies against a brute-force answer from the content of both sides, at every source offset."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import CopyFailed
from airflow_provider_kafka_migration.offset_map.runs import How, PartitionMap
from airflow_provider_kafka_migration.offset_map.store import LaneMaps
from harness.brokers import KafkaCluster
from harness.compare import Record, read_records
from harness.load import Kind, TopicLoad, load
from tests.integration.copy.conftest import MakeCopying
from tests.integration.copy.copying import Copying, results_of
from tests.integration.copy.test_copy_kills import finish, kill_copiers, writing

pytestmark = pytest.mark.integration

KINDS = (Kind.COMPACTED, Kind.TRANSACTIONAL, Kind.HEAD_DELETED)


def topics_with_holes(name: str) -> list[TopicLoad]:
    """Logs with many holes, and one that begins above 0; two partitions each."""
    return [TopicLoad(f"{name}.{kind.value}", kind, 2, 600, 60, "lz4") for kind in KINDS]


def closed_map(copy: Copying, key: tuple[str, int]) -> tuple[PartitionMap, int, int]:
    """(the map of a finished copy, source end, target end)."""
    source_end = copy.stable_ends()[key]
    target_end = copy.clients.wire("target").list_offsets([key], "latest")[key]
    maps = LaneMaps(copy.clients.store(copy.journal), copy.migration_id)
    return maps.load(copy.partitions[key], target_end).closed(source_end, target_end), source_end, target_end


def content(record: Record) -> tuple[Any, ...]:
    return (record.timestamp, record.key, record.value, tuple(record.headers or ()))


def check_every_offset(copy: Copying) -> set[How]:
    """Translate each offset from the log start to the end + 1; which answers there were."""
    kinds: set[How] = set()
    for topic in copy.topics:
        source, target = ({"bootstrap.servers": cluster.bootstrap} for cluster in (copy.source, copy.target))
        ours, theirs = read_records(source, topic), read_records(target, topic)
        for number in sorted(key[1] for key in copy.partitions if key[0] == topic):
            kinds |= check_partition(copy, (topic, number), ours.get(number, []), theirs.get(number, []))
    return kinds


def check_partition(copy: Copying, key: tuple[str, int], ours: list[Record], theirs: list[Record]) -> set[How]:
    assert [content(record) for record in ours] == [content(record) for record in theirs]
    mapped, source_end, target_end = closed_map(copy, key)
    offsets, places = ([record.offset for record in side] for side in (ours, theirs))
    found: set[How] = set()
    previous = -1
    for offset in range(copy.partitions[key].source_start_offset, source_end + 2):
        answer = mapped.translate(offset)
        found.add(answer.how)
        index = bisect_left(offsets, offset)
        where = f"{key} source offset {offset}: {answer}"
        assert answer.target_offset is not None, where
        assert answer.target_offset >= previous, f"{where}: goes back"
        previous = answer.target_offset
        # What a consumer reads next: the same record as on the source, or nothing on both sides.
        rest = bisect_left(places, answer.target_offset)
        assert rest == index, where
        if index < len(offsets) and offsets[index] == offset:
            assert answer.target_offset == places[index], f"{where}: not the record's own place"
        if offset >= source_end:
            assert answer.target_offset == target_end, f"{where}: not the end"
    return found


@pytest.mark.soak
def test_a_mapped_copy_translates_every_offset(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topics = topics_with_holes(unique_name("map"))
    load(source_cluster, topics, seed=71)
    names = [topic.name for topic in topics]
    verdicts = {(name, number): Verdict.MAPPED for name in names for number in range(2)}
    copy = copying(names, verdicts=verdicts)
    copy.run()
    assert {How.EXACT, How.HOLE_FORWARD, How.CLAMPED} <= check_every_offset(copy)


def test_a_mapped_copy_that_is_killed_translates_every_offset(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Runs are written ahead of batches that hold records of many of them; live writers, aborts and markers."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    topics = topics_with_holes(unique_name("killed"))
    load(source_cluster, topics, seed=seed)
    live = unique_name("live")
    source_cluster.create_topic(live, 2)
    names = [*(topic.name for topic in topics), live]
    verdicts = {(name, number): Verdict.MAPPED for name in names for number in range(2)}
    copy = copying(names, verdicts=verdicts, job_fields={"segment_max_bytes": 20_000, "slice_seconds": 2})
    with writing(source_cluster, live, seed):
        kill_copiers(copy, "tail", random.Random(seed), kills=6)
    copy.write_job("seed")
    results = results_of(finish(copy.worker()))
    assert all(item.done for item in results)
    assert {item.holes for item in results} == {0}
    assert {How.EXACT, How.HOLE_FORWARD, How.CLAMPED} <= check_every_offset(copy)


@pytest.mark.parametrize(
    "budget",
    [
        pytest.param({"max_markers": 0}, marks=pytest.mark.soak),
        {"max_markers": 7},
        pytest.param({"max_fill_seconds": 0.001}, marks=pytest.mark.soak),
    ],
)
def test_a_copy_that_runs_out_of_its_budget_goes_on_as_mapped(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str], budget: dict[str, float]
) -> None:
    """The plan said equal, the facts differ: offsets are equal up to there, and mapped exactly from there on."""
    topics = topics_with_holes(unique_name("budget"))
    load(source_cluster, topics, seed=72)
    copy = copying([topic.name for topic in topics], job_fields=budget | {"segment_max_bytes": 5_000})
    progress = copy.run()
    verdicts = {(item["topic"], item["partition"]): item["verdict"] for item in progress["partitions"]}
    with_holes = [topic.name for topic in topics if topic.kind is not Kind.HEAD_DELETED]
    assert {verdicts[name, number] for name in with_holes for number in range(2)} == {"mapped"}
    assert {verdicts[topics[2].name, number] for number in range(2)} == {"equal"}
    assert How.EQUAL in check_every_offset(copy)


def test_a_budget_that_must_be_kept_stops_the_partition(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topics = topics_with_holes(unique_name("strict"))[:1]
    load(source_cluster, topics, seed=73)
    copy = copying([topics[0].name], job_fields={"max_markers": 5, "on_mismatch": "stop"})
    with pytest.raises(CopyFailed, match=r"HOLES_EXCEED_BUDGET.*control markers"):
        copy.run()
