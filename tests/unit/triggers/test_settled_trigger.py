"""No trigger that wakes a task fires before Airflow has recorded the deferral."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from airflow_provider_kafka_migration.triggers import settled
from airflow_provider_kafka_migration.triggers.drain import DrainTrigger
from airflow_provider_kafka_migration.triggers.freeze_limit import FreezeLimitTrigger
from airflow_provider_kafka_migration.triggers.mirror import MirrorJobTrigger, MirrorPausedTrigger
from airflow_provider_kafka_migration.triggers.settled import SettledTrigger
from airflow_provider_kafka_migration.triggers.spark_job import SparkJobTrigger


class _Times(SettledTrigger):
    """Has events so many seconds after its start, by a clock that only waiting moves."""

    def __init__(self, *times: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.times = times
        self.now = 0.0
        self.is_closed = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        raise AssertionError

    async def events(self) -> AsyncIterator[TriggerEvent]:
        try:
            for time in self.times:
                self.now = max(self.now, time)
                yield TriggerEvent(time)
        finally:
            self.is_closed = True


@pytest.fixture
def fired(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a trigger and return its events with the times at which they came."""
    monkeypatch.setattr(SettledTrigger, "SETTLE_SECONDS", 10.0)

    def run(trigger: _Times) -> list[tuple[float, float]]:
        async def sleep(seconds: float) -> None:
            trigger.now += seconds

        monkeypatch.setattr(settled, "elapsed_seconds", lambda: trigger.now)
        monkeypatch.setattr(settled.asyncio, "sleep", sleep)

        async def all_events() -> list[tuple[float, float]]:
            return [(event.payload, trigger.now) async for event in trigger.run()]

        return asyncio.run(all_events())

    return run


@pytest.mark.parametrize(("happens", "fires"), [(0.0, 10.0), (3.0, 10.0), (10.0, 10.0), (25.0, 25.0)])
def test_an_early_event_waits_until_the_deferral_is_recorded(fired: Any, happens: float, fires: float) -> None:
    assert fired(_Times(happens)) == [(happens, fires)]


def test_what_a_trigger_has_opened_is_closed_when_it_is_left() -> None:
    trigger = _Times(0.0, 1.0)

    async def first() -> None:
        running = trigger.run()
        assert (await anext(running)).payload == 0.0
        await running.aclose()  # type: ignore[attr-defined]

    asyncio.run(first())
    assert trigger.is_closed


def test_all_triggers_that_wake_a_task_do_so() -> None:
    for kind in (SparkJobTrigger, DrainTrigger, FreezeLimitTrigger, MirrorJobTrigger, MirrorPausedTrigger):
        assert issubclass(kind, SettledTrigger)
        assert kind.run is SettledTrigger.run
