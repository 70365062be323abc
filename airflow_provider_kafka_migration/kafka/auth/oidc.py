"""librdkafka's keys ``sasl.oauthbearer.*`` and ``https.ca.*`` -> where and how OAuth tokens are fetched.

Two grants, as librdkafka has them: ``client_credentials`` (RFC 6749), and a JWT that this machine signs or reads from a
file (``urn:ietf:params:oauth:grant-type:jwt-bearer``, RFC 7523).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CLIENT_CREDENTIALS = "client_credentials"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_GRANTS = (CLIENT_CREDENTIALS, JWT_BEARER)
_ALGORITHMS = ("RS256", "ES256")

_KEY = "sasl.oauthbearer."
_ASSERTION = f"{_KEY}assertion."
_METHOD, _GRANT, _URL = f"{_KEY}method", f"{_KEY}grant.type", f"{_KEY}token.endpoint.url"
_CLIENT_ID, _CLIENT_SECRET = f"{_KEY}client.id", f"{_KEY}client.secret"
#: Other names that librdkafka has for two keys.
_ALIASES = {
    f"{_KEY}client.credentials.client.id": _CLIENT_ID,
    f"{_KEY}client.credentials.client.secret": _CLIENT_SECRET,
}
#: What a signed assertion needs; none of it goes with an assertion from a file.
_SIGNING = (
    *("algorithm", "private.key.file", "private.key.pem", "private.key.passphrase", "jwt.template.file"),
    *("claim.aud", "claim.exp.seconds", "claim.iss", "claim.jti.include", "claim.nbf.seconds", "claim.sub"),
)

OIDC_KEYS = frozenset(
    {_METHOD, _GRANT, _URL, _CLIENT_ID, _CLIENT_SECRET, *_ALIASES}
    | {f"{_KEY}scope", f"{_KEY}extensions", f"{_KEY}sub.claim.name", f"{_ASSERTION}file"}
    | {f"{_ASSERTION}{name}" for name in _SIGNING}
    | {"https.ca.location", "https.ca.pem"}
)

_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x20-\x7e\t\r\n]*")


@dataclass(frozen=True)
class Assertion:
    """A JWT with which this machine asks for a token: the text of a file, or signed here with a private key.

    :param file: path of a JWT that something else renews; empty: sign one.
    :param template_file: path of a JSON object with ``header`` and ``payload``, which the other settings override.
    :param expires_seconds: lifetime from now.
    :param not_before_seconds: how far before now the assertion becomes valid, for clocks that differ.
    """

    file: str = ""
    key_file: str = ""
    key_pem: str = field(default="", repr=False)
    key_passphrase: str = field(default="", repr=False)
    algorithm: str = "RS256"
    template_file: str = ""
    audience: str = ""
    issuer: str = ""
    subject: str = ""
    expires_seconds: int = 300
    not_before_seconds: int = 60
    has_id: bool = False


@dataclass(frozen=True)
class OidcSettings:
    """Where and how OAuth tokens are fetched. Equal settings share one token in a process. ``repr`` hides secrets.

    :param extensions: SASL extensions for the broker (KIP-342), in the order of the connection.
    :param ca_location: authorities that sign the token endpoint's certificate: a PEM file or a folder.
    :param trusts_machine: whether the machine's own authorities are trusted, too.
    :param subject_claim: the claim that names the principal to librdkafka's logs.
    """

    token_url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    ca_location: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    trusts_machine: bool = True
    subject_claim: str = "sub"
    assertion: Assertion | None = None

    @property
    def shown_url(self) -> str:
        """The token endpoint without its query, which may hold a secret."""
        return self.token_url.partition("?")[0]


def uses_oidc(values: Mapping[str, Any]) -> bool:
    """Return whether a connection has any key of OIDC; ``https.ca.*`` alone asks for no token."""
    return any(key.startswith(_KEY) and key in OIDC_KEYS for key in values)


def settings_of(values: Mapping[str, Any]) -> tuple[OidcSettings | None, list[str]]:
    """Read a connection's keys. Values are never quoted, except of keys that take only a few.

    :returns: (settings, none if there are problems; problems).
    """
    reader = _Reader(values)
    settings = reader.settings()
    return (None if reader.problems else settings), reader.problems


class _Reader:
    """Reads keys once and gathers all problems."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {_ALIASES.get(key, key): value for key, value in values.items()}
        twice = [(alias, key) for alias, key in _ALIASES.items() if alias in values and key in values]
        self.problems = [f"{alias}: give either this or {key}" for alias, key in twice]

    def settings(self) -> OidcSettings:
        """Return the settings; they are worthless if there are problems."""
        if self._text(_METHOD).lower() != "oidc":
            self.problems.append(f"{_METHOD} is missing or has another value: write oidc")
        grant = self._choice(_GRANT, _GRANTS)
        if grant == CLIENT_CREDENTIALS:
            self._requires(_CLIENT_ID, _CLIENT_SECRET)
            self.problems += [f"{key}: needs {_GRANT} {JWT_BEARER}" for key in self._given_of_assertions()]
        location, pem = self._text("https.ca.location"), self._text("https.ca.pem")
        if location and pem:
            self.problems.append("https.ca.pem: give either this or https.ca.location")
        is_own = bool(pem or location) and location != "probe"
        return OidcSettings(
            token_url=self._url(),
            client_id=self._text(_CLIENT_ID),
            client_secret=self._text(_CLIENT_SECRET),
            scope=self._text(f"{_KEY}scope"),
            extensions=self._extensions(),
            ca_location=_usable_file(location if is_own else self._text("ssl.ca.location")),
            ca_pem=(pem if is_own else self._text("ssl.ca.pem")) or None,
            trusts_machine=not is_own,
            subject_claim=self._text(f"{_KEY}sub.claim.name") or "sub",
            assertion=self._assertion() if grant == JWT_BEARER else None,
        )

    def _text(self, key: str) -> str:
        value = self._values.get(key)
        return "" if value is None else str(value)

    def _choice(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self._text(key) or allowed[0]
        if value not in allowed:
            self.problems.append(f"{key} is {value!r}: use one of {', '.join(allowed)}")
        return value

    def _requires(self, *keys: str) -> None:
        self.problems += [f"{key} is missing" for key in keys if not self._text(key)]

    def _url(self) -> str:
        url = self._text(_URL)
        if not url:
            self.problems.append(f"{_URL} is missing")
            return ""
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port)
        except ValueError:
            usable = False
        if not usable or not url.isprintable() or " " in url:
            self.problems.append(f"{_URL}: must begin with https:// or http:// and name a host")
        elif "@" in parts.netloc:
            self.problems.append(f"{_URL}: must not contain a login; write {_CLIENT_ID} and {_CLIENT_SECRET}")
        elif parts.fragment:
            self.problems.append(f"{_URL}: must not have a fragment")
        return url

    def _extensions(self) -> tuple[tuple[str, str], ...]:
        key = f"{_KEY}extensions"
        found: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in self._text(key).split(","))):
            name, separator, value = part.partition("=")
            # RFC 7628: a name of letters; "auth" is the token itself.
            usable = separator and _EXTENSION_NAME.fullmatch(name) and name != "auth" and name not in found
            if not usable or not _EXTENSION_VALUE.fullmatch(value):
                self.problems.append(f"{key}: write name=value,name=value; each name once, of letters, and not auth")
                break
            found[name] = value
        return tuple(found.items())

    # -- assertions --------------------------------------------------------------------------------------------------

    def _given_of_assertions(self) -> list[str]:
        return sorted(key for key in self._values if key.startswith(_ASSERTION) and key in OIDC_KEYS)

    def _assertion(self) -> Assertion:
        file = self._text(f"{_ASSERTION}file")
        if file:
            others = [key for key in self._given_of_assertions() if key != f"{_ASSERTION}file"]
            self.problems += [f"{key}: does not go with {_ASSERTION}file" for key in others]
            return Assertion(file=file)
        keys = [f"{_ASSERTION}private.key.{kind}" for kind in ("file", "pem")]
        given = [key for key in keys if self._text(key)]
        if len(given) != 1:
            self.problems.append(f"{_GRANT} {JWT_BEARER} needs {_ASSERTION}file, or one of {' and '.join(keys)}")
        return Assertion(
            key_file=self._text(keys[0]),
            key_pem=self._text(keys[1]),
            key_passphrase=self._text(f"{_ASSERTION}private.key.passphrase"),
            algorithm=self._choice(f"{_ASSERTION}algorithm", _ALGORITHMS),
            template_file=self._text(f"{_ASSERTION}jwt.template.file"),
            audience=self._text(f"{_ASSERTION}claim.aud"),
            issuer=self._text(f"{_ASSERTION}claim.iss"),
            subject=self._text(f"{_ASSERTION}claim.sub"),
            expires_seconds=self._seconds(f"{_ASSERTION}claim.exp.seconds", 300, 1),
            not_before_seconds=self._seconds(f"{_ASSERTION}claim.nbf.seconds", 60, 0),
            has_id=self._choice(f"{_ASSERTION}claim.jti.include", ("false", "true")) == "true",
        )

    def _seconds(self, key: str, default: int, least: int) -> int:
        text = self._text(key)
        if not text:
            return default
        if not text.isascii() or not text.isdigit() or not least <= int(text) < 2**31:
            self.problems.append(f"{key}: must be a whole number of seconds, at least {least}")
            return default
        return int(text)


def _usable_file(path: str) -> str | None:
    return None if path in ("", "probe") else path
