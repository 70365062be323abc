"""A receiver of freeze requests as an HTTP server."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where
from airflow_provider_kafka_migration.freeze.receiver import Receiver
from airflow_provider_kafka_migration.freeze.webhook import SIGNATURE_HEADER, signature

MAX_BODY_BYTES = 64 * 1024
#: Seconds that a client may take for each part of its request.
_CLIENT_SECONDS = 10


class ReceiverServer(ThreadingHTTPServer):
    """Serves ``POST`` with a request on any path, and ``GET`` with the state of the producers.

    :param certificate: PEM file of the certificate and its chain; None: plain HTTP.
    :param private_key: PEM file of its key; None: it is in the first file.
    :raises ConnectionInvalid: the address cannot be used, or the certificate cannot be read.
    """

    daemon_threads = True

    def __init__(
        self,
        receiver: Receiver,
        host: str,
        port: int,
        *,
        secret: str | None = None,
        certificate: Path | None = None,
        private_key: Path | None = None,
    ) -> None:
        self.receiver = receiver
        self.secret = secret
        self.tls = _tls(certificate, private_key)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConnectionInvalid(
                f"the freeze receiver cannot listen on {host}:{port}: {error.strerror or error}",
                where=Where(path="--listen"),
                next_step="give an address of this machine and a free port",
            ) from None

    @property
    def url(self) -> str:
        """The address for ``cutover.producer_freeze_webhook``."""
        return f"{'http' if self.tls is None else 'https'}://{self.server_address[0]!s}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that breaks off is told apart from a failure by its missing answer."""


def _tls(certificate: Path | None, private_key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without this, OpenSSL asks the terminal for the password of a key that has one.
        context.load_cert_chain(certificate, private_key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise ConnectionInvalid(
            f"the certificate cannot be used: {error.strerror or type(error).__name__}",
            where=Where(path=str(certificate)),
            next_step="give PEM files of a certificate and of its private key without a password",
        ) from None
    return context


class _Handler(BaseHTTPRequestHandler):
    server: ReceiverServer
    timeout = _CLIENT_SECONDS

    def setup(self) -> None:
        if self.server.tls is not None:
            # The handshake belongs to the thread of this client: a slow one must not hold up the others.
            self.request.settimeout(_CLIENT_SECONDS)
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def do_POST(self) -> None:
        """Follow a request."""
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > MAX_BODY_BYTES:
            self._send(413, {"error": f"the body has no length, or more than {MAX_BODY_BYTES} bytes"})
            return
        raw = self.rfile.read(int(length))
        self._send(*self.server.receiver.answer(raw, self.headers.get(SIGNATURE_HEADER)))

    def do_GET(self) -> None:
        """Show how the producers are."""
        self._send(200, self.server.receiver.describe())

    def _send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body, sort_keys=True).encode()
        # The sender may have given up waiting.
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if self.server.secret is not None:
                self.send_header(SIGNATURE_HEADER, signature(content, self.server.secret))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the receiver says what it does."""
