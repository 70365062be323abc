"""Connections to both clusters, opened when a comparison needs them."""

from __future__ import annotations

from typing import Self

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.kafka.wire import Wire


class OwnConnections:
    """What compares partitions over its own connections, which only read. Not thread-safe: one owner."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._wires: dict[str, Wire] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def wire(self, role: str) -> Wire:
        """Return the connection to ``source`` or ``target``."""
        if role not in self._wires:
            self._wires[role] = self._clients.wire(role, read_only=True)
        return self._wires[role]
