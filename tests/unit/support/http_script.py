"""A small HTTP server whose answers a test writes byte by byte, for what no well-behaved server sends."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType

#: Takes the connection, and one request: its head and its body. Writes what it likes; the connection is closed then.
Handler = Callable[[socket.socket, str, bytes], None]


def answer(body: str | bytes, status: str = "200 OK", headers: str = "Content-Type: application/json") -> bytes:
    """Return a whole answer that closes the connection."""
    raw = body.encode() if isinstance(body, str) else body
    lines = f"HTTP/1.1 {status}\r\n{headers}\r\nContent-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
    return lines.encode() + raw


class HttpScript:
    """Serves each connection in a thread of its own; ``requests`` holds what arrived, as (head, body)."""

    def __init__(self, handler: Handler | bytes, *, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.ended = threading.Event()
        self._handler = handler
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> HttpScript:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self.ended.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(20)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            head, body = _request(connection)
            if not head:
                return
            self.requests.append((head, body))
            if isinstance(self._handler, bytes):
                connection.sendall(self._handler)
            else:
                self._handler(connection, head, body)
            connection.close()


def _request(connection: socket.socket) -> tuple[str, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        if not part:
            return "", b""
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        body += connection.recv(65536)
    return head.decode(), body
