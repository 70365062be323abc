"""One request to the token endpoint of an identity provider, with everything limited that the other side decides."""

from __future__ import annotations

import base64
import json
import logging
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlencode

from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    ConnectionInvalid,
    MigrationError,
    TokenUnavailable,
    Where,
)
from airflow_provider_kafka_migration.kafka.auth.assertion import assertion_text
from airflow_provider_kafka_migration.kafka.auth.oidc import CLIENT_CREDENTIALS, JWT_BEARER, OidcSettings

#: Longest wait for a connection, and for each piece of an answer.
STEP_SECONDS = 10.0
#: Longest wait for a whole answer.
ANSWER_SECONDS = 20.0
_ANSWER_BYTES = 1024 * 1024
#: A token whose answer and content name no lifetime is used for this long.
UNKNOWN_LIFETIME_SECONDS = 300.0
_LONGEST_LIFETIME_SECONDS = 86400.0
_BUSY = frozenset({408, 425, 429})
_BUSY_ERRORS = frozenset({"temporarily_unavailable", "server_error", "slow_down"})
#: What RFC 6750 allows a token to consist of.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_ERROR_CODE = re.compile(r"[\w.:/-]{1,60}")
_TOKEN_INSIDE = re.compile(r"eyJ[\w-]+\.[\w.-]+")
_MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class FetchedToken:
    """A token as it was answered. ``repr`` hides it.

    :param lifetime_seconds: from the moment when the request was sent.
    :param principal: whom it names; empty if that cannot be read.
    """

    value: str = field(repr=False)
    lifetime_seconds: float
    principal: str


class _Answer(NamedTuple):
    status: int
    content: bytes


class _TooLong(Exception):
    """The answer is too large, or takes too long."""


def fetch_token(settings: OidcSettings) -> FetchedToken:
    """Fetch a token. Proxies come from ``HTTPS_PROXY`` and ``NO_PROXY``; certificate files are read each time.

    :raises TokenUnavailable: the endpoint does not answer, or is busy.
    :raises AuthenticationFailed: it refuses the client, or its certificate is not accepted.
    :raises ConnectionInvalid: it is no token endpoint, or a file of the connection cannot be read.
    """
    _check_library()
    form, secrets = _form(settings)
    headers = {
        "Accept": "application/json",
        # Compressed answers could unpack to any size.
        "Accept-Encoding": "identity",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    if settings.assertion is None:
        client = base64.b64encode(f"{settings.client_id}:{settings.client_secret}".encode()).decode()
        headers["Authorization"] = f"Basic {client}"
        secrets.append(client)
    answer = _post(settings, headers, urlencode(form).encode())
    try:
        document = json.loads(answer.content)
    except ValueError:
        document = None
    found = document if isinstance(document, dict) else {}
    if not 200 <= answer.status <= 299:
        raise _refused(settings, answer.status, found, secrets)
    return _token_in(settings, found)


def _check_library() -> None:
    """Raise our error where the HTTP client is missing: executors of Spark have only what copiers usually need."""
    try:
        import httpx2  # noqa: F401
    except ImportError:
        raise ConnectionInvalid(
            "OAuth tokens need the package httpx2, which this machine lacks",
            next_step="pip install httpx2 on every machine that copies",
        ) from None


def _form(settings: OidcSettings) -> tuple[dict[str, str], list[str]]:
    """Return the fields of the request, and its secrets."""
    scope = {"scope": settings.scope} if settings.scope else {}
    if settings.assertion is None:
        return {"grant_type": CLIENT_CREDENTIALS, **scope}, [settings.client_secret]
    assertion = assertion_text(settings.assertion)
    return {"grant_type": JWT_BEARER, "assertion": assertion, **scope}, [assertion]


# -- HTTP -------------------------------------------------------------------------------------------------------------


def _post(settings: OidcSettings, headers: dict[str, str], content: bytes) -> _Answer:
    import httpx2

    # The HTTP client logs the whole address of each request at level INFO.
    if logging.getLogger("httpx2").level == logging.NOTSET:
        logging.getLogger("httpx2").setLevel(logging.WARNING)
    began = time.monotonic()
    try:
        with (
            httpx2.Client(verify=_tls(settings), timeout=STEP_SECONDS, follow_redirects=False) as client,
            client.stream("POST", settings.token_url, headers=headers, content=content) as response,
        ):
            body = bytearray()
            for part in response.iter_raw():
                body += part
                if len(body) > _ANSWER_BYTES or time.monotonic() - began > ANSWER_SECONDS:
                    raise _TooLong
            return _Answer(response.status_code, bytes(body))
    except _TooLong:
        raise unavailable(settings, "its answer is too large, or takes too long") from None
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeError):
        raise ConnectionInvalid(
            "the address of the token endpoint cannot be used",
            next_step="check sasl.oauthbearer.token.endpoint.url, and HTTPS_PROXY of this machine",
        ) from None
    except (httpx2.TransportError, OSError) as error:
        raise _no_answer(settings, error) from None


def _tls(settings: OidcSettings) -> ssl.SSLContext:
    """Trust the authorities of the connection and, unless ``https.ca.*`` is given, the machine's."""
    try:
        context = ssl.create_default_context() if settings.trusts_machine else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if settings.ca_pem:
            context.load_verify_locations(cadata=settings.ca_pem)
        if settings.ca_location:
            is_folder = not _is_file(settings.ca_location)
            context.load_verify_locations(**{"capath" if is_folder else "cafile": settings.ca_location})
    except (OSError, ValueError) as error:
        raise ConnectionInvalid(
            "the certificate authorities for the token endpoint cannot be loaded: "
            f"{getattr(error, 'strerror', None) or type(error).__name__}",
            next_step="check https.ca.location and https.ca.pem; without them ssl.ca.location and ssl.ca.pem",
        ) from None
    return context


