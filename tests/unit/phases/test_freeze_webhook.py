"""The webhook: signed, retried within a bound, its answer verified."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import FreezeFailed
from airflow_provider_kafka_migration.phases.freeze_webhook import ATTEMPTS, FreezeWebhook, signature
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
    return webhook.call("m1", action, now=NOW, deadline=DEADLINE)


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


def test_nobody_there() -> None:
    with Receiver(Producer()) as receiver:
        url = receiver.url
    with pytest.raises(FreezeFailed, match="no answer"):
        FreezeWebhook(url, None, sleep=lambda _: None).call("m1", "freeze", now=NOW, deadline=DEADLINE)


def test_a_receiver_that_hangs_costs_a_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, says nothing
        webhook = FreezeWebhook(
            f"http://127.0.0.1:{server.getsockname()[1]}/", SECRET, request_seconds=0.1, sleep=lambda _: None
        )
        begun = time.monotonic()
        with pytest.raises(FreezeFailed, match="no answer"):
            webhook.call("m1", "freeze", now=NOW, deadline=DEADLINE)
        assert time.monotonic() - begun < 5
