"""One of the two clusters of a migration: its admin and its wire, opened when first used."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire

#: For how long a cluster that has never answered is tried: a wrong address is told soon.
FIRST_CONTACT_SECONDS = 6.0


class Cluster:
    """A cluster with the clients that phases use. Not thread-safe: one owner; :meth:`clone` for another thread."""

    def __init__(self, role: Literal["source", "target"], config: ClientConfig) -> None:
        self.role = role
        self.config = config

    def clone(self) -> Cluster:
        """The same cluster with connections of its own."""
        return Cluster(self.role, self.config)

    @cached_property
    def wire(self) -> Wire:
        """Raw protocol."""
        return Wire(self.config, first_contact_seconds=FIRST_CONTACT_SECONDS)

    @cached_property
    def admin(self) -> Admin:
        """Typed admin calls."""
        return Admin(self.config, first_contact_seconds=FIRST_CONTACT_SECONDS)

    @cached_property
    def cluster_id(self) -> str:
        """The cluster's id."""
        self.wire.metadata([])
        return self.wire.cluster_id

    def close(self) -> None:
        """Close what was opened."""
        for name in ("wire", "admin"):
            client = self.__dict__.pop(name, None)
            if client is not None:
                client.close()
