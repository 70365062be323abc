"""A cluster whose id the journal knows: opened when it is first used, and refused when it is another one.

Phases that end a freeze must start while a cluster is down, or while its connection cannot be resolved. They ask a
cluster only for what they really need, so its identity is checked at that moment and not before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Literal

from airflow_provider_kafka_migration.errors import FingerprintChanged, Where
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.record.cluster import FIRST_CONTACT_SECONDS, Cluster


class KnownCluster(Cluster):
    """A cluster of a migration that has begun.

    :param open_config: resolves the connection; called at the first use.
    :param expected_id: the cluster's id in the journal; empty: unknown, any cluster is taken.
    """

    def __init__(
        self, role: Literal["source", "target"], open_config: Callable[[], ClientConfig], expected_id: str
    ) -> None:
        self.role = role
        self._open_config = open_config
        self._expected_id = expected_id

    @cached_property
    def config(self) -> ClientConfig:  # type: ignore[override]
        """How to reach the cluster."""
        return self._open_config()

    def clone(self) -> Cluster:
        """The same cluster with connections of its own."""
        return KnownCluster(self.role, self._open_config, self._expected_id)

    @cached_property
    def wire(self) -> Wire:
        """Raw protocol.

        :raises FingerprintChanged: the connection leads to another cluster than the one in the journal.
        """
        wire = Wire(self.config, first_contact_seconds=FIRST_CONTACT_SECONDS)
        if self._expected_id:
            try:
                wire.metadata([])
                self._check(wire.cluster_id)
            except BaseException:
                wire.close()
                raise
        return wire

    @cached_property
    def admin(self) -> Admin:
        """Typed admin calls.

        :raises FingerprintChanged: the connection leads to another cluster than the one in the journal.
        """
        _ = self.wire
        return Admin(self.config)

    def _check(self, found: str) -> None:
        if found == self._expected_id:
            return
        raise FingerprintChanged(
            f"the {self.role} connection leads to the cluster {found or 'without an id'}, and the migration was "
            f"started with {self._expected_id}",
            where=Where(cluster=self.role, broker=self.config.bootstrap_servers),
            next_step=f"correct bootstrap.servers of the {self.role} connection; nothing was changed there",
            details={"changes": {f"{self.role}_cluster_id": {"old": self._expected_id, "new": found}}},
        )
