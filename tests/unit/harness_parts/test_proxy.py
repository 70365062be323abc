"""The proxy that hurts connections, before a broker that answers each frame with its own bytes."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from harness.faults.proxy import PRODUCE, ClusterProxy
from harness.processes import free_port, release_ports

pytestmark = pytest.mark.slow


class Echo:
    """Answers each frame with itself, and remembers what came."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while (frame := receive(connection)) is not None:
                self.frames.append(frame)
                connection.sendall(struct.pack(">i", len(frame)) + frame)

    def close(self) -> None:
        self._listener.close()


def receive(connection: socket.socket) -> bytes | None:
    """A frame; None at the end."""
    try:
        head = connection.recv(4, socket.MSG_WAITALL)
        return connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL) if len(head) == 4 else None
    except OSError:
        return None


def send(connection: socket.socket, api_key: int, body: bytes) -> bytes:
    frame = struct.pack(">h", api_key) + body
    connection.sendall(struct.pack(">i", len(frame)) + frame)
    return frame


@pytest.fixture
def echo() -> Iterator[Echo]:
    broker = Echo()
    yield broker
    broker.close()


@pytest.fixture
def proxied(echo: Echo) -> Iterator[tuple[ClusterProxy, socket.socket]]:
    port = free_port()
    proxy = ClusterProxy({port: echo.port})
    proxy.start()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(10)
        yield proxy, client
    proxy.stop()
    release_ports([port])


def test_frames_go_through_and_are_counted(proxied: tuple[ClusterProxy, socket.socket]) -> None:
    proxy, client = proxied
    frames = [send(client, PRODUCE, b"one"), send(client, 3, b"two")]
    assert [receive(client), receive(client)] == frames
    assert proxy.requests == {PRODUCE: 1, 3: 1}


def test_connections_are_dropped(proxied: tuple[ClusterProxy, socket.socket]) -> None:
    proxy, client = proxied
    send(client, 3, b"x")
    receive(client)
    assert proxy.drop() == 1
    assert receive(client) is None


def test_a_request_is_held_back_beyond_its_sender(proxied: tuple[ClusterProxy, socket.socket], echo: Echo) -> None:
    proxy, client = proxied
    catch = proxy.hold([PRODUCE], skip=1)
    first = send(client, PRODUCE, b"first")
    assert receive(client) == first
    held_frame = send(client, PRODUCE, b"held")
    held = catch(10)
    assert held is not None
    client.close()
    assert echo.frames == [first]
    held.deliver()
    assert held.answered.wait(120)
    assert echo.frames == [first, held_frame]


def test_nothing_is_caught_when_nothing_comes(proxied: tuple[ClusterProxy, socket.socket]) -> None:
    proxy, client = proxied
    assert proxy.hold([PRODUCE])(0.05) is None
    frame = send(client, PRODUCE, b"later")
    assert receive(client) == frame


def test_requests_are_changed(proxied: tuple[ClusterProxy, socket.socket]) -> None:
    proxy, client = proxied
    proxy.rewrite = lambda api_key, frame: frame.replace(b"old", b"new") if api_key == PRODUCE else frame
    send(client, PRODUCE, b"old")
    answer = receive(client)
    assert answer is not None
    assert answer.endswith(b"new")
