"""Everything a migration asks of a cluster besides its records, as typed values.

One class, composed of one module per concern. confluent-kafka's AdminClient sends what it does without losing errors
or values; the rest goes over :class:`~.kafka.wire.Wire` as Kafka's own messages. ``docs/internals.md`` has the table.

Conventions: reads raise errors that concern the whole request and return errors of single items as data; changes return
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
    :param wire: a wire to share; without it the admin opens and closes its own wire.
    :param first_contact_seconds: how long its own wire tries a cluster that has never answered; None: as any other.
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
        """Close the AdminClient, and the wire if this admin opened it."""
        self.close_client()
        if self._owns_wire:
            self.wire.close()

    def facts(self) -> ClusterDescription:
        """Return :meth:`cluster_facts`; ``describe_acls`` tells whether there is an authorizer.

        If ACLs may not be described, there is an authorizer: it has just refused.
        """
        try:
            authorizer = self.describe_acls().authorizer
        except PermissionMissing:
            authorizer = True
        return self.cluster_facts(authorizer=authorizer)

    def offsets(self, partitions: Iterable[tuple[str, int]], which: Which) -> dict[tuple[str, int], int]:
        """Return offsets of partitions: ``earliest``, ``latest`` (high watermark), ``stable`` or ``log_end``."""
        return self.wire.list_offsets(partitions, which)
