"""The webhook: signed, retried within a bound, its answer verified."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from phase_support import attempt_at, make_context

from airflow_provider_kafka_migration.errors import ConnectionInvalid, FreezeFailed
from airflow_provider_kafka_migration.freeze import stops
from airflow_provider_kafka_migration.freeze.webhook import ATTEMPTS, FreezeWebhook, signature
from airflow_provider_kafka_migration.state import State
from harness.webhook import FreezeWebhook as Receiver

NOW = datetime(2026, 4, 24, 10, 40, tzinfo=UTC)
DEADLINE = NOW + timedelta(seconds=60)
SECRET = "shared-secret"


class Producer:
    def __init__(self) -> None:
        self.frozen = False

    def freeze(self) -> None:
        self.frozen = True

    def unfreeze(self) -> None:
        self.frozen = False


def call(receiver: Receiver, action: Any = "freeze", *, secret: str | None = SECRET, **options: Any) -> Any:
    webhook = FreezeWebhook(receiver.url, secret, sleep=lambda _: None, **options)
    return webhook.call("m1", action, now=NOW, deadline=DEADLINE, order=7)


def test_freeze_and_unfreeze_are_signed_and_answered() -> None:
    producer = Producer()
    with Receiver(producer, secret=SECRET) as receiver:
        assert call(receiver).attempts == 1
        assert producer.frozen
        call(receiver, "unfreeze")
        assert not producer.frozen
    sent = receiver.calls[0]
    assert sent.body == {
        "migration_id": "m1",
        "action": "freeze",
        "deadline": "2026-04-24T10:41:00Z",
        "order": 7,
        "sent_at": "2026-04-24T10:40:00Z",
    }
    assert sent.headers["x-kafka-migration-signature"] == signature(sent.raw, SECRET)
    assert SECRET.encode() not in sent.raw


def test_a_wrong_secret_is_refused_at_once() -> None:
    with Receiver(Producer(), secret="another") as receiver, pytest.raises(FreezeFailed, match="401"):
        call(receiver)
    assert len(receiver.calls) <= 1


def test_server_errors_are_retried_until_it_works() -> None:
    answers = iter([(500, {}), (503, {}), None])
    with Receiver(Producer(), secret=SECRET, answer=lambda _: next(answers)) as receiver:
        assert call(receiver).attempts == 3


def test_retries_are_bounded() -> None:
    with (
        Receiver(Producer(), secret=SECRET, answer=lambda _: (502, {})) as receiver,
        pytest.raises(FreezeFailed, match="502"),
    ):
        call(receiver)
    assert len(receiver.calls) == ATTEMPTS


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, {}, "migration_id"),
        (200, {"migration_id": "m2", "action": "freeze"}, "migration_id"),
        (200, {"migration_id": "m1", "action": "unfreeze"}, "action"),
        (200, {"migration_id": "m1", "action": "freeze", "status": "pending"}, "done"),
        (202, {"migration_id": "m1", "action": "freeze"}, "202"),
        (404, {}, "404"),
        (302, {}, "302"),
    ],
)
def test_an_answer_that_does_not_say_frozen_is_refused(status: int, body: dict[str, Any], why: str) -> None:
    with (
        Receiver(Producer(), secret=SECRET, answer=lambda _: (status, body)) as receiver,
        pytest.raises(FreezeFailed, match=why),
    ):
        call(receiver)
    assert len(receiver.calls) == 1


def test_the_address_behind_a_reference_is_called_and_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Path, query, login: all of it may be secret, so messages have scheme and host only."""
    cutover = {"freeze": "webhook", "producer_freeze_webhook": "env:FREEZE_WEBHOOK"}
    context = make_context(tmp_path, state=State.CUTOVER, cutover=cutover)
    with Receiver(Producer()) as receiver:
        place = receiver.url.removeprefix("http://").partition("/")[0]
        monkeypatch.setenv("FREEZE_WEBHOOK", f"http://bob:hunter2@{place}/hunter3?token=hunter4#hunter5\n")
        done = stops.freeze(context, attempt_at(context, "webhook"))
    assert done["webhook"]["status"] == 200
    assert receiver.calls[0].headers["authorization"] == "Basic Ym9iOmh1bnRlcjI="
    assert receiver.calls[0].headers["host"] == place
    quick = {**FreezeWebhook.__init__.__kwdefaults__, "request_seconds": 1.0, "sleep": lambda _: None}
    monkeypatch.setattr(FreezeWebhook.__init__, "__kwdefaults__", quick)
    with pytest.raises(FreezeFailed) as caught:
        stops.freeze(context, attempt_at(context, "webhook"))
    assert caught.value.where.path == f"http://{place}"
    shown = f"{caught.value} {caught.value.as_dict()} {caplog.text} {done} {context.spec}"
    assert "hunter" not in shown


@pytest.mark.parametrize("content", ["hunter2", "ftp://host/hunter2", "https://[hunter2", ""])
def test_a_reference_to_something_else_is_named_and_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    context = make_context(tmp_path, cutover={"freeze": "webhook", "producer_freeze_webhook": "env:FREEZE_WEBHOOK"})
    monkeypatch.setenv("FREEZE_WEBHOOK", content)
    with pytest.raises(
        ConnectionInvalid, match="producer_freeze_webhook refers to something that is not an http"
    ) as caught:
        stops.freeze(context, attempt_at(context, "webhook"))
    assert caught.value.where.path == "env:FREEZE_WEBHOOK"
    assert "hunter2" not in str(caught.value)


def test_nobody_there() -> None:
    with Receiver(Producer()) as receiver:
        url = receiver.url
    with pytest.raises(FreezeFailed, match="no answer"):
        FreezeWebhook(url, None, sleep=lambda _: None).call("m1", "freeze", now=NOW, deadline=DEADLINE, order=7)


def test_a_receiver_that_hangs_costs_a_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, says nothing
        webhook = FreezeWebhook(
            f"http://127.0.0.1:{server.getsockname()[1]}/", SECRET, request_seconds=0.1, sleep=lambda _: None
        )
        begun = time.monotonic()
        with pytest.raises(FreezeFailed, match="no answer"):
            webhook.call("m1", "freeze", now=NOW, deadline=DEADLINE, order=7)
        assert time.monotonic() - begun < 60  # and not until the deadline


def test_a_receiver_that_answers_byte_by_byte_costs_a_bounded_time() -> None:
    """Each read succeeds within the time of a request; the whole answer would take minutes."""
    closed, gave_up = Event(), Event()

    def trickles(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n")
            for _ in range(3000):
                if closed.wait(0.05):
                    return
                try:
                    connection.sendall(b" ")
                except OSError:
                    return
        gave_up.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=trickles, args=(server,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        webhook = FreezeWebhook(url, SECRET, request_seconds=0.5, attempts=1, sleep=lambda _: None)
        with pytest.raises(FreezeFailed, match="no answer"):
            webhook.call("m1", "freeze", now=NOW, deadline=DEADLINE, order=7)
        assert not gave_up.is_set(), "it ended before its receiver"
        closed.set()
        thread.join(60)
