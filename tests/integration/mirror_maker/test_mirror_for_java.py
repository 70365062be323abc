"""Kafka's own classes ask about a mirror that is running: its remote topics, and the groups of a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from harness.brokers import KafkaCluster
from harness.clients import commit_offsets
from harness.compare import read_records
from harness.mirror_client import PATTERN_VERSION, VERSION, MirrorClient, Offsets, mirror_client
from tests.integration.mirrors.mirror_support import Flow, eventually, flow_name

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]

_RECORDS = 200


@pytest.fixture(scope="module")
def clients(target_cluster: KafkaCluster) -> Iterator[list[MirrorClient]]:
    """Of the version of MirrorMaker 2 that the other tests run, and of the first that has patterns."""
    properties = {"bootstrap.servers": target_cluster.bootstrap}
    with mirror_client(properties, VERSION) as older, mirror_client(properties, PATTERN_VERSION) as newer:
        yield [older, newer]


def _write(cluster: KafkaCluster, topic: str, partitions: int) -> None:
    producer = Producer(cluster.client_config())
    for number in range(_RECORDS):
        producer.produce(topic, b"%d" % number, b"key", number % partitions)
    assert producer.flush(60) == 0


def _unread(cluster: KafkaCluster, offsets: Offsets) -> dict[tuple[str, int], list[bytes]]:
    """The values that a group reads from its offsets on, by (topic without its alias, partition)."""
    topics = {topic: read_records(cluster.client_config(), topic) for topic in {topic for topic, _ in offsets}}
    return {
        (topic.partition(".")[2] if topic.startswith("src") else topic, number): [
            record.value for record in topics[topic][number] if record.offset >= offset
        ]
        for (topic, number), offset in offsets.items()
    }


def test_remote_topics_and_the_groups_of_a_pattern(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    clients: list[MirrorClient],
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    name = unique_name("asked")
    orders, refunds = f"{name}.orders", f"{name}.refunds"
    alias = f"src-{flow_name(name).replace('.', '-')}"
    state = {"checkpoints": True, "heartbeats": True, "checkpoints_interval": "1s", "heartbeats_interval": "500ms"}
    flow = Flow(
        source_cluster, target_cluster, tmp_path, flow_name(name), f"{name}.", (alias, "dst"),
        {"mirror": {"state_topics": state, "sync_groups": False}},
    )  # fmt: skip
    source_cluster.create_topics({orders: (2, {}), refunds: (1, {})})
    _write(source_cluster, orders, 2)
    _write(source_cluster, refunds, 1)
    # Any name with a separator is a remote topic of something for Kafka's default policy.
    target_cluster.create_topics({f"other-{alias}.{orders}": (1, {})})
    places = {
        f"{name}.readers": {(orders, 0): 30, (orders, 1): 0},
        f"{name}.readers-tip": {(orders, 0): 100, (orders, 1): 100, (refunds, 0): 200},
        f"{name}.readers-far": {(refunds, 0): 1},
        f"{name}.others": {(orders, 1): 50},
    }
    for group, offsets in places.items():
        commit_offsets(source_cluster.client_config(), group, offsets)
    expected = {
        group: {(f"{alias}.{topic}", number): offset for (topic, number), offset in offsets.items()}
        for group, offsets in places.items()
    }
    older, newer = clients
    some = re.escape(name)
    with flow.running():
        eventually(lambda: newer.translate_matching(alias, rf"{some}\..*") == expected, "the checkpoints of all groups")
        readers = {group: offsets for group, offsets in expected.items() if "readers" in group}
        assert newer.translate_matching(alias, rf"{some}\.readers.*") == readers
        assert newer.translate_matching(alias, rf"{some}\.readers") == {f"{name}.readers": readers[f"{name}.readers"]}
        assert newer.translate_matching(alias, rf"{some}\.read") == {}, "the whole name of a group has to match"
        assert newer.translate_matching(alias, "nobody.*") == {}
        for group, offsets in expected.items():
            assert older.translate(alias, group) == newer.translate(alias, group) == offsets
            assert _unread(target_cluster, offsets) == _unread(source_cluster, places[group]), group

        remote = {f"{alias}.{topic}" for topic in (orders, refunds, "heartbeats")}
        eventually(lambda: older.remote_topics(alias) == remote, "the remote topics, heartbeats with them")
        for client in clients:
            assert client.remote_topics(alias) == remote, "and no topic of checkpoints or offset syncs"
            assert client.remote_topics() >= {*remote, f"other-{alias}.{orders}"}
            assert not {topic for topic in client.remote_topics() if topic.endswith(".internal")}
            assert client.remote_topics("elsewhere") == set()

        # A topic and a group that appear later are found, too, and a group that is set back.
        later, group = f"{name}.later", f"{name}.readers-later"
        source_cluster.create_topics({later: (1, {})})
        _write(source_cluster, later, 1)
        commit_offsets(source_cluster.client_config(), group, {(later, 0): 7})
        commit_offsets(source_cluster.client_config(), f"{name}.readers-tip", {(refunds, 0): 3})
        readers[group] = {(f"{alias}.{later}", 0): 7}
        readers[f"{name}.readers-tip"][f"{alias}.{refunds}", 0] = 3
        eventually(lambda: newer.translate_matching(alias, rf"{some}\.readers.*") == readers, "the later checkpoints")
        for client in clients:
            assert client.remote_topics(alias) == {*remote, f"{alias}.{later}"}
