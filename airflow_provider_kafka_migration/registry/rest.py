"""HTTP with bounds: everything is limited that a hostile or ill server decides.

The HTTP client alone has a timeout per read, so a server that sends one byte at a time is read for ever, and reads
answers of any size into memory. Here a request has a deadline and a limit of its answer's size, is tried again within a
bound of time that ``Retry-After`` may use up, and errors quote no whole answers.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import json
import logging
import math
import random
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2

from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    RegistryAnswerInvalid,
    RegistryForbidden,
    RegistryRefused,
    RegistryUnreachable,
    Where,
)
from airflow_provider_kafka_migration.registry.access import Pem, RegistryAccess

log = logging.getLogger(__name__)

#: The HTTP client logs each request at level INFO: thousands of lines per synchronization.
if logging.getLogger(httpx2.__name__).level == logging.NOTSET:
    logging.getLogger(httpx2.__name__).setLevel(logging.WARNING)

_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
#: A server that answers 500 three times does so for a reason; it is not busy.
_TRIES_AFTER_500 = 3
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 5.0
_MESSAGE_CHARACTERS = 300
#: Without a lifetime in the answer, a token is used for this long.
_TOKEN_SECONDS = 300.0
_TOKEN_BYTES = 1024 * 1024
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json"
_BODY_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True)
class Answer:
    """A whole answer within the limits. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def succeeded(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status <= 299

    @property
    def media_type(self) -> str:
        """The content type without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class SchemaRegistryError(Exception):
    """A registry's own refusal.

    :param error_code: the registry's code; None: it gave none, so whatever lies before it may have answered.
    """

    def __init__(self, http_status_code: int, error_code: int | None, error_message: str) -> None:
        super().__init__(http_status_code, error_code, error_message)
        self.http_status_code = http_status_code
        self.error_code = error_code
        self.error_message = error_message

    def __str__(self) -> str:
        return f"{self.error_message} (HTTP {self.http_status_code}, code {self.error_code})"


class BoundedRestClient:
    """Sends requests to one registry. Thread-safe.

    :param role: ``source`` or ``target``, for errors.
    :raises ConnectionInvalid: a certificate or key cannot be read, or a proxy of the environment cannot be used.
    """

    def __init__(self, access: RegistryAccess, role: str) -> None:
        self._access = access
        self._role = role
        self._slots = threading.BoundedSemaphore(access.max_parallel_requests)
        #: Moment of the monotonic clock after which nothing is sent.
        self.send_until = math.inf
        self._token_lock = threading.Lock()
        self._token, self._token_expires_at = "", 0.0
        with _pem_files(access) as files:
            try:
                tls = _tls(access, files)
                token_tls = _token_tls(files) if access.oauth is not None else None
            except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
                raise ConnectionInvalid(
                    f"the certificates of the {role} registry cannot be used: {_tls_reason(error)}",
                    where=self.where,
                    next_step="check ssl.ca, ssl.certificate, ssl.key and ssl.key.password in its connection",
                ) from None
        self.session = self._client(
            tls,
            auth=(access.username, access.password) if access.auth == "basic" else None,
            proxy=access.proxy or None,
        )
        if token_tls is not None:
            self._token_session = self._client(token_tls)

    def _client(self, tls: ssl.SSLContext, **options: Any) -> httpx2.Client:
        try:
            client = httpx2.Client(verify=tls, timeout=self._access.timeout_seconds, **options)
        except (ImportError, ValueError, httpx2.InvalidURL):
            # The texts of these errors may quote a proxy's password.
            raise ConnectionInvalid(
                f"a proxy for the {self._role} registry cannot be used: it has to be an HTTP proxy",
                where=self.where,
                next_step="check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY of the environment; proxy in the "
                "connection takes precedence",
            ) from None
        _bound_streams(client)
        return client

    @property
    def base_urls(self) -> tuple[str, ...]:
        """The equal addresses of the registry, without a slash at their ends."""
        return self._access.urls

    @property
    def where(self) -> Where:
        """The registry, for errors."""
        return Where(path=self._access.urls[0])

    def close(self) -> None:
        """Close all connections."""
        self.session.close()
        if self._access.oauth is not None:
            self._token_session.close()

    def scrub(self, text: object) -> str:
        """Make a server's text fit for an error: one line, short, without the secrets of this connection."""
        line = "".join(char if char.isprintable() else " " for char in str(text))
        for secret in (*self._access.secrets, self._token):
            line = line.replace(secret, "***") if secret else line
        return line if len(line) <= _MESSAGE_CHARACTERS else line[:_MESSAGE_CHARACTERS] + "..."

    # -- requests -----------------------------------------------------------------------------------------------------

    def get(self, url: str, query: dict[str, Any] | None = None) -> Any:
        """Send a request as :meth:`send_request`."""
        return self.send_request(url, "GET", query=query)

    def put(self, url: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request as :meth:`send_request`."""
        return self.send_request(url, "PUT", body=body)

    def delete(self, url: str, query: dict[str, Any] | None = None) -> Any:
        """Send a request as :meth:`send_request`."""
        return self.send_request(url, "DELETE", query=query)

    def send_request(
        self,
        url: str,
        method: str,
        body: dict[str, Any] | None = None,
        query: dict[str, Any] | None = None,
    ) -> Any:
        """Send a request to the first base URL that answers, and return the JSON of the answer.

        :returns: None for an answer without content.
        :raises SchemaRegistryError: the registry's own refusal; ``error_code`` is None if it gave none.
        :raises RegistryUnreachable: no answer within the bounds.
        :raises RegistryForbidden: HTTP 401 or 403, or a TLS handshake that fails permanently.
        :raises RegistryAnswerInvalid: the answer is not JSON, is too large, or redirects.
        """
        headers = {"Accept": _ACCEPT}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            # Without this header, newer registries refuse fields that only older or other ones know.
            headers |= {"Content-Type": _BODY_TYPE, "Confluent-Accept-Unknown-Properties": "true"}
        addresses = [f"{base}/{url}" for base in self.base_urls]
        answer = self.exchange(method, addresses, headers=headers, content=content, query=query)
        if not answer.succeeded:
            raise self._refusal(answer)
        return self.json_of(answer) if answer.content else None

    def exchange(
        self,
        method: str,
        addresses: list[str],
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        query: Mapping[str, Any] | None = None,
        max_answer_bytes: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Answer:
        """Send a request to the first of equal addresses that answers; retry 429, 5xx and lost connections.

        :returns: any answer except 401, 403, redirects, and those that are retried.
        :raises MigrationError: as :meth:`send_request`.
        """
        limits = _Limits(
            timeout_seconds or self._access.timeout_seconds, max_answer_bytes or self._access.max_answer_bytes
        )
        request = _Request(method, dict(headers or {}), content, dict(query or {}), limits)
        with self._slots:
            return self._until_answered(addresses, request)

    @property
    def timeout_seconds(self) -> float:
        """Bound of one request, from connecting to the last byte of its answer."""
        return self._access.timeout_seconds

    @property
    def max_parallel_requests(self) -> int:
        """How many requests are sent at once; more wait."""
        return self._access.max_parallel_requests

    def json_of(self, answer: Answer) -> Any:
        """Parse an answer.

        :raises RegistryAnswerInvalid: it is not JSON.
        """
        try:
            return json.loads(answer.content)
        except (ValueError, RecursionError):
            kind = self.scrub(answer.media_type) or "no content type"
            raise self.invalid(f"is not JSON (HTTP {answer.status}, {kind})") from None

    def invalid(self, what: str) -> RegistryAnswerInvalid:
        """Return the error for an answer that no registry gives."""
        return RegistryAnswerInvalid(
            f"the answer of the {self._role} registry {what}",
            where=self.where,
            next_step="check that the URL of its connection is the base URL of a registry, and what lies between",
        )

    def _refusal(self, answer: Answer) -> SchemaRegistryError:
        """Return what a registry says with a status of 4xx. Gateways in front of it answer 404 with HTML, so text that
        is not the registry's own has no code."""
        try:
            value = json.loads(answer.content)
        except (ValueError, RecursionError):
            value = None
        value = value if isinstance(value, dict) else {}
        code = value.get("error_code")
        is_number = isinstance(code, int) and not isinstance(code, bool)
        return SchemaRegistryError(answer.status, code if is_number else None, self.scrub(value.get("message", "")))

    def _until_answered(self, addresses: list[str], request: _Request) -> Answer:
        gives_up_at = time.monotonic() + self._access.retry_seconds
        tries = 0
        while True:
            failure = _Failure("")
            for address in addresses:
                outcome = self._try(address, request)
                if isinstance(outcome, Answer):
                    return outcome
                failure = outcome
            tries += 1
            wait = _wait_seconds(tries, failure)
            too_often = failure.status == 500 and tries >= _TRIES_AFTER_500
            if too_often or time.monotonic() + wait > min(gives_up_at, self.send_until):
                raise self._unreachable(failure, tries)
            if tries == 1:
                log.info("The %s registry: %s; trying again", self._role, failure.what)
            time.sleep(wait)

    def _unreachable(self, failure: _Failure, tries: int) -> RegistryUnreachable:
        return RegistryUnreachable(
            f"the {self._role} registry gives no usable answer after {tries} tries: {failure.what}",
            where=self.where,
            next_step="check that the registry runs and can be reached from here; then clear the task",
            details={"status": failure.status},
        )

    def _try(self, address: str, request: _Request) -> Answer | _Failure:
        """Send once; with an expired OAuth token, once more with a new one."""
        try:
            answer = self._send(self.session, address, request.with_headers(self._credentials()))
            if answer.status == 401 and self._access.oauth is not None:
                self._forget_token()
                answer = self._send(self.session, address, request.with_headers(self._credentials()))
        except (httpx2.TransportError, _DeadlinePassed, OSError) as error:
            return self._failure_of(error)
        if answer.status in _RETRIED:
            return _Failure(self._status_text(answer), answer.status, _retry_after(answer))
        self._check_status(answer)
        return answer

    def _status_text(self, answer: Answer) -> str:
        refusal = self._refusal(answer)
        said = f" (code {refusal.error_code}: {refusal.error_message})" if refusal.error_code is not None else ""
        return f"it answered HTTP {answer.status}{said}"

    def _failure_of(self, error: Exception) -> _Failure:
        """Return why there is no answer. The text of the HTTP client's errors is left out: it may quote anything."""
        if isinstance(error, _DeadlinePassed):
            return _Failure("no whole answer within the timeout")
        handshake = _tls_error(error)
        if handshake is not None:
            raise RegistryForbidden(
                f"TLS with the {self._role} registry failed: {_tls_reason(handshake)}",
                where=self.where,
                next_step="check ssl.ca, ssl.certificate and ssl.key in its connection, and http or https in its URL",
            ) from None
        return _Failure(_connection_reason(error))

    def _check_status(self, answer: Answer) -> None:
        if answer.status in (401, 403):
            raise RegistryForbidden(
                f"the {self._role} registry refused the credentials: HTTP {answer.status}",
                where=self.where,
                next_step="check the credentials in its connection, and the rights of that user",
                details={"status": answer.status},
            )
        if 300 <= answer.status <= 399:
            # A redirect would carry the credentials to wherever the answer says. Its address may contain a token.
            target = urlsplit(answer.headers.get("location", ""))
            host = self.scrub(target.hostname or "an address of the same host")
            raise self.invalid(f"is a redirect to {host} (HTTP {answer.status}), which we do not follow")
        if answer.status < 200 or answer.status > 599:
            raise self.invalid(f"has the status {answer.status}")

    def _send(self, session: httpx2.Client, address: str, request: _Request) -> Answer:
        """Send once and read the answer within the deadline and the limit."""
        if time.monotonic() > self.send_until:
            raise RegistryUnreachable(
                f"the {self._role} registry was not asked any more: the time for the change has passed",
                where=self.where,
                next_step="check that the registry answers quickly enough; then try again",
            )
        _deadline.at = time.monotonic() + request.limits.timeout_seconds
        try:
            outgoing = session.build_request(
                request.method,
                address,
                headers=request.headers,
                content=request.content,
                params=request.query or None,
                timeout=request.limits.timeout_seconds,
            )
            response = session.send(outgoing, stream=True)
            try:
                return self._read(response, request.limits.answer_bytes)
            finally:
                response.close()
        except (httpx2.InvalidURL, UnicodeEncodeError):
            raise RegistryRefused(
                f"a name cannot be part of an address of the {self._role} registry",
                where=self.where,
                next_step="exclude the subject with the unusual name",
            ) from None
        finally:
            _deadline.at = None

    def _read(self, response: Any, limit: int) -> Answer:
        headers = {name.lower(): value for name, value in response.headers.items()}
        if headers.get("content-encoding", "identity") != "identity":
            # Compressed answers could unpack to any size; the request asks for none.
            raise self.invalid("is compressed, although the request does not accept that")
        content = bytearray()
        for part in response.iter_raw():
            content += part
            if len(content) > limit:
                raise self.invalid(f"is larger than {limit} bytes")
            if time.monotonic() > (_deadline.at or 0.0):
                raise _DeadlinePassed
        return Answer(response.status_code, headers, bytes(content))

    # -- credentials --------------------------------------------------------------------------------------------------

    def _credentials(self) -> dict[str, str]:
        """Return the headers of a bearer token; basic credentials belong to the session."""
        if self._access.auth not in ("bearer", "oauth"):
            return {}
        token = self._access.token if self._access.auth == "bearer" else self._oauth_token()
        headers = {"Authorization": f"Bearer {token}"}
        if self._access.logical_cluster:
            headers["target-sr-cluster"] = self._access.logical_cluster
        if self._access.identity_pool:
            headers["Confluent-Identity-Pool-Id"] = self._access.identity_pool
        return headers

    def _forget_token(self) -> None:
        with self._token_lock:
            self._token_expires_at = 0.0

    def _oauth_token(self) -> str:
        with self._token_lock:
            if time.monotonic() >= self._token_expires_at:
                self._token, seconds = self._fetch_token()
                # A token that expires within a request is worth nothing: it is replaced at 80 % of its lifetime.
                self._token_expires_at = time.monotonic() + 0.8 * seconds
            return self._token

    def _fetch_token(self) -> tuple[str, float]:
        """Return a token and its lifetime in seconds."""
        oauth = self._access.oauth
        assert oauth is not None
        client = f"{oauth.client_id}:{oauth.client_secret}"
        form = {"grant_type": "client_credentials"} | ({"scope": oauth.scope} if oauth.scope else {})
        request = _Request(
            "POST",
            {
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
                "Authorization": "Basic " + base64.b64encode(client.encode()).decode(),
            },
            urlencode(form).encode(),
            {},
            _Limits(self._access.timeout_seconds, _TOKEN_BYTES),
        )
        answer = self._send(self._token_session, oauth.token_url, request)
        if answer.status in _RETRIED:
            raise _TokenEndpointBusy(f"the token endpoint answered HTTP {answer.status}")
        if not answer.succeeded:
            raise RegistryForbidden(
                f"the token endpoint of the {self._role} registry refused the client: HTTP {answer.status}",
                where=self.where,
                next_step="check bearer.auth.client.id, .client.secret, .scope and .issuer.endpoint.url",
                details={"status": answer.status},
            )
        return self._token_in(answer)

    def _token_in(self, answer: Answer) -> tuple[str, float]:
        value = self.json_of(answer)
        token = value.get("access_token") if isinstance(value, dict) else None
        if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
            raise self.invalid("to the request for a token has no usable access_token")
        seconds = value.get("expires_in", _TOKEN_SECONDS)
        usable = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
        return token, float(min(seconds, 86400)) if usable else _TOKEN_SECONDS


# -- one request ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Limits:
    timeout_seconds: float
    answer_bytes: int


@dataclass(frozen=True)
class _Request:
    method: str
    headers: dict[str, str]
    content: bytes | None
    query: dict[str, Any]
    limits: _Limits

    def with_headers(self, more: Mapping[str, str]) -> _Request:
        return replace(self, headers={"Accept-Encoding": "identity", **self.headers, **more})


@dataclass(frozen=True)
class _Failure:
    """Why a request has no answer yet."""

    what: str
    status: int | None = None
    retry_after_seconds: float = 0.0


class _TokenEndpointBusy(OSError):
    """Retried like a lost connection."""


def _wait_seconds(tries: int, failure: _Failure) -> float:
    doubled: float = min(_FIRST_WAIT_SECONDS * 2 ** (tries - 1), _LONGEST_WAIT_SECONDS)
    return max(doubled * random.uniform(0.5, 1.0), failure.retry_after_seconds)  # noqa: S311 - jitter


def _retry_after(answer: Answer) -> float:
    """Return ``Retry-After`` in seconds; 0 where the header is missing or nonsense."""
    text = answer.headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


def _connection_reason(error: Exception) -> str:
    if isinstance(error, _TokenEndpointBusy):
        return str(error)
    if isinstance(error, httpx2.ConnectError):
        system = next((each for each in _chain(error) if isinstance(each, OSError) and each.strerror), None)
        return "no connection" + (f" ({system.strerror})" if system is not None else "")
    if isinstance(error, httpx2.TimeoutException):
        return "no answer within the timeout"
    return f"the connection broke ({type(error).__name__})"


# -- deadlines --------------------------------------------------------------------------------------------------------
#
# The HTTP client has timeouts per read. The wrappers below shorten each of them to what is left of the request's
# deadline, which belongs to the thread that sends the request. They know only the methods of its network streams.


class _DeadlinePassed(Exception):
    """The request took longer than its timeout."""


class _Deadline(threading.local):
    at: float | None = None


_deadline = _Deadline()


def _left(timeout: float | None) -> float | None:
    if _deadline.at is None:
        return timeout
    left = _deadline.at - time.monotonic()
    if left <= 0:
        raise _DeadlinePassed
    return left if timeout is None else min(left, timeout)


class _BoundedStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        received: bytes = self._stream.read(max_bytes, _left(timeout))
        return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(timeout))

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Any:
        return _BoundedStream(self._stream.start_tls(ssl_context, server_hostname, _left(timeout)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _BoundedBackend:
    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> Any:
        return _BoundedStream(self._backend.connect_tcp(host, port, timeout=_left(timeout), **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def _bound_streams(session: Any) -> None:
    """Bound all network streams of a session.

    ``httpx2`` offers no public way to give its transports another network backend. If an attribute has another name one
    day, a test fails; until then the timeouts per read and the check between parts of an answer remain.
    """
    transports = [getattr(session, "_transport", None), *getattr(session, "_mounts", {}).values()]
    for transport in transports:
        pool: Any = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if backend is not None:
            pool._network_backend = _BoundedBackend(backend)


# -- TLS --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _pem_files(access: RegistryAccess) -> Iterator[dict[str, str]]:
    """Yield the paths of CA, certificate and key. OpenSSL reads keys from files only, so text becomes a private file
    for as long as it takes to load it."""
    pems = {"ca": access.tls.ca, "certificate": access.tls.certificate, "key": access.tls.key}
    with tempfile.TemporaryDirectory(prefix="kafka-migration-") as folder:
        yield {name: _path_of(pem, Path(folder) / name) for name, pem in pems.items() if pem}


def _path_of(pem: Pem, spare: Path) -> str:
    if pem.path:
        return pem.path
    spare.touch(mode=0o600)
    spare.write_text(pem.text, encoding="utf-8")
    return str(spare)


def _tls(access: RegistryAccess, files: Mapping[str, str]) -> ssl.SSLContext:
    """Trust the configured authorities or, without any, those of the machine; show the certificate."""
    file, folder = _authorities(files.get("ca"))
    context = ssl.create_default_context(cafile=file, capath=folder)
    if "certificate" in files:
        # Without any password, OpenSSL would ask for the one of an encrypted key on the terminal, and wait.
        context.load_cert_chain(files["certificate"], files.get("key"), access.tls.key_password)
    return context


def _token_tls(files: Mapping[str, str]) -> ssl.SSLContext:
    """Trust the machine's authorities and the configured one: the token endpoint may be behind either."""
    context = ssl.create_default_context()
    if "ca" in files:
        context.load_verify_locations(*_authorities(files["ca"]))
    return context


def _authorities(path: str | None) -> tuple[str | None, str | None]:
    """Return a file and a folder of authorities, one of which the path is."""
    return (None, path) if path is not None and Path(path).is_dir() else (path, None)


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """Return the TLS error behind an error of the HTTP client, unless it is only a lost connection."""
    for each in _chain(error):
        if isinstance(each, ssl.SSLError):
            lost = isinstance(each, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
            return None if lost else each
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


def _tls_reason(error: Exception) -> str:
    """Describe a TLS or file error without paths or values."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return error.reason or "not readable as PEM"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__
