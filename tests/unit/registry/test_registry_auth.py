"""Each kind of credentials against a local server, and that none of them is ever shown."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import ssl
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from http_script import HttpScript, answer

from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    MigrationError,
    RegistryForbidden,
    RegistryRefused,
    RegistryUnreachable,
)
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry
from harness.certificates import Authority, Pair
from harness.fake_registry import FakeRegistry
from harness.fake_registry.server import Reply, Request

SECRET = "s3cr3t-w0rd"


def open_client(url: str, **settings: Any) -> Registry:
    access = RegistryAccess.from_dict({"url": url} | settings, timeout_seconds=10, retry_seconds=0)
    return Registry(access, "source")


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# -- basic and tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"basic.auth.user.info": "alice:a:b ä"}, basic("alice", "a:b ä")),
        ({"bearer.auth.token": SECRET}, f"Bearer {SECRET}"),
    ],
)
def test_credentials_are_sent(settings: dict[str, str], expected: str) -> None:
    with FakeRegistry(authorization=expected) as server:
        with open_client(server.url, **settings) as client:
            assert client.subjects() == []
        with open_client(server.url) as client, pytest.raises(RegistryForbidden, match="HTTP 401"):
            client.subjects()


def test_headers_of_confluent_cloud() -> None:
    settings = {
        "bearer.auth.token": SECRET,
        "bearer.auth.logical.cluster": "lsrc-1",
        "bearer.auth.identity.pool.id": "pool-1",
    }
    with FakeRegistry() as server, open_client(server.url, **settings) as client:
        client.config(None)
        headers = server.requests[0].headers
    assert (headers["target-sr-cluster"], headers["confluent-identity-pool-id"]) == ("lsrc-1", "pool-1")


# -- OAuth ------------------------------------------------------------------------------------------------------------


class TokenEndpoint:
    """Hands out ``token-1``, ``token-2`` ... and checks the client."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.forms: list[str] = []
        self.script = HttpScript(self._answer)

    def _answer(self, connection: Any, head: str, body: bytes) -> None:
        assert head.startswith("POST /token ")
        sent = next(line for line in head.splitlines() if line.lower().startswith("authorization:"))
        if sent.partition(": ")[2] != basic("me", SECRET):
            connection.sendall(answer(json.dumps({"error": "invalid_client", "sent": sent}), "401 Unauthorized"))
            return
        self.forms.append(body.decode())
        token = {"access_token": f"token-{len(self.forms)}", "expires_in": 3600}
        connection.sendall(answer(json.dumps(token | self.fields)))

    def settings(self, secret: str = SECRET) -> dict[str, str]:
        return {
            "bearer.auth.issuer.endpoint.url": f"{self.script.url}/token",
            "bearer.auth.client.id": "me",
            "bearer.auth.client.secret": secret,
            "bearer.auth.scope": "schema:read write",
        }


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    made = TokenEndpoint()
    with made.script:
        yield made


def test_one_token_serves_many_requests(endpoint: TokenEndpoint) -> None:
    with (
        FakeRegistry(authorization="Bearer token-1") as server,
        open_client(server.url, **endpoint.settings()) as client,
    ):
        for _ in range(5):
            assert client.subjects() == []
    assert endpoint.forms == ["grant_type=client_credentials&scope=schema%3Aread+write"]


def test_a_token_that_the_registry_refuses_is_replaced_once(endpoint: TokenEndpoint) -> None:
    with (
        FakeRegistry(authorization="Bearer token-1") as server,
        open_client(server.url, **endpoint.settings()) as client,
    ):
        client.config(None)
        server.authorization = "Bearer token-2"
        assert client.subjects() == []
        server.authorization = "Bearer none"
        with pytest.raises(RegistryForbidden):
            client.subjects()
    assert len(endpoint.forms) == 3


@pytest.mark.parametrize("seconds", [0.0001, 0, -1, "soon", True, None])
def test_an_expired_token_is_replaced_and_a_nonsensical_lifetime_is_a_short_one(
    endpoint: TokenEndpoint, seconds: Any
) -> None:
    endpoint.fields = {"expires_in": seconds}
    with FakeRegistry() as server, open_client(server.url, **endpoint.settings()) as client:
        client.config(None)
        client.config(None)
    assert len(endpoint.forms) == (2 if seconds == 0.0001 else 1)


