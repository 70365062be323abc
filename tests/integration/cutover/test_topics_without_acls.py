"""Topics without ACLs on real brokers: who may write to them, and what brokers tell about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from airflow_provider_kafka_migration.errors import FreezeFailed
from airflow_provider_kafka_migration.freeze.without_acls import CONFIG, check_closed
from airflow_provider_kafka_migration.kafka.connection import ClientConfig
from airflow_provider_kafka_migration.record.context import Cluster
from harness.brokers import KafkaCluster

pytestmark = pytest.mark.integration

USERS = {"bob": "bob-secret"}


def may_write(cluster: KafkaCluster, topic: str) -> bool:
    """Whether a user without any right of its own gets a record in."""
    told: list[KafkaError | None] = []
    producer = Producer({**cluster.client_config("bob"), "message.timeout.ms": 20_000})
    producer.produce(topic, b"from bob", partition=0, on_delivery=lambda error, _message: told.append(error))
    assert producer.flush(120) == 0
    assert told[0] is None or told[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, told
    return told[0] is None


@pytest.mark.parametrize(
    ("version", "value"),
    [
        ("3.9.1", None),
        ("4.1.1", "true"),
        pytest.param("3.9.1", "true", marks=pytest.mark.soak),
        pytest.param("3.9.1", "false", marks=pytest.mark.soak),
        pytest.param("4.1.1", "false", marks=pytest.mark.soak),
        pytest.param("4.1.1", None, marks=pytest.mark.soak),
    ],
)
def test_a_topic_without_acls_counts_as_open_unless_brokers_show_that_it_is_not(
    tmp_path: Path, version: str, value: str | None
) -> None:
    """Brokers do not show a value that was set, so one that says ``false`` counts as open, too."""
    config = {} if value is None else {CONFIG: value}
    with KafkaCluster(tmp_path / "cluster", version, users=USERS, config=config) as brokers:
        brokers.create_topics({"orders": (1, {}), "state": (1, {})})
        assert may_write(brokers, "orders") == (value == "true")
        cluster = Cluster("source", ClientConfig.from_librdkafka(brokers.client_config("admin"), "source"))
        brokers.allow("alice", "topic", "state", ["read"])
        acls = cluster.admin.describe_acls().acls
        if value is None:
            check_closed(cluster, acls, ["orders", "state"])
        else:
            with pytest.raises(FreezeFailed, match="no ACL names 1 topics, among them orders, and broker 1 has set"):
                check_closed(cluster, acls, ["orders", "state"])
        check_closed(cluster, acls, ["state"])
        assert not may_write(brokers, "state"), "an ACL of one user closes a topic to all others"
