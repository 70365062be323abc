"""The producer freeze webhook: a signed POST, retried within a bound, whose answer is verified.

Request (``POST``, ``Content-Type: application/json``)::

    {"action": "freeze", "deadline": "2026-04-24T10:41:00Z", "migration_id": "orders", "sent_at": "..."}
    X-Kafka-Migration-Signature: sha256=<hex HMAC-SHA256 over the body with the shared secret>

``action`` is ``freeze`` or ``unfreeze``. ``deadline`` is when the migration lifts the freeze by itself; a receiver may
lift it then, too, so that producers never stay frozen because a migration died. Both actions must be idempotent: they
are sent again after time-outs and after a crash.

Answer: status 200 with a JSON object that repeats ``migration_id`` and ``action``, so that a load balancer's page, a
proxy's "OK" or another service's answer is never taken for a freeze. ``"status"``, if given, must be ``"done"``. If
the answer carries ``X-Kafka-Migration-Signature``, it must match, too.
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

from airflow_provider_kafka_migration.errors import FreezeFailed, Where
from airflow_provider_kafka_migration.phases.timing import iso
from airflow_provider_kafka_migration.plain_secrets import shown_address

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
    """What the receiver said: status, how many attempts it took, its JSON without anything secret."""

    status: int
    attempts: int
    body: dict[str, Any]


class _RefusedError(Exception):
    """The receiver answered, and trying again would not change it."""


class _TryAgainError(Exception):
    """No answer, or one that a retry may change."""


def signature(body: bytes, secret: str) -> str:
    """Value of the signature header for a body."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class FreezeWebhook:
    """Calls a webhook.

    :param url: http or https address. It may hold a secret: messages name its scheme and host only. A login in it
        is sent as HTTP Basic authentication.
    :param secret: shared secret; ``None`` sends no signature.
    """

    def __init__(
        self,
        url: str,
        secret: str | None,
        *,
        request_seconds: float = REQUEST_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url, self._login = _without_login(url)
        self._secret = secret
        self._request_seconds = request_seconds
        self._sleep = sleep
        self._opener = urllib.request.build_opener(_NoRedirect())

    def call(self, migration_id: str, action: Action, *, now: datetime, deadline: datetime) -> WebhookAnswer:
        """POST an action and verify its answer.

        :raises FreezeFailed: the receiver refused, answered something else, or did not answer within the attempts.
        """
        content = {"migration_id": migration_id, "action": action, "deadline": iso(deadline), "sent_at": iso(now)}
        body = json.dumps(content, sort_keys=True).encode()
        failures: list[str] = []
        for attempt in range(1, ATTEMPTS + 1):
            try:
                status, answer = self._post(body)
                self._verify(answer, migration_id, action)
                return WebhookAnswer(status, attempt, answer)
            except _RefusedError as error:
                raise self._failed(migration_id, action, str(error), attempt) from None
            except _TryAgainError as error:
                failures.append(str(error))
            if attempt < ATTEMPTS:
                self._sleep(min(0.5 * 2 ** (attempt - 1), 5.0))
        raise self._failed(migration_id, action, failures[-1], ATTEMPTS)

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
            raise _RefusedError(f"it answered HTTP status {status}, and 200 is expected")
        if self._secret is not None and given is not None:
            expected = signature(text, self._secret)
            if not hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace")):
                raise _RefusedError("the signature of its answer does not match the shared secret")
        return status, _json_object(text)

    @staticmethod
    def _verify(answer: dict[str, Any], migration_id: str, action: Action) -> None:
        for key, wanted in (("migration_id", migration_id), ("action", action)):
            if answer.get(key) != wanted:
                raise _RefusedError(f'its answer does not repeat "{key}": "{wanted}"')
        if answer.get("status", "done") != "done":
            raise _RefusedError(f'its answer has the status {str(answer["status"])[:50]!r}, and "done" is expected')

    def _failed(self, migration_id: str, action: Action, reason: str, attempts: int) -> FreezeFailed:
        return FreezeFailed(
            f"the {action} webhook failed: {reason} (attempts: {attempts})",
            where=Where(migration_id=migration_id, phase="cutover", path=shown_address(self._url)),
            next_step=f"check the webhook's log; {action} producers by hand if need be; then clear the task",
            details={"action": action, "attempts": attempts, "reason": reason},
        )


def _without_login(url: str) -> tuple[str, str | None]:
    """The address without user and password, and the header that carries them."""
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
