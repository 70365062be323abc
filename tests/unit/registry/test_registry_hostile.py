"""Servers that answer what no registry answers, slowly, or not at all: each a named error within the bounds."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from http_script import HttpScript, answer

from airflow_provider_kafka_migration.errors import (
    MigrationError,
    RegistryAnswerInvalid,
    RegistryForbidden,
    RegistryRefused,
    RegistryUnreachable,
    SchemaInvalid,
)
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.registry.model import Schema
from harness.processes import closed_port

pytestmark = pytest.mark.slow

AVRO = Schema("AVRO", '"string"')
VERSION = {"subject": "s", "version": 1, "id": 7, "schemaType": "AVRO", "schema": '"string"'}


def registry(url: str, *, timeout: float = 20.0, retry: float = 0.0, most: int = 100_000, **keys: Any) -> Registry:
    """A client that does not try again, unless ``retry`` says so.

    The timeout is long, because the server is a thread of a busy machine; a test of slowness gives its own.
    """
    settings = {"url": url, **keys}
    access = RegistryAccess.from_dict(
        settings, timeout_seconds=timeout, retry_seconds=retry, max_answer_bytes=most, max_parallel_requests=2
    )
    return Registry(access, "source")


def refused(script: HttpScript, kind: type[MigrationError], call: Callable[[Registry], Any], **bounds: Any) -> str:
    with script, registry(script.url, **bounds) as client, pytest.raises(kind) as caught:
        call(client)
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is kind
    assert "source registry" in str(error)
    assert error.where.path == script.url
    assert error.next_step
    return str(error)


def read_version(client: Registry) -> Any:
    return client.schema("s", 1)


# -- answers that are no answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (answer("<html>log in</html>", headers="Content-Type: text/html"), r"is not JSON \(HTTP 200, text/html\)"),
        (answer("{", headers="X: y"), r"is not JSON \(HTTP 200, no content type\)"),
        (answer('{"subject": "s", "versi'), "is not JSON"),
        (answer("[" * 100_000), "is not JSON"),
        (answer(b"\xff\xfe"), "is not JSON"),
        (answer(""), "the answer is not a JSON object but missing"),
        (answer("[]"), "the answer is not a JSON object but list"),
        (answer("{}", headers="Content-Encoding: gzip"), "is compressed"),
        (answer("x" * 100_001), "is larger than 100000 bytes"),
        (answer("", "302 Found", "Location: https://other.example/login?token=t0ken"), "redirect to other.example"),
        (answer("", "308 Permanent Redirect", "Location: /elsewhere"), "redirect to an address of the same host"),
        (answer("", "304 Not Modified"), "redirect"),
    ],
    ids=range(12),
)
def test_what_is_no_json_object_within_the_limit_is_invalid(raw: bytes, expected: str) -> None:
    text = refused(HttpScript(raw), RegistryAnswerInvalid, read_version)
    assert expected.replace("\\", "") in text
    assert "t0ken" not in text


def test_a_redirect_is_not_followed() -> None:
    with HttpScript(answer("[]")) as other:
        raw = answer("", "307 Temporary Redirect", f"Location: {other.url}/subjects")
        refused(HttpScript(raw), RegistryAnswerInvalid, lambda client: client.versions("s"))
        assert other.requests == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": None}, "id is not an integer but missing"),
        ({"id": "7"}, "id is not an integer but str"),
        ({"id": True}, "id is not an integer but bool"),
        ({"id": 2**31}, "id is out of range"),
        ({"version": -1}, "version is out of range"),
        ({"version": 1.0}, "version is not an integer but float"),
        ({"subject": None}, "subject is not a text but missing"),
        ({"subject": "\ud800"}, "subject is not valid Unicode"),
        ({"schema": {"type": "string"}}, "schema is not a text but dict"),
        ({"schemaType": "XML"}, "schemaType is none of AVRO, JSON, PROTOBUF"),
        ({"schemaType": ["AVRO"]}, "schemaType is none of AVRO, JSON, PROTOBUF"),
        ({"references": {}}, ""),
        ({"references": [1]}, "a reference is not a JSON object but int"),
        ({"references": [{"name": "n", "subject": "s"}]}, "the version of a reference is not an integer but missing"),
        ({"references": "r"}, "references is not a list but str"),
        ({"metadata": "m"}, "metadata is not a JSON object but str"),
        ({"ruleSet": [1]}, "ruleSet is not a JSON object but list"),
        ({"guid": 5}, "guid is not a text but int"),
    ],
)
def test_each_field_of_a_version_is_checked(change: dict[str, Any], expected: str) -> None:
    script = HttpScript(answer(json.dumps(VERSION | change)))
    if not expected:  # an empty value of another type means that there is none
        with script, registry(script.url) as client:
            assert client.schema("s", 1).schema.references == ()
        return
    assert expected in refused(script, RegistryAnswerInvalid, read_version)


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ('{"a": 1}', lambda client: client.versions("s")),
        ('["1"]', lambda client: client.versions("s")),
        ("[1, 2]", lambda client: client.contexts()),
        ("[null]", lambda client: client.subjects()),
        ("5", lambda client: client.schema_by_id(1)),
        ("{}", lambda client: client.schema_by_id(1)),
        ("[]", lambda client: client.lookup("s", AVRO)),
        ("{}", lambda client: client.register("s", AVRO)),
        ('{"id": "1"}', lambda client: client.register("s", AVRO)),
        ("[]", lambda client: client.config(None)),
        ("{}", lambda client: client.mode(None)),
        ('{"mode": 5}', lambda client: client.mode("s")),
        ("1", lambda client: client.delete_subject("s")),
    ],
)
def test_each_operation_checks_the_type_of_its_answer(body: str, call: Callable[[Registry], Any]) -> None:
    refused(HttpScript(answer(body)), RegistryAnswerInvalid, call)


def test_pages_without_an_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_kafka_migration.registry.client._LONGEST_LIST", 50)
    numbers = iter(range(1000))

    def endless(connection: socket.socket, head: str, body: bytes) -> None:
        names = ["."] if "/contexts" in head else [f"s{next(numbers)}" for _ in range(10)]
        connection.sendall(answer(json.dumps(names)))

    text = refused(HttpScript(endless), RegistryAnswerInvalid, lambda client: client.subjects())
    assert "the list of subjects has no end" in text


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_refused_credentials_are_terminal(status: str) -> None:
    script = HttpScript(answer('{"error_code": 40101, "message": "alice:hush"}', status))
    text = refused(script, RegistryForbidden, read_version)
    assert f"HTTP {status[:3]}" in text
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    "raw",
    [
        answer("<html>404</html>", "404 Not Found", "Content-Type: text/html"),
        answer("", "404 Not Found"),
        answer('{"error_code": 404, "message": "HTTP 404 Not Found"}', "404 Not Found"),
        answer('{"error_code": "40401"}', "404 Not Found"),
        answer('{"error_code": 40499}', "404 Not Found"),
        answer("[40401]", "404 Not Found"),
    ],
    ids=range(6),
)
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.versions("s"),
        lambda client: client.schema_by_id(1),
        lambda client: client.lookup("s", AVRO),
        lambda client: client.config("s"),
        lambda client: client.mode("s"),
        lambda client: client.delete_config("s"),
        lambda client: client.delete_mode("s"),
        read_version,
    ],
)
def test_a_404_without_the_registrys_own_code_never_means_nothing_there(
    raw: bytes, call: Callable[[Registry], Any]
) -> None:
    refused(HttpScript(raw), RegistryRefused, call)


@pytest.mark.parametrize("code", [40401, 40402])
def test_a_missing_subject_is_no_answer_about_an_id(code: int) -> None:
    raw = answer(json.dumps({"error_code": code, "message": "not found"}), "404 Not Found")
    with HttpScript(raw) as script, registry(script.url) as client, pytest.raises(MigrationError):
        client.schema_by_id(1)


def test_a_message_is_short_and_on_one_line() -> None:
    message = "line\nline\x1b[31m" + "m" * 5000
    raw = answer(json.dumps({"error_code": 42201, "message": message}), "422 Unprocessable")
    text = refused(HttpScript(raw), SchemaInvalid, lambda client: client.register("s", AVRO))
    assert "line line [31mmmm" in text
    assert len(text) < 800


# -- no answer --------------------------------------------------------------------------------------------------------


def dripping(connection: socket.socket, head: str, body: bytes) -> None:
    """Send a byte now and then, for ever."""
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(b"H" if head.startswith("POST") else b"x")
            time.sleep(0.05)


def slow_headers(connection: socket.socket, head: str, body: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    dripping(connection, head, body)


def slow_body(connection: socket.socket, head: str, body: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    dripping(connection, head, body)


def endless_chunks(connection: socket.socket, head: str, body: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")


def silent(connection: socket.socket, head: str, body: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.recv(1)


@pytest.mark.parametrize("handler", [slow_headers, slow_body, silent])
def test_a_slow_answer_ends_at_the_timeout(handler: Any) -> None:
    begun = time.monotonic()
    text = refused(HttpScript(handler), RegistryUnreachable, read_version, timeout=0.4)
    assert "within the timeout" in text
    assert time.monotonic() - begun < 100  # and not for ever


def test_an_answer_without_an_end_is_too_large() -> None:
    refused(HttpScript(endless_chunks), RegistryAnswerInvalid, read_version, timeout=20)


def reset(connection: socket.socket, head: str, body: bytes) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


@pytest.mark.parametrize(
    "handler",
    [
        reset,
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"\x00\x00\x00\x10not HTTP at all",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000 + b"\r\n\r\n{}",
    ],
    ids=range(6),
)
def test_a_broken_answer_is_unreachable(handler: Any) -> None:
    text = refused(HttpScript(handler), RegistryUnreachable, read_version, timeout=20)
    assert "the connection broke" in text


def test_nobody_listens() -> None:
    with (
        closed_port() as port,
        registry(f"http://127.0.0.1:{port}") as client,
        pytest.raises(RegistryUnreachable, match=r"no connection \(Connection refused\)"),
    ):
        client.subjects()


# -- trying again -----------------------------------------------------------------------------------------------------


def busy_first(times: int, status: str, headers: str = "X: y") -> Any:
    """Answer ``times`` times with a status, then with a version."""
    left = iter([True] * times)

    def handler(connection: socket.socket, head: str, body: bytes) -> None:
        busy = next(left, False)
        connection.sendall(answer("busy", status, headers) if busy else answer(json.dumps(VERSION)))

    return handler


@pytest.mark.parametrize("status", ["429 Slow Down", "500 Oops", "502 Bad", "503 Busy", "504 Late", "408 Timeout"])
def test_what_may_pass_is_tried_again(status: str) -> None:
    with HttpScript(busy_first(2, status)) as script, registry(script.url, timeout=20, retry=30) as client:
        assert client.schema("s", 1).id == 7
        assert len(script.requests) == 3


def test_lost_connections_are_tried_again() -> None:
    handlers = iter([reset, reset])

    def handler(connection: socket.socket, head: str, body: bytes) -> None:
        next(handlers, lambda *_: connection.sendall(answer(json.dumps(VERSION))))(connection, head, body)

    with HttpScript(handler) as script, registry(script.url, timeout=20, retry=30) as client:
        assert client.schema("s", 1).id == 7


def test_a_server_error_that_stays_is_tried_three_times() -> None:
    raw = answer('{"error_code": 50001, "message": "Error in the backend data store"}', "500 Oops")
    script = HttpScript(raw)
    text = refused(script, RegistryUnreachable, read_version, timeout=20, retry=60)
    assert "code 50001: Error in the backend data store" in text
    assert len(script.requests) == 3


def test_retry_after_is_kept_within_the_bound() -> None:
    script = HttpScript(busy_first(99, "429 Slow Down", "Retry-After: 3600"))
    assert "HTTP 429" in refused(script, RegistryUnreachable, read_version, timeout=20, retry=5)
    assert len(script.requests) == 1
    script = HttpScript(busy_first(1, "503 Busy", "Retry-After: 1"))
    begun = time.monotonic()
    with script, registry(script.url, timeout=20, retry=30) as client:
        client.schema("s", 1)
    assert time.monotonic() - begun >= 1


@pytest.mark.parametrize("text", ["soon", "-5", "Wed, 21 Oct 2015 07:28:00 GMT", "9" * 400])
def test_a_nonsensical_retry_after_does_no_harm(text: str) -> None:
    script = HttpScript(busy_first(1, "503 Busy", f"Retry-After: {text}"))
    with script, registry(script.url, timeout=20, retry=5) as client:
        if text.startswith("9"):
            with pytest.raises(RegistryUnreachable):
                client.schema("s", 1)
        else:
            assert client.schema("s", 1).id == 7


def test_the_next_url_answers_when_the_first_is_down() -> None:
    with HttpScript(b"") as gone:
        down = gone.url
    with HttpScript(answer(json.dumps(VERSION))) as script, registry(f"{down},{script.url}/path") as client:
        assert client.schema("s", 1).id == 7
        assert script.requests[0][0].startswith("GET /path/subjects/s/versions/1 ")


def test_no_more_requests_than_allowed_are_in_flight() -> None:
    from concurrent.futures import ThreadPoolExecutor
    from threading import Lock

    lock, seen = Lock(), {"now": 0, "most": 0}

    def handler(connection: socket.socket, head: str, body: bytes) -> None:
        with lock:
            seen["now"] += 1
            seen["most"] = max(seen["most"], seen["now"])
        time.sleep(0.02)
        with lock:
            seen["now"] -= 1
        connection.sendall(answer(json.dumps(VERSION)))

    with HttpScript(handler) as script, registry(script.url, timeout=20) as client, ThreadPoolExecutor(8) as pool:
        assert [found.id for found in pool.map(lambda _: client.schema("s", 1), range(24))] == [7] * 24
    assert seen["most"] == 2
