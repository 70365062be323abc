"""What a machine that is to run lanes can reach: every broker of both clusters, and the storage.

The probe of Spark runs this on the driver and on executors. Everything that fails is data: one address that does not
answer hides nothing about the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

from kafka.protocol.metadata import MetadataRequest

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.spark_probe import AddressLook, ClockSpan, ProbeJob, StoreLook
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.s3 import clock_span
from airflow_provider_kafka_migration.storage.scratch import try_store

Side = Literal["source", "target"]
Role = Literal["bootstrap", "advertised"]
Address = tuple[str, int]

#: Longest wait for one answer of one broker.
ANSWER_SECONDS = 10.0
#: Addresses that are tried at the same time: brokers that do not answer take seconds each.
_THREADS = 16
#: The store's clock is asked this often: each answer has whole seconds, and several narrow them down.
_CLOCK_READINGS = 3
_CLOCK_PAUSE_SECONDS = 0.3

Connect = Callable[[ClientConfig, str, int], BrokerConnection]


def connect(config: ClientConfig, host: str, port: int) -> BrokerConnection:
    """Open a connection as a copier does: TCP, TLS, login."""
    return BrokerConnection(config, host, port, timeout_seconds=ANSWER_SECONDS)


def text_of(address: Address) -> str:
    """Return ``host:port``; an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(text: str) -> Address:
    """Read what :func:`text_of` has written."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def look_at_cluster(
    side: Side, config: ClientConfig, known: Iterable[str] = (), *, connect: Connect = connect
) -> list[AddressLook]:
    """Try every bootstrap server, and every broker that one of them or ``known`` names.

    What is known beforehand is tried at the same time, so a silent cluster costs one wait and not two.

    :param known: ``host:port`` of brokers as another machine saw them.
    :returns: bootstrap servers first, both kinds ascending.
    """
    config = replace(config, read_only=True)
    with ThreadPoolExecutor(_THREADS, "reach") as pool:

        def look(addresses: Iterable[Address], role: Role) -> dict[Address, Future[_Answer]]:
            return {address: pool.submit(_try, side, config, address, role, connect) for address in addresses}

        bootstrap = look(sorted(set(config.bootstrap)), "bootstrap")
        advertised = look(sorted({address_of(text) for text in known}), "advertised")
        named = {broker for answer in bootstrap.values() for broker in answer.result().brokers}
        advertised |= look(sorted(named - advertised.keys()), "advertised")
        answers = [*bootstrap.values(), *(advertised[address] for address in sorted(advertised))]
        return [answer.result().look for answer in answers]


class _Answer:
    """What one address gave: a line of the result, and the brokers that it names."""

    def __init__(self, look: AddressLook, brokers: frozenset[Address] = frozenset()) -> None:
        self.look = look
        self.brokers = brokers


def _try(side: Side, config: ClientConfig, address: Address, role: Role, connect: Connect) -> _Answer:
    began = time.monotonic()
    error: dict[str, Any] | None = None
    brokers: frozenset[Address] = frozenset()
    try:
        connection = connect(config, *address)
        try:
            answer = connection.call(MetadataRequest(topics=[], allow_auto_topic_creation=False))
            brokers = frozenset((item.host, int(item.port)) for item in answer.brokers)
        finally:
            connection.close()
    except MigrationError as failure:
        error = failure.as_dict()
    except Exception as failure:
        # Whatever answers there is no broker; an answer that cannot be read must not hide the other addresses.
        error = {"code": "UNEXPECTED", "what": f"{type(failure).__name__}: {failure}"[:300], "kind": "terminal"}
    seconds = round(time.monotonic() - began, 3)
    look = AddressLook(cluster=side, address=text_of(address), role=role, error=error, seconds=seconds)
    return _Answer(look, brokers)


def look_at_store(store: ObjectStore, prefix: str) -> StoreLook:
    """Write, read and remove an object, and compare the clocks."""
    try:
        left = try_store(store, prefix)
    except MigrationError as error:
        return StoreLook(location=store.uri, error=error.as_dict(), clock=clock_of(store, readings=1))
    return StoreLook(location=store.uri, left_behind=left, clock=clock_of(store))


def clock_of(store: ObjectStore, readings: int = _CLOCK_READINGS) -> ClockSpan | None:
    """Return by how much the store's clock is ahead of this machine's; None if the store does not tell."""
    spans = []
    for number in range(readings):
        if number:
            time.sleep(_CLOCK_PAUSE_SECONDS)
        found = clock_span(store)
        if found is None:
            break
        spans.append(ClockSpan(low=found[0], high=found[1]))
    return ClockSpan.narrowest(spans)


class Reach:
    """What one machine can reach, as fields of :class:`~.documents.spark_probe.MachineLook`."""

    def __init__(self, job: ProbeJob, secrets: Mapping[str, Any], *, connect: Connect = connect) -> None:
        self._job = job
        self._secrets = secrets
        self._connect = connect
        self._not_looked_at: dict[str, str] = {}
        #: connections that were resolved, but cannot be used
        self._unusable: dict[str, dict[str, Any]] = {}

    def look(self, missing: Iterable[str] = ()) -> dict[str, Any]:
        """Look at both clusters and at the storage.

        :param missing: ``source``, ``target`` or ``storage``: their references could not be resolved here.
        """
        absent = set(missing)
        clients = Clients(self._secrets)
        addresses: list[AddressLook] = []
        for side in ("source", "target"):
            if side in absent:
                self._not_looked_at[side] = "its reference cannot be resolved on this machine"
            else:
                addresses += self._cluster(clients, side)
        stores: list[StoreLook] = []
        if "storage" in absent:
            self._not_looked_at["storage"] = "its reference cannot be resolved on this machine"
        else:
            stores = self._stores(clients)
        return {
            "addresses": [item.model_dump(mode="json") for item in addresses],
            "stores": [item.model_dump(mode="json") for item in stores],
            "not_looked_at": self._not_looked_at,
            "unresolved": self._unusable,
        }

    def _cluster(self, clients: Clients, side: Side) -> list[AddressLook]:
        try:
            config = clients.client_config(side)
        except MigrationError as error:
            self._unusable[side] = error.as_dict()
            self._not_looked_at[side] = "its connection cannot be used on this machine"
            return []
        return look_at_cluster(side, config, self._job.brokers.get(side, ()), connect=self._connect)

    def _stores(self, clients: Clients) -> list[StoreLook]:
        locations = [self._job.journal_location, self._job.archive_location or ""]
        found = []
        for location in dict.fromkeys(filter(None, locations)):
            try:
                store = clients.store(location)
            except MigrationError as error:
                found.append(StoreLook(location=location, error=error.as_dict()))
                continue
            found.append(look_at_store(store, f"{self._job.migration_id}/precheck"))
        return found
