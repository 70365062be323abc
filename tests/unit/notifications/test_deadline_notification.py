"""The notifier of a missed deadline."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from airflow.sdk import BaseNotifier

from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.notifications.deadline import notify_missed

SENT: list[tuple[str, int]] = []
#: What Airflow's scheduler gives to a callback of a deadline, as far as templates use it.
CONTEXT = {
    "dag_run": {"dag_id": "kafka_watch_freeze_orders", "dag_run_id": "asset_triggered__1", "state": "running"},
    "deadline": {"id": "d", "deadline_time": "2026-04-24T10:41:00Z"},
}


class Remember(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text: str, fail: bool = False) -> None:
        super().__init__()
        self.text = text
        self.fail = fail

    def notify(self, _context: Any) -> None:
        if self.fail:
            raise OSError("mail server down")
        SENT.append((self.text, threading.get_ident()))


@pytest.fixture(autouse=True)
def _forget() -> None:
    SENT.clear()


def _notify(spec: dict[str, Any], notifications: dict[str, Any] | None, **arguments: Any) -> str:
    given: dict[str, Any] = {"watched": "freeze", "within_seconds": 90.0, "context": CONTEXT, **arguments}
    return asyncio.run(notify_missed(spec={**spec, "notifications": notifications or {}}, **given))


def test_it_is_told_as_at_other_events(minimal_spec: dict[str, Any]) -> None:
    text = (
        "{{ migration_id }} {{ migration_event }} {{ ti.task_id }} {{ run_id }} {{ dag_run.run_id }} {{ deadline.id }}"
    )
    notifications = {"notifier": f"{__name__}.Remember", "kwargs": {"text": text}, "events": ["failed"]}
    told = _notify(minimal_spec, notifications)
    ((sent, thread),) = SENT
    assert sent == "orders freeze_deadline watch asset_triggered__1 asset_triggered__1 d"
    assert thread != threading.get_ident(), "the triggerer does not wait for a mail server"
    assert told == (
        "Kafka migration orders: after 0:01:30 producers are still frozen, or it is not known whether they are"
    )


def test_a_lag_names_its_limit(minimal_spec: dict[str, Any]) -> None:
    notifications = {
        "notifier": f"{__name__}.Remember",
        "kwargs": {"text": "{{ migration_event }}: {{ migration_message }}"},
    }
    told = _notify(minimal_spec, notifications, watched="lag", limit="30 s")
    assert told == "Kafka migration orders: after 0:01:30 the lag is still above its limit (30 s), or it is not known"
    assert SENT[0][0] == f"lag_deadline: {told}"


def test_a_failure_stays_in_the_state_of_the_callback(minimal_spec: dict[str, Any]) -> None:
    with pytest.raises(OSError, match="mail server down"):
        _notify(minimal_spec, {"notifier": f"{__name__}.Remember", "kwargs": {"text": "x", "fail": True}})
    with pytest.raises(SpecInvalid):
        _notify(minimal_spec, {"notifier": f"{__name__}.NoNotifier"})
