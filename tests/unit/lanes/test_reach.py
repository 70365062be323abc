"""What a machine can reach: sockets that answer, refuse, or say nothing, and stores of both kinds."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.documents.spark_probe import MachineLook, ProbeJob
from airflow_provider_kafka_migration.errors import BrokerUnreachable, StorageRefused
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.lanes import reach
from airflow_provider_kafka_migration.lanes.reach import Reach, address_of, look_at_cluster, look_at_store, text_of
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.storage.scratch import try_store
from harness.processes import closed_port


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(name="closed_port")
def a_closed_port() -> Iterator[int]:
    with closed_port() as port:
        yield port


def config(*ports: int) -> ClientConfig:
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    return ClientConfig.from_librdkafka({"bootstrap.servers": servers}, "source")


class Cluster:
    """Connections to brokers of which some answer, with what their metadata names."""

    def __init__(self, answering: dict[int, list[int]]) -> None:
        self.answering = answering
        self.configs: list[ClientConfig] = []

    def __call__(self, config: ClientConfig, host: str, port: int) -> Any:
        self.configs.append(config)
        if port not in self.answering:
            return BrokerConnection(config, host, port, timeout_seconds=0.3)
        brokers = [SimpleNamespace(host="127.0.0.1", port=number) for number in self.answering[port]]
        return SimpleNamespace(call=lambda _: SimpleNamespace(brokers=brokers), close=lambda: None)


def test_each_bootstrap_server_and_each_advertised_broker_is_tried(silent_port: int, closed_port: int) -> None:
    cluster = Cluster({1: [1, silent_port]})
    found = look_at_cluster("source", config(1, closed_port), connect=cluster)
    seen = {(item.role, item.address): None if item.error is None else item.error["code"] for item in found}
    assert seen == {
        ("bootstrap", "127.0.0.1:1"): None,
        ("bootstrap", f"127.0.0.1:{closed_port}"): "BROKER_UNREACHABLE",
        ("advertised", "127.0.0.1:1"): None,
        ("advertised", f"127.0.0.1:{silent_port}"): "BROKER_UNREACHABLE",
    }
    assert all(item.read_only for item in cluster.configs), "a probe must not be able to write"


def test_brokers_that_only_another_machine_has_seen_are_tried_too(closed_port: int) -> None:
    cluster = Cluster({7: []})
    found = look_at_cluster("target", config(closed_port), ["127.0.0.1:7"], connect=cluster)
    assert [(item.role, item.error is None) for item in found] == [("bootstrap", False), ("advertised", True)]


def test_a_broker_that_is_known_does_not_wait_for_the_bootstrap_servers() -> None:
    both = threading.Barrier(2)

    def connect(_config: Any, _host: str, _port: int) -> Any:
        both.wait(120)
        raise BrokerUnreachable("silent")

    found = look_at_cluster("target", config(5), ["127.0.0.1:5"], connect=connect)
    assert [(look.role, look.error["code"]) for look in found if look.error is not None] == [
        ("bootstrap", "BROKER_UNREACHABLE"),
        ("advertised", "BROKER_UNREACHABLE"),
    ]


def test_an_answer_that_cannot_be_read_hides_no_other_address() -> None:
    def connect(_config: Any, _host: str, port: int) -> Any:
        if port == 1:
            raise ValueError("not Kafka")
        return Cluster({2: []})(_config, _host, port)

    found = look_at_cluster("source", config(1, 2), connect=connect)
    assert [item.error and item.error["code"] for item in found] == ["UNEXPECTED", None]


@pytest.mark.parametrize("address", [("host", 9092), ("::1", 9092), ("10.0.0.1", 1)])
def test_addresses_as_text(address: tuple[str, int]) -> None:
    assert address_of(text_of(address)) == address


def test_an_object_is_written_read_and_removed(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_CLOCK_PAUSE_SECONDS", 0.0)
    seen = look_at_store(store, "m/precheck")
    assert (seen.error, seen.left_behind) == (None, "")
    assert list(store.list()) == []
    if isinstance(store, LocalStore):
        assert seen.clock is None
    else:
        assert seen.clock is not None
        assert seen.clock.least == 0.0, "the store runs on this machine"


def test_an_object_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    class Keeps:
        """A store of a kind that cannot remove objects."""

        uri = "other://place"

        def __init__(self) -> None:
            self.inner = LocalStore(tmp_path)
            self.put_new, self.get = self.inner.put_new, self.inner.get

    key = try_store(Keeps(), "m/precheck")  # type: ignore[arg-type]
    assert [item.key for item in LocalStore(tmp_path).list()] == [key]


def test_a_folder_that_is_not_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    monkeypatch.setattr(store, "get", lambda _key: None)
    with pytest.raises(StorageRefused, match="did not return the object"):
        try_store(store, "m/precheck")


def job(folder: Path) -> ProbeJob:
    return ProbeJob(migration_id="m", generation=1, journal_location=folder.as_uri())


def test_one_broken_part_hides_no_other(tmp_path: Path, closed_port: int) -> None:
    secrets = {
        "source": {
            "bootstrap.servers": f"127.0.0.1:{closed_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": "hidden-1",
        },
        "target": {"bootstrap.servers": f"127.0.0.1:{closed_port}", "no.such.key": "hidden-2"},
        "storage": None,
    }
    seen = Reach(job(tmp_path), secrets).look()
    look = MachineLook.model_validate({"name": "0", "host": "h", **seen})
    assert [item.cluster for item in look.addresses if item.error] == ["source"]
    assert set(look.not_looked_at) == set(look.unresolved) == {"target"}
    assert [item.error for item in look.stores] == [None]
    assert "hidden" not in json.dumps(seen)


def test_what_cannot_be_resolved_is_not_tried(tmp_path: Path) -> None:
    seen = Reach(job(tmp_path), {"source": None, "target": None, "storage": None}).look(["source", "target", "storage"])
    assert set(seen["not_looked_at"]) == {"source", "target", "storage"}
    assert seen["addresses"] == []
    assert seen["stores"] == []
