"""Groups that are deleted on the source of a mirror, on real brokers (``groups.on_deleted: repair``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from harness import clients
from harness.brokers import KafkaCluster
from harness.clients import GroupReader
from tests.integration.mirrors.mirror_support import SECONDS, Flow, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def _admin(cluster: KafkaCluster) -> Admin:
    return Admin(ClientConfig.from_librdkafka(cluster.client_config(), "target"))


def _groups(cluster: KafkaCluster) -> dict[str, str]:
    """Kinds of all groups by name."""
    with _admin(cluster) as admin:
        return {name: item.type for name, item in admin.list_groups().items()}


def _delete(cluster: KafkaCluster, group: str) -> None:
    admin = cluster.admin()  # must outlive the call
    admin.delete_consumer_groups([group])[group].result(30)


def _is_at(cluster: KafkaCluster, group: str, offsets: dict[tuple[str, int], int]) -> bool:
    topics = sorted({topic for topic, _ in offsets})
    return clients.committed_offsets(cluster.client_config(), group, topics) == offsets


def _join(cluster: KafkaCluster, group: str, topic: str) -> None:
    consumer = Consumer({**cluster.client_config(), "group.id": group, "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])

        def joined() -> bool:
            consumer.poll(0.2)
            return bool(consumer.assignment())

        eventually(joined, f"a member of {group} has joined")
    finally:
        consumer.close()


def test_only_groups_that_nobody_else_has_used_are_deleted_on_the_target(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = f"{unique_name('gone')}."
    name = prefix.strip(".").lower().replace("_", "-")
    sections = {"groups": {"include": [f"{prefix}.*"], "on_deleted": "repair", "deleted_after": "2s"}}
    flow = Flow(source_cluster, target_cluster, tmp_path, name, prefix, ("A", "B"), sections)
    topic = f"{prefix}orders"
    remote = flow.remote([topic])[topic]
    source_cluster.create_topics({topic: (2, {})})
    producer = Producer(source_cluster.client_config())
    for number in range(100):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    old = source_cluster.client_config()
    gone, used, stays = (f"{prefix}{item}" for item in ("gone", "used", "stays"))
    for group in (gone, used, stays):
        clients.commit_offsets(old, group, {(topic, 0): 20, (topic, 1): 30})
    expected = {(remote, 0): 20, (remote, 1): 30}
    with flow.running():
        for group in (gone, used, stays):
            eventually(partial(_is_at, target_cluster, group, expected), f"{group} follows")
        assert _groups(target_cluster)[gone] == "simple", "nobody has joined it there"
        # A failover is tried out: a client joins, and commits nothing.
        _join(target_cluster, used, remote)
        assert _groups(target_cluster)[used] != "simple"
        for group in (gone, used):
            _delete(source_cluster, group)
        # Brokers from 4.0 on list a group without offsets for some minutes more.
        eventually(partial(_is_at, target_cluster, gone, {}), f"{gone} is deleted")

        def reason() -> str:
            process = flow.command.start("mirror", "status", flow.spec, "--json")
            out, err = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, out + err
            found = json.loads(out)
            if gone not in found["groups_deleted"]:
                return ""
            return next((str(item["kept"]) for item in found["groups_missing"] if item["group"] == used), "")

        eventually(lambda: "a client has joined it" in reason() or "has members" in reason(), f"{used} is named")
        assert {used, stays} <= set(_groups(target_cluster))
        # The application is back on the source.
        clients.commit_offsets(old, gone, {(topic, 0): 25})
        eventually(partial(_is_at, target_cluster, gone, {(remote, 0): 25}), f"{gone} follows again")


def test_each_deleted_group_has_an_answer_of_its_own(
    target_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("groups")
    target_cluster.create_topics({topic: (1, {})})
    config = target_cluster.client_config()
    idle, absent, busy = (unique_name(item) for item in ("idle", "absent", "busy"))
    clients.commit_offsets(config, idle, {(topic, 0): 0})
    with GroupReader(config, busy, [topic]), _admin(target_cluster) as admin:
        eventually(lambda: bool(admin.describe_groups([busy])[busy].members), "the member has joined")
        found = admin.delete_groups([idle, absent, busy])
        assert (found[idle], found[absent]) == (None, None)
        assert found[busy] is not None
        assert found[busy].name == "NON_EMPTY_GROUP"
        listed = admin.list_groups()
    assert busy in listed
    assert idle not in listed
    assert admin.describe_groups([idle], listings=listed)[idle].state == "Dead"
