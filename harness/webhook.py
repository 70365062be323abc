"""The HTTP receiver that a migration calls to freeze and unfreeze producers."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol

_MAX_BODY_BYTES = 1 << 20


class Freezable(Protocol):
    """A producer that the webhook controls, e.g. :class:`harness.clients.LiveProducer`."""

    def freeze(self) -> None:
        """Stop writing; on return, no request of it is in flight."""

    def unfreeze(self) -> None:
        """Continue writing."""


@dataclass(frozen=True)
class Call:
    """One request that was received. ``body`` as sent, ``headers`` with names in lower case."""

    body: dict[str, Any]
    raw: bytes
    headers: dict[str, str]
    action: str


class FreezeWebhook:
    """Serves POSTs on loopback while it runs.

    A body ``{"migration_id": ..., "action": "freeze" | "unfreeze", ...}`` (``action`` may be left out: freeze) is
    answered by 200 ``{"migration_id": ..., "action": ..., "status": "done", "frozen": true | false}`` after all
    producers have done so. A body that is not a JSON object or has no migration id is answered by 400, an unknown
    action by 422, a wrong signature by 401, and an ``order`` below one that it has followed for the same migration by
    409: that request was overtaken. An ``unfreeze`` without an order is a person's, and is followed.

    :param secret: the body must be signed with it: ``X-Kafka-Migration-Signature: sha256=HEX`` (HMAC-SHA256).
    :param answer: for tests of bad webhooks: takes a call, returns the status and body to answer with instead of
        acting, or None to continue as usual. May also block.
    :param keeps_order: False: as a receiver that does not know ``order``.
    """

    def __init__(
        self,
        *producers: Freezable,
        secret: str | None = None,
        answer: Callable[[Call], tuple[int, Any] | None] | None = None,
        keeps_order: bool = True,
    ) -> None:
        self.calls: list[Call] = []
        self.answer = answer
        self._producers = producers
        self._keeps_order = keeps_order
        self._orders: dict[str, int] = {}
        self._secret = secret
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="freeze-webhook", daemon=True
        )

    def __enter__(self) -> FreezeWebhook:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; do not change the producers."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/freeze"

    def _handle(self, raw: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        if self._secret is not None:
            expected = "sha256=" + hmac.new(self._secret.encode(), raw, "sha256").hexdigest()
            if not hmac.compare_digest(expected, headers.get("x-kafka-migration-signature", "")):
                return 401, {"error": "the signature is missing or wrong"}
        try:
            body = json.loads(raw)
        except ValueError:
            return 400, {"error": "the body is not JSON"}
        if not isinstance(body, dict) or not body.get("migration_id"):
            return 400, {"error": "migration_id is missing"}
        action = body.get("action", "freeze")
        call = Call(body, raw, headers, action)
        with self._lock:
            self.calls.append(call)
        if self.answer is not None and (answer := self.answer(call)) is not None:
            return answer
        if action not in ("freeze", "unfreeze"):
            return 422, {"error": f"unknown action {action!r}"}
        with self._lock:
            last = self._orders.get(body["migration_id"], 0)
            # A person knows no number.
            order = int(body.get("order", last if action == "unfreeze" else 0))
            if self._keeps_order and order < last:
                return 409, {"error": f"order {last} was followed already"}
            self._orders[body["migration_id"]] = order
            for producer in self._producers:
                producer.freeze() if action == "freeze" else producer.unfreeze()
        frozen = action == "freeze"
        return 200, {"migration_id": body["migration_id"], "action": action, "status": "done", "frozen": frozen}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length") or 0), _MAX_BODY_BYTES)
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, body = webhook._handle(self.rfile.read(length), headers)
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing, because the calls are kept."""

        return Handler
