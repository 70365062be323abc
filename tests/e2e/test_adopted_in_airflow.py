"""A half-finished copy of another tool, taken over by the DAG in a real Airflow."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets
from harness.compare import Record, read_records
from harness.load import Kind, TopicLoad, load
from tests.e2e.migration_lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(3600)]

#: How many records of each partition the other tool has copied. What it left begins with 50 of them twice, so target
#: offsets are shifted.
_COPIED = {0: 700, 1: 400}
_TWICE = 50


def _write(cluster: KafkaCluster, topic: str, records: dict[int, list[Record]]) -> None:
    producer = Producer({"log_level": 2, "linger.ms": 5, **cluster.client_config()})
    for partition, found in records.items():
        for record in found:
            headers = list(record.headers)
            producer.produce(topic, record.value, record.key, partition, timestamp=record.timestamp, headers=headers)
    assert producer.flush(60) == 0


def _content(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(record.timestamp, record.key, record.value, tuple(record.headers)) for record in records]


def test_a_copy_by_another_tool_is_continued(lab: Lab, prefix: str) -> None:
    topic = f"{prefix}orders"
    load(lab.source, [TopicLoad(topic, Kind.PLAIN, 2, 4_000, 100)])
    before = read_records(lab.source.client_config(), topic)
    lab.target.create_topics({topic: (2, {})})
    _write(lab.target, topic, {number: before[number][:_TWICE] for number in before})
    _write(lab.target, topic, {number: before[number][: _COPIED[number]] for number in before})
    groups = {f"{prefix}behind": 300, f"{prefix}ahead": 800}
    for group, index in groups.items():
        commit_offsets(
            lab.source.client_config(), group, {(topic, number): before[number][index].offset for number in before}
        )
    spec = lab.spec(
        "adopted",
        prefix,
        offsets={"mode": "auto"},
        adopt={"from": "comparison", "compare": "all", "on_duplicates": "note", "stable_window": "2s"},
    )
    run = lab.trigger(spec)
    run.wait("precheck", "success")
    # On call clears what has not even failed: the plan finds the same boundary again.
    run.clear("plan", downstream=True)
    run.finish()

    target = read_records(lab.target.client_config(), topic)
    for number in before:
        left = target[number][:_TWICE]
        assert _content(left) == _content(before[number][:_TWICE])
        *copied, sentinel = target[number][_TWICE:]
        assert _content(copied) == _content(before[number]), "each record once, in its order"
        assert sentinel.key == b"__kbe_sentinel__"
    for group, index in groups.items():
        offsets = committed_offsets(lab.target.client_config(), group, [topic])
        assert offsets == {(topic, number): target[number][_TWICE + index].offset for number in before}
