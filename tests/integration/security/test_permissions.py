"""A missing permission is an error that names the operation and the resource, within seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import CopyFailed, MigrationError, PermissionMissing
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.planning import make
from harness.brokers import KafkaCluster
from harness.load import Kind, TopicLoad, load
from tests.integration.control.control_support import Control
from tests.integration.copy.copying import Copying
from tests.integration.security.support import SOURCE_TOPIC, TARGET_TOPIC, grant_copying, wire_of

pytestmark = pytest.mark.integration

USER = "alice"


@pytest.fixture
def granted(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> Copying:
    """A copy of a transactional topic by a user who has all rights, until a test takes one away."""
    topic, migration_id = unique_name("granted"), unique_name("m").lower()
    load(source_cluster, [TopicLoad(topic, Kind.TRANSACTIONAL, 1, 200, 50)], seed=3)
    source_cluster.allow(USER, "topic", topic, SOURCE_TOPIC)
    grant_copying(target_cluster, USER, topic, migration_id)
    references = {
        "source": source_cluster.client_config(USER, "SCRAM-SHA-512"),
        "target": target_cluster.client_config(USER, "SCRAM-SHA-512"),
        "storage": None,
    }
    return Copying(source_cluster, target_cluster, tmp_path, [topic], migration_id, references=references)


def failure(copy: Copying) -> dict[str, Any]:
    """The error of the only partition."""
    with pytest.raises(CopyFailed) as caught:
        copy.run()
    (partition,) = caught.value.details["partitions"]
    error: dict[str, Any] = partition["error"]
    assert f"[{error['code']}] {error['what']}" in caught.value.what
    assert error["next_step"] in caught.value.next_step
    return error


@pytest.mark.parametrize(
    ("side", "resource", "operation", "needed"),
    [
        ("source", "topic", "read", "Read on Topic {topic}"),
        ("target", "topic", "write", "Write on Topic {topic}"),
        ("target", "topic", "read", "Read on Topic {topic}"),
        ("target", "transactional_id", "write", "Write on TransactionalId {id}.lane-0.hole-0"),
        ("target", "transactional_id", "describe", "Describe on TransactionalId {id}.lane-0.hole-0"),
    ],
)
def test_copiers_name_what_is_missing(granted: Copying, side: str, resource: str, operation: str, needed: str) -> None:
    if operation == "read" and side == "target":
        # Only where something is to be read: at the log end of a copy that has begun.
        granted.run()
    topic = granted.topics[0]
    cluster = granted.source if side == "source" else granted.target
    if resource == "topic":
        cluster.deny(USER, "topic", topic, [operation])
    else:
        cluster.deny(USER, "transactional_id", granted.migration_id, [operation], prefixed=True)
    error = failure(granted)
    assert error["code"] == "PERMISSION_MISSING"
    expected = needed.format(topic=topic, id=granted.migration_id)
    assert expected in error["what"]
    assert error["details"]["operation"] == expected
    assert expected in error["next_step"]
    assert f"on the {side} cluster" in error["next_step"]


@pytest.mark.parametrize("side", ["source", "target"])
def test_topics_that_may_not_be_described(granted: Copying, side: str) -> None:
    topic = granted.topics[0]
    job = granted.write_job()
    cluster = granted.source if side == "source" else granted.target
    cluster.deny(USER, "topic", topic, ["describe"])
    with wire_of(cluster.client_config(USER, "SCRAM-SHA-512"), side) as wire:
        # It waits for nothing: its patience ends behind any test.
        wire.patience_seconds = 3600
        with pytest.raises(PermissionMissing, match=f"Describe on Topic {topic}"):
            wire.list_offsets([(topic, 0)], "latest")
    assert job.partitions


def test_log_starts_need_delete(granted: Copying) -> None:
    topic = granted.topics[0]
    granted.target.deny(USER, "topic", topic, ["delete"])
    with (
        wire_of(granted.target.client_config(USER, "SCRAM-SHA-512")) as wire,
        pytest.raises(PermissionMissing, match=f"Delete on Topic {topic}"),
    ):
        wire.delete_records({(topic, 0): 0})


def test_markers_need_a_transactional_id_as_well(granted: Copying) -> None:
    """With the right to write markers, the fencing token is what is missing."""
    granted.target.allow(USER, "broker", "kafka-cluster", ["cluster_action"])
    granted.target.deny(USER, "transactional_id", granted.migration_id, ["write"], prefixed=True)
    try:
        error = failure(granted)
    finally:
        remove_cluster_action(granted.target)
    assert error["code"] == "PERMISSION_MISSING"
    assert f"Write on TransactionalId {granted.migration_id}.lane-0" in error["what"]


def test_rights_that_are_taken_away_and_given_back(granted: Copying) -> None:
    """Markers first, empty transactions from the moment the right is gone; the offsets are equal all the same."""
    granted.target.allow(USER, "broker", "kafka-cluster", ["cluster_action"])
    first = granted.run()
    assert first["transaction_holes"] == 0
    assert int(first["holes"]) > 0
    remove_cluster_action(granted.target)
    load_more(granted)
    second = granted.run()
    assert int(second["transaction_holes"]) > 0
    granted.compare().check()


def load_more(copy: Copying) -> None:
    """Some transactions more, aborted ones among them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": copy.source.bootstrap, "transactional.id": f"more-{copy.migration_id}"})
    producer.init_transactions(20)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(copy.topics[0], b"more %d" % number)
        if number % 2:
            producer.commit_transaction(20)
        else:
            producer.flush(20)
            producer.abort_transaction(20)


