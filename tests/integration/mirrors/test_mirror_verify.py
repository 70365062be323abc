"""Contents compared on real brokers beside a mirror that runs under a live producer, and what breaks them is found."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from airflow_provider_kafka_migration.cli.frame import ExitCode
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.compare import Record, bounds, read_records
from harness.load import Kind, load, tiny_topics
from tests.integration.mirrors.mirror_support import SECONDS, Flow, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]


def _by_place(found: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(item["topic"], item["partition"]): item for item in found["partitions"]}


def _write(cluster: KafkaCluster, topic: str, partition: int, records: list[Record]) -> None:
    producer = Producer({**cluster.client_config(), "linger.ms": 5})
    for item in records:
        producer.produce(topic, item.value, item.key, partition, timestamp=item.timestamp, headers=list(item.headers))
    assert producer.flush(60) == 0


def _broken(records: list[Record]) -> list[Record]:
    """One record of each kind of damage, at offsets that the test names."""
    made = list(records)
    made[3] = replace(made[3], value=b"changed")
    made[5] = replace(made[5], headers=(*made[5].headers, ("more", b"1")))
    made[7] = replace(made[7], timestamp=made[7].timestamp + 1)
    made[9], made[10] = made[10], made[9]
    made[12] = made[11]
    return made[:-1]


def test_contents_are_compared_beside_a_running_mirror(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = f"{unique_name('verified')}."
    name = prefix.strip(".").lower().replace("_", "-")
    flow = Flow(source_cluster, target_cluster, tmp_path, name, prefix, ("A", "B"))
    loads = tiny_topics(prefix)
    load(source_cluster, loads)
    orders = f"{prefix}orders"
    compacted = next(item.name for item in loads if item.kind is Kind.COMPACTED)
    remote = flow.remote([item.name for item in loads])
    numbers = sorted(bounds(source_cluster.client_config(), [orders])[orders])
    status = flow("verify", status=ExitCode.UNCHECKED)
    assert status["ok"] is False, "there is no mirror yet"

    live = {orders: numbers, compacted: [0]}
    with LiveProducer(source_cluster.client_config(), live, records_per_second=300) as producer:
        process = flow.start()
        atexit.register(process.kill)
        before = 0
        for _ in range(3):
            written = producer.count()
            eventually(lambda written=written: producer.count() > written + 300, "clients write")
            # Copiers confirm at the end of a slice, and compaction goes on meanwhile.
            found = flow("verify")
            assert found["equal"] is True
            assert found["state"] == "mirroring"
            now = _by_place(found)[orders, 0]["compared"]
            assert now > before, "it follows the copy"
            before = now
        ends = bounds(source_cluster.client_config(), [orders])[orders]
        admin = source_cluster.admin()
        for future in admin.delete_records([TopicPartition(orders, numbers[0], ends[numbers[0]].end // 2)]).values():
            future.result(30)
        last = flow("verify", "--topic", r".*\.orders", "--last", "200")
        assert {topic for topic, _ in _by_place(last)} == {orders}
        assert all(item["compared"] <= 200 for item in last["partitions"])
        cut = _by_place(flow("verify"))[orders, numbers[0]]
        assert cut["outcome"] == "equal"
        assert any("no longer on both sides" in note for note in cut["notes"])
        assert process.poll() is None, "the mirror has not noticed"
    flow("pause")
    assert process.wait(SECONDS) == ExitCode.WAITS
    paused = flow("verify")
    assert (paused["equal"], paused["state"]) == (True, "paused")
    process = flow.start("resume")
    atexit.register(process.kill)
    flow("promote")
    assert process.wait(SECONDS) == ExitCode.OK

    _write(target_cluster, remote[orders], numbers[-1], [Record(0, int(time.time() * 1000), b"of", b"a client")])
    promoted = flow("verify")
    assert (promoted["equal"], promoted["state"]) == (True, "promoted")
    whole = _by_place(promoted)[orders, numbers[-1]]
    sources = read_records(source_cluster.client_config(), orders)
    assert whole["compared"] == len(sources[numbers[-1]]), "up to the boundary, and no client's record"

    # The remote topic once more, with a partition that is broken in each way.
    there = target_cluster.admin()
    for future in there.delete_topics([remote[orders]]).values():
        future.result(30)
    eventually(lambda: remote[orders] not in there.list_topics(timeout=30).topics, "it is deleted")
    gone = flow("verify", status=ExitCode.UNCHECKED)
    assert {item["outcome"] for item in gone["partitions"] if item["topic"] == orders} == {"unchecked"}
    target_cluster.create_topics({remote[orders]: (len(numbers), {"retention.ms": "-1"})})
    records = sources[numbers[-1]]
    assert [item.offset for item in records] == list(range(len(records))), "no holes"
    _write(target_cluster, remote[orders], numbers[-1], _broken(records))
    broken = flow("verify", status=ExitCode.FAILED)
    assert broken["equal"] is False
    found = _by_place(broken)[orders, numbers[-1]]
    assert [(item["kind"], item["source_offset"], item["detail"]) for item in found["differences"]] == [
        ("changed", 3, "value"),
        ("changed", 5, "headers"),
        ("changed", 7, "timestamp"),
        ("order", 9, "holds the record of source offset 10"),
        ("order", 10, "holds the record of source offset 9"),
        ("duplicate", 12, "holds the record of source offset 11"),
        ("missing", len(records) - 1, ""),
    ]
    assert found["compared"] == len(records) - 7
