"""One simulated cluster: its state, and the two clients that phases use."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_kafka_migration.kafka.admin.access import Acl, QuotaEntity
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from phase_world.admin import SimAdmin
from phase_world.logs import Log
from phase_world.outside import Outside
from phase_world.wire import SimWire


@dataclass
class Topic:
    """A topic: its id, overrides and logs."""

    topic_id: str
    configs: dict[str, str]
    logs: list[Log]


@dataclass
class Group:
    """A consumer group.

    :param members: client ids.
    :param assigned: what each of them reads.
    """

    offsets: dict[TopicPartition, GroupOffset] = field(default_factory=dict)
    type: str = "classic"
    state: str = "Empty"
    members: tuple[str, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()


@dataclass
class ClusterState:
    """What a cluster keeps. ``acls`` is None without an authorizer."""

    cluster_id: str
    topics: dict[str, Topic] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    acls: set[Acl] | None = field(default_factory=set)
    #: SCRAM users with their mechanisms and iterations
    users: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    #: what somebody has set on the brokers; None: a value that they do not show
    broker_configs: dict[str, str | None] = field(default_factory=dict)
    #: defaults of topics that the brokers have otherwise than other clusters
    topic_defaults: dict[str, str] = field(default_factory=dict)
    next_producer_id: int = 1000
    #: every commit of a group's offsets, in order
    commits: list[tuple[str, dict[TopicPartition, int]]] = field(default_factory=list)
    #: names of all topics that were ever created, in order
    created: list[str] = field(default_factory=list)
    #: partitions whose brokers are down
    leaderless: set[TopicPartition] = field(default_factory=set)

    def create(self, name: str, partitions: int = 1, *, start: int = 0, **configs: str) -> Topic:
        """Create a topic whose logs begin at an offset."""
        logs = [Log(start, start) for _ in range(partitions)]
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        self.topics[name] = Topic(str(uuid.uuid4()), configs, logs)
        self.created.append(name)
        return self.topics[name]

    def log(self, topic: str, partition: int = 0) -> Log:
        """Return the log of a partition."""
        return self.topics[topic].logs[partition]

    def group(self, name: str, **offsets: int) -> Group:
        """Create a group with committed offsets by ``topic_partition``."""
        committed = {}
        for key, offset in offsets.items():
            topic, _, number = key.rpartition("_")
            committed[topic, int(number)] = GroupOffset(offset, 3, f"at {offset}")
        self.groups[name] = Group(committed)
        return self.groups[name]


class SimCluster:
    """A cluster as phases see it. All clones share one state."""

    absent = False

    def __init__(self, role: Literal["source", "target"], state: ClusterState, outside: Outside) -> None:
        self.role = role
        self.state = state
        self.config = ClientConfig(role, ((role, 9092),), username="migration")
        self.wire = SimWire(role, self.config, state, outside)
        self.admin = SimAdmin(role, state, outside)

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self.state.cluster_id

    def clone(self) -> SimCluster:
        """Return the same cluster."""
        return self

    def close(self) -> None:
        """Nothing is open."""
