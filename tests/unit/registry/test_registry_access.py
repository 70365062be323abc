from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import ConnectionInvalid
from airflow_provider_kafka_migration.registry.access import OAuthClient, Pem, RegistryAccess

URL = "https://registry.example:8081"
OAUTH = {
    "bearer.auth.issuer.endpoint.url": "https://idp.example/token",
    "bearer.auth.client.id": "me",
    "bearer.auth.client.secret": "hush",
}
PEM = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"


def access(**settings: Any) -> RegistryAccess:
    return RegistryAccess.from_dict({"url": URL} | settings)


def mistakes(settings: dict[str, Any]) -> list[str]:
    with pytest.raises(ConnectionInvalid) as caught:
        RegistryAccess.from_dict(settings, reference="env:REGISTRY")
    assert caught.value.where.path == "env:REGISTRY"
    found: list[str] = caught.value.details["mistakes"]
    assert all(mistake in str(caught.value) for mistake in found)
    return found


def test_urls_may_have_paths_and_be_several() -> None:
    found = RegistryAccess.from_dict({"url": "http://a:1/apis/ccompat/v7/, https://[::1]:2"})
    assert found.urls == ("http://a:1/apis/ccompat/v7", "https://[::1]:2")
    assert found.auth == "none"


def test_basic_credentials_may_contain_colons_in_the_password() -> None:
    found = access(**{"basic.auth.user.info": "alice:a:b", "basic.auth.credentials.source": "user_info"})
    assert (found.auth, found.username, found.password) == ("basic", "alice", "a:b")


def test_a_token() -> None:
    found = access(**{"bearer.auth.token": "t", "bearer.auth.logical.cluster": "lsrc-1"})
    assert (found.auth, found.token, found.logical_cluster) == ("bearer", "t", "lsrc-1")


def test_an_oauth_client() -> None:
    found = access(**OAUTH, **{"bearer.auth.scope": "read"})
    assert found.auth == "oauth"
    assert found.oauth == OAuthClient("https://idp.example/token", "me", "hush", "read")


def test_certificates_are_paths_or_texts() -> None:
    found = access(**{"ssl.ca.location": "/ca.pem", "ssl.certificate.pem": PEM, "ssl.key.pem": PEM})
    assert found.tls.ca == Pem(path="/ca.pem")
    assert found.tls.certificate == found.tls.key == Pem(text=PEM)


def test_bounds_are_parameters_and_the_connection_may_have_a_timeout() -> None:
    found = RegistryAccess.from_dict({"url": URL, "timeout": 7}, timeout_seconds=3, max_parallel_requests=2)
    assert (found.timeout_seconds, found.max_parallel_requests) == (7.0, 2)
    assert RegistryAccess.from_dict({"url": URL}, timeout_seconds=3).timeout_seconds == 3


def test_all_mistakes_are_named_at_once_and_no_value_is_quoted() -> None:
    settings = {
        "url": "https://alice:s3cret-1@registry.example",
        "basic.auth.userinfo": "s3cret-2",
        "bearer.auth.token": "s3cret-3\n",
        "basic.auth.user.info": "s3cret-4",
        "ssl.key.location": "/s3cret-5",
        "timeout": "s3cret-6",
        "ssl.ca.pem": "s3cret-7",
        "proxy": 7,
    }
    found = mistakes(settings)
    assert "s3cret" not in json.dumps(found)
    assert "7" not in json.dumps(found)
    named = {mistake.split(":")[0] for mistake in found}
    assert named == {
        "url",
        "basic.auth.userinfo",
        "bearer.auth.token",
        "basic.auth.user.info",
        "credentials",
        "ssl.certificate.location",
        "ssl.ca.pem",
        "timeout",
        "proxy",
    }
    assert "basic.auth.userinfo: unknown key (did you mean basic.auth.user.info?)" in found
    assert "url: must not contain credentials; write them into basic.auth.user.info" in found


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["url: missing"]),
        ({"url": ""}, ["url: missing"]),
        ({"url": 5}, ["url: must be a text"]),
        ({"url": "registry:8081"}, ["url: must begin with http:// or https:// and name a host"]),
        ({"url": "http://h:port"}, ["url: must begin with http:// or https:// and name a host"]),
        ({"url": "http://h,"}, ["url: must begin with http:// or https:// and name a host"]),
        ({"url": "http://h?x=1"}, ["url: must not have a query or a fragment"]),
        ({"url": "http://h", "ssl.ca.location": "/ca"}, ["url: certificates need https://"]),
        ({"url": URL, "bearer.auth.token": "t\u00f6"}, ["bearer.auth.token: goes into a header, so it must be ASCII"]),
        ({"url": URL, "timeout": True}, ["timeout: must be a number of seconds above 0 and at most 3600"]),
        ({"url": URL, "timeout": 0}, ["timeout: must be a number of seconds above 0 and at most 3600"]),
        ({"url": URL, "bearer.auth.token": "t\r\nX: y"}, ["bearer.auth.token"]),
        ({"url": URL, "bearer.auth.credentials.source": "STATIC_TOKEN"}, ["bearer.auth.token: missing"]),
        ({"url": URL, "bearer.auth.credentials.source": "CUSTOM"}, ["bearer.auth.credentials.source: must be"]),
        ({"url": URL, "basic.auth.credentials.source": "URL"}, ["basic.auth.credentials.source: must be USER_INFO"]),
        ({"url": URL, "bearer.auth.client.id": "a"}, ["bearer.auth.issuer.endpoint.url: missing"]),
        ({"url": URL, "bearer.auth.logical.cluster": "l"}, ["bearer.auth.logical.cluster: needs a token"]),
        (
            {"url": URL, **OAUTH, "basic.auth.user.info": "a:b"},
            ["credentials: give one kind only, not basic and oauth"],
        ),
        ({"url": URL, "ssl.ca.location": "/a", "ssl.ca.pem": PEM}, ["ssl.ca.pem: give either this or ssl.ca.location"]),
    ],
)
def test_mistakes(settings: dict[str, Any], expected: list[str]) -> None:
    found = mistakes(settings)
    for text in expected:
        assert any(mistake.startswith(text) for mistake in found), found


def test_too_many_parallel_requests_are_a_mistake() -> None:
    with pytest.raises(ConnectionInvalid, match="between 1 and 100"):
        RegistryAccess.from_dict({"url": URL}, max_parallel_requests=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"basic.auth.user.info": "alice:hush"},
        {"bearer.auth.token": "hush"},
        OAUTH,
        {"ssl.certificate.location": "/c", "ssl.key.pem": PEM, "ssl.key.password": "hush"},
        {"proxy": "http://me:hush@proxy:3128"},
    ],
)
def test_neither_repr_nor_str_shows_a_secret(settings: dict[str, Any]) -> None:
    found = access(**settings)
    assert pickle.loads(pickle.dumps(found)) == found
    assert any("hush" in secret for secret in found.secrets)
    for text in (repr(found), str(found), f"{found}"):
        assert "hush" not in text
        assert "c2VjcmV0" not in text
