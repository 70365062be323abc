"""The HTTP side of the fake registry: paths, answers, hooks."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from harness.fake_registry import texts
from harness.fake_registry.habits import KINDS, Habits
from harness.fake_registry.names import DEFAULT_CONTEXT, Subject
from harness.fake_registry.store import Content, Refused, Store, Version

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_WRITES = frozenset(("PUT", "DELETE"))


class DropConnection(Exception):
    """Raised by a hook: the connection is closed without an answer, as if the server had been killed."""


@dataclass(frozen=True)
class Request:
    """One request.

    :param path: as sent, without the base path; subjects are still percent-encoded.
    :param query: the last value of each parameter.
    :param body: parsed JSON, None where there was none.
    :param headers: names in lower case.
    """

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]

    @property
    def writes(self) -> bool:
        """Whether it can change the registry: registrations, deletions, configs and modes; not lookups."""
        registers = self.path.endswith("/versions") and not self.path.startswith("/compatibility/")
        return self.method in _WRITES or (self.method == "POST" and registers)


@dataclass(frozen=True)
class Reply:
    """An answer. ``body`` is sent as it is."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": CONTENT_TYPE})

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Reply:
        return cls(status, texts.compact(value).encode())

    @classmethod
    def error(cls, status: int, code: int, message: str) -> Reply:
        return cls.json({"error_code": code, "message": message}, status)


class _Unknown(Exception):
    """No such path, or not this method; the value is the HTTP status."""


class FakeRegistry:
    """A schema registry on loopback that answers as Confluent Schema Registry 8.1.5 did (tests/cases/registry-probes).

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. Everything it holds is in :attr:`store`.

    :param kind: whose habits it has: ``confluent``, ``karapace``, ``apicurio``, ``redpanda``; or :class:`Habits`.
    :param base_path: in front of all paths, e.g. ``/apis/ccompat/v7``.
    :param port: 0: any free one.
    :param latency_seconds: waits this long before each answer.
    :param authorization: the value that the header Authorization must have; else the answer is 401.
    :param tls: serves HTTPS with it.
    """

    def __init__(
        self,
        kind: str | Habits = "confluent",
        *,
        base_path: str = "",
        port: int = 0,
        latency_seconds: float = 0.0,
        authorization: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.habits = kind if isinstance(kind, Habits) else KINDS[kind]
        self.store = Store(self.habits)
        #: Every request that arrived, in this order; may be cleared.
        self.requests: list[Request] = []
        #: Called before a request is executed; a :class:`Reply` is sent instead of executing it. May raise, or block.
        self.before: Callable[[Request], Reply | None] | None = None
        #: Called after a request was executed, before its answer is sent; a :class:`Reply` replaces the answer.
        self.after: Callable[[Request, Reply], Reply | None] | None = None
        self.latency_seconds = latency_seconds
        self.authorization = authorization
        self._base_path = base_path.rstrip("/")
        self._lock = threading.RLock()
        self._scheme = "https" if tls else "http"
        self._server = _Server(("127.0.0.1", port), _handler(self))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="registry", daemon=True)

    def __enter__(self) -> FakeRegistry:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> FakeRegistry:
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self._server.close_connections()

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}{self._base_path}"

    # -- doors for tests ---

    def seed(
        self,
        subject: str,
        text: str,
        *,
        id: int,
        version: int = 1,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
        metadata: dict[str, Any] | None = None,
        rule_set: dict[str, Any] | None = None,
        deleted: bool = False,
    ) -> Version:
        """Put a version in place, whatever the mode is; the text is checked and brought into canonical form.

        :raises Refused: the text is invalid.
        """
        body = {
            "schemaType": kind,
            "schema": text,
            "references": references,
            "metadata": metadata,
            "ruleSet": rule_set,
        }
        with self._lock:
            content = self.store.read_content(subject, body)
            return self.store.put(subject, version, id, content, deleted=deleted)

    def state(self) -> dict[str, Any]:
        """All that the registry holds, for comparisons: ``subjects`` {name: {version: {...}}}, ``configs``, ``modes``.

        The global level and mode have the key "".
        """
        with self._lock:
            return {
                "subjects": {
                    subject: {number: _stated(version) for number, version in sorted(versions.items())}
                    for subject, versions in sorted(self.store.subjects.items())
                },
                "configs": {"": dict(self.store.config)}
                | {name: dict(config) for name, config in self.store.configs.items()},
                "modes": {"": self.store.mode, **self.store.modes},
            }

    @property
    def writes(self) -> list[Request]:
        """The requests that could change something, in the order of arrival."""
        return [request for request in list(self.requests) if request.writes]

    # -- answering ---

    def answer(self, request: Request) -> Reply:
        """Answer one request, with hooks.

        :raises DropConnection: by a hook.
        """
        self.requests.append(request)
        if self.latency_seconds:
            time.sleep(self.latency_seconds)
        if self.authorization is not None and request.headers.get("authorization") != self.authorization:
            return Reply.error(401, 40101, "Unauthorized")
        if self.before is not None and (reply := self.before(request)) is not None:
            return reply
        reply = self._executed(request)
        if self.after is not None and (changed := self.after(request, reply)) is not None:
            return changed
        return reply

    def _executed(self, request: Request) -> Reply:
        try:
            with self._lock:
                return _Answers(self.store, request).reply()
        except Refused as error:
            return Reply.error(error.status, error.code, str(error))
        except _Unknown as error:
            status = int(str(error))
            if self.habits.name == "apicurio":
                return Reply(status, b"", {})
            reason = {404: "Not Found", 405: "Method Not Allowed", 400: "Bad Request"}[status]
            return Reply.error(status, status, f"HTTP {status} {reason}")

    def read(self, method: str, target: str, raw: bytes, headers: dict[str, str]) -> Request | None:
        """The request behind a request line; None: outside the base path, or the body is not JSON."""
        parts = urlsplit(target)
        if not parts.path.startswith(self._base_path):
            return None
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            return None
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        return Request(method, parts.path[len(self._base_path) :] or "/", query, body, headers)


