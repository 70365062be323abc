"""How a schema registry is reached: addresses, credentials, certificates and bounds.

The settings are one JSON object with the keys of Confluent's Python client, as an ``env:`` or ``file:`` reference holds
it and as an Airflow connection of type ``http`` is translated to it::

    {"url": "https://registry-1.example:8081,https://registry-2.example:8081"}
    {"url": "https://registry.example/apis/ccompat/v7", "basic.auth.user.info": "user:password"}
    {"url": "...", "bearer.auth.token": "..."}
    {"url": "...", "bearer.auth.issuer.endpoint.url": "https://idp.example/token", "bearer.auth.client.id": "...",
     "bearer.auth.client.secret": "...", "bearer.auth.scope": "..."}
    {"url": "...", "ssl.ca.location": "/etc/ca.pem", "ssl.certificate.location": "...", "ssl.key.location": "..."}

Certificates and keys are paths (``*.location``) or PEM text (``*.pem``, as librdkafka names it). A client certificate
can be combined with any kind of credentials.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard
from urllib.parse import SplitResult, quote, urlsplit

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where

Auth = Literal["none", "basic", "bearer", "oauth"]

#: One request, from connecting to the last byte of its answer.
TIMEOUT_SECONDS = 30.0
#: A call that has failed is tried again until this time is over.
RETRY_SECONDS = 60.0
PARALLEL_REQUESTS = 8
#: No connection pool of the HTTP client holds more.
MOST_PARALLEL_REQUESTS = 100
ANSWER_BYTES = 32 * 1024 * 1024

_STATIC_TOKEN, _OAUTH = "STATIC_TOKEN", "OAUTHBEARER"
_BASIC_SOURCE, _BASIC = "basic.auth.credentials.source", "basic.auth.user.info"
_BEARER_SOURCE = "bearer.auth.credentials.source"
_TOKEN = "bearer.auth.token"  # noqa: S105 - the name of a key
_OAUTH_KEYS = ("bearer.auth.issuer.endpoint.url", "bearer.auth.client.id", "bearer.auth.client.secret")
_SCOPE = "bearer.auth.scope"
_CLUSTER, _POOL = "bearer.auth.logical.cluster", "bearer.auth.identity.pool.id"
_FILES = ("ssl.ca", "ssl.certificate", "ssl.key")
_KEY_PASSWORD = "ssl.key.password"  # noqa: S105 - the name of a key

KEYS = frozenset(
    {"url", "timeout", "proxy", _BASIC_SOURCE, _BASIC, _BEARER_SOURCE, _TOKEN, _SCOPE, _CLUSTER, _POOL, _KEY_PASSWORD}
    | set(_OAUTH_KEYS)
    | {f"{name}.{form}" for name in _FILES for form in ("location", "pem")}
)


@dataclass(frozen=True)
class Pem:
    """A certificate or key: the path of a PEM file, or its text. The other one is empty."""

    path: str = ""
    text: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.path or self.text)


@dataclass(frozen=True)
class Tls:
    """What TLS needs in addition to the authorities that the machine trusts."""

    ca: Pem = Pem()
    certificate: Pem = Pem()
    key: Pem = Pem()
    key_password: str = field(default="", repr=False)


@dataclass(frozen=True)
class OAuthClient:
    """A client that fetches its tokens with the grant ``client_credentials``."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""


