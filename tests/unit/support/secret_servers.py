"""Secret stores over HTTP, in the wire formats of Vault and of Google's REST API, and one that answers anything."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import crc32c
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


@dataclass
class Request:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


Answer = tuple[int, Any]


class HttpServer:
    """Answers with a function, and keeps all requests."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        requests: list[Request] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                query = {key: values[0] for key, values in parse_qs(parts.query).items()}
                headers = {key.lower(): value for key, value in self.headers.items()}
                request = Request(self.command, unquote(parts.path), query, headers, body)
                requests.append(request)
                status, content = answer(request)
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = _answer

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self.requests = requests
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Vault:
    """A key-value engine of version 2 at ``secret/``, one of version 1 at ``old/``, AppRole and Kubernetes logins.

    :param secrets: path -> its versions, oldest first; None: deleted.
    """

    secrets: dict[str, list[dict[str, Any] | None]] = field(default_factory=dict)
    old: dict[str, dict[str, Any]] = field(default_factory=dict)
    token: str = "s.token-of-the-vault"
    status: int | None = None

    def __call__(self, request: Request) -> Answer:
        if self.status is not None:
            return self.status, {"errors": ["Vault is sealed, and here is mark-9f2c"]}
        if request.method == "POST" and request.path.startswith("/v1/auth/"):
            return self._login(request.path, json.loads(request.body))
        if request.headers.get("x-vault-token") != self.token:
            return 403, {"errors": ["permission denied"]}
        prefix, _, path = request.path.removeprefix("/v1/").partition("/data/")
        if prefix == "secret" and path:
            return self._version(self.secrets.get(path), request.query.get("version"))
        if request.path.removeprefix("/v1/old/") in self.old:
            return 200, {"data": self.old[request.path.removeprefix("/v1/old/")]}
        return 404, {"errors": []}

    def _login(self, path: str, body: dict[str, Any]) -> Answer:
        right = {
            "/v1/auth/approle/login": {"role_id": "role", "secret_id": "mark-9f2c-secret-id"},
            "/v1/auth/kubernetes/login": {"role": "copier", "jwt": "mark-9f2c-jwt"},
        }.get(path)
        if right != {key: value for key, value in body.items() if value is not None}:
            return 400, {"errors": ["invalid role or secret ID mark-9f2c"]}
        return 200, {"auth": {"client_token": self.token, "policies": [], "lease_duration": 60, "renewable": True}}

    @staticmethod
    def _version(versions: list[dict[str, Any] | None] | None, wanted: str | None) -> Answer:
        number = int(wanted or 0) or len(versions or [])
        if not versions or number > len(versions):
            return 404, {"errors": []}
        data = versions[number - 1]
        metadata = {"version": number, "deletion_time": "" if data is not None else "2026-01-01T00:00:00Z"}
        return 404 if data is None else 200, {"data": {"data": data, "metadata": metadata}}


@dataclass
class GoogleSecretManager:
    """``GET /v1/{name=projects/*/secrets/*/versions/*}:access``.

    :param secrets: full resource name of a version -> its bytes.
    """

    secrets: dict[str, bytes] = field(default_factory=dict)
    error: tuple[int, str] | None = None
    crc_off_by: int = 0

    def __call__(self, request: Request) -> Answer:
        if request.path == "/token":
            return 200, {"access_token": "token-of-google", "expires_in": 3600, "token_type": "Bearer"}
        if not request.headers.get("authorization", "").startswith("Bearer "):
            return self._error(401, "UNAUTHENTICATED")
        if self.error:
            return self._error(*self.error)
        name = request.path.removeprefix("/v1/").removesuffix(":access")
        data = self.secrets.get(name)
        if data is None or not request.path.endswith(":access"):
            return self._error(404, "NOT_FOUND")
        checksum = str(crc32c.crc32c(data) + self.crc_off_by)
        return 200, {"name": name, "payload": {"data": base64.b64encode(data).decode(), "dataCrc32c": checksum}}

    @staticmethod
    def _error(code: int, status: str) -> Answer:
        return code, {"error": {"code": code, "status": status, "message": f"{status} mark-9f2c"}}


def service_account(folder: Path, server: str) -> Path:
    """Write the credentials of a service account whose tokens come from a server."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    file = folder / "service-account.json"
    file.write_text(
        json.dumps(
            {
                "type": "service_account",
                "project_id": "own-project",
                "private_key_id": "1",
                "private_key": pem,
                "client_email": "copier@own-project.iam.gserviceaccount.com",
                "client_id": "1",
                "token_uri": f"{server}/token",
            }
        )
    )
    return file
