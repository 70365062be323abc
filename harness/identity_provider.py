"""A small identity provider for tests: Authlib's OAuth 2.0 server behind TLS on loopback.

It issues signed JWTs for ``client_credentials`` and for assertions (RFC 7523), and publishes its key as a JWKS, which
is what a Kafka broker checks tokens with.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, grants
from authlib.oauth2.rfc7523 import JWTBearerGrant
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from flask import Flask, Response, jsonify, request
from joserfc.jwk import KeySet, RSAKey
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from harness.certificates import Authority

AUDIENCE = "kafka"
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@dataclass(frozen=True)
class _Client(ClientMixin):  # type: ignore[misc]
    client_id: str
    secret: str = field(repr=False)

    def get_client_id(self) -> str:
        return self.client_id

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "client_secret_basic"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in ("client_credentials", _JWT_BEARER)

    def get_allowed_scope(self, scope: str) -> str:
        return " ".join(word for word in (scope or "").split() if word in ("produce", "consume"))


@dataclass(frozen=True)
class _User:
    name: str

    def get_user_id(self) -> str:
        return self.name


@cache
def _signing_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, parameters={"kid": kid, "use": "sig"})


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Log nothing: requests are counted instead."""


class IdentityProvider:
    """Runs from ``start()`` (or ``with``) to ``stop()``; ``stop`` and ``start`` keep port and keys.

    :param authority: signs the certificate of 127.0.0.1 and localhost; None: plain HTTP.
    :param clients: client id -> secret.
    :param assertion_keys: issuer of assertions (a client id) -> its public key as PEM.
    """

    def __init__(
        self,
        authority: Authority | None,
        clients: Mapping[str, str],
        assertion_keys: Mapping[str, str] | None = None,
    ) -> None:
        self.clients = {name: _Client(name, secret) for name, secret in clients.items()}
        self.assertion_keys = dict(assertion_keys or {})
        self.lifetime_seconds = 300
        #: for whom tokens are
        self.audience = AUDIENCE
        #: answer every request for a token with this status and no token; None: work
        self.outage_status: int | None = None
        self.requests = 0
        self.forms: list[dict[str, str]] = []
        self._authority = authority
        self._key = _signing_key("first")
        # Held without listening, so that the port refuses connections while the server is stopped and is nobody else's.
        self._holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self._port: int = self._holder.getsockname()[1]
        self._server: BaseWSGIServer | None = None
        self._app = self._make_app()

    @property
    def url(self) -> str:
        return f"{'http' if self._authority is None else 'https'}://127.0.0.1:{self._port}"

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/jwks"

    @property
    def issuer(self) -> str:
        return "https://identity.example"

    def change_key(self, kid: str) -> None:
        """Sign with another key from now on, and publish only that."""
        self._key = _signing_key(kid)

    def __enter__(self) -> IdentityProvider:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        context = None
        if self._authority is not None:
            self._authority.create()
            pair = self._authority.server()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.certificate, pair.key)
        self._server = make_server(
            "127.0.0.1", self._port, self._app, threaded=True, request_handler=_Quiet, ssl_context=context
        )
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _make_app(self) -> Flask:
        app = Flask("identity-provider")
        server = AuthorizationServer(app, query_client=self.clients.get, save_token=lambda token, request: None)
        server.scopes_supported = ["produce", "consume"]
        server.register_grant(_ClientCredentials)
        server.register_grant(self._assertion_grant())
        server.register_token_generator("default", self._generator())

        @app.post("/token")
        def token() -> Response:
            self.requests += 1
            self.forms.append(dict(request.form))
            if self.outage_status is not None:
                return Response("{}", status=self.outage_status, mimetype="application/json")
            answer: Response = server.create_token_response()
            return answer

        @app.get("/jwks")
        def jwks() -> Response:
            return jsonify(KeySet([self._key]).as_dict(private=False))

        return app

    def _generator(self) -> JWTBearerTokenGenerator:
        provider = self

        class Generator(JWTBearerTokenGenerator):  # type: ignore[misc]
            def get_jwks(self) -> Any:
                return provider._key

            def get_audiences(self, client: Any, user: Any, scope: Any) -> str:
                return provider.audience

        return Generator(provider.issuer, expires_generator=lambda client, grant: provider.lifetime_seconds)

    def _assertion_grant(self) -> type[JWTBearerGrant]:
        provider = self

        class Grant(JWTBearerGrant):  # type: ignore[misc]
            def get_audiences(self) -> list[str]:
                return [provider.token_url]

            def resolve_issuer_client(self, issuer: str) -> _Client | None:
                return provider.clients.get(issuer)

            def resolve_client_public_key(self, client: _Client) -> Any:
                return RSAKey.import_key(provider.assertion_keys[client.client_id])

            def authenticate_user(self, subject: str) -> _User:
                return _User(subject)

            def has_granted_permission(self, client: _Client, user: _User) -> bool:
                return True

        return Grant


class _ClientCredentials(grants.ClientCredentialsGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic"]
