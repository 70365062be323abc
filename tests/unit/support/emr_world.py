"""EMR Serverless and EMR on EKS as an HTTP server that real clients talk to.

moto answers these two services, too, but its job runs end at once (or never), it ignores client tokens, pages and retry
policies, and it does not compare requests with AWS's models. This one does: each request and each answer is checked
against the service's own model, as botocore has it, with its patterns, lengths and required members.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import botocore.session
from botocore.model import OperationModel, Shape

ACCOUNT, REGION = "123456789012", "eu-west-1"

_OVER = {"SUCCESS", "FAILED", "CANCELLED", "COMPLETED"}


def mismatches(shape: Shape, value: Any, path: str = "") -> Iterator[str]:
    """Yield how a value differs from what a service's model says."""
    limits = shape.metadata
    if shape.type_name == "structure":
        if not isinstance(value, Mapping):
            yield f"{path}: not an object"
            return
        yield from (f"{path}.{name}: missing" for name in shape.required_members if name not in value)
        for name, item in value.items():
            if name not in shape.members:
                yield f"{path}.{name}: unknown"
            else:
                yield from mismatches(shape.members[name], item, f"{path}.{name}")
    elif shape.type_name == "list":
        for index, item in enumerate(value):
            yield from mismatches(shape.member, item, f"{path}[{index}]")
    elif shape.type_name == "map":
        if not limits.get("min", 0) <= len(value) <= limits.get("max", 10**9):
            yield f"{path}: {len(value)} entries"
        for key, item in value.items():
            yield from mismatches(shape.key, key, f"{path}.(key)")
            yield from mismatches(shape.value, item, f"{path}.{key}")
    elif shape.type_name == "string":
        yield from _text_mismatches(shape, value, path)
    elif shape.type_name in ("integer", "long") and not _is_in_range(limits, value):
        yield f"{path}: {value!r} is out of range"


def _is_in_range(limits: Mapping[str, Any], value: Any) -> bool:
    return isinstance(value, int) and limits.get("min", value) <= value <= limits.get("max", value)


def _text_mismatches(shape: Shape, value: Any, path: str) -> Iterator[str]:
    limits = shape.metadata
    if not isinstance(value, str):
        yield f"{path}: not a text"
        return
    if not limits.get("min", 0) <= len(value) <= limits.get("max", 10**9):
        yield f"{path}: {len(value)} characters"
    if limits.get("enum") and value not in limits["enum"]:
        yield f"{path}: {value!r} is not one of {limits['enum']}"
    if limits.get("pattern") and not re.fullmatch(limits["pattern"], value):
        yield f"{path}: {value!r} does not match {limits['pattern']}"


class AwsError(Exception):
    """What the service answers instead of a result."""

    def __init__(self, status: int, code: str, message: str = "", *, body: bytes | None = None) -> None:
        super().__init__(code)
        self.status, self.code, self.message, self.body = status, code, message, body


@dataclass
class Run:
    """A job run of the simulated service."""

    id: str
    request: dict[str, Any]
    state: str
    created: datetime
    details: str = " "
    failure: str | None = None
    states: list[str] = field(default_factory=list)