def _stated(version: Version) -> dict[str, Any]:
    content = version.content
    return {
        "id": version.id,
        "type": content.kind,
        "text": content.text,
        "references": [list(each) for each in content.references],
        "metadata": content.metadata,
        "rule_set": content.rule_set,
        "deleted": version.deleted,
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Be silent about connections that a hook, a test or a client has closed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def close_connections(self) -> None:
        """Close what clients keep open: a server that has stopped answers on no connection."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _handler(registry: FakeRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60
        disable_nagle_algorithm = True
        wbufsize = -1

        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = registry.read(self.command, self.path, raw, headers)
            try:
                reply = Reply.error(400, 400, "HTTP 400 Bad Request") if request is None else registry.answer(request)
            except DropConnection:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response_only(reply.status)
            self.send_header("Date", self.date_time_string())
            if registry.habits.server:
                self.send_header("Server", registry.habits.server)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)
            self.wfile.flush()

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the names that http.server calls

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing, because the requests are kept."""

    return Handler


def _is_ambiguous(segment: str) -> bool:
    return "%" in segment and unquote(segment) in (".", "..")


# -- paths ---

_ROUTES: list[tuple[re.Pattern[str], dict[str, str]]] = [
    (re.compile(pattern + "/?"), methods)
    for pattern, methods in (
        (r"/", {"GET": "root"}),
        (r"/schemas/types", {"GET": "types"}),
        (r"/schemas/ids/(?P<id>-?\d+)", {"GET": "by_id"}),
        (r"/schemas/ids/(?P<id>-?\d+)/(?P<part>versions|subjects|schema)", {"GET": "part_by_id"}),
        (r"/schemas/guids/(?P<guid>[^/]+)", {"GET": "by_guid"}),
        (r"/schemas", {"GET": "schemas"}),
        (r"/subjects", {"GET": "subjects"}),
        (r"/subjects/(?P<subject>[^/]+)", {"POST": "look_up", "DELETE": "delete_subject"}),
        (r"/subjects/(?P<subject>[^/]+)/versions", {"GET": "versions", "POST": "register"}),
        (r"/subjects/(?P<subject>[^/]+)/versions/(?P<version>[^/]+)", {"GET": "version", "DELETE": "delete_version"}),
        (r"/subjects/(?P<subject>[^/]+)/versions/(?P<version>[^/]+)/schema", {"GET": "text"}),
        (r"/subjects/(?P<subject>[^/]+)/versions/(?P<version>[^/]+)/referencedby", {"GET": "referenced_by"}),
        (r"/compatibility/subjects/(?P<subject>[^/]+)/versions(?:/(?P<version>[^/]+))?", {"POST": "compatibility"}),
        (r"/config(?:/(?P<subject>[^/]+))?", {"GET": "config", "PUT": "set_config", "DELETE": "delete_config"}),
        (r"/mode(?:/(?P<subject>[^/]+))?", {"GET": "mode", "PUT": "set_mode", "DELETE": "delete_mode"}),
        (r"/exporters", {"GET": "exporters"}),
        (r"/contexts", {"GET": "contexts"}),
        (r"/contexts/(?P<context>[^/]+)", {"DELETE": "delete_context"}),
        (r"/v1/metadata/(?P<part>id|version)", {"GET": "metadata"}),
        (r"/_health", {"GET": "health"}),
    )
]
_IN_CONTEXT = re.compile(r"/contexts/([^/]+)(/.+)")


class _Answers:
    """Executes one request on the store."""

    def __init__(self, store: Store, request: Request) -> None:
        self.store = store
        self.habits = store.habits
        self.query = dict(request.query)
        self.body = request.body if isinstance(request.body, dict) else {}
        self.method = request.method
        self.path = request.path

    def reply(self) -> Reply:
        path, context = self.path, None
        if self.habits.name == "confluent" and any(_is_ambiguous(segment) for segment in path.split("/")):
            # What Jetty 12 answers; a segment that is not encoded is taken as it is.
            return Reply(400, b"Ambiguous URI path segment", {"Content-Type": "text/plain"})
        if self.habits.contexts == "confluent" and (match := _IN_CONTEXT.fullmatch(path)):
            context, path = unquote(match[1]), match[2]
        for pattern, methods in _ROUTES:
            if match := pattern.fullmatch(path):
                name = methods.get(self.method)
                if name is None:
                    raise _Unknown(405)
                found = {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
                if context is not None:
                    found = self._within(context, name, found)
                if "subject" in found:
                    found["subject"] = self._named(found["subject"], path)
                result = getattr(self, name)(**found)
                return result if isinstance(result, Reply) else Reply.json(result)
        raise _Unknown(404)

    def _within(self, context: str, name: str, found: dict[str, str]) -> dict[str, str]:
        """What a path below ``/contexts/.x`` means."""
        if context == DEFAULT_CONTEXT:
            return found
        prefix = f":{context}:"
        if "subject" in found:
            subject = found["subject"]
            return {**found, "subject": subject if subject.startswith(":.") else prefix + subject}
        if name in ("subjects", "schemas"):
            self.query["subjectPrefix"] = prefix + self.query.get("subjectPrefix", "")
        elif name in ("by_id", "part_by_id"):
            self.query["subject"] = prefix + self.query.get("subject", "")
        elif name in ("config", "set_config", "delete_config", "mode", "set_mode", "delete_mode"):
            return {**found, "subject": prefix}
        return found

    def _named(self, subject: str, path: str) -> str:
        subject = Subject.parse(subject).qualified
        if path.startswith(("/config", "/mode")):
            return subject
        alias = self.store.configs.get(subject, {}).get("alias")
        return alias if isinstance(alias, str) and alias else subject

    def _flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    # -- reading ---

    def root(self) -> Reply:
        if self.habits.name == "apicurio":
            return Reply(200, b"<!DOCTYPE html><html></html>", {"Content-Type": "text/html"})
        return Reply.json({})

    def types(self) -> Any:
        return ["JSON", "PROTOBUF", "AVRO"]

    def contexts(self) -> Any:
        if self.habits.contexts is None:
            raise _Unknown(404)
        return [":.:"] if self.habits.contexts == "apicurio" else self.store.contexts()

    def exporters(self) -> Any:
        if self.habits.name != "apicurio":
            raise _Unknown(404)
        return []

    def metadata(self, part: str) -> Reply:
        if self.habits.name != "confluent":
            raise _Unknown(404)
        if part == "version":
            return Reply.json({"version": "${project.version}", "commitId": "${gitCommitID}"})
        clusters = {"kafka-cluster": "AAAAAAAAAAAAAAAAAAAAAQ", "schema-registry-cluster": "sr-a"}
        return Reply.json({"scope": {"path": [], "clusters": clusters}})

    def health(self) -> Any:
        if self.habits.name != "karapace":
            raise _Unknown(404)
        return {"process_uptime_sec": 9, "karapace_version": "6.2.0", "schema_registry_ready": True}

    def _chosen(self) -> list[str]:
        """Subjects by prefix and deletion, sorted."""
        prefix = self.query.get("subjectPrefix", ":*:") if self.habits.subject_prefix else ":*:"

        def matches(subject: str) -> bool:
            if prefix.startswith(":*:"):
                return Subject.parse(subject).name.startswith(prefix[3:])
            return subject.startswith(prefix)

        found = []
        for subject, versions in sorted(self.store.subjects.items()):
            live = any(not version.deleted for version in versions.values())
            wanted = (not live) if self._flag("deletedOnly") else (live or self._flag("deleted"))
            if wanted and matches(subject):
                found.append(subject)
        return found

    def _page(self, rows: list[Any]) -> list[Any]:
        start = int(self.query.get("offset") or 0)
        limit = int(self.query.get("limit") or -1)
        return rows[start:] if limit < 0 else rows[start : start + limit]

    def subjects(self) -> Any:
        return self._page(self._chosen())

    def schemas(self) -> Any:
        rows = []
        deleted = self._flag("deleted")
        for subject in self._chosen():
            found = [each for _, each in sorted(self.store.subjects[subject].items()) if deleted or not each.deleted]
            rows += found[-1:] if self._flag("latestOnly") else found
        if self.habits.name == "apicurio":
            return [{"schema": row.content.text} for row in rows]
        return self._page([self._shown(row) for row in rows])

    def versions(self, subject: str) -> Any:
        only = self._flag("deletedOnly")
        found = self.store.find(subject, deleted=only or self._flag("deleted"))
        chosen = [number for number, version in found.items() if not only or version.deleted]
        if not chosen:
            raise Refused(404, 40401, f"Subject '{subject}' not found.")
        return self._page(chosen)

    def version(self, subject: str, version: str) -> Any:
        return self._shown(self._read(subject, version))

    def text(self, subject: str, version: str) -> Reply:
        return Reply(200, self._read(subject, version).content.text.encode())

    def _read(self, subject: str, version: str) -> Version:
        deleted = self._flag("deleted")
        if deleted and not self.habits.deleted_subjects_read:
            self.store.find(subject)
        return self.store.version(subject, version, deleted=deleted)

    def referenced_by(self, subject: str, version: str) -> Any:
        return self.store.referenced_by(subject, self.store.version(subject, version, deleted=True).version)

    def _content(self, content: Content, *, with_type: bool | None = None) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        with_type = self.habits.full_answers if with_type is None else with_type
        if with_type or content.kind != "AVRO":
            shown["schemaType"] = content.kind
        if content.references:
            shown["references"] = [
                {"name": name, "subject": subject, "version": number} for name, subject, number in content.references
            ]
        if content.metadata:
            shown["metadata"] = content.metadata
        if content.rule_set:
            shown["ruleSet"] = content.rule_set
        return {**shown, "schema": content.text}

    def _state(self, version: Version) -> dict[str, Any]:
        return {"ts": version.ts, "deleted": version.deleted} if self.habits.full_answers else {}

    def _guid(self, content: Content) -> dict[str, Any]:
        return {"guid": content.guid} if self.habits.full_answers else {}

    def _shown(self, version: Version) -> dict[str, Any]:
        place = {"subject": version.subject, "version": version.version, "id": version.id}
        content = version.content
        return {**place, **self._guid(content), **self._content(content), **self._state(version)}

    def by_id(self, id: str) -> Any:
        _, content, users = self.store.by_id(int(id), self.query.get("subject"))
        if not self.habits.full_answers:
            return self._content(content)
        user = next((each for each in users if not each.deleted), users[0])
        place = {"subject": user.subject, "version": user.version}
        return {**place, **self._guid(content), **self._content(content), **self._state(user)}

    def part_by_id(self, id: str, part: str) -> Any:
        _, content, users = self.store.by_id(int(id), self.query.get("subject"))
        if part == "schema":
            return Reply(200, content.text.encode())
        shown = [user for user in users if not user.deleted or self._flag("deleted")]
        if part == "subjects":
            return list(dict.fromkeys(user.subject for user in shown))
        return [{"subject": user.subject, "version": user.version} for user in shown]

    def by_guid(self, guid: str) -> Any:
        if not self.habits.full_answers:
            raise _Unknown(404)
        content = self.store.by_guid(guid)
        return {**self._guid(content), **self._content(content)}

    # -- writing ---

    def look_up(self, subject: str) -> Any:
        deleted = self._flag("deleted")
        self.store.find(subject, deleted=deleted)
        content = self.store.read_content(subject, self.body, normalize=self._flag("normalize"))
        version = self.store.look_up(subject, content, deleted=deleted)
        if version is None:
            raise Refused(404, 40403, "Schema not found")
        return {name: value for name, value in self._shown(version).items() if name not in ("ts", "deleted")}

    def register(self, subject: str) -> Any:
        content = self.store.read_content(subject, self.body, normalize=self._flag("normalize"))
        version = self.store.register(subject, content, self._number("id"), self._number("version"))
        if not self.habits.full_answers:
            return {"id": version.id}
        place = {"id": version.id, "version": version.version}
        return {**place, **self._guid(version.content), **self._content(version.content)}

    def _number(self, name: str) -> int | None:
        value = self.body.get(name)
        if value is not None and not isinstance(value, int):
            raise _Unknown(400)
        return None if value is None or value < 0 else value

    def delete_version(self, subject: str, version: str) -> Any:
        return self.store.delete_version(subject, version, permanent=self._flag("permanent"))

    def delete_subject(self, subject: str) -> Any:
        return self.store.delete_subject(subject, permanent=self._flag("permanent"))

    def delete_context(self, context: str) -> Reply:
        if self.habits.contexts != "confluent":
            raise _Unknown(404)
        self.store.delete_context(context)
        return Reply(204, b"")

    def compatibility(self, subject: str, version: str | None = None) -> Any:
        content = self.store.read_content(subject, self.body)
        if version is None:
            versions = [each for each in self.store.subjects.get(subject, {}).values() if not each.deleted]
        else:
            versions = [self.store.version(subject, version)]
        reasons = self.store.incompatible_with(subject, content, versions)
        answer: dict[str, Any] = {"is_compatible": not reasons}
        verbose = self._flag("verbose") and (reasons or self.habits.full_answers)
        return {**answer, "messages": reasons} if verbose else answer

    # -- levels and modes ---

    def config(self, subject: str | None = None) -> Any:
        if subject is None:
            return self.store.config
        if subject in self.store.configs:
            return self.store.configs[subject]
        if self._flag("defaultToGlobal"):
            return self.store.level_of(subject)
        if not self.habits.levels:
            return {"compatibilityLevel": self.habits.default_level}
        message = f"Subject '{subject}' does not have subject-level compatibility configured"
        raise Refused(404, 40408, message)

    def set_config(self, subject: str | None = None) -> Any:
        answer = self.store.set_config(subject, self.body)
        return {**answer, "normalize": False} if self.habits.name == "apicurio" else answer

    def delete_config(self, subject: str | None = None) -> Any:
        if subject is None:
            former, self.store.config = self.store.config, {"compatibilityLevel": self.habits.default_level}
            return former
        if subject not in self.store.configs:
            raise Refused(404, 40401, f"Subject '{subject}' not found.")
        return self.store.configs.pop(subject)

    def mode(self, subject: str | None = None) -> Any:
        if subject is None:
            return {"mode": self.store.mode}
        if subject in self.store.modes:
            return {"mode": self.store.modes[subject]}
        if self._flag("defaultToGlobal") or not self.habits.levels:
            return {"mode": self.store.mode_of(subject)}
        message = f"Subject '{subject}' does not have subject-level mode configured"
        raise Refused(404, 40409, message)

    def set_mode(self, subject: str | None = None) -> Any:
        if not self.habits.mode_writes:
            raise _Unknown(405)
        mode = str(self.body.get("mode"))
        self.store.set_mode(subject, mode, force=self._flag("force"))
        return {"mode": mode.upper()}

    def delete_mode(self, subject: str | None = None) -> Any:
        if not self.habits.mode_writes:
            raise _Unknown(405)
        if subject is None:
            former, self.store.mode = self.store.mode, "READWRITE"
            return {"mode": former}
        if subject not in self.store.modes:
            raise Refused(404, 40401, f"Subject '{subject}' not found.")
        return {"mode": self.store.modes.pop(subject)}
