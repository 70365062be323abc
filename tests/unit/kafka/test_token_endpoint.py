"""OAuth tokens from a real OAuth server behind TLS: grants, authorities, proxies, and an error for each mistake."""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    ConnectionInvalid,
    MigrationError,
    Terminal,
    TokenUnavailable,
    Transient,
)
from airflow_provider_kafka_migration.kafka.auth import token_endpoint
from airflow_provider_kafka_migration.kafka.auth.oidc import OidcSettings, settings_of
from airflow_provider_kafka_migration.kafka.auth.token_endpoint import FetchedToken, fetch_token
from harness.certificates import Authority
from harness.identity_provider import IdentityProvider

pytestmark = pytest.mark.slow

SECRET = "client-secret-1234567890"
PHRASE = "phrase-of-the-key-42"
KEY = "sasl.oauthbearer."


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.create()
    return made


@pytest.fixture(scope="module")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def provider(authority: Authority, private_key: rsa.RSAPrivateKey) -> Iterator[IdentityProvider]:
    public = private_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with IdentityProvider(authority, {"migrator": SECRET}, {"migrator": public.decode()}) as running:
        yield running


def settings(provider: IdentityProvider | str, authority: Authority | None = None, **changes: Any) -> OidcSettings:
    keys = {
        f"{KEY}method": "oidc",
        f"{KEY}token.endpoint.url": provider if isinstance(provider, str) else provider.token_url,
        f"{KEY}client.id": "migrator",
        f"{KEY}client.secret": SECRET,
        **({"https.ca.location": str(authority.certificate)} if authority is not None else {}),
        **changes,
    }
    found, problems = settings_of({key: value for key, value in keys.items() if value is not None})
    assert found is not None, problems
    return found


def failure(settings: OidcSettings) -> MigrationError:
    """The error of a fetch; it quotes no secret."""
    with pytest.raises(MigrationError) as caught:
        fetch_token(settings)
    assert SECRET not in str(caught.value)
    assert SECRET not in json.dumps(caught.value.as_dict())
    assert caught.value.next_step
    return caught.value


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_client_credentials(provider: IdentityProvider, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    provider.lifetime_seconds = 120
    with caplog.at_level(logging.DEBUG):
        token = fetch_token(settings(provider, authority, **{f"{KEY}scope": "produce consume"}))
    assert token.value.count(".") == 2
    assert token.principal == "migrator"
    assert 100 < token.lifetime_seconds <= 120
    assert provider.forms == [{"grant_type": "client_credentials", "scope": "produce consume"}]
    # The server logs in this process, too.
    logged = "\n".join(record.getMessage() for record in caplog.records if not record.name.startswith("authlib"))
    assert logged
    assert SECRET not in logged
    assert token.value not in logged
    assert token.value not in repr(token)


def test_the_authority_of_the_brokers_is_trusted_unless_another_is_given(
    provider: IdentityProvider, authority: Authority, tmp_path: Path
) -> None:
    assert fetch_token(settings(provider, **{"ssl.ca.location": str(authority.certificate)})).value
    assert fetch_token(settings(provider, **{"ssl.ca.pem": authority.certificate.read_text()})).value
    assert fetch_token(settings(provider, **{"https.ca.pem": authority.certificate.read_text()})).value
    other = Authority(tmp_path / "other")
    other.create()
    both = {"https.ca.location": str(other.certificate), "ssl.ca.location": str(authority.certificate)}
    for changes in ({}, both):
        error = failure(settings(provider, **changes))
        assert isinstance(error, AuthenticationFailed)
        assert "does not accept the token endpoint's certificate" in error.what
        assert "https.ca.location" in error.next_step


def key_text(key: rsa.RSAPrivateKey, phrase: str = "") -> str:
    how = serialization.BestAvailableEncryption(phrase.encode()) if phrase else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how).decode()


def assertion_keys(provider: IdentityProvider, **changes: Any) -> dict[str, Any]:
    return {
        f"{KEY}client.id": None,
        f"{KEY}client.secret": None,
        f"{KEY}grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        f"{KEY}assertion.claim.iss": "migrator",
        f"{KEY}assertion.claim.sub": "somebody",
        f"{KEY}assertion.claim.aud": provider.token_url,
        **changes,
    }


def test_an_assertion_that_is_signed_here(
    provider: IdentityProvider, authority: Authority, private_key: rsa.RSAPrivateKey, tmp_path: Path
) -> None:
    (tmp_path / "key.pem").write_text(key_text(private_key, PHRASE))
    locked = {
        f"{KEY}assertion.private.key.file": str(tmp_path / "key.pem"),
        f"{KEY}assertion.private.key.passphrase": PHRASE,
        f"{KEY}assertion.claim.jti.include": "true",
    }
    token = fetch_token(settings(provider, authority, **assertion_keys(provider, **locked)))
    assert token.principal == "somebody"
    plain = {f"{KEY}assertion.private.key.pem": key_text(private_key)}
    assert fetch_token(settings(provider, authority, **assertion_keys(provider, **plain))).principal == "somebody"


