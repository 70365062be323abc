"""Waits for the sockets of a copier: one selector for the connections of both clusters, and a wake-up for threads."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable, Iterable

from airflow_provider_kafka_migration.errors import BrokerUnreachable
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection


class SocketPoller:
    """A selector for a copier's sockets. Only :meth:`wake` is thread-safe."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)

    def wake(self) -> None:
        """End the other thread's wait. That thread may have stopped waiting already."""
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def wait(
        self,
        connections: Iterable[BrokerConnection],
        timeout_seconds: float,
        on_broken: Callable[[BrokerConnection, BrokerUnreachable], None],
    ) -> None:
        """Wait until a socket is readable or writable and serve it; pass broken connections to ``on_broken``."""
        self._register(connections)
        for key, events in self._selector.select(timeout_seconds):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(4096)
                continue
            connection: BrokerConnection = key.data
            try:
                if events & selectors.EVENT_WRITE and not connection.closed:
                    connection.on_writable()
                if events & selectors.EVENT_READ and not connection.closed:
                    connection.on_readable()
            except BrokerUnreachable as error:
                on_broken(connection, error)

    def _register(self, connections: Iterable[BrokerConnection]) -> None:
        """Update the selector: add new sockets, remove closed ones, and watch for writes where data is waiting."""
        wanted: dict[int, tuple[BrokerConnection | None, int]] = {
            self._wake_reader.fileno(): (None, selectors.EVENT_READ)
        }
        for connection in connections:
            descriptor = connection.fileno()
            if descriptor >= 0:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_write else 0)
                wanted[descriptor] = (connection, events)
        for key in list(self._selector.get_map().values()):
            if key.fd not in wanted or wanted[key.fd][0] is not key.data:
                self._selector.unregister(key.fd)
        present = self._selector.get_map()
        for fileno, (data, events) in wanted.items():
            if fileno not in present:
                self._selector.register(fileno, events, data)
            elif present[fileno].events != events:
                self._selector.modify(fileno, events, data)

    def close(self) -> None:
        """Close the selector and the wake-up sockets; connections are closed by their owners."""
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()
