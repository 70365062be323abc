"""Addresses that nobody, or somebody else, answers at: an error within seconds that says what to look at."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from airflow_provider_kafka_migration.errors import BrokerBusy, BrokerUnreachable, ConnectionInvalid, MigrationError
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka import wire as wire_module
from airflow_provider_kafka_migration.kafka.auth.login import _sasl_name
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.wire import Broker, Wire
from airflow_provider_kafka_migration.record import context as cluster_module
from airflow_provider_kafka_migration.record.context import Cluster
from harness.processes import closed_port


@pytest.fixture
def server() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """Starts servers that handle each connection with a function; gives the port."""
    listeners: list[socket.socket] = []

    def start(handle: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        handle(connection)

        threading.Thread(target=serve, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.close()


def config(port: int, **keys: str) -> ClientConfig:
    return ClientConfig.from_librdkafka({"bootstrap.servers": f"127.0.0.1:{port}", **keys}, "source")


@pytest.fixture(name="closed_port")
def a_closed_port() -> Iterator[int]:
    with closed_port() as port:
        yield port


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, closed_port: int) -> None:
    monkeypatch.setattr(cluster_module, "FIRST_CONTACT_SECONDS", 0.5)
    began = time.monotonic()
    with caplog.at_level(logging.INFO), pytest.raises(BrokerUnreachable, match="Connection refused") as caught:
        _ = Cluster("source", config(closed_port)).cluster_id
    assert time.monotonic() - began < 100
    error = caught.value
    assert error.where.cluster == "source"
    assert f"127.0.0.1:{closed_port}" in str(error)
    assert "bootstrap.servers" in error.next_step
    assert not caplog.records


def test_first_contact_is_bounded_by_seconds() -> None:
    assert cluster_module.FIRST_CONTACT_SECONDS <= 10
    assert Cluster("source", config(1)).wire.first_contact_seconds == cluster_module.FIRST_CONTACT_SECONDS


@pytest.mark.parametrize(
    "ask",
    [
        lambda cluster: cluster.cluster_id,
        lambda cluster: cluster.admin.describe_topics(),
        # By confluent-kafka's AdminClient, which would wait for 45 seconds and name no address.
        lambda cluster: cluster.admin.delete_topics(["t"]),
    ],
)
def test_every_way_of_asking_gives_up_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Cluster], object], closed_port: int
) -> None:
    """On a clock that only moves when somebody waits."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with pytest.raises(BrokerUnreachable):
        ask(Cluster("source", config(closed_port)))
    assert now[0] <= cluster_module.FIRST_CONTACT_SECONDS


def test_a_controller_that_is_gone_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    wire, asked = Wire(config(closed_port)), []

    def metadata(topics: list[str]) -> None:
        wire.controller_id = 7 if not asked else 8
        wire._brokers = {number: Broker(number, "127.0.0.1", 1) for number in (7, 8)}

    def request(message: object, broker_id: int) -> int:
        asked.append(broker_id)
        if broker_id == 7:
            raise BrokerUnreachable("the broker does not answer")
        return broker_id

    monkeypatch.setattr(wire, "metadata", metadata)
    monkeypatch.setattr(wire, "request", request)
    with pytest.raises(BrokerUnreachable):
        wire.controller_request(object())
    assert wire.controller_request(object()) == 8
    assert asked == [7, 8]


def test_a_broker_that_names_no_broker_says_nothing_about_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper mode, seconds after its start: `no such topic` of it would be taken for a deletion."""
    wire = Wire(ClientConfig.from_librdkafka({"bootstrap.servers": "127.0.0.1:1"}, "target"), patience_seconds=1.0)
    unknown = SimpleNamespace(
        topic_id="", name="orders", error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION, partitions=[], is_internal=False
    )
    starting = SimpleNamespace(brokers=[], controller_id=-1, cluster_id="c", topics=[unknown])
    broker = SimpleNamespace(node_id=1, host="127.0.0.1", port=1, rack=None)
    running = SimpleNamespace(brokers=[broker], controller_id=1, cluster_id="c", topics=[unknown])
    answers = [starting, starting, running]
    closed: list[int] = []

    def connection(_id: int | None) -> SimpleNamespace:
        return SimpleNamespace(call=lambda _request, version: answers.pop(0), close=lambda: closed.append(1))

    monkeypatch.setattr(wire, "connection", connection)
    monkeypatch.setattr(wire, "_has_answered", True)
    assert wire.metadata(["orders"])["orders"].error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    assert answers == [], "only the broker that knows its cluster counts"
    assert len(closed) == 2
    answers += [starting] * 1000
    with pytest.raises(BrokerBusy, match="has just started"):
        wire.metadata(["orders"])


def test_another_server_is_asked_when_one_knows_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one may stay so for long; all others run."""
    there = ClientConfig.from_librdkafka({"bootstrap.servers": "a:1,b:1,c:1"}, "target")
    asked: list[str] = []

    class Connection:
        closed = False

        def __init__(self, _config: object, host: str, _port: int, **_: object) -> None:
            self.host = host

        def call(self, _request: object, version: int | None = None) -> SimpleNamespace:
            asked.append(self.host)
            broker = SimpleNamespace(node_id=3, host="c", port=1, rack=None)
            known = [broker] if self.host == "c" else []
            return SimpleNamespace(brokers=known, controller_id=3, cluster_id="x", topics=[])

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(wire_module, "BrokerConnection", Connection)
    wire = Wire(there, patience_seconds=5.0)
    assert [broker.host for broker in wire.brokers()] == ["c"]
    assert asked == ["a", "b", "c"]


def test_a_host_name_that_does_not_exist() -> None:
    there = ClientConfig.from_librdkafka({"bootstrap.servers": "no-such-host.invalid:9092"}, "source")
    with pytest.raises(BrokerUnreachable, match=r"no-such-host\.invalid:9092"):
        BrokerConnection(there, "no-such-host.invalid", 9092, timeout_seconds=5)


def test_a_port_that_never_answers(server: Callable[..., int]) -> None:
    port = server(lambda connection: time.sleep(30))
    with pytest.raises(BrokerUnreachable, match="no answer within the time limit"):
        BrokerConnection(config(port), "127.0.0.1", port, timeout_seconds=0.5)


def test_a_port_that_hangs_up(server: Callable[..., int]) -> None:
    port = server(lambda connection: connection.recv(1))
    with pytest.raises(BrokerUnreachable, match=r"closed|reset"):
        BrokerConnection(config(port), "127.0.0.1", port, timeout_seconds=20)


def test_a_tls_port_spoken_to_without_tls(server: Callable[..., int]) -> None:
    def alert(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"\x15\x03\x03\x00\x02\x02\x46")
        time.sleep(0.2)

    port = server(alert)
    with pytest.raises(ConnectionInvalid, match="the port speaks TLS") as caught:
        BrokerConnection(config(port), "127.0.0.1", port, timeout_seconds=20)
    assert "SASL_SSL" in caught.value.next_step


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x01\x00", b"\xff" * 64])
def test_something_that_is_no_kafka(server: Callable[..., int], answer: bytes) -> None:
    def handle(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer)

    port = server(handle)
    with pytest.raises(MigrationError) as caught:
        BrokerConnection(config(port), "127.0.0.1", port, timeout_seconds=20)
    assert caught.value.next_step


def test_names_of_scram_users_are_escaped() -> None:
    assert _sasl_name("a=b,c", "SCRAM-SHA-512") == "a=3Db=2Cc"
    assert _sasl_name("a=b,c", "PLAIN") == "a=b,c"