@dataclass(frozen=True)
class RegistryAccess:
    """Validated settings of one registry. Its ``repr`` shows no secret.

    :param urls: base URLs without a slash at the end; they may have a path and are tried in turn.
    :param timeout_seconds: bound of one request, from connecting to the last byte of its answer.
    :param retry_seconds: for so long a call is tried again. Its last round of tries may begin just before the end, and
        takes up to ``timeout_seconds`` for each of the ``urls``, or several times that where an OAuth token is fetched.
    :param logical_cluster: header ``target-sr-cluster`` of Confluent Cloud, with a token.
    :param identity_pool: header ``Confluent-Identity-Pool-Id`` of Confluent Cloud, with a token.
    """

    urls: tuple[str, ...]
    auth: Auth = "none"
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    oauth: OAuthClient | None = None
    logical_cluster: str = ""
    identity_pool: str = ""
    tls: Tls = Tls()
    proxy: str = field(default="", repr=False)
    timeout_seconds: float = TIMEOUT_SECONDS
    retry_seconds: float = RETRY_SECONDS
    max_parallel_requests: int = PARALLEL_REQUESTS
    max_answer_bytes: int = ANSWER_BYTES

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        reference: str = "",
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        max_parallel_requests: int = PARALLEL_REQUESTS,
        max_answer_bytes: int = ANSWER_BYTES,
    ) -> RegistryAccess:
        """Validate settings. The key ``timeout`` (seconds) takes precedence over ``timeout_seconds``.

        :param reference: where the settings come from, for the error.
        :raises ConnectionInvalid: ``details["mistakes"]`` lists all mistakes; no value is ever quoted.
        """
        reader = _Reader(settings)
        access = reader.access(timeout_seconds, retry_seconds, max_parallel_requests, max_answer_bytes)
        if access is None:
            count = len(reader.mistakes)
            raise ConnectionInvalid(
                f"the settings of the schema registry have {count} mistake{'s' if count > 1 else ''}: "
                + "; ".join(reader.mistakes),
                where=Where(path=reference or None),
                next_step='correct the connection; a small one is {"url": "https://registry.example:8081"}',
                details={"mistakes": reader.mistakes},
            )
        return access

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in an error or a log, the longest first."""
        found = {self.password, self.token, self.tls.key_password, self.tls.key.text}
        if self.username:
            found.add(base64.b64encode(f"{self.username}:{self.password}".encode()).decode())
        if self.oauth is not None:
            found.add(self.oauth.client_secret)
        found.add(urlsplit(self.proxy).password or "")
        found |= {quote(secret, safe="") for secret in found}
        return tuple(sorted(filter(None, found), key=len, reverse=True))


class _Reader:
    """Reads settings once and gathers all mistakes."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self.mistakes: list[str] = []

    def access(
        self, timeout_seconds: float, retry_seconds: float, max_parallel_requests: int, max_answer_bytes: int
    ) -> RegistryAccess | None:
        """Return the settings; None if there are mistakes."""
        self._unknown_keys()
        urls = self._urls()
        auth = self._auth()
        tls = self._tls(urls)
        access = RegistryAccess(
            urls=urls,
            auth=auth,
            **self._basic(auth),
            token=self._text(_TOKEN),
            oauth=self._oauth() if auth == "oauth" else None,
            logical_cluster=self._text(_CLUSTER),
            identity_pool=self._text(_POOL),
            tls=tls,
            proxy=self._proxy(),
            timeout_seconds=self._timeout(timeout_seconds),
            retry_seconds=retry_seconds,
            max_parallel_requests=max_parallel_requests,
            max_answer_bytes=max_answer_bytes,
        )
        if not 1 <= max_parallel_requests <= MOST_PARALLEL_REQUESTS:
            self.mistakes.append(f"max_parallel_requests: must lie between 1 and {MOST_PARALLEL_REQUESTS}")
        self.mistakes = list(dict.fromkeys(self.mistakes))  # a key may be read more than once
        return None if self.mistakes else access

    def _unknown_keys(self) -> None:
        for key in sorted(set(map(str, self._settings)) - KEYS):
            near = difflib.get_close_matches(key, KEYS, n=1)
            self.mistakes.append(f"{key}: unknown key" + (f" (did you mean {near[0]}?)" if near else ""))

    def _text(self, key: str) -> str:
        value = self._settings.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.mistakes.append(f"{key}: must be a text")
            return ""
        # A line break in a header value would smuggle in another header; PEM texts go to OpenSSL, not into headers.
        if not key.endswith(".pem") and any(ord(char) < 32 or ord(char) == 127 for char in value):
            self.mistakes.append(f"{key}: contains a control character, for instance a line break at its end")
            return ""
        return value

    def _urls(self) -> tuple[str, ...]:
        text = self._text("url")
        urls = [url.strip() for url in text.split(",")] if text else []
        if not urls and not any(mistake.startswith("url:") for mistake in self.mistakes):
            self.mistakes.append("url: missing")
        return tuple(url.rstrip("/") for url in urls if self._url_is_right("url", url))

    def _url_is_right(self, key: str, url: str, *, may_have_credentials: bool = False) -> bool:
        parts = _split(url)
        if not _is_http(parts):
            self.mistakes.append(f"{key}: must begin with http:// or https:// and name a host")
        elif "@" in parts.netloc and not may_have_credentials:
            self.mistakes.append(f"{key}: must not contain credentials; write them into {_BASIC}")
        elif parts.query or parts.fragment or "?" in url or "#" in url:
            self.mistakes.append(f"{key}: must not have a query or a fragment")
        else:
            return True
        return False

    def _proxy(self) -> str:
        proxy = self._text("proxy")
        if proxy:
            self._url_is_right("proxy", proxy, may_have_credentials=True)
        return proxy

    def _timeout(self, default: float) -> float:
        value = self._settings.get("timeout", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3600:
            self.mistakes.append("timeout: must be a number of seconds above 0 and at most 3600")
            return default
        return float(value)

    def _auth(self) -> Auth:
        """Return the kind of credentials; several kinds at once are a mistake."""
        kinds: list[Auth] = []
        if self._has(_BASIC, _BASIC_SOURCE):
            kinds.append("basic")
        source = self._text(_BEARER_SOURCE).upper()
        if source not in ("", _STATIC_TOKEN, _OAUTH):
            self.mistakes.append(f"{_BEARER_SOURCE}: must be {_STATIC_TOKEN} or {_OAUTH}")
        if self._has(_TOKEN) or source == _STATIC_TOKEN:
            kinds.append("bearer")
        if self._has(*_OAUTH_KEYS, _SCOPE) or source == _OAUTH:
            kinds.append("oauth")
        if len(kinds) > 1:
            self.mistakes.append(f"credentials: give one kind only, not {' and '.join(kinds)}")
        kind = kinds[0] if kinds else "none"
        if kind == "bearer" and not self._text(_TOKEN):
            self.mistakes.append(f"{_TOKEN}: missing")
        self.mistakes += [
            f"{key}: goes into a header, so it must be ASCII"
            for key in (_TOKEN, _CLUSTER, _POOL)
            if not self._text(key).isascii()
        ]
        if kind not in ("bearer", "oauth"):
            self.mistakes += [f"{key}: needs a token" for key in (_CLUSTER, _POOL) if self._has(key)]
        return kind

    def _has(self, *keys: str) -> bool:
        return any(self._settings.get(key) is not None for key in keys)

    def _basic(self, auth: Auth) -> dict[str, str]:
        if auth != "basic":
            return {}
        if self._text(_BASIC_SOURCE).upper() not in ("", "USER_INFO"):
            self.mistakes.append(f"{_BASIC_SOURCE}: must be USER_INFO")
        username, separator, password = self._text(_BASIC).partition(":")
        if not (separator and username):
            self.mistakes.append(f"{_BASIC}: must be user:password")
        return {"username": username, "password": password}

    def _oauth(self) -> OAuthClient:
        texts = [self._text(key) for key in _OAUTH_KEYS]
        self.mistakes += [f"{key}: missing" for key, text in zip(_OAUTH_KEYS, texts, strict=True) if not text]
        if texts[0]:
            self._url_is_right(_OAUTH_KEYS[0], texts[0])
        return OAuthClient(texts[0], texts[1], texts[2], self._text(_SCOPE))

    def _tls(self, urls: tuple[str, ...]) -> Tls:
        ca, certificate, key = (self._pem(name) for name in _FILES)
        tls = Tls(ca, certificate, key, self._text(_KEY_PASSWORD))
        if (key or tls.key_password) and not certificate:
            self.mistakes.append("ssl.certificate.location: missing, although there is a key for it")
        if (ca or certificate) and any(url.startswith("http://") for url in urls):
            self.mistakes.append("url: certificates need https://")
        return tls

    def _pem(self, name: str) -> Pem:
        path, text = self._text(f"{name}.location"), self._text(f"{name}.pem")
        if path and text:
            self.mistakes.append(f"{name}.pem: give either this or {name}.location")
        if text and "-----BEGIN " not in text:
            self.mistakes.append(f"{name}.pem: is not PEM text")
        return Pem(path, text)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return None
    return parts


def _is_http(parts: SplitResult | None) -> TypeGuard[SplitResult]:
    return parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