def test_a_wrong_client_is_terminal(endpoint: TokenEndpoint) -> None:
    with FakeRegistry() as server, open_client(server.url, **endpoint.settings("wr0ng")) as client:
        with pytest.raises(RegistryForbidden, match="token endpoint of the source registry refused") as caught:
            client.subjects()
        assert server.requests == []
    assert "wr0ng" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (answer("busy", "503 Busy"), RegistryUnreachable),
        (answer("<html>", "200 OK", "Content-Type: text/html"), MigrationError),
        (answer("{}"), MigrationError),
        (answer('{"access_token": "a\\r\\nX: y"}'), MigrationError),
        (answer('{"access_token": 5}'), MigrationError),
        (answer("", "302 Found", "Location: http://other.example/"), RegistryForbidden),
        (b"", RegistryUnreachable),
    ],
    ids=range(7),
)
def test_an_ill_token_endpoint_is_a_named_error(
    endpoint: TokenEndpoint, raw: bytes, kind: type[MigrationError]
) -> None:
    with HttpScript(raw) as script, FakeRegistry() as server:
        settings = endpoint.settings() | {"bearer.auth.issuer.endpoint.url": f"{script.url}/token"}
        with open_client(server.url, **settings) as client, pytest.raises(kind):
            client.subjects()
        assert server.requests == []


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.create()
    return made


def server_tls(authority: Authority, *, clients: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = authority.server()
    context.load_cert_chain(pair.certificate, pair.key)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.certificate)
    return context


@pytest.fixture(scope="module")
def mutual(authority: Authority) -> Iterator[FakeRegistry]:
    """A registry that admits clients with a certificate only."""
    with FakeRegistry(tls=server_tls(authority, clients=True)) as server:
        yield server


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.client("migration")


def encrypted(pair: Pair, password: str) -> str:
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    ).decode()


def test_client_certificates_by_path(mutual: FakeRegistry, authority: Authority, pair: Pair) -> None:
    settings = {
        "ssl.ca.location": str(authority.certificate),
        "ssl.certificate.location": str(pair.certificate),
        "ssl.key.location": str(pair.key),
    }
    with open_client(mutual.url, **settings) as client:
        assert client.subjects() == []


def test_client_certificates_as_text_leave_no_file(
    mutual: FakeRegistry, authority: Authority, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = {
        "ssl.ca.pem": authority.certificate.read_text(),
        "ssl.certificate.pem": pair.certificate.read_text(),
        "ssl.key.pem": encrypted(pair, SECRET),
        "ssl.key.password": SECRET,
    }
    with open_client(mutual.url, **settings) as client:
        assert client.subjects() == []
    assert list(tmp_path.iterdir()) == []


def test_a_key_may_be_in_the_file_of_its_certificate(mutual: FakeRegistry, authority: Authority, pair: Pair) -> None:
    settings = {"ssl.ca.location": str(authority.certificate), "ssl.certificate.location": str(pair.both)}
    with open_client(mutual.url, **settings) as client:
        assert client.subjects() == []


def test_without_a_certificate_the_registry_refuses(mutual: FakeRegistry, authority: Authority) -> None:
    with (
        open_client(mutual.url, **{"ssl.ca.location": str(authority.certificate)}) as client,
        pytest.raises((RegistryForbidden, RegistryUnreachable)),
    ):
        client.subjects()


def test_an_unknown_authority_is_terminal(authority: Authority) -> None:
    with (
        FakeRegistry(tls=server_tls(authority, clients=False)) as server,
        open_client(server.url) as client,
        pytest.raises(RegistryForbidden, match="certificate verify failed") as caught,
    ):
        client.subjects()
    assert "ssl.ca" in caught.value.next_step


def test_https_to_an_http_port_is_terminal() -> None:
    with (
        FakeRegistry() as server,
        open_client(server.url.replace("http:", "https:")) as client,
        pytest.raises(RegistryForbidden, match="TLS with the source registry failed"),
    ):
        client.subjects()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ssl.key.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
        ("ssl.key.location", "/nowhere/key.pem"),
        ("ssl.ca.location", "/nowhere/ca.pem"),
        ("ssl.ca.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
    ],
)
def test_unreadable_certificates_are_named(pair: Pair, key: str, text: str) -> None:
    settings = {"ssl.certificate.location": str(pair.certificate), key: text}
    with pytest.raises(ConnectionInvalid, match="certificates of the source registry cannot be used") as caught:
        open_client("https://127.0.0.1:1", **settings)
    assert "AAAA" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("HTTP_PROXY", "socks5://u:hunter2@127.0.0.1:1"), ("ALL_PROXY", "ftp://u:hunter2@127.0.0.1:1")]
)
def test_a_proxy_of_the_environment_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConnectionInvalid, match="has to be an HTTP proxy") as caught:
        open_client("http://127.0.0.1:1")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_folder_of_authorities_serves_the_token_endpoint_too(tmp_path: Path, endpoint: TokenEndpoint) -> None:
    open_client("https://127.0.0.1:1", **{"ssl.ca.location": str(tmp_path)}, **endpoint.settings()).close()