def test_an_assertion_from_a_template_and_from_a_file(
    provider: IdentityProvider, authority: Authority, private_key: rsa.RSAPrivateKey, tmp_path: Path
) -> None:
    template = tmp_path / "template.json"
    template.write_text(
        json.dumps(
            {"header": {"kid": "k"}, "payload": {"iss": "migrator", "sub": "templated", "aud": provider.token_url}}
        )
    )
    none = dict.fromkeys(f"{KEY}assertion.claim.{name}" for name in ("iss", "sub", "aud"))
    signed = {
        **none,
        f"{KEY}assertion.private.key.pem": key_text(private_key),
        f"{KEY}assertion.jwt.template.file": str(template),
    }
    assert fetch_token(settings(provider, authority, **assertion_keys(provider, **signed))).principal == "templated"
    assertion = provider.forms[-1]["assertion"]
    (tmp_path / "assertion.jwt").write_text(f"{assertion}\n")
    read = {**none, f"{KEY}assertion.file": str(tmp_path / "assertion.jwt")}
    assert fetch_token(settings(provider, authority, **assertion_keys(provider, **read))).principal == "templated"
    assert provider.forms[-1]["assertion"] == assertion


@pytest.mark.parametrize("phrase", ["", "wrong-phrase"])
def test_a_key_that_cannot_sign_is_the_connections_mistake(
    provider: IdentityProvider, authority: Authority, private_key: rsa.RSAPrivateKey, phrase: str
) -> None:
    locked = {
        f"{KEY}assertion.private.key.pem": key_text(private_key, PHRASE),
        f"{KEY}assertion.private.key.passphrase": phrase or None,
    }
    error = failure(settings(provider, authority, **assertion_keys(provider, **locked)))
    assert isinstance(error, ConnectionInvalid)
    assert "cannot sign with RS256" in error.what
    assert "PRIVATE KEY" not in str(error)
    assert provider.requests == 0


def test_files_that_cannot_be_read(provider: IdentityProvider, authority: Authority, tmp_path: Path) -> None:
    missing = {f"{KEY}assertion.private.key.file": str(tmp_path / "no.pem")}
    error = failure(settings(provider, authority, **assertion_keys(provider, **missing)))
    assert isinstance(error, ConnectionInvalid)
    assert "No such file" in error.what
    error = failure(settings(provider, **{"https.ca.location": str(tmp_path / "no.pem")}))
    assert isinstance(error, ConnectionInvalid)
    assert "https.ca.location" in error.next_step


