"""The producer freeze webhook: a signed POST, retried within a bound, whose answer is verified.

Request (``POST``, ``Content-Type: application/json``)::

    {"action": "freeze", "deadline": "2026-04-24T10:41:00Z", "migration_id": "orders", "sent_at": "..."}
    X-Kafka-Migration-Signature: sha256=<hex HMAC-SHA256 over the body with the shared secret>

The request of a way back also has ``"direction": "back"``: then it concerns the producers of the new cluster, which
clients have switched to before.

``action`` is ``freeze`` or ``unfreeze``. At ``deadline`` the migration lifts the freeze by itself; a receiver may
lift it then, too, so that producers never stay frozen because a migration died. Before clients are told to switch,
``freeze`` is sent once more with ``"deadline": null``: from then on the receiver keeps producers stopped until it
gets ``unfreeze``, and forgets the earlier deadline. Both actions must be idempotent: they are sent again after
time-outs and after a crash.

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
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from airflow_provider_kafka_migration.errors import FreezeFailed, FreezeUnconfirmed, Where
from airflow_provider_kafka_migration.plain_secrets import shown_address
from airflow_provider_kafka_migration.record.freeze_attempt import AGAIN
from airflow_provider_kafka_migration.record.times import iso

SIGNATURE_HEADER = "X-Kafka-Migration-Signature"
REQUEST_SECONDS = 10.0
ATTEMPTS = 5
_ANSWER_BYTES = 64 * 1024

Action = Literal["freeze", "unfreeze"]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET and lose its signature: refuse it."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True)
class WebhookAnswer:
    """The receiver's answer: HTTP status, the number of attempts it took, and its JSON."""

    status: int
    attempts: int
    body: dict[str, Any]


class _RefusedError(Exception):
    """The receiver answered, and a retry would not change the answer."""


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
    :param request_seconds: how long one request may take.
    :param attempts: how often an action is sent before a missing answer becomes an error.
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
    ) -> None:
        self._url, self._login = _without_login(url)
        self._secret = secret
        self._request_seconds = request_seconds
        self._attempts = attempts
        self._sleep = sleep
        self._direction = direction
        self._opener = urllib.request.build_opener(_NoRedirect())

    def call(self, migration_id: str, action: Action, *, now: datetime, deadline: datetime) -> WebhookAnswer:
        """POST an action and verify the answer.

        :raises FreezeFailed: the receiver refused, gave an invalid answer, or did not answer within the attempts.
        """
        try:
            return self._call(migration_id, action, now, deadline)
        except _TryAgainError as error:
            raise self._failed(migration_id, action, str(error), self._attempts) from None

    def hold(self, migration_id: str, *, now: datetime) -> WebhookAnswer:
        """POST ``freeze`` without a deadline and verify the answer: producers stay stopped until ``unfreeze``.

        :raises FreezeFailed: the receiver refused, or gave an invalid answer.
        :raises FreezeUnconfirmed: it did not answer, but may have accepted the request.
        """
        try:
            return self._call(migration_id, "freeze", now, None)
        except _TryAgainError as error:
            raise FreezeUnconfirmed(
                f"the freeze webhook has not confirmed that producers stay stopped without a deadline: {error}",
                where=self._where(migration_id),
                next_step="check the log of the webhook's receiver; the migration asks it again for as long as "
                "max_producer_freeze allows",
                details={"action": "freeze", "attempts": self._attempts, "reason": str(error)},
            ) from None

    def _call(self, migration_id: str, action: Action, now: datetime, deadline: datetime | None) -> WebhookAnswer:
        """POST as often as allowed.

        :raises FreezeFailed: the receiver refused.
        :raises _TryAgainError: it gave no valid answer.
        """
        content = {
            "migration_id": migration_id,
            "action": action,
            "deadline": None if deadline is None else iso(deadline),
            "sent_at": iso(now),
            **({"direction": self._direction} if self._direction else {}),
        }
        body = json.dumps(content, sort_keys=True).encode()
        for attempt in range(1, self._attempts + 1):
            try:
                status, answer = self._post(body)
                self._verify(answer, migration_id, action, has_deadline=deadline is not None)
                return WebhookAnswer(status, attempt, answer)
            except _RefusedError as error:
                if deadline is None:
                    raise self._not_held(migration_id, str(error)) from None
                raise self._failed(migration_id, action, str(error), attempt) from None
            except _TryAgainError:
                if attempt == self._attempts:
                    raise
            self._sleep(min(0.5 * 2 ** (attempt - 1), 5.0))
        raise AssertionError("at least one attempt")

    def _post(self, body: bytes) -> tuple[int, dict[str, Any]]:
        headers = {"Content-Type": "application/json", "User-Agent": "kafka-migration"}
        if self._secret is not None:
            headers[SIGNATURE_HEADER] = signature(body, self._secret)
        if self._login is not None:
            headers["Authorization"] = self._login
        # The address is http(s) by the spec's pattern.
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")  # noqa: S310
        try:
            with self._opener.open(request, timeout=self._request_seconds) as response:
                text = response.read(_ANSWER_BYTES)
                status, given = response.status, response.headers.get(SIGNATURE_HEADER)
        except urllib.error.HTTPError as error:
            error.close()
            kind = _TryAgainError if error.code >= 500 or error.code in (408, 425, 429) else _RefusedError
            raise kind(f"it answered HTTP status {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            raise _TryAgainError(f"no answer: {getattr(error, 'reason', None) or type(error).__name__}") from None
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
            details={"action": action, "attempts": attempts, "reason": reason},
        )

    def _not_held(self, migration_id: str, reason: str) -> FreezeFailed:
        return FreezeFailed(
            f'the freeze webhook refused to keep producers stopped without a deadline ("deadline": null): {reason}',
            where=self._where(migration_id),
            next_step="make the receiver accept a freeze without a deadline, in which it frees producers only at "
            f"`unfreeze`; then {AGAIN} (of a mirror: promote it again)",
            details={"action": "freeze", "deadline": None, "reason": reason},
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