def _is_file(path: str) -> bool:
    import stat
    from pathlib import Path

    return not stat.S_ISDIR(Path(path).stat().st_mode)


def unavailable(settings: OidcSettings, reason: str) -> TokenUnavailable:
    """Return the error for an endpoint that gives no token at present."""
    return TokenUnavailable(
        f"no OAuth token: the token endpoint does not answer: {reason}",
        where=Where(path=settings.shown_url),
        next_step="check that the identity provider runs and that this machine reaches it (sasl.oauthbearer."
        "token.endpoint.url, HTTPS_PROXY); then clear the task",
    )


def _no_answer(settings: OidcSettings, error: Exception) -> MigrationError:
    """Return our error for one of the HTTP client, whose text may quote a proxy's password and is left out."""
    import httpx2

    chain = list(_chain(error))
    refused = next((each for each in chain if isinstance(each, ssl.SSLCertVerificationError)), None)
    if refused is not None:
        return AuthenticationFailed(
            f"this machine does not accept the token endpoint's certificate: {refused.verify_message.rstrip('.')}",
            where=Where(path=settings.shown_url),
            next_step="set https.ca.location to the authority that signed it, and check the host name in "
            "sasl.oauthbearer.token.endpoint.url",
        )
    tls = next((each for each in chain if isinstance(each, ssl.SSLError) and each.reason), None)
    system = next((each for each in chain if isinstance(each, OSError) and each.strerror), None)
    if isinstance(error, httpx2.ProxyError):
        reason = "the proxy refuses to connect to it"
    elif isinstance(error, httpx2.TimeoutException):
        reason = f"no answer within {STEP_SECONDS:g} seconds"
    elif isinstance(tls, ssl.SSLError):
        reason = f"TLS failed: {(tls.reason or '').replace('_', ' ').lower()}"
    elif isinstance(system, OSError):
        reason = str(system.strerror)
    else:
        reason = type(error).__name__
    return unavailable(settings, reason)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


# -- answers ----------------------------------------------------------------------------------------------------------


def _refused(settings: OidcSettings, status: int, answer: dict[str, Any], secrets: list[str]) -> MigrationError:
    """Return our error for an answer that is no success. Its own words are quoted without anything secret."""
    where = Where(path=settings.shown_url)
    said = _said(answer, secrets)
    if status in _BUSY or status >= 500 or answer.get("error") in _BUSY_ERRORS:
        return TokenUnavailable(
            f"no OAuth token: the token endpoint answered HTTP {status}{said}",
            where=where,
            next_step="wait until the identity provider has recovered; then clear the task",
        )
    if status in (400, 401, 403):
        check = "sasl.oauthbearer.client.id, .client.secret" if settings.assertion is None else "the assertion's keys"
        return AuthenticationFailed(
            f"the token endpoint refused the client: HTTP {status}{said}",
            where=where,
            next_step=f"check {check} and sasl.oauthbearer.scope of the connection, and the client at the provider",
        )
    what = "a redirect, which we do not follow" if 300 <= status <= 399 else "no answer of a token endpoint"
    return ConnectionInvalid(
        f"the address of the token endpoint answered HTTP {status}: {what}",
        where=where,
        next_step="correct sasl.oauthbearer.token.endpoint.url (the provider's metadata calls it token_endpoint)",
    )


def _said(answer: dict[str, Any], secrets: list[str]) -> str:
    """Return the provider's error code and description, as they may be shown."""
    code, description = answer.get("error"), answer.get("error_description")
    if not isinstance(code, str) or not _ERROR_CODE.fullmatch(code):
        return ""
    text = code if not isinstance(description, str) else f"{code}: {description}"
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    text = _TOKEN_INSIDE.sub("***", "".join(char if char.isprintable() else " " for char in text))
    return f" ({text[:_MESSAGE_CHARACTERS]})"


def _token_in(settings: OidcSettings, answer: dict[str, Any]) -> FetchedToken:
    # Google answers an assertion that names an audience with an id_token and no access_token.
    names = ("access_token",) if settings.assertion is None else ("access_token", "id_token")
    value = next((answer[name] for name in names if answer.get(name)), None)
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ConnectionInvalid(
            "the answer of the token endpoint has no usable access_token",
            where=Where(path=settings.shown_url),
            next_step="check sasl.oauthbearer.token.endpoint.url, and what the identity provider issues to this client",
        )
    claims = _claims(value)
    principal = claims.get(settings.subject_claim)
    return FetchedToken(value, _lifetime(answer, claims), principal if isinstance(principal, str) else "")


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT, unverified: the broker verifies them. Empty for an opaque token."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _lifetime(answer: dict[str, Any], claims: dict[str, Any]) -> float:
    """Return the shorter of ``expires_in`` and the claim ``exp``.

    A provider may hand out a token from its cache with the lifetime that it had when it was new. An ``exp`` in the past
    of this machine's clock says only that the clocks differ.
    """
    exp = _number(claims.get("exp"))
    found = [_number(answer.get("expires_in")), exp - time.time() if exp else 0.0]
    usable = [min(seconds, _LONGEST_LIFETIME_SECONDS) for seconds in found if seconds > 0]
    return min(usable, default=UNKNOWN_LIFETIME_SECONDS)


def _number(value: object) -> float:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return float(value)  # Microsoft's older endpoints answer texts
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
