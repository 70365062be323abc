"""The schema registries of a simulated migration: real clients, a fake registry per role, and a process that dies."""

from __future__ import annotations

import copy
import json
import math
import struct
from typing import Any, Literal

from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, records
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry
from harness.fake_registry import FakeRegistry
from harness.fake_registry.store import Content, Store, Version
from phase_world.logs import NOW_MS, Log
from phase_world.outside import Outside

Role = Literal["source", "target"]
#: Methods of a registry that change it.
_CHANGES = frozenset(
    {"register", "delete_version", "delete_subject", "set_config", "delete_config", "set_mode", "delete_mode"}
)
#: The spec's section for these registries. The references are never resolved.
SECTION = {"source": "env:REGISTRY_S", "target": "env:REGISTRY_T", "interval": "1s"}
#: One server per role for all worlds: a world lends it its content when it opens a client.
_SERVERS: dict[str, FakeRegistry] = {}


def avro(name: str, *fields: str) -> str:
    """Return an Avro schema with text fields."""
    rows = [{"name": field, "type": "string", "default": ""} for field in fields]
    return json.dumps({"type": "record", "name": name, "fields": rows})


def with_id(number: int, content: bytes = b"") -> bytes:
    """Return a record's value as a serializer writes it; by default one text, or the two of schema 3."""
    return struct.pack(">bI", 0, number) + (content or b"\2a" * (2 if number == 3 else 1))


class SimRegistry:
    """A client whose calls belong to the outside: they fail on demand, and a kill can follow each change."""

    def __init__(self, role: Role, outside: Outside) -> None:
        self._real = Registry(RegistryAccess.from_dict({"url": _SERVERS[role].url}, retry_seconds=1.0), role)
        self._role, self._outside = role, outside
        self.role, self.url = role, self._real.url
        self.send_until, self.timeout_seconds = math.inf, self._real.timeout_seconds

    def __enter__(self) -> SimRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._real.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)

        def call(*args: Any, **options: Any) -> Any:
            changes = f"{args[:2]}" if name in _CHANGES else ""
            return self._outside.call(
                f"{self._role}.registry.{name}", lambda: method(*args, **options), changes=changes
            )

        return call


class SimRegistries:
    """Both registries of a world."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        for role in ("source", "target"):
            if role not in _SERVERS:
                _SERVERS[role] = FakeRegistry().start()
        self.stores = {role: Store(server.habits) for role, server in _SERVERS.items()}

    def fork(self, outside: Outside) -> SimRegistries:
        """Return a copy of both."""
        other = SimRegistries(outside)
        other.stores = copy.deepcopy(self.stores)
        return other

    def open(self, role: Role) -> SimRegistry:
        """Return a client. See ``PhaseContext.open_registry``."""
        self._lent(role)
        return SimRegistry(role, self._outside)

    def _lent(self, role: Role) -> FakeRegistry:
        _SERVERS[role].store = self.stores[role]
        return _SERVERS[role]

    def seed(self, role: Role, subject: str, text: str, *, id: int, version: int = 1, **options: Any) -> None:
        """Put a version into a registry, whatever its mode is."""
        self._lent(role).seed(subject, text, id=id, version=version, **options)

    def state(self, role: Role) -> dict[str, Any]:
        """Return everything that a registry holds."""
        return self._lent(role).state()

    # -- a registry that keeps what it holds in a topic ---------------------------------------------------------------

    def write_topic(self, role: Role, log: Log) -> None:
        """Write everything that a registry holds to its topic, one record each, as Confluent's registry does."""
        store = self.stores[role]
        rows = [_schema_record(item) for versions in store.subjects.values() for item in versions.values()]
        for subject, config in ((None, store.config), *store.configs.items()):
            rows.append(({"keytype": "CONFIG", "subject": subject, "magic": 0}, config))
        for key, value in rows:
            log.append(encode_batch([Record(0, NOW_MS, json.dumps(key).encode(), json.dumps(value).encode(), [])]))

    def start_on_topic(self, role: Role, log: Log) -> None:
        """Start a registry: it has what the topic's records say. Keys that are not JSON are skipped, as it does."""
        self.stores[role] = store = Store(_SERVERS[role].habits)
        for batch in map(RawBatch, map(memoryview, log.batches)):
            for item in () if batch.is_control else records(batch):
                try:
                    key, value = json.loads(item.key or b""), json.loads(item.value or b"")
                except ValueError:
                    continue
                if key["keytype"] == "SCHEMA":
                    references = tuple((each["name"], each["subject"], each["version"]) for each in value["references"])
                    content = Content(value["schemaType"], value["schema"], references)
                    store.put(key["subject"], key["version"], value["id"], content, deleted=value["deleted"])
                elif key["subject"] is None:
                    store.config = value
                else:
                    store.configs[key["subject"]] = value


def _schema_record(item: Version) -> tuple[dict[str, Any], dict[str, Any]]:
    references = [
        {"name": name, "subject": subject, "version": number} for name, subject, number in item.content.references
    ]
    key = {"keytype": "SCHEMA", "subject": item.subject, "version": item.version, "magic": 1}
    value = {
        "subject": item.subject,
        "version": item.version,
        "id": item.id,
        "schemaType": item.content.kind,
        "references": references,
        "schema": item.content.text,
        "deleted": item.deleted,
    }
    return key, value


def fill_source(registries: SimRegistries) -> None:
    """Fill the source registry: gaps of ids and versions, a reference, a deleted version, levels."""
    registries.seed("source", "orders-value", avro("Order", "number"), id=1)
    registries.seed("source", "orders-value", avro("Order", "number", "note"), id=3, version=3)
    registries.seed("source", "address", avro("Address", "street"), id=7)
    customer = {
        "type": "record",
        "name": "Customer",
        "fields": [{"name": "home", "type": "Address"}],
    }
    reference = {"name": "Address", "subject": "address", "version": 1}
    registries.seed("source", "state-value", json.dumps(customer), id=9, references=[reference])
    registries.seed("source", "gone-value", avro("Gone", "a"), id=12, deleted=True)
    registries.stores["source"].set_config("orders-value", {"compatibility": "FULL"})