@dataclass
class Emr:
    """One of the two services.

    :param kind: ``emr-serverless`` or ``emr-containers``.
    :param place: the application, or the virtual cluster.
    """

    kind: str
    place: str
    runs: dict[str, Run] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    #: Called before an operation; may raise AwsError.
    before: list[Callable[[str, dict[str, Any]], None]] = field(default_factory=list)
    #: Operations that are executed, but whose answer is lost: the connection is closed.
    lost_answers: list[str] = field(default_factory=list)
    #: Answers of operations that replace the true one.
    instead: dict[str, Any] = field(default_factory=dict)
    #: Whether the service still knows the tokens of earlier requests.
    remembers_tokens: bool = True
    page_size: int = 50
    #: The list does not show runs that were started a moment ago.
    list_is_late: bool = False

    def __post_init__(self) -> None:
        self.model = botocore.session.get_session().get_service_model(self.kind)
        self.lock = threading.Lock()

    @property
    def is_serverless(self) -> bool:
        """Whether this is EMR Serverless."""
        return self.kind == "emr-serverless"

    def started(self) -> list[dict[str, Any]]:
        """The requests that started job runs, or tried to."""
        return [request for operation, request in self.requests if operation == "StartJobRun"]

    def operations(self) -> list[str]:
        """The operations that were asked for, in order."""
        return [operation for operation, _ in self.requests]

    def refuse(self, operation: str, status: int, code: str, message: str = "", *, times: int = 10**6) -> None:
        """Let an operation fail from now on, a number of times."""
        left = [times]

        def check(asked: str, _: dict[str, Any]) -> None:
            if asked == operation and left[0] > 0:
                left[0] -= 1
                raise AwsError(status, code, message)

        self.before.append(check)

    def only(self) -> Run:
        """The only run."""
        (run,) = self.runs.values()
        return run

    def arn(self, run: str) -> str:
        """The ARN of a run."""
        folder = "applications" if self.is_serverless else "virtualclusters"
        return f"arn:aws:{self.kind}:{REGION}:{ACCOUNT}:/{folder}/{self.place}/jobruns/{run}"

    # -- operations ---------------------------------------------------------------------------------------------------

    def answer(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """Execute an operation."""
        for check in list(self.before):
            check(operation, request)
        place = request["applicationId" if self.is_serverless else "virtualClusterId"]
        if place != self.place:
            kind = "Application" if self.is_serverless else "Virtual cluster"
            raise self._absent(f"{kind} {place} does not exist")
        by_name = {
            "StartJobRun": self._start,
            "ListJobRuns": self._list,
            "GetJobRun": self._describe,
            "DescribeJobRun": self._describe,
            "CancelJobRun": self._cancel,
        }
        return by_name[operation](request)

    def _absent(self, message: str) -> AwsError:
        return AwsError(404 if self.is_serverless else 400, "ResourceNotFoundException", message)

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        known = [run for run in self.runs.values() if run.request["clientToken"] == request["clientToken"]]
        if known and self.remembers_tokens:
            run = known[0]
            if run.request != request and self.is_serverless:
                raise AwsError(409, "ConflictException", "The client token is in use with other parameters")
        else:
            number = len(self.runs) + 1
            run = Run(f"00f{number:013d}", request, "SUBMITTED" if self.is_serverless else "PENDING", datetime.now(UTC))
            self.runs[run.id] = run
        if self.is_serverless:
            return {"applicationId": self.place, "jobRunId": run.id, "arn": self.arn(run.id)}
        return {"id": run.id, "name": run.request["name"], "arn": self.arn(run.id), "virtualClusterId": self.place}

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        runs = [] if self.list_is_late else list(self.runs.values())
        if request.get("states"):
            runs = [run for run in runs if run.state in request["states"]]
        if "name" in request:
            runs = [run for run in runs if run.request["name"] == request["name"]]
        after = request.get("createdAtAfter") or request.get("createdAfter")
        if after:
            runs = [run for run in runs if run.created >= datetime.fromisoformat(after.replace("Z", "+00:00"))]
        token = request.get("nextToken", "0")
        start = int(token) if token.isdigit() else 0
        size = min(self.page_size, int(request["maxResults"]))
        page = {"jobRuns": [self._shown(run, listed=True) for run in runs[start : start + size]]}
        return page | ({"nextToken": str(start + size)} if start + size < len(runs) else {})

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        run = self._run(request)
        if run.states:
            run.state = run.states.pop(0)
        return {"jobRun": self._shown(run)}

    def _run(self, request: dict[str, Any]) -> Run:
        wanted = request["jobRunId" if self.is_serverless else "id"]
        if wanted not in self.runs:
            raise self._absent(f"Job run {wanted} does not exist")
        return self.runs[wanted]

    def _cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        run = self._run(request)
        if run.state in _OVER or run.state in ("CANCELLING", "CANCEL_PENDING"):
            raise AwsError(400, "ValidationException", f"Job run {run.id} is not in a cancellable state")
        run.state = "CANCELLING" if self.is_serverless else "CANCEL_PENDING"
        if self.is_serverless:
            return {"applicationId": self.place, "jobRunId": run.id}
        return {"id": run.id, "virtualClusterId": self.place}

    def _shown(self, run: Run, *, listed: bool = False) -> dict[str, Any]:
        request = run.request
        shared = {"name": request["name"], "arn": self.arn(run.id), "state": run.state, "stateDetails": run.details}
        if not self.is_serverless:
            copied = ("clientToken", "executionRoleArn", "releaseLabel", "configurationOverrides", "jobDriver", "tags")
            own = {key: request[key] for key in (*copied, "retryPolicyConfiguration") if key in request}
            shown = shared | own | {"id": run.id, "virtualClusterId": self.place, "createdAt": run.created.isoformat()}
            if run.details == " ":
                del shown["stateDetails"]
            return shown | ({"failureReason": run.failure} if run.failure else {})
        shown = shared | {
            "applicationId": self.place,
            "createdBy": f"arn:aws:iam::{ACCOUNT}:user/airflow",
            "createdAt": run.created.timestamp(),
            "updatedAt": run.created.timestamp(),
            "executionRole": request["executionRoleArn"],
            "releaseLabel": "emr-spark-8.0.0",
            "stateDetails": run.details.strip() or "-",
        }
        if listed:
            return shown | {"id": run.id, "type": "SPARK", "mode": request["mode"]}
        copied = ("configurationOverrides", "jobDriver", "tags", "mode", "retryPolicy", "executionTimeoutMinutes")
        return shown | {"jobRunId": run.id} | {key: request[key] for key in copied if key in request}


# -- wire -------------------------------------------------------------------------------------------------------------


def _route(operation: OperationModel) -> tuple[str, re.Pattern[str]]:
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", operation.http["requestUri"].split("?")[0])
    return operation.http["method"], re.compile(pattern)


def _read(operation: OperationModel, place: dict[str, str], query: str, body: bytes) -> dict[str, Any]:
    shape = operation.input_shape
    found: dict[str, Any] = json.loads(body) if body else {}
    given = parse_qs(query)
    for name, member in shape.members.items():
        where, key = member.serialization.get("location"), member.serialization.get("name", name)
        if where == "uri":
            found[name] = place[key]
        elif where == "querystring" and key in given:
            values = given[key]
            found[name] = values if member.type_name == "list" else values[0]
            if member.type_name == "integer":
                found[name] = int(values[0])
    return found


@contextmanager
def serving(world: Emr) -> Iterator[str]:
    """Serve one of the two services on loopback; yields its address."""
    names = ("StartJobRun", "ListJobRuns", "GetJobRun", "DescribeJobRun", "CancelJobRun")
    models = [world.model.operation_model(name) for name in names if name in world.model.operation_names]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            for operation in models:
                method, route = _route(operation)
                match = route.fullmatch(parts.path)
                if match and method == self.command:
                    request = _read(operation, match.groupdict(), parts.query, body)
                    with world.lock:
                        self._execute(operation, request)
                    return
            self._send(404, b"<html>no such page</html>", {"Content-Type": "text/html"})

        do_GET = do_POST = do_DELETE = _serve

        def _execute(self, operation: OperationModel, request: dict[str, Any]) -> None:
            world.requests.append((operation.name, request))
            wrong = list(mismatches(operation.input_shape, request))
            try:
                if wrong:
                    raise AwsError(400, "ValidationException", "; ".join(wrong))
                answer = world.answer(operation.name, request)
            except AwsError as error:
                content = error.body if error.body is not None else json.dumps({"message": error.message}).encode()
                self._send(error.status, content, {"x-amzn-ErrorType": error.code})
                return
            if operation.name in world.lost_answers:
                world.lost_answers.remove(operation.name)
                self.close_connection = True
                self.connection.close()
                return
            if operation.name in world.instead:
                replaced = world.instead[operation.name]
                self._send(200, replaced if isinstance(replaced, bytes) else json.dumps(replaced).encode(), {})
                return
            unlike = list(mismatches(operation.output_shape, answer))
            assert not unlike, f"the simulated service is wrong: {unlike}"
            self._send(200, json.dumps(answer).encode(), {})

        def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for key, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
