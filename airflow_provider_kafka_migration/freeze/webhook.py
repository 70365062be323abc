"""The producer freeze webhook: a signed POST, retried within a bound, whose answer is verified.

Request (``POST``, ``Content-Type: application/json``)::

    {"action": "freeze", "deadline": "2026-04-24T10:41:00Z", "migration_id": "orders", "order": 42, "sent_at": "..."}
    X-Kafka-Migration-Signature: sha256=<hex HMAC-SHA256 over the body with the shared secret>

The request of a way back also has ``"direction": "back"``: then it concerns the producers of the new cluster, which
clients have switched to before.

``action`` is ``freeze`` or ``unfreeze``. At ``deadline`` the migration lifts the freeze by itself; a receiver may
lift it then, too, so that producers never stay frozen because a migration died. Before clients are told to switch,
``freeze`` is sent once more with ``"deadline": null``: from then on the receiver keeps producers stopped until it
gets ``unfreeze``, and forgets the earlier deadline. Both actions must be idempotent: they are sent again after
time-outs and after a crash.

``order`` is the number of the journal entry that authorizes the request. A receiver keeps the highest one per
``migration_id`` and answers 409 to a request with a lower one: a ``freeze`` that was delayed on its way must not follow
the ``unfreeze`` that was sent after it. No clock is involved; ``sent_at`` is for people.

Answer: status 200 with a JSON object that repeats ``migration_id`` and ``action``, so that a load balancer's page, a
proxy's "OK" or another service's answer is never taken for a freeze. ``"status"``, if given, must be ``"done"``. If
the answer carries ``X-Kafka-Migration-Signature``, it must match, too. An answer to ``"deadline": null`` that
carries another ``deadline`` is refused: the receiver would still lift by itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import io
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from airflow_provider_kafka_migration.errors import FreezeFailed, FreezeUnconfirmed, MigrationError, Where
from airflow_provider_kafka_migration.plain_secrets import shown_address
from airflow_provider_kafka_migration.record.changes import UNANSWERED
from airflow_provider_kafka_migration.record.freeze_attempt import AGAIN
from airflow_provider_kafka_migration.record.times import iso

SIGNATURE_HEADER = "X-Kafka-Migration-Signature"
REQUEST_SECONDS = 10.0
ATTEMPTS = 5
_ANSWER_BYTES = 64 * 1024

_NO_ANSWER = "no answer"
#: The receiver has already followed a request with a higher ``order``.
_SUPERSEDED = 409
#: In the details of an error: that is why the request was refused.
OVERTAKEN = "overtaken"

Action = Literal["freeze", "unfreeze"]


# -- one request within a total time ----------------------------------------------------------------------------------
#
# A time-out of a socket applies to each of its operations, so a receiver that sends a byte now and then would hold a
# request for as long as it likes. Here each operation gets what is left of the request's time.


class _TimedReader(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, sock: socket.socket, left: Callable[[], float]) -> None:
        self._raw, self._socket, self._left = raw, sock, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedConnection(http.client.HTTPConnection):
    """A connection for one request, whose ``timeout`` is the limit for all of it.

    The system's resolver keeps time-outs of its own; but nothing is sent after the limit.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ends_at = time.monotonic() + float(self.timeout or REQUEST_SECONDS)
        self._create_connection = self._open

    def _left(self) -> float:
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time of the request is over")
        return left

    def _open(self, address: tuple[str, int], _timeout: object, source: Any = None) -> socket.socket:
        problem: OSError = OSError(f"{address[0]} has no address")
        for family, kind, protocol, _, place in socket.getaddrinfo(*address, 0, socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(self._left())
                sock.connect(place)
                # For what follows before the first byte is sent: a proxy's tunnel, the handshake of TLS.
                sock.settimeout(self._left())
            except OSError as error:
                sock.close()
                problem = error
            else:
                return sock
        raise problem

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        self.sock.settimeout(self._left())
        super().send(data)

    def getresponse(self) -> http.client.HTTPResponse:
        left = self._left

        class _Response(http.client.HTTPResponse):
            def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
                super().__init__(sock, *args, **options)
                self.fp = io.BufferedReader(_TimedReader(self.fp.detach(), sock, left))

        self.response_class = _Response
        return super().getresponse()


class _TimedTlsConnection(_TimedConnection, http.client.HTTPSConnection):
    """The same with TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_TimedConnection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_TimedTlsConnection, req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET and lose its signature: refuse it."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


# -- the client -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WebhookAnswer:
    """The receiver's answer: HTTP status, the number of attempts it took, and its JSON."""

    status: int
    attempts: int
    body: dict[str, Any]


class _RefusedError(Exception):
    """The receiver answered, and a retry would not change the answer."""


class _OvertakenError(_RefusedError):
    """It has followed a later request."""


class _TryAgainError(Exception):
    """The receiver did not answer, or a retry may change its answer."""


def signature(body: bytes, secret: str) -> str:
    """Return the value of the signature header for a body."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class FreezeWebhook:
    """Calls a webhook.

    :param url: http or https address. It may contain a secret, so messages name only its scheme and host. A login in
        it is sent as HTTP Basic authentication.
    :param secret: shared secret; ``None`` sends no signature.
    :param request_seconds: how long one request may take, from connecting to the last byte of its answer.
    :param attempts: how often an action is sent before a missing answer becomes an error.
    :param may_send: called before each attempt; it raises if the action must not be sent any more, and returns how many
        seconds this request may take.
    :param direction: ``back`` if clients return to the cluster that they have left; empty otherwise.
    """

    def __init__(
        self,
        url: str,
        secret: str | None,
        *,
        request_seconds: float = REQUEST_SECONDS,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], None] = time.sleep,
        direction: str = "",
        may_send: Callable[[], float] | None = None,
    ) -> None:
        self._url, self._login = _without_login(url)
        self._secret = secret
        self._request_seconds = request_seconds
        self._attempts = attempts
        self._sleep = sleep
        self._direction = direction
        self._may_send = may_send
        self._opener = urllib.request.build_opener(_NoRedirect(), _Http(), _Https())

    def call(
        self, migration_id: str, action: Action, *, now: datetime, deadline: datetime, order: int
    ) -> WebhookAnswer:
        """POST an action and verify the answer.

        :param order: number of the journal entry that authorizes the action.
        :raises FreezeFailed: the receiver refused, gave an invalid answer, or did not answer within the attempts. An
            attempt without an answer may still take effect: then ``details`` have ``unanswered``. If it has followed a
            later request, they have ``overtaken``.
        """
        try:
            return self._call(migration_id, action, now, deadline, order)
        except _TryAgainError as error:
            raise self._failed(migration_id, action, str(error), self._attempts) from None

    def hold(self, migration_id: str, *, now: datetime, order: int) -> WebhookAnswer:
        """POST ``freeze`` without a deadline and verify the answer: producers stay stopped until ``unfreeze``.

        :param order: as in :meth:`call`.

        :raises FreezeFailed: the receiver refused, or gave an invalid answer.
        :raises FreezeUnconfirmed: it did not answer, but may have accepted the request.
        """
        try:
            return self._call(migration_id, "freeze", now, None, order)
        except _TryAgainError as error:
            raise FreezeUnconfirmed(
                f"the freeze webhook has not confirmed that producers stay stopped without a deadline: {error}",
                where=self._where(migration_id),
                next_step="check the log of the webhook's receiver; the migration asks it again for as long as "
                "max_producer_freeze allows",
                details=self._details("freeze", str(error), self._attempts),
            ) from None

    def _call(
        self, migration_id: str, action: Action, now: datetime, deadline: datetime | None, order: int
    ) -> WebhookAnswer:
        """POST as often as allowed.

        :raises FreezeFailed: the receiver refused.
        :raises _TryAgainError: it gave no valid answer.
        """
        content = {
            "migration_id": migration_id,
            "action": action,
            "deadline": None if deadline is None else iso(deadline),
            "order": order,
            "sent_at": iso(now),
            **({"direction": self._direction} if self._direction else {}),
        }
        body = json.dumps(content, sort_keys=True).encode()
        for attempt in range(1, self._attempts + 1):
            seconds = self._seconds(attempt)
            try:
                status, answer = self._post(body, seconds)
                self._verify(answer, migration_id, action, has_deadline=deadline is not None)
                return WebhookAnswer(status, attempt, answer)
            except _RefusedError as error:
                made = self._not_held if deadline is None else self._failed
                failed = made(migration_id, action, str(error), attempt)
                if isinstance(error, _OvertakenError):
                    failed.details[OVERTAKEN] = True
                raise failed from None
            except _TryAgainError:
                if attempt == self._attempts:
                    raise
            self._sleep(min(0.5 * 2 ** (attempt - 1), 5.0))
        raise AssertionError("at least one attempt")

    def _seconds(self, attempt: int) -> float:
        """Return how long this attempt may take."""
        if self._may_send is None:
            return self._request_seconds
        try:
            return min(self._request_seconds, self._may_send())
        except MigrationError as error:
            if attempt > 1:
                error.details[UNANSWERED] = True
            raise

    def _post(self, body: bytes, seconds: float) -> tuple[int, dict[str, Any]]:
        headers = {"Content-Type": "application/json", "User-Agent": "kafka-migration"}
        if self._secret is not None:
            headers[SIGNATURE_HEADER] = signature(body, self._secret)
        if self._login is not None:
            headers["Authorization"] = self._login
        # The address is http(s) by the spec's pattern.
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")  # noqa: S310
        try:
            with self._opener.open(request, timeout=seconds) as response:
                text = response.read(_ANSWER_BYTES)
                status, given = response.status, response.headers.get(SIGNATURE_HEADER)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == _SUPERSEDED:
                raise _OvertakenError(
                    f"it has followed a later request already (HTTP status {_SUPERSEDED}): it knows a higher `order` "
                    "for this migration_id"
                ) from None
            kind = _TryAgainError if error.code >= 500 or error.code in (408, 425, 429) else _RefusedError
            raise kind(f"it answered HTTP status {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            raise _TryAgainError(f"{_NO_ANSWER}: {getattr(error, 'reason', None) or type(error).__name__}") from None
        if status != 200:
            # 202 would mean "later"; the freeze must be done when it is answered.
            raise _RefusedError(f"it answered HTTP status {status} instead of 200")
        if self._secret is not None and given is not None:
            expected = signature(text, self._secret)
            if not hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace")):
                raise _RefusedError("the signature of its answer does not match the shared secret")
        return status, _json_object(text)

    @staticmethod
    def _verify(answer: dict[str, Any], migration_id: str, action: Action, *, has_deadline: bool) -> None:
        for key, wanted in (("migration_id", migration_id), ("action", action)):
            if answer.get(key) != wanted:
                raise _RefusedError(f'its answer does not repeat "{key}": "{wanted}"')
        if answer.get("status", "done") != "done":
            raise _RefusedError(f'its answer has the status {str(answer["status"])[:50]!r} instead of "done"')
        if not has_deadline and answer.get("deadline") is not None:
            raise _RefusedError(
                f"it was asked to keep producers stopped without a deadline, but its answer has the deadline "
                f"{str(answer['deadline'])[:50]!r}"
            )

    def _failed(self, migration_id: str, action: Action, reason: str, attempts: int) -> FreezeFailed:
        return FreezeFailed(
            f"the {action} webhook failed: {reason} (attempts: {attempts})",
            where=self._where(migration_id),
            next_step=f"check the log of the webhook's receiver; {action} producers by hand if necessary; then clear "
            "the task",
            details=self._details(action, reason, attempts),
        )

    @staticmethod
    def _details(action: str, reason: str, attempts: int) -> dict[str, Any]:
        # Of several attempts, all but the last one had no answer.
        unanswered = {UNANSWERED: True} if attempts > 1 or reason.startswith(_NO_ANSWER) else {}
        return {"action": action, "attempts": attempts, "reason": reason, **unanswered}

    def _not_held(self, migration_id: str, action: str, reason: str, attempts: int) -> FreezeFailed:
        return FreezeFailed(
            f'the freeze webhook refused to keep producers stopped without a deadline ("deadline": null): {reason}',
            where=self._where(migration_id),
            next_step="make the receiver accept a freeze without a deadline, in which it frees producers only at "
            f"`unfreeze`; then {AGAIN} (of a mirror: promote it again)",
            details={"deadline": None, **self._details(action, reason, attempts)},
        )

    def _where(self, migration_id: str) -> Where:
        return Where(migration_id=migration_id, phase="cutover", path=shown_address(self._url))


def _without_login(url: str) -> tuple[str, str | None]:
    """Return the address without user and password, and the header that carries them."""
    parts = urlsplit(url)
    login, separator, place = parts.netloc.rpartition("@")
    if not separator:
        return url, None
    header = "Basic " + base64.b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=place)), header


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise _RefusedError("its answer is not JSON") from None
    if not isinstance(value, dict):
        raise _RefusedError("its answer is not a JSON object")
    return value