@pytest.mark.parametrize("library", ["httpx2", "joserfc"])
def test_a_machine_without_a_library_is_told_which(
    provider: IdentityProvider,
    authority: Authority,
    private_key: rsa.RSAPrivateKey,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    keys = {f"{KEY}assertion.private.key.pem": key_text(private_key)}
    error = failure(settings(provider, authority, **assertion_keys(provider, **keys)))
    assert isinstance(error, ConnectionInvalid)
    assert f"the package {library}" in error.what


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_wrong_secret_is_terminal(provider: IdentityProvider, authority: Authority) -> None:
    error = failure(settings(provider, authority, **{f"{KEY}client.secret": SECRET + "x"}))
    assert isinstance(error, AuthenticationFailed)
    assert isinstance(error, Terminal)
    assert "refused the client: HTTP 401 (invalid_client" in error.what
    assert ".client.secret" in error.next_step
    assert error.where.path == provider.token_url


def test_a_scope_that_is_not_allowed_is_terminal(provider: IdentityProvider, authority: Authority) -> None:
    error = failure(settings(provider, authority, **{f"{KEY}scope": "everything"}))
    assert isinstance(error, AuthenticationFailed)
    assert "invalid_scope" in error.what


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_busy_endpoint_is_transient(provider: IdentityProvider, authority: Authority, status: int) -> None:
    provider.outage_status = status
    error = failure(settings(provider, authority))
    assert isinstance(error, TokenUnavailable)
    assert isinstance(error, Transient)
    assert f"HTTP {status}" in error.what


@pytest.mark.parametrize("status", [301, 404, 405])
def test_an_address_that_is_no_token_endpoint_is_the_connections_mistake(
    provider: IdentityProvider, authority: Authority, status: int
) -> None:
    provider.outage_status = status
    error = failure(settings(provider, authority))
    assert isinstance(error, ConnectionInvalid)
    assert "token.endpoint.url" in error.next_step


def test_an_endpoint_that_is_down_is_transient(provider: IdentityProvider, authority: Authority) -> None:
    provider.stop()
    error = failure(settings(provider, authority))
    assert isinstance(error, TokenUnavailable)
    assert "Connection refused" in error.what
    unknown = failure(settings("https://no-such-host.invalid/token"))
    assert isinstance(unknown, TokenUnavailable)


# -- answers of other servers ------------------------------------------------------------------------------------------


@contextmanager
def answering(status: int, body: bytes, pause_seconds: float = 0.0) -> Iterator[str]:
    """A server without TLS whose answer is fixed; with a pause, it sends one byte after the other."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            pieces = [body] if not pause_seconds else [body[n : n + 1] for n in range(len(body))]
            for piece in pieces:
                try:
                    self.wfile.write(piece)
                except OSError:
                    return
                time.sleep(pause_seconds)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token?tenant=hidden"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"<html>", b"{}", b'{"access_token": 7}', b'{"access_token": "a\\u0001auth=x"}']
)
def test_an_answer_without_a_usable_token(body: bytes) -> None:
    with answering(200, body) as url:
        error = failure(settings(url))
    assert isinstance(error, ConnectionInvalid)
    assert "no usable access_token" in error.what
    assert "hidden" not in str(error)


def test_words_of_the_provider_are_quoted_without_secrets() -> None:
    said = {"error": "invalid_client", "error_description": f"secret {SECRET}\n and eyJhbGciOi.eyJzdWIi.sig are bad"}
    with answering(401, json.dumps(said).encode()) as url:
        error = failure(settings(url))
    assert "invalid_client: secret ***  and *** are bad" in error.what


@pytest.mark.parametrize(
    ("body", "least", "most"),
    [
        ('{"access_token": "opaque", "expires_in": 90}', 90, 90),
        ('{"access_token": "opaque", "expires_in": "90"}', 90, 90),
        ('{"access_token": "opaque"}', 300, 300),
        ('{"access_token": "opaque", "expires_in": -1}', 300, 300),
        ('{"access_token": "opaque", "expires_in": 1e9}', 86400, 86400),
    ],
)
def test_lifetimes(body: str, least: float, most: float) -> None:
    with answering(200, body.encode()) as url:
        token = fetch_token(settings(url))
    assert least <= token.lifetime_seconds <= most
    assert token == FetchedToken("opaque", token.lifetime_seconds, "")


def test_a_token_from_the_providers_cache_lives_only_as_long_as_it_says(
    provider: IdentityProvider, authority: Authority
) -> None:
    provider.lifetime_seconds = 60
    real = fetch_token(settings(provider, authority))
    with answering(200, json.dumps({"access_token": real.value, "expires_in": 3600}).encode()) as url:
        assert fetch_token(settings(url)).lifetime_seconds <= 60


def test_an_answer_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_endpoint, "ANSWER_SECONDS", 0.5)
    with answering(200, b" " * 200, pause_seconds=0.05) as url:
        assert isinstance(failure(settings(url)), TokenUnavailable)
    with answering(200, b" " * (1024 * 1024 + 10)) as url:
        assert isinstance(failure(settings(url)), TokenUnavailable)


# -- proxies -----------------------------------------------------------------------------------------------------------


class _Proxy(socketserver.StreamRequestHandler):
    """Takes CONNECT and nothing else."""

    lines: list[str]
    refuses = False

    def handle(self) -> None:
        request = self.rfile.readline().decode()
        while self.rfile.readline().strip():
            pass
        self.lines.append(request.strip())
        if self.refuses:
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        host, _, port = request.split()[1].rpartition(":")
        with socket.create_connection((host, int(port))) as onward:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pump, args=(onward, self.connection), daemon=True)
            back.start()
            _pump(self.connection, onward)
            back.join(120)


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.mark.parametrize("refuses", [False, True])
def test_the_proxy_of_the_environment_is_used(
    provider: IdentityProvider, authority: Authority, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    handler = type("Handler", (_Proxy,), {"lines": [], "refuses": refuses})
    proxy = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:proxy-password@127.0.0.1:{proxy.server_address[1]}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    try:
        if refuses:
            error = failure(settings(provider, authority))
            assert isinstance(error, TokenUnavailable)
            assert "the proxy refuses" in error.what
            assert "proxy-password" not in str(error)
        else:
            assert fetch_token(settings(provider, authority)).principal == "migrator"
        assert handler.lines == [f"CONNECT {provider.url.partition('//')[2]} HTTP/1.1"]  # type: ignore[attr-defined]
    finally:
        proxy.shutdown()
        proxy.server_close()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert fetch_token(settings(provider, authority)).principal == "migrator"
