"""Groups are listed by all brokers that the cluster has now, or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import BrokerBusy, BrokerUnreachable, Where
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.groups import GROUPS_TOPIC
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire

CONFIG = ClientConfig("source", (("h", 1),))


@dataclass
class Cluster:
    """Brokers, and for each group its coordinator. Each group has a partition of the groups' topic of its own."""

    brokers: list[int]
    groups: dict[str, int]
    error_code: int = 0
    #: groups that move while they are listed: to which broker, behind the answer of which one
    moves: dict[int, tuple[str, int]] = field(default_factory=dict)

    def topic(self) -> Any:
        parts = [
            SimpleNamespace(partition_index=number, leader_id=leader, replica_nodes=[leader], leader_epoch=0)
            for number, leader in enumerate(self.groups.values())
        ]
        parts = [] if self.error_code else parts
        return SimpleNamespace(
            name=GROUPS_TOPIC, topic_id="", error_code=self.error_code, partitions=parts, is_internal=True
        )


class Connection:
    """A connection to one broker, or to any (None)."""

    closed = False
    api_versions = {16: (0, 5)}

    def __init__(self, cluster: Cluster, broker: int | None) -> None:
        self.cluster, self.broker = cluster, broker

    def call(self, request: Any, **_: Any) -> Any:
        cluster = self.cluster
        if type(request).__name__.startswith("Metadata"):
            brokers = [SimpleNamespace(node_id=item, host="h", port=item, rack=None) for item in cluster.brokers]
            return SimpleNamespace(brokers=brokers, cluster_id="x", controller_id=1, topics=[cluster.topic()])
        if self.broker not in cluster.brokers:
            raise BrokerUnreachable(f"broker {self.broker} does not answer", where=Where(), next_step="wait")
        groups = [
            SimpleNamespace(group_id=name, group_type="classic", protocol_type="consumer", group_state="Empty")
            for name, broker in cluster.groups.items()
            if broker == self.broker
        ]
        if self.broker in cluster.moves:
            name, to = cluster.moves.pop(self.broker)
            cluster.groups[name] = to
        return SimpleNamespace(error_code=0, groups=groups)


def admin_of(cluster: Cluster, patience_seconds: float = 30.0) -> Admin:
    wire = Wire(CONFIG, patience_seconds=patience_seconds)
    wire.connection = lambda broker_id=None: Connection(cluster, broker_id)  # type: ignore[assignment,return-value]
    return Admin(CONFIG, wire)


def test_a_broker_that_joins_later_is_asked() -> None:
    cluster = Cluster([1, 2], {"a": 1, "b": 2})
    admin = admin_of(cluster)
    assert sorted(admin.list_groups()) == ["a", "b"]
    cluster.brokers, cluster.groups["b"] = [1, 2, 3], 3
    assert {name: item.broker for name, item in admin.list_groups().items()} == {"a": 1, "b": 3}


def test_a_broker_that_was_removed_is_not_asked() -> None:
    cluster = Cluster([1, 2], {"a": 1, "b": 2})
    admin = admin_of(cluster, 0.0)
    admin.list_groups()
    cluster.brokers, cluster.groups["b"] = [1], 1
    assert sorted(admin.list_groups()) == ["a", "b"]


def test_groups_without_a_coordinator_make_no_partial_list() -> None:
    admin = admin_of(Cluster([1], {"a": 1, "b": -1}), 0.0)
    with pytest.raises(BrokerBusy, match=f"partition 1 of {GROUPS_TOPIC}: it has no leader"):
        admin.list_groups()


def test_a_group_that_moves_while_groups_are_listed_is_not_missed() -> None:
    """Broker 1 has answered without it, and broker 2 answers without it, too."""
    cluster = Cluster([1, 2], {"a": 1, "b": 2}, moves={1: ("b", 1)})
    assert sorted(admin_of(cluster).list_groups()) == ["a", "b"]


def test_the_topic_of_the_groups_may_be_invisible() -> None:
    """A principal needs Describe on groups only; 29: TOPIC_AUTHORIZATION_FAILED."""
    assert sorted(admin_of(Cluster([1, 2], {"a": 1, "b": 2}, error_code=29)).list_groups()) == ["a", "b"]
