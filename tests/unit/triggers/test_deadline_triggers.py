"""The triggers of deadlines: nothing but the end of a freeze or a lag ends them, and each beginning fires once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent
from airflow_releases import TaskDeferred

from airflow_provider_kafka_migration.deadline_watch import UNKNOWN_SECONDS, Finding, LagLimit, Standing
from airflow_provider_kafka_migration.errors import StorageRefused, StorageUnavailable
from airflow_provider_kafka_migration.sensors.deadline import KafkaMigrationDeadlineSensor
from airflow_provider_kafka_migration.triggers import deadline
from airflow_provider_kafka_migration.triggers.deadline import DeadlineEndTrigger, DeadlineStartTrigger

GOING_ON, UNKNOWN = Finding(Standing.GOING_ON, "frozen", 1), Finding(Standing.UNKNOWN, "who knows")
OVER = Finding(Standing.OVER, "over")
POLL_SECONDS = 7.0


class Storage:
    """What one check after the other meets, whichever watch it is made with. Time passes only between two checks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: Iterator[Any] = iter(())
        self.opened: list[tuple[Any, ...]] = []
        self.closed = 0
        self.pauses: list[float] = []
        monkeypatch.setattr(deadline, "open_watch", self.open)
        monkeypatch.setattr(f"{deadline.__name__}.asyncio.sleep", self.sleep)
        monkeypatch.setattr(DeadlineStartTrigger, "clock", staticmethod(lambda: sum(self.pauses)))

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def open(self, watched: str, spec: Any, resolver: Any, limit: LagLimit) -> Any:
        self.opened.append((watched, spec.migration_id, resolver.mapping(spec.storage.conn_id), limit))
        return SimpleNamespace(check=self.check, close=self.close)

    def check(self) -> Finding:
        answer = next(self.answers, None)
        if answer is None:
            # As Airflow ends a trigger.
            raise asyncio.CancelledError
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        self.closed += 1

    def events(self, trigger: BaseTrigger, *answers: Any) -> list[TriggerEvent]:
        """The events until there is no answer any more."""
        self.answers = iter(answers)
        found: list[TriggerEvent] = []

        async def collect() -> None:
            async for event in trigger.run():
                found.append(event)

        with suppress(asyncio.CancelledError):
            asyncio.run(collect())
        return found


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    return Storage(monkeypatch)


@pytest.fixture
def arguments(minimal_spec: dict[str, Any], connection: Callable[..., None]) -> dict[str, Any]:
    connection("aws_s3", conn_type="aws", login="key", password="secret")
    return {"spec": minimal_spec, "watched": "freeze", "poll_seconds": POLL_SECONDS}


@pytest.mark.parametrize("kind", [DeadlineStartTrigger, DeadlineEndTrigger])
def test_round_trip_through_airflows_database(kind: type[Any], arguments: dict[str, Any]) -> None:
    given = {**arguments, "watched": "lag", "lag_limit_seconds": 1.5, "lag_limit_records": 7}
    path, stored = kind(**given).serialize()
    assert path == f"{kind.__module__}.{kind.__qualname__}"
    assert stored == given
    assert kind(**json.loads(json.dumps(stored))).serialize() == (path, stored)
    assert "secret" not in json.dumps(stored)


def test_the_end_ends_the_task_without_a_worker(storage: Storage, arguments: dict[str, Any]) -> None:
    (event,) = storage.events(DeadlineEndTrigger(**arguments), GOING_ON, UNKNOWN, GOING_ON, OVER)
    assert isinstance(event, TaskSuccessEvent)
    assert storage.pauses == [POLL_SECONDS] * 3
    assert (len(storage.opened), storage.closed) == (1, 1)
    watched, migration_id, keys, limit = storage.opened[0]
    assert (watched, migration_id, limit) == ("freeze", arguments["spec"]["migration_id"], LagLimit())
    assert keys["aws_secret_access_key"] == "secret"


@pytest.mark.parametrize("error", [StorageUnavailable("away"), StorageRefused("not permitted"), ValueError("a bug")])
def test_no_error_is_an_end_and_connections_are_read_again(
    storage: Storage, arguments: dict[str, Any], error: Exception
) -> None:
    assert storage.events(DeadlineEndTrigger(**arguments), GOING_ON, *[error] * 20) == []
    assert len(storage.opened) >= 20
    assert storage.closed == len(storage.opened)


def test_an_unknown_connection_is_no_end(storage: Storage, arguments: dict[str, Any]) -> None:
    spec = {**arguments["spec"], "storage": {**arguments["spec"]["storage"], "conn_id": "nobody"}}
    trigger = DeadlineEndTrigger(**{**arguments, "spec": spec})
    assert asyncio.run(trigger._look()).standing is Standing.UNKNOWN
    assert storage.opened == []


def test_each_beginning_fires_once(storage: Storage, arguments: dict[str, Any]) -> None:
    second = Finding(Standing.GOING_ON, "frozen again", 2)
    found = storage.events(DeadlineStartTrigger(**arguments), OVER, GOING_ON, GOING_ON, OVER, second, second)
    assert [event.payload for event in found] == [
        {"watched": "freeze", "summary": "frozen"},
        {"watched": "freeze", "summary": "frozen again"},
    ]
    assert not any(isinstance(event, TaskSuccessEvent) for event in found)


def test_a_storage_that_stays_away_fires_once(storage: Storage, arguments: dict[str, Any]) -> None:
    patience = int(UNKNOWN_SECONDS / POLL_SECONDS) + 1
    away = [StorageUnavailable("away")]
    assert storage.events(DeadlineStartTrigger(**arguments), OVER, *away * (patience - 2), OVER) == []
    (event,) = storage.events(DeadlineStartTrigger(**arguments), OVER, *away * (patience + 5))
    assert "away" in event.payload["summary"]


# -- the task ---------------------------------------------------------------------------------------------------------


def test_the_task_begins_in_the_triggerer(arguments: dict[str, Any]) -> None:
    sensor = KafkaMigrationDeadlineSensor(task_id="watch", **arguments)
    assert sensor.start_from_trigger
    started = sensor.start_trigger_args
    assert started is not None
    assert started.timeout is None
    assert started.trigger_cls == DeadlineEndTrigger(**arguments).serialize()[0]
    assert started.trigger_kwargs == DeadlineEndTrigger(**arguments).serialize()[1]
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    assert isinstance(deferred.value.trigger, DeadlineEndTrigger)
    assert deferred.value.trigger.serialize()[1] == started.trigger_kwargs
    assert deferred.value.timeout is None
    sensor.execute_complete({})
