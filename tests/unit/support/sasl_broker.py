"""A broker of one process that knows logins and nothing else: it answers every other request with the request's body.

It watches over the order of requests while a login is renewed on an open connection (KIP-368), as brokers do.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

HANDSHAKE, API_VERSIONS, AUTHENTICATE = 17, 18, 36
#: What this broker knows, besides logins: one request, answered with its own body.
ECHO = 3


@dataclass
class SaslBroker:
    """Accepts connections from ``start()`` to ``stop()``.

    :param lifetime_seconds: of a session; 0: no end.
    :param accepts: decides about the bytes of a login.
    :param tls: makes the TLS context of a new connection; None: no TLS.
    :param pause_seconds: before each answer to an ordinary request.
    """

    lifetime_seconds: float = 0.0
    accepts: Callable[[bytes], bool] = lambda _: True
    #: what it says to a login that it does not accept
    refusal: str = "bad"
    tls: Callable[[], ssl.SSLContext] | None = None
    pause_seconds: float = 0.0
    #: api keys in the order of their arrival, over all connections
    seen: list[int] = field(default_factory=list)
    #: the certificate of each connection's client, in DER; None without one
    certificates: list[bytes | None] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    #: cleared: logins get no answer
    answers_logins: threading.Event = field(default_factory=threading.Event)

    def start(self) -> SaslBroker:
        self.answers_logins.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def stop(self) -> None:
        # Without shutdown, accept() in the other thread goes on.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def logins(self) -> int:
        return self.seen.count(HANDSHAKE)

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        with contextlib.suppress(OSError, ConnectionError):
            sock: socket.socket = raw
            if self.tls is not None:
                sock = self.tls().wrap_socket(raw, server_side=True)
                self.certificates.append(sock.getpeercert(binary_form=True))  # type: ignore[attr-defined]
            with sock:
                in_login = False
                while True:
                    in_login = self._answer_one(sock, in_login)

    def _answer_one(self, sock: socket.socket, in_login: bool) -> bool:
        (size,) = struct.unpack(">i", _exactly(sock, 4))
        frame = _exactly(sock, size)
        api, version, correlation, length = struct.unpack(">hhih", frame[:10])
        body = frame[10 + length :]
        self.seen.append(api)
        if in_login and api != AUTHENTICATE:
            self.violations.append(f"request {api} in the middle of a login")
            raise ConnectionError
        if api == API_VERSIONS:
            answer = self._versions(version)
        elif api == HANDSHAKE:
            answer = struct.pack(">hi", 0, 1) + struct.pack(">h", 5) + b"PLAIN"
        elif api == AUTHENTICATE:
            answer = self._authenticate(body)
        else:
            time.sleep(self.pause_seconds)
            answer = body
        sock.sendall(struct.pack(">ii", len(answer) + 4, correlation) + answer)
        return api == HANDSHAKE

    @staticmethod
    def _versions(version: int) -> bytes:
        if version > 0:
            return struct.pack(">hi", 35, 0)
        known = [(ECHO, 0, 0), (HANDSHAKE, 0, 1), (API_VERSIONS, 0, 0), (AUTHENTICATE, 0, 1)]
        return struct.pack(">hi", 0, len(known)) + b"".join(struct.pack(">hhh", *item) for item in known)

    def _authenticate(self, body: bytes) -> bytes:
        self.answers_logins.wait(20)
        (length,) = struct.unpack(">i", body[:4])
        if not self.accepts(body[4 : 4 + length]):
            text = self.refusal.encode()
            return struct.pack(">h", 58) + struct.pack(">h", len(text)) + text + struct.pack(">iq", 0, 0)
        return struct.pack(">hhiq", 0, -1, 0, int(self.lifetime_seconds * 1000))


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError
        data += piece
    return data
