"""Administration of a test cluster as its super user: topics, configs, ACLs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from harness.processes import wait_for


class ClusterAdmin:
    """Helpers of :class:`harness.brokers.KafkaCluster`; all return when their effect is visible."""

    brokers: int

    @property
    def bootstrap(self) -> str:
        """Addresses of the super user's listeners."""
        raise NotImplementedError

    def admin(self) -> AdminClient:
        """Admin client of the super user."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})

    def cluster_id(self) -> str:
        """The cluster id that DescribeCluster returns; it differs from cluster to cluster."""
        admin = self.admin()  # must outlive the call
        answer = admin.describe_cluster(request_timeout=10).result()
        return str(answer.cluster_id)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int | None = None,
    ) -> None:
        """Create a topic and wait until each partition has a leader."""
        self.create_topics({name: (partitions, dict(config or {}))}, replication_factor)

    def create_topics(
        self, topics: Mapping[str, tuple[int, Mapping[str, str]]], replication_factor: int | None = None
    ) -> None:
        """Create topics (name -> (partitions, configs)) and wait until each partition has a leader.

        :raises KafkaException: the broker refused one.
        """
        admin = self.admin()
        factor = replication_factor or self.brokers
        wanted = [NewTopic(name, count, factor, config=dict(config)) for name, (count, config) in topics.items()]
        for future in admin.create_topics(wanted, operation_timeout=20).values():
            future.result()

        def led() -> bool:
            known = admin.list_topics(timeout=5).topics
            return all(
                name in known
                and len(known[name].partitions) == count
                and all(partition.leader > 0 for partition in known[name].partitions.values())
                for name, (count, _) in topics.items()
            )

        wait_for(f"leaders of {sorted(topics)}", led, 20)

    def alter_topic_configs(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Set some configs of topics (name -> configs) and keep the others."""
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                name,
                incremental_configs=[
                    ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in own.items()
                ],
            )
            for name, own in configs.items()
        ]
        admin = self.admin()
        for future in admin.incremental_alter_configs(resources, request_timeout=20).values():
            future.result()

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics; ignore missing ones."""
        admin = self.admin()
        present = [name for name in names if name in admin.list_topics(timeout=5).topics]
        for future in admin.delete_topics(present, operation_timeout=20).values() if present else []:
            future.result()

    def allow(self, user: str, resource: str, name: str, operations: Sequence[str], *, prefixed: bool = False) -> None:
        """Allow a user some operations, e.g. ``allow("alice", "topic", "orders", ["read", "describe"])``.

        :param resource: ``topic``, ``group``, ``transactional_id`` or ``broker`` (the cluster; its name is
            ``kafka-cluster``).
        :param operations: names of :class:`AclOperation`, in lower case.
        """
        self._add_acls(AclPermissionType.ALLOW, user, resource, name, operations, prefixed)

    def deny(self, user: str, resource: str, name: str, operations: Sequence[str], *, prefixed: bool = False) -> None:
        """Deny a user some operations; takes the same arguments as :meth:`allow` and overrides it."""
        self._add_acls(AclPermissionType.DENY, user, resource, name, operations, prefixed)

    def forget_rights(self, user: str) -> None:
        """Remove all ACLs of a user, including those that earlier tests on the cluster left."""
        admin = self.admin()
        every = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for future in admin.delete_acls([every], request_timeout=20).values():
            future.result()
        wait_for(f"no ACLs of {user}", lambda: not admin.describe_acls(every).result(), 20)

    def _add_acls(
        self,
        permission: AclPermissionType,
        user: str,
        resource: str,
        name: str,
        operations: Sequence[str],
        prefixed: bool,
    ) -> None:
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        kind = ResourceType[resource.upper()]
        wanted = [
            AclBinding(kind, name, pattern, f"User:{user}", "*", AclOperation[operation.upper()], permission)
            for operation in operations
        ]
        admin = self.admin()
        for future in admin.create_acls(wanted, request_timeout=20).values():
            future.result()
        ours = AclBindingFilter(kind, name, pattern, f"User:{user}", None, AclOperation.ANY, permission)
        # Brokers apply it a moment later.
        wait_for(f"ACLs of {user} on {name}", lambda: set(wanted) <= set(admin.describe_acls(ours).result()), 20)