@pytest.mark.parametrize("password", [{}, {"ssl.key.password": "wr0ng"}])
def test_an_encrypted_key_without_its_password_is_refused_and_nobody_is_asked_for_it(
    pair: Pair, password: dict[str, str]
) -> None:
    settings = {"ssl.certificate.location": str(pair.certificate), "ssl.key.pem": encrypted(pair, SECRET), **password}
    with pytest.raises(ConnectionInvalid) as caught:
        open_client("https://127.0.0.1:1", **settings)
    assert "wr0ng" not in str(caught.value)


def test_the_token_endpoint_may_be_behind_the_same_authority(authority: Authority, endpoint: TokenEndpoint) -> None:
    script = HttpScript(endpoint._answer, tls=server_tls(authority, clients=False))
    with script, FakeRegistry(tls=server_tls(authority, clients=False)) as server:
        settings = endpoint.settings() | {
            "bearer.auth.issuer.endpoint.url": f"{script.url}/token",
            "ssl.ca.location": str(authority.certificate),
        }
        with open_client(server.url, **settings) as client:
            assert client.subjects() == []


# -- secrets ----------------------------------------------------------------------------------------------------------


def echo(request: Request) -> Reply:
    """Answer with the credentials that came, as an ill gateway does."""
    sent = request.headers.get("authorization", "")
    plain = base64.b64decode(sent.removeprefix("Basic ")).decode() if sent.startswith("Basic ") else sent
    return Reply.error(400, 40001, f"bad request with {sent} {plain}")


@pytest.mark.parametrize(
    "settings",
    [{"basic.auth.user.info": f"alice:{SECRET}"}, {"bearer.auth.token": SECRET}, {"oauth": "token-1"}],
    ids=["basic", "bearer", "oauth"],
)
def test_no_secret_in_errors_reprs_and_logs(
    settings: dict[str, str], endpoint: TokenEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hidden = [SECRET, basic("alice", SECRET).removeprefix("Basic ")]
    if "oauth" in settings:
        hidden, settings = [SECRET, settings["oauth"]], endpoint.settings()
    shown: list[str] = []
    with FakeRegistry() as server, open_client(server.url, **settings) as client:
        shown += [repr(client), str(client), repr(vars(client))]
        server.before = echo
        with pytest.raises(RegistryRefused) as caught:
            client.versions("s")
        assert "bad request with" in str(caught.value)
        shown += _all_texts(caught.value)
        server.before = lambda request: Reply(503, echo(request).body)
        with pytest.raises(RegistryUnreachable) as unreachable:
            client.versions("s")
        shown += _all_texts(unreachable.value)
    shown += [record.getMessage() for record in caplog.records]
    for text in shown:
        for secret in hidden:
            assert secret not in text


def _all_texts(error: MigrationError) -> list[str]:
    again = pickle.loads(pickle.dumps(error))
    return [
        *(str(each) + repr(each) + json.dumps(each.as_dict()) for each in (error, again)),
        *traceback.format_exception(error),
    ]
