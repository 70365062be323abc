"""SIGKILL at the n-th step of a copier: an exception that no code of the product catches, and nothing is sent after it.

A step is a request to a broker or a write to the object store. What was sent before the kill reaches its broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.storage.local import LocalStore
from simulated.cluster import SimulatedCluster

#: Written in the background, or by the successor's view of the dead process (it ends its lease).
_NOT_COUNTED = ("/progress/", "/leases/")
_SETTLE_SECONDS = 5.0


class Killed(BaseException):
    """The process does not exist any more."""


class KillSwitch:
    """Counts the steps of everything in this process while it is entered, and kills at one of them.

    :param at: number of the step, from 1; 0 never kills.
    :param after: kill after the step, whose effect comes but whose answer is not read; otherwise before it.
    """

    def __init__(self, *clusters: SimulatedCluster, at: int = 0, after: bool = False) -> None:
        self._clusters = clusters
        self._at = at
        self._after = after
        self._lock = threading.RLock()
        self._connections: set[BrokerConnection] = set()
        self._sent = 0
        self._handled_before = sum(cluster.handled for cluster in clusters)
        self._patches: list[Any] = []
        self.steps = 0
        self.is_dead = False

    def __enter__(self) -> KillSwitch:
        for kind, name in ((BrokerConnection, "submit"), (BrokerConnection, "call")):
            self._patches.append(mock.patch.object(kind, name, self._request(getattr(kind, name))))
        for name in ("put", "put_new"):
            self._patches.append(mock.patch.object(LocalStore, name, self._write(getattr(LocalStore, name))))
        report = threading.excepthook

        def on_thread_end(found: threading.ExceptHookArgs) -> None:
            if found.exc_type is not Killed:
                report(found)

        self._patches.append(mock.patch.object(threading, "excepthook", on_thread_end))
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def run(self, action: Callable[..., object], *arguments: Any) -> None:
        """Run what a process does until it ends or dies; it is asked to ``stop`` by :meth:`stop`.

        A dead process reports no error, whichever of its threads died first.
        """
        with self:
            try:
                action(*arguments, stop=self.stop)
            except BaseException:
                if not self.is_dead:
                    raise

    def stop(self) -> bool:
        """Ask as a copier asks whether to stop: a thread may have been killed while its main thread waits."""
        if self.is_dead:
            raise Killed
        return False

    def _request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def send(connection: BrokerConnection, *arguments: Any, **options: Any) -> Any:
            with self._lock:
                is_last = self._step()
                self._connections.add(connection)
                self._sent += 1
            found = original(connection, *arguments, **options)
            if is_last:
                self._die()
            return found

        return send

    def _write(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def write(store: LocalStore, key: str, *arguments: Any, **options: Any) -> Any:
            if any(part in key for part in _NOT_COUNTED):
                return original(store, key, *arguments, **options)
            with self._lock:
                is_last = self._step()
            found = original(store, key, *arguments, **options)
            if is_last:
                self._die()
            return found

        return write

    def _step(self) -> bool:
        """Count a step, or die before it; return whether to die after it."""
        if self.is_dead:
            raise Killed
        self.steps += 1
        if self.steps != self._at:
            return False
        if not self._after:
            self._die()
        return True

    def _die(self) -> None:
        """Let the brokers handle what was sent, then close all connections."""
        self.is_dead = True
        for cluster in self._clusters:
            cluster.hurry(True)
        deadline = time.monotonic() + _SETTLE_SECONDS
        while sum(cluster.handled for cluster in self._clusters) - self._handled_before < self._sent:
            assert time.monotonic() < deadline, "the brokers do not handle what was sent"
            time.sleep(0.0005)
        for connection in self._connections:
            connection.close()
        for cluster in self._clusters:
            cluster.hurry(False)
        raise Killed