def remove_cluster_action(cluster: KafkaCluster) -> None:
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    admin = cluster.admin()
    ours = AclBindingFilter(
        ResourceType.BROKER,
        "kafka-cluster",
        ResourcePatternType.LITERAL,
        f"User:{USER}",
        None,
        AclOperation.CLUSTER_ACTION,
        AclPermissionType.ALLOW,
    )
    for future in admin.delete_acls([ours]).values():
        future.result()


# -- through the phases -----------------------------------------------------------------------------------------------


def test_precheck_says_that_empty_transactions_will_be_used(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = unique_name("checked").lower()
    load(source_cluster, [TopicLoad(f"{prefix}.t", Kind.TRANSACTIONAL, 1, 50, 50)], seed=3)
    for cluster in (source_cluster, target_cluster):
        cluster.allow(USER, "topic", prefix, [*TARGET_TOPIC, "create", "alter", "alter_configs"], prefixed=True)
        cluster.allow(USER, "broker", "kafka-cluster", ["describe", "describe_configs"])
    scratch = [*TARGET_TOPIC, "create"]
    target_cluster.allow(USER, "topic", "kafka-migration-probe-", scratch, prefixed=True)
    source_cluster.allow(USER, "transactional_id", "*", ["describe"])
    target_cluster.allow(USER, "transactional_id", "kafka-migration.", ["write", "describe"], prefixed=True)
    sections: dict[str, Any] = {"acls": {"policy": "skip", "quotas": "skip"}}
    control = Control(tmp_path, source_cluster, target_cluster, prefix, user=USER, **sections)
    try:
        context = control.context(user=USER, **sections)
        plan = make.make_plan(context)
        found = {item.code: item for item in precheck.find_all(context, plan)}
        assert "W025" in found, sorted((item.code, item.seen) for item in found.values())
        assert "empty transactions" in found["W025"].title
        assert "ClusterAction" in found["W025"].fix
        assert not {"B022", "B021", "B020"} & found.keys()
        assert not any("Alter on Cluster" in item.seen for item in found.values())
    finally:
        control.close()


def test_nothing_but_permissions_is_a_migration_error(granted: Copying) -> None:
    """Without any right on the cluster and the topics the first question tells."""
    granted.target.forget_rights("bob")
    with (
        wire_of(granted.target.client_config("bob", "SCRAM-SHA-512")) as wire,
        pytest.raises(MigrationError, match="Write on Topic") as caught,
    ):
        wire.init_producer_id()
    assert caught.value.code == "PERMISSION_MISSING"
