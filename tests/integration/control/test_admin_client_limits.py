"""Why parts of the admin layer stay on the raw wire: what confluent-kafka's AdminClient does not do, on real brokers.

A test that fails with a newer confluent-kafka is good news: that row of ``docs/internals.md`` may move. Each test that
can do so also shows what the wire answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from kafka.protocol.consumer import JoinGroupRequest

from airflow_provider_kafka_migration.errors import PermissionMissing
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.kafka.admin.topics import NewTopic as Topic
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from harness.brokers import KafkaCluster
from harness.processes import wait_for

pytestmark = pytest.mark.integration

WAIT = {"request_timeout": 20.0}
ALL_ACLS = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


@pytest.fixture(params=["zookeeper", "kraft"])
def cluster(request: pytest.FixtureRequest, source_cluster: KafkaCluster, target_cluster: KafkaCluster) -> KafkaCluster:
    return source_cluster if request.param == "zookeeper" else target_cluster


#: An AdminClient that nobody holds drops its requests.
_held: list[AdminClient] = []


def theirs(cluster: KafkaCluster, user: str | None = None) -> AdminClient:
    _held[:] = [AdminClient({**cluster.client_config(user), "log_level": 0})]
    return _held[0]


def ours(cluster: KafkaCluster, user: str | None = None) -> Admin:
    return Admin(ClientConfig.from_librdkafka(cluster.client_config(user), "target"))


def test_acls_that_may_not_be_listed_are_none(cluster: KafkaCluster) -> None:
    assert theirs(cluster, "alice").describe_acls(ALL_ACLS, **WAIT).result() == []
    with ours(cluster, "alice") as admin, pytest.raises(PermissionMissing, match="ACLs cannot be listed"):
        admin.describe_acls()


def test_acls_of_users_and_tokens_have_no_names(cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    acl = Acl("USER", f"User:{unique_name('u')}", "LITERAL", "User:carl", "*", "DESCRIBE_TOKENS", "ALLOW")
    with ours(cluster) as admin:
        assert admin.create_acls([acl]) == {acl: None}
        try:
            assert acl in admin.describe_acls().acls
            found = [
                item for item in theirs(cluster).describe_acls(ALL_ACLS, **WAIT).result() if "carl" in item.principal
            ]
            assert [(item.restype, item.operation) for item in found] == [(ResourceType.UNKNOWN, AclOperation.UNKNOWN)]
            arguments = ("x", ResourcePatternType.LITERAL, "User:carl", "*")
            with pytest.raises(ValueError, match="not a valid ResourceType"):
                AclBinding(7, *arguments, AclOperation.READ, AclPermissionType.ALLOW)
            with pytest.raises(ValueError, match="not a valid AclOperation"):
                AclBinding(ResourceType.TOPIC, *arguments, 14, AclPermissionType.ALLOW)
        finally:
            assert admin.delete_acls([acl]) == {acl: None}


def test_a_created_topic_has_no_id(cluster: KafkaCluster, topic: str) -> None:
    assert theirs(cluster).create_topics([NewTopic(topic, 1, 1)], **WAIT)[topic].result() is None
    with ours(cluster) as admin:
        created = admin.create_topics([Topic(f"{topic}.ours", 1)])[f"{topic}.ours"]
        assert created.topic_id
        # Another broker's metadata may know the topic a moment later.
        known = wait_for("the topic", lambda: admin.describe_topics([created.name])[created.name].topic_id, 120)
        assert created.topic_id == known


def test_a_principal_without_any_right_and_a_broker_that_reports_none_are_the_same(cluster: KafkaCluster) -> None:
    found = theirs(cluster, "alice").describe_cluster(include_authorized_operations=True, **WAIT).result()
    assert found.authorized_operations is None
    with ours(cluster, "alice") as admin:
        assert admin.cluster_operations() == frozenset()


def test_groups_of_connectors_are_hidden_and_not_described(
    cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    group, protocol = unique_name("connect"), JoinGroupRequest.JoinGroupRequestProtocol
    with ours(cluster) as admin:
        join = JoinGroupRequest(
            group_id=group,
            # A busy machine takes its time between the steps, and the member must still be there in the last one.
            session_timeout_ms=120_000,
            rebalance_timeout_ms=120_000,
            member_id="",
            group_instance_id=None,
            protocol_type="connect",
            protocols=[protocol(name="default", metadata=b"")],
        )

        def joined() -> bool:
            return bool(admin.wire.request(join, admin.wire.coordinator(group, 0), version=3).error_code == 0)

        wait_for("the coordinator of the group", joined, 120)
        # Kafka 4 answers the join before the new group is committed, and describes it as dead until then.
        wait_for("the committed group", lambda: bool(admin.describe_groups([group])[group].members), 120)
        client = theirs(cluster)
        listed = client.list_consumer_groups(**WAIT).result()
        assert (group in {item.group_id for item in listed.valid}, listed.errors) == (False, [])
        with pytest.raises(KafkaException, match="is not a consumer group"):
            client.describe_consumer_groups([group], **WAIT)[group].result()
        assert admin.list_groups()[group].type == "unknown"
        assert len(admin.describe_groups([group])[group].members) == 1


def test_an_idle_consumer_commits_nothing_where_it_has_read_nothing(
    cluster: KafkaCluster, topic: str, unique_name: Callable[[str], str]
) -> None:
    """What ``groups.uncommitted`` is for: the member has both partitions, and one committed offset."""
    cluster.create_topic(topic, 2)
    group = unique_name("idle")
    producer = Producer(cluster.client_config())
    consumer = Consumer({**cluster.client_config(), "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        wait_for("an assignment", lambda: consumer.poll(0.5) is None and len(consumer.assignment()) == 2, 120)
        producer.produce(topic, b"new", partition=0)
        producer.flush(30)
        wait_for("the record", lambda: (found := consumer.poll(0.5)) is not None and not found.error(), 120)
        consumer.commit(asynchronous=False)
        with ours(cluster) as admin:
            (member,) = admin.describe_groups([group])[group].members
            assert member.assigned == ((topic, 0), (topic, 1))
            assert list(admin.group_offsets(group).offsets) == [(topic, 0)]
    finally:
        consumer.close()


def test_committed_metadata_is_changed(cluster: KafkaCluster, topic: str, unique_name: Callable[[str], str]) -> None:
    """A NUL byte more on each commit. What is read has no end: strings are cut at whatever zero follows in memory."""
    cluster.create_topic(topic)
    group = unique_name("g")
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 5, "abc")])
    theirs(cluster).alter_consumer_group_offsets([wanted], **WAIT)[group].result()
    with ours(cluster) as admin:
        assert admin.group_offsets(group).offsets == {(topic, 0): GroupOffset(5, -1, "abc\0")}
        admin.alter_group_offsets(group, {(topic, 0): GroupOffset(5, -1, "abc")})
        assert admin.group_offsets(group).offsets == {(topic, 0): GroupOffset(5, -1, "abc")}


def test_deleting_records_without_a_right_names_no_right(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    place = TopicPartition(topic, 0, 0)
    with pytest.raises(KafkaException) as caught:
        next(iter(theirs(cluster, "alice").delete_records([place], **WAIT).values())).result()
    assert caught.value.args[0].code() == KafkaError._NOENT
    with ours(cluster, "alice") as admin, pytest.raises(PermissionMissing, match=f"Describe on Topic {topic}"):
        admin.wire.delete_records({(topic, 0): 0})


def test_the_defaults_of_all_brokers_have_no_address() -> None:
    with pytest.raises(ValueError, match="Invalid ConfigResource"):
        AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}).describe_configs(
            [ConfigResource(ResourceType.BROKER, "")]
        )


_LIST_USERS = """
import json, sys
from confluent_kafka.admin import AdminClient
client = AdminClient(json.loads(sys.argv[1]))
client.describe_user_scram_credentials(request_timeout=60).result()
"""


def test_listing_users_without_a_right_kills_the_process(cluster: KafkaCluster) -> None:
    """librdkafka frees memory that is not its own. A process of its own may live through it once, not five times."""
    keys = json.dumps({**cluster.client_config("alice"), "log_level": 0})
    command = [sys.executable, "-c", _LIST_USERS, keys]
    ends = (subprocess.run(command, capture_output=True, timeout=240).returncode for _ in range(5))
    assert any(code < 0 for code in ends)
    with ours(cluster, "alice") as admin, pytest.raises(PermissionMissing, match="SCRAM users cannot be listed"):
        admin.scram_users()
