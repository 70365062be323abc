"""A connection that nothing is asked of: its end is noticed, and nothing else happens."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator

import pytest

from airflow_provider_kafka_migration.errors import BrokerUnreachable
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.poller import SocketPoller


@pytest.fixture
def pair() -> Iterator[tuple[BrokerConnection, socket.socket]]:
    """A connection that is set up, without its hand-shake, and the broker's end of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = BrokerConnection.__new__(BrokerConnection)
    connection.__dict__.update(
        {
            "config": ClientConfig.from_librdkafka({"bootstrap.servers": "127.0.0.1:1"}, "target"),
            "host": "127.0.0.1",
            "port": 1,
            "broker_id": 1,
            "_sock": ours,
            "_waiting": deque(),
            "_out": deque(),
            "_held": deque(),
            "_is_set_up": True,
            "_is_served": True,
        }
    )
    yield connection, theirs
    ours.close()
    theirs.close()


def test_an_idle_connection_that_ends_is_handed_over(pair: tuple[BrokerConnection, socket.socket]) -> None:
    connection, broker = pair
    poller = SocketPoller()
    broken: list[BrokerConnection] = []
    poller.wait([connection], 0.0, lambda item, _error: broken.append(item))
    assert not broken
    broker.close()
    poller.wait([connection], 5.0, lambda item, _error: broken.append(item))
    assert broken == [connection]
    assert connection.closed
    poller.close()


def test_bytes_that_nobody_has_asked_for_end_it(pair: tuple[BrokerConnection, socket.socket]) -> None:
    connection, broker = pair
    connection.on_readable()
    broker.sendall(b"?")
    with pytest.raises(BrokerUnreachable, match="bytes without a request"):
        connection.on_readable()
