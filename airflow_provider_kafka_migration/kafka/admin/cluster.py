"""Facts about a cluster: its id, version and mode, its brokers and disks, and what this principal may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kafka.protocol.admin import DescribeClusterRequest, DescribeLogDirsRequest
from kafka.protocol.metadata import ApiVersionsRequest

from airflow_provider_kafka_migration.kafka.admin.base import OPERATIONS, AdminBase
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError, item_error
from airflow_provider_kafka_migration.kafka.wire import Broker

API_LEADER_AND_ISR = 4
API_DESCRIBE_QUORUM = 55

#: (highest metadata.version that a release knows, the release), from ``MetadataVersion`` of each release.
_RELEASES = (
    (7, "3.3"),
    (8, "3.4"),
    (11, "3.5"),
    (14, "3.6"),
    (19, "3.7"),
    (20, "3.8"),
    (21, "3.9"),
    (25, "4.0"),
    (27, "4.1"),
    (29, "4.2"),
    (30, "4.3"),
    (33, "4.4"),
)

#: For clusters in ZooKeeper mode: (api key, version) that a release introduced, newest first.
_ZOOKEEPER_RELEASES = (
    ((10, 6), "3.9"),
    ((16, 5), "3.8"),
    ((1, 16), "3.7"),
    ((68, 0), "3.7"),
    ((1, 15), "3.5"),
    ((0, 10), "3.7"),
    ((9, 9), "3.6"),
    ((24, 4), "3.5"),
    ((8, 8), "2.4"),
)


@dataclass(frozen=True)
class ClusterDescription:
    """A cluster's description of itself.

    :param kafka_version: a best guess from api versions, for people.
    :param brokers: broker ids, ascending.
    :param features: finalized features and their level.
    :param authorizer: whether ACLs are enforced.
    """

    cluster_id: str
    kafka_version: str
    mode: Literal["zookeeper", "kraft", "unknown"]
    brokers: list[int]
    features: dict[str, int]
    authorizer: bool


@dataclass(frozen=True)
class ApiSupport:
    """What the brokers support: api key -> (lowest, highest version), and the features."""

    versions: dict[int, tuple[int, int]]
    supported_features: dict[str, int]
    finalized_features: dict[str, int]

    def has(self, api_key: int, version: int = 0) -> bool:
        """Return whether the brokers support an api in at least this version."""
        return api_key in self.versions and self.versions[api_key][1] >= version

    @property
    def mode(self) -> Literal["zookeeper", "kraft", "unknown"]:
        """The cluster's mode: ZooKeeper brokers answer LeaderAndIsr to clients, KRaft brokers DescribeQuorum."""
        if self.has(API_DESCRIBE_QUORUM) or "metadata.version" in self.finalized_features:
            return "kraft"
        return "zookeeper" if self.has(API_LEADER_AND_ISR) else "unknown"

    @property
    def kafka_version(self) -> str:
        """A best guess at the release; KRaft brokers report their highest metadata.version."""
        highest = self.supported_features.get("metadata.version")
        if highest is not None and self.mode == "kraft":
            for level, release in _RELEASES:
                if highest <= level:
                    return release
            return f"{_RELEASES[-1][1]}+"
        for (api_key, version), release in _ZOOKEEPER_RELEASES:
            if self.has(api_key, version):
                return release
        return "unknown"


@dataclass(frozen=True)
class LogDir:
    """A log directory of a broker: total and free bytes (-1 before 3.3), and replica sizes in bytes."""

    broker_id: int
    path: str
    total_bytes: int
    usable_bytes: int
    sizes: dict[tuple[str, int], int] = field(default_factory=dict)
    error: ItemError | None = None


class ClusterAdmin(AdminBase):
    """Cluster facts, brokers, permissions on the cluster, log dirs."""

    def api_support(self) -> ApiSupport:
        """Read versions and features from ApiVersions v3+ (features are in tagged fields)."""
        request = ApiVersionsRequest(
            client_software_name="airflow-provider-kafka-migration", client_software_version="1"
        )
        response = self.wire.request(request)
        self.check(response.error_code, None, "ApiVersions failed")
        return ApiSupport(
            versions={api.api_key: (api.min_version, api.max_version) for api in response.api_keys},
            supported_features={item.name: item.max_version for item in response.supported_features or ()},
            finalized_features={item.name: item.max_version_level for item in response.finalized_features or ()},
        )

    def brokers(self) -> list[Broker]:
        """All brokers, ascending by id."""
        self.wire.metadata([])
        return self.wire.brokers()

    def cluster_facts(self, *, authorizer: bool = True) -> ClusterDescription:
        """Read the id, version, mode, brokers and features.

        :param authorizer: whether ACLs are enforced, according to :meth:`~.access.AclsAdmin.describe_acls`.
        """
        brokers = self.brokers()
        support = self.api_support()
        return ClusterDescription(
            cluster_id=self.wire.cluster_id,
            kafka_version=support.kafka_version,
            mode=support.mode,
            brokers=[broker.broker_id for broker in brokers],
            features=dict(sorted(support.finalized_features.items())),
            authorizer=authorizer,
        )

    def cluster_operations(self) -> frozenset[str] | None:
        """Return what this principal may do on the cluster (KIP-430); ``None`` where brokers do not report it."""
        response = self.wire.request(DescribeClusterRequest(include_cluster_authorized_operations=True))
        self.check(response.error_code, response.error_message, "DescribeCluster failed")
        return operation_names(response.authorized_operations)

    def log_dirs(self) -> list[LogDir]:
        """List all log directories of all brokers with the sizes of their replicas; needs Describe on the cluster.

        :raises PermissionMissing: the principal may not describe log directories.
        """
        found: list[LogDir] = []
        for broker in self.brokers():
            response = self.wire.request(DescribeLogDirsRequest(topics=None), broker_id=broker.broker_id)
            self.check(
                response.error_code,
                None,
                "DescribeLogDirs failed",
                operation="Describe on the cluster",
                broker=str(broker.broker_id),
            )
            found.extend(_log_dir(broker.broker_id, item) for item in response.results)
        return sorted(found, key=lambda item: (item.broker_id, item.path))


def operation_names(value: Any) -> frozenset[str] | None:
    """Return the names of a bit field of operations; None for the protocol's minimum value ("not reported")."""
    if value is None or value == -(2**31):
        return None
    numbers = [bit for bit in range(32) if value >> bit & 1] if isinstance(value, int) else value
    return frozenset(OPERATIONS.name(int(number)) for number in numbers)


def _log_dir(broker_id: int, item: Any) -> LogDir:
    sizes = {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in item.topics
        for partition in topic.partitions
        if not partition.is_future_key
    }
    return LogDir(broker_id, item.log_dir, item.total_bytes, item.usable_bytes, sizes, item_error(item.error_code))
