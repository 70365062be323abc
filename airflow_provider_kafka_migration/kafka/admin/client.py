"""Everything a migration asks of a cluster besides its records, as typed values.

One class, put together from one module per concern. It speaks Kafka's own messages over :class:`~.kafka.wire.Wire`, not
confluent-kafka's AdminClient: that one hides per-item errors and answers "no ACLs" when it may not look.

Habits: reads raise what concerns the whole request and carry errors of single items as data; changes answer
``{item: ItemError | None}``; retriable errors are retried for a bounded time; all answers are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from airflow_provider_kafka_migration.errors import PermissionMissing
from airflow_provider_kafka_migration.kafka.admin.access import AclsAdmin, QuotasAdmin, UsersAdmin
from airflow_provider_kafka_migration.kafka.admin.cluster import ClusterDescription
from airflow_provider_kafka_migration.kafka.admin.groups import ShareGroupsAdmin
from airflow_provider_kafka_migration.kafka.admin.producers import TransactionsAdmin
from airflow_provider_kafka_migration.kafka.admin.topics import ConfigsAdmin, TopicsAdmin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Which, Wire


class Admin(
    TopicsAdmin,
    ConfigsAdmin,
    AclsAdmin,
    ShareGroupsAdmin,
    TransactionsAdmin,
    QuotasAdmin,
    UsersAdmin,
):
    """Admin access to one cluster. Not thread-safe: one owner.

    :param config: how to reach the cluster.
    :param wire: a wire to share; without it the admin opens and closes its own.
    :param first_contact_seconds: for how long its own wire tries a cluster that has never answered; None: as any other.
    """

    def __init__(
        self, config: ClientConfig, wire: Wire | None = None, *, first_contact_seconds: float | None = None
    ) -> None:
        super().__init__(wire or Wire(config, first_contact_seconds=first_contact_seconds), config.name)
        self.config = config
        self._owns_wire = wire is None

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the wire, if it is this admin's own."""
        if self._owns_wire:
            self.wire.close()

    def facts(self) -> ClusterDescription:
        """:meth:`cluster_facts` with what ``describe_acls`` tells of the authorizer.

        Where ACLs may not be described there is an authorizer: it has just refused.
        """
        try:
            authorizer = self.describe_acls().authorizer
        except PermissionMissing:
            authorizer = True
        return self.cluster_facts(authorizer=authorizer)

    def offsets(self, partitions: Iterable[tuple[str, int]], which: Which) -> dict[tuple[str, int], int]:
        """Offsets of partitions: ``earliest``, ``latest`` (high watermark), ``stable`` or ``log_end``."""
        return self.wire.list_offsets(partitions, which)
