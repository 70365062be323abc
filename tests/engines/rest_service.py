"""A REST service on 127.0.0.1 for tests: subclasses answer as a real API does, and a test may force single answers."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    """What arrived. ``body`` is parsed JSON where it is JSON, else bytes."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What is sent: an object as JSON, or bytes as they are. ``status`` 0 closes the connection without an answer."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


class RestService:
    """Keeps all requests. ``force`` makes the next matching requests get given answers."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._forced: list[tuple[str, re.Pattern[str], list[Answer]]] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                outer._serve(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def answer(self, request: Request) -> Answer:
        """Answer as the real service does."""
        raise NotImplementedError

    @contextlib.contextmanager
    def running(self) -> Iterator[Any]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def force(self, method: str, path: str, *answers: Answer) -> None:
        """Give these answers, one each, to the next requests whose path matches (a regular expression, searched)."""
        self._forced.append((method, re.compile(path), list(answers)))

    def sent(self, method: str, path: str) -> list[Request]:
        """Return the requests that have arrived, by method and path (a regular expression, searched)."""
        return [item for item in self.requests if item.method == method and re.search(path, item.path)]

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        body: Any = raw
        with contextlib.suppress(ValueError):
            body = json.loads(raw) if raw else None
        request = Request(
            handler.command, unquote(parts.path), dict(parse_qsl(parts.query)), body, dict(handler.headers.items())
        )
        with self._lock:
            self.requests.append(request)
            answer = self._next_forced(request) or self.answer(request)
        if not answer.status:
            handler.close_connection = True
            handler.connection.close()
            return
        content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        handler.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def _next_forced(self, request: Request) -> Answer | None:
        for method, path, answers in self._forced:
            if answers and method == request.method and path.search(request.path):
                return answers.pop(0)
        return None


#: Answers of somebody in between, or of a service that is out of its mind: none of them may be taken for a fact.
HOSTILE: dict[str, Answer] = {
    "a page of a proxy": Answer(200, b"<html>Sign in to the network</html>", {"Content-Type": "text/html"}),
    "an empty answer": Answer(200, b""),
    "an empty object": Answer(200, {}),
    "a list": Answer(200, []),
    "null": Answer(200, b"null"),
    "another object": Answer(200, {"kind": "Pod", "metadata": {"name": "x"}, "run_id": 1, "state": {}}),
    "a 404 of a web server": Answer(404, b"404 page not found", {"Content-Type": "text/plain"}),
    "a broken gateway": Answer(502, b"<html>Bad gateway</html>", {"Content-Type": "text/html"}),
    "no answer": Answer(0),
    "deep nonsense": Answer(200, b"[" * 50_000),
}


def eventually(check: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true; patient, for a busy machine."""
    event = threading.Event()
    for _ in range(600):
        if check():
            return True
        event.wait(0.05)
    return False
