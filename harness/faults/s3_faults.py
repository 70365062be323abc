"""A proxy for an S3 server that misbehaves as S3 sometimes does: it throttles, refuses, is slow, drops connections.

Requests without a fault are forwarded unchanged to the server behind it, and so are its responses.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'


class Fault(StrEnum):
    """A fault of a request."""

    #: 503 SlowDown; the request is not executed
    SLOW_DOWN = "slow_down"
    #: 500 InternalError; the request is not executed
    INTERNAL_ERROR = "internal_error"
    #: 403 AccessDenied; the request is not executed
    REFUSED = "refused"
    #: the connection is reset; the request is not executed
    DROPPED = "dropped"
    #: the request is executed, then the connection is reset without a response
    ANSWER_LOST = "answer_lost"
    #: the response ends in the middle of its body
    ANSWER_TORN = "answer_torn"
    #: the response is late
    SLOW = "slow"


_ANSWERS = {
    Fault.SLOW_DOWN: (503, "SlowDown", "Please reduce your request rate."),
    Fault.INTERNAL_ERROR: (500, "InternalError", "We encountered an internal error. Please try again."),
    Fault.REFUSED: (403, "AccessDenied", "Access Denied"),
}


@dataclass
class Weather:
    """Selects the requests to disturb.

    :param rate: share of the requests that match, 0..1.
    :param faults: one of them is chosen for each selected request.
    :param path: regular expression, searched in the path with its query.
    """

    faults: tuple[Fault, ...] = ()
    rate: float = 1.0
    path: str = ""
    methods: frozenset[str] = frozenset({"GET", "PUT", "HEAD", "POST", "DELETE"})
    delay_seconds: float = 0.5
    #: maximum number of faults; None: no limit
    hits: int | None = None


@dataclass
class Counts:
    """Counted requests and faults."""

    requests: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)


class FaultyS3:
    """An endpoint with the interface of :class:`harness.s3.S3Server` that a client needs.

    :param endpoint_url: of the server behind it.
    :param seed: of the random choices.
    """

    def __init__(self, endpoint_url: str, config: dict[str, Any], *, seed: int = 0) -> None:
        self._upstream = urlsplit(endpoint_url)
        self._config = dict(config)
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._weather = Weather()
        self.counts = Counts()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.front = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="faulty-s3", daemon=True)

    def __enter__(self) -> FaultyS3:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def config(self) -> dict[str, Any]:
        """Keyword arguments of ``boto3.client("s3", ...)``, and storage settings of the product."""
        return {**self._config, "endpoint_url": self.endpoint_url}

    def weather(self, *faults: Fault, **options: Any) -> None:
        """Replace the faults from now on; without arguments there are none."""
        with self._lock:
            self._weather = Weather(faults, **options)

    def decide(self, method: str, path: str) -> tuple[Fault | None, float]:
        """(fault of this request, delay of its response)."""
        with self._lock:
            self.counts.requests += 1
            weather = self._weather
            matches = method in weather.methods and re.search(weather.path, path) is not None
            if not weather.faults or not matches or weather.hits == 0 or self._rng.random() >= weather.rate:
                return None, 0.0
            if weather.hits is not None:
                weather.hits -= 1
            fault = self._rng.choice(weather.faults)
            self.counts.faults[fault] += 1
            return fault, weather.delay_seconds

    def upstream(self) -> http.client.HTTPConnection:
        """A new connection to the server behind."""
        assert self._upstream.hostname is not None
        return http.client.HTTPConnection(self._upstream.hostname, self._upstream.port, timeout=60)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    front: FaultyS3


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._handle()

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815 - names of http.server

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault, delay_seconds = self.server.front.decide(self.command, self.path)
        if fault is Fault.SLOW:
            time.sleep(delay_seconds)
        if fault in _ANSWERS:
            status, code, message = _ANSWERS[fault]
            self._answer(
                status, {"Content-Type": "application/xml"}, _ERROR.format(code=code, message=message).encode()
            )
        elif fault is Fault.DROPPED:
            self._reset()
        else:
            self._forward(body, fault)

    def _forward(self, body: bytes, fault: Fault | None) -> None:
        connection = self.server.front.upstream()
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            connection.request(
                self.command, self.path, body=body, headers={**headers, "Content-Length": str(len(body))}
            )
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if fault is Fault.ANSWER_LOST:
            self._reset()
            return
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
        if fault is Fault.ANSWER_TORN and len(content) > 1:
            self._answer(answer.status, kept, content[: len(content) // 2], length=len(content))
            self._reset()
            return
        length = int(answer.getheader("Content-Length") or 0) if self.command == "HEAD" else None
        self._answer(answer.status, kept, content, length=length)

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _reset(self) -> None:
        """Close with RST, as a middlebox does."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
