"""The drain sensor and its trigger, over a watch that does as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent
from airflow_releases import TaskDeferred

from airflow_provider_kafka_migration import migration as core
from airflow_provider_kafka_migration.dag import build_migration_dag
from airflow_provider_kafka_migration.errors import BrokerUnreachable, ConnectionInvalid, ForeignData, error_from_dict
from airflow_provider_kafka_migration.jobs import tail_health
from airflow_provider_kafka_migration.notifications.migration import message
from airflow_provider_kafka_migration.provider.progress import TROUBLE
from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.sensors import drain as sensor_module
from airflow_provider_kafka_migration.sensors.drain import KafkaMigrationDrainSensor
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.topics.lags import DrainStatus
from airflow_provider_kafka_migration.triggers import drain

NOT_READY = {"ready": False, "summary": "lag 7", "stable_since": None}
READY = {"ready": True, "summary": "lag 0", "stable_since": "2026-01-01T00:00:00.000Z"}


class Watch:
    """Gives its answers one after the other; notes the threads it is called in."""

    def __init__(self, *answers: Any) -> None:
        self._answers: Iterator[Any] = iter(answers)
        self.threads: set[int] = set()
        self.closed = 0
        self.looking = threading.Event()

    def check(self) -> dict[str, Any]:
        self.threads.add(threading.get_ident())
        self.looking.set()
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        found: dict[str, Any] = answer
        return found

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed += 1


@pytest.fixture
def spec(minimal_spec: dict[str, Any], connection: Callable[..., None]) -> dict[str, Any]:
    for name in ("kafka_source", "kafka_target"):
        connection(name, conn_type="kafka", extra={"bootstrap.servers": "a:1", "sasl.password": "secret"})
    connection("aws_s3", conn_type="aws", login="key", password="secret")
    return minimal_spec


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Callable[[Watch], None]:
    def install(watch: Watch) -> None:
        monkeypatch.setattr(core.DrainWatch, "open", classmethod(lambda _cls, _spec, _resolver: watch))

    return install


def _event(trigger: drain.DrainTrigger) -> TriggerEvent:
    async def first() -> TriggerEvent:
        events = [event async for event in trigger.run()]
        assert len(events) == 1
        return events[0]

    return asyncio.run(asyncio.wait_for(first(), 20))


def test_serialises_and_comes_back_the_same(minimal_spec: dict[str, Any]) -> None:
    trigger = drain.DrainTrigger(spec=minimal_spec, poll_seconds=3.0)
    path, arguments = trigger.serialize()
    assert path == "airflow_provider_kafka_migration.triggers.drain.DrainTrigger"
    again = drain.DrainTrigger(**arguments)
    assert again.serialize() == trigger.serialize()


def test_arguments_and_name_hold_no_secret(spec: dict[str, Any]) -> None:
    """They are kept in Airflow's database and shown in the triggerer's log."""
    trigger = drain.DrainTrigger(spec=spec)
    assert "secret" not in repr(trigger)
    assert "secret" not in repr(trigger.serialize())


def test_ready_after_some_looks(spec: dict[str, Any], watching: Callable[[Watch], None]) -> None:
    watch = Watch(NOT_READY, NOT_READY, READY)
    watching(watch)
    event = _event(drain.DrainTrigger(spec=spec, poll_seconds=0.01))
    assert event.payload == {"status": "ready", **READY}
    assert watch.closed == 1
    assert threading.get_ident() not in watch.threads, "the triggerer's loop must not be blocked"


HEARD = {**NOT_READY, "tail_silent": False, "tail_heard": True}
#: Of somebody who has just begun to look.
UNKNOWN = {**NOT_READY, "tail_silent": False, "tail_heard": False}
SILENT = {"ready": False, "summary": "the tail has not been heard from", "stable_since": None, "tail_silent": True}


def test_a_silent_tail_is_told_after_a_while_and_once(
    spec: dict[str, Any], watching: Callable[[Watch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(0, 10_000, 25))
    monkeypatch.setattr(drain, "elapsed_seconds", lambda: next(seconds))
    # 0, 25, 50, 75 s; the one in between that hears it begins again.
    watch = Watch(SILENT, HEARD, *[SILENT] * 5, READY)
    watching(watch)
    assert _event(drain.DrainTrigger(spec=spec, poll_seconds=0.001)).payload == {"status": "trouble", **SILENT}
    watching(Watch(*[SILENT] * 10, READY))
    told = drain.DrainTrigger(spec=spec, poll_seconds=0.001, silence_is_told=True)
    assert told.serialize()[1]["silence_is_told"] is True
    assert _event(told).payload["status"] == "ready"
    watching(Watch(SILENT, HEARD, *[SILENT] * 5, READY))
    again = drain.DrainTrigger(spec=spec, poll_seconds=0.001, silence_is_told=True)
    assert _event(again).payload["status"] == "trouble", "it was heard from in between"


def test_a_look_that_does_not_know_ends_no_silence(
    spec: dict[str, Any], watching: Callable[[Watch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that are read again between two looks come with a watch that has heard nothing yet."""
    seconds = iter(range(0, 10_000, 25))
    monkeypatch.setattr(drain, "elapsed_seconds", lambda: next(seconds))
    watching(Watch(SILENT, *[UNKNOWN] * 3, SILENT, SILENT, READY))
    assert _event(drain.DrainTrigger(spec=spec, poll_seconds=0.001)).payload["status"] == "trouble"
    watching(Watch(UNKNOWN, *[SILENT] * 10, READY))
    told = drain.DrainTrigger(spec=spec, poll_seconds=0.001, silence_is_told=True)
    assert _event(told).payload["status"] == "ready"


class _Enough(Exception):
    """The trigger has waited for as long as the test wanted to know."""


class _RealLooks:
    """A watch with real eyes for the tail: a new one for each trigger, over a document that lies in the journal."""

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        self.store = LocalStore(folder)
        spec: Any = SimpleNamespace(migration_id="orders", tail=SimpleNamespace(slice_seconds=20))
        journal: Any = SimpleNamespace(current_claim=None)
        stores = (self.store, self.store, self.store)
        self.record = MigrationRecord(spec, journal, *stores, now=lambda: datetime.now(UTC))
        self.health = tail_health.HealthWatch(clock=now)

    def check(self) -> dict[str, Any]:
        health = self.health.check(self.record)
        return DrainStatus(datetime.now(UTC), (), 0, None, ready=False, tail=health).as_event()

    def close(self) -> None:
        return None


def test_a_tail_that_was_dead_at_the_first_look_is_reported_once(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new trigger begins with a watch that has heard nothing: that is no tail that lives."""
    clock, until, writes = [0.0], [1000.0], [False]

    def write() -> None:
        document = {"seconds": clock[0], "run": "a", "at": "2026-04-24T10:40:00.000Z"}
        LocalStore(tmp_path).put("orders/progress/tail.json", json.dumps(document).encode())

    async def sleep(seconds: float) -> None:
        clock[0] += seconds
        if writes[0]:
            write()
        if clock[0] > until[0]:
            raise _Enough

    monkeypatch.setattr(drain.asyncio, "sleep", sleep)
    monkeypatch.setattr(drain, "elapsed_seconds", lambda: clock[0])
    monkeypatch.setattr(core.DrainWatch, "open", lambda *_: _RealLooks(tmp_path, lambda: clock[0]))
    write()
    sensor = KafkaMigrationDrainSensor(task_id="drain_ready", spec=spec, on_trouble=[])
    first = _event(drain.DrainTrigger(spec=spec)).payload
    assert first["status"] == "trouble"
    with pytest.raises(TaskDeferred) as caught:
        sensor.execute_complete(CONTEXT, first)
    arguments = caught.value.trigger.serialize()[1]
    until[0] = clock[0] + 1000
    with pytest.raises(_Enough):
        _event(drain.DrainTrigger(**arguments))
    writes[0], until[0] = True, clock[0] + 100
    told = drain.DrainTrigger(**arguments)
    with pytest.raises(_Enough):
        _event(told)
    assert not told.silence_is_told, "it lives again, so its next silence is told"


def test_the_wait_does_not_begin_again_when_somebody_was_told(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        at = datetime(2026, 4, 24, tzinfo=UTC)

        @classmethod
        def now(cls, _tz: Any = None) -> datetime:  # type: ignore[override]
            return cls.at

    monkeypatch.setattr(sensor_module, "datetime", Clock)
    sensor = KafkaMigrationDrainSensor(task_id="drain_ready", spec=spec, on_trouble=[])
    longest = parse_spec(spec).tail.drain_ready_timeout

    def deferred(event: dict[str, Any], **kept: Any) -> TaskDeferred:
        with pytest.raises(TaskDeferred) as caught:
            sensor.execute_complete(CONTEXT, event, **kept)
        return caught.value

    event = {"status": "trouble", **SILENT}
    first = deferred(event)
    assert first.timeout == longest, "deferred by a version that kept no deadline"
    Clock.at += longest / 2
    second = deferred(event, **(first.kwargs or {}))
    assert second.timeout == longest / 2
    assert second.kwargs == first.kwargs
    Clock.at -= longest
    assert deferred(event, **(first.kwargs or {})).timeout == longest, "a clock that was set back"
    Clock.at += 3 * longest
    assert deferred(event, **(first.kwargs or {})).timeout == timedelta(seconds=1)


def test_who_waits_tells_of_a_silent_tail_and_waits_on(spec: dict[str, Any]) -> None:
    told: list[Any] = []

    def fails(_: Any) -> None:
        raise OSError("mail server down")

    sensor = KafkaMigrationDrainSensor(task_id="drain_ready", spec=spec, on_trouble=[fails, told.append])
    with pytest.raises(TaskDeferred) as caught:
        sensor.execute_complete({"params": {}}, {"status": "trouble", **SILENT})  # type: ignore[typeddict-item]
    assert [item[TROUBLE] for item in told] == ["the tail has not been heard from"]
    assert caught.value.trigger.serialize()[1]["silence_is_told"] is True
    notifier = build_migration_dag().get_task("drain_ready").on_trouble[0]
    assert notifier.event == "trouble"
    text = message("orders", "trouble", told[0], "drain_ready")
    assert text == "Kafka migration orders: nothing has been heard from the tail. the tail has not been heard from"


def test_passing_errors_are_survived(spec: dict[str, Any], watching: Callable[[Watch], None]) -> None:
    watch = Watch(BrokerUnreachable("gone"), NOT_READY, BrokerUnreachable("gone"), READY)
    watching(watch)
    assert _event(drain.DrainTrigger(spec=spec, poll_seconds=0.001)).payload["status"] == "ready"


def test_errors_that_stay_end_the_wait(
    spec: dict[str, Any], watching: Callable[[Watch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain.DrainTrigger, "max_failed_looks", 3)
    watching(Watch(*[BrokerUnreachable("gone", next_step="start it")] * 3))
    payload = _event(drain.DrainTrigger(spec=spec, poll_seconds=0.001)).payload
    error = drain.event_error(payload)
    assert isinstance(error, BrokerUnreachable)
    assert error.next_step == "start it"


def test_terminal_errors_end_the_wait_at_once(spec: dict[str, Any], watching: Callable[[Watch], None]) -> None:
    watch = Watch(ForeignData("somebody writes here"))
    watching(watch)
    payload = _event(drain.DrainTrigger(spec=spec, poll_seconds=0.001)).payload
    assert isinstance(error_from_dict(payload["error"]), ForeignData)
    assert watch.closed == 1


def test_missing_connection_is_an_event_and_no_crash(minimal_spec: dict[str, Any]) -> None:
    payload = _event(drain.DrainTrigger(spec=minimal_spec)).payload
    assert isinstance(drain.event_error(payload), ConnectionInvalid)


def test_cancelling_closes_the_connections(spec: dict[str, Any], watching: Callable[[Watch], None]) -> None:
    """A triggerer that restarts, or a task that is cleared."""
    watch = Watch(*[NOT_READY] * 1000)
    watching(watch)

    async def cancelled() -> None:
        async def consume() -> None:
            async for _ in drain.DrainTrigger(spec=spec, poll_seconds=60).run():
                pass

        task = asyncio.create_task(consume())
        await asyncio.to_thread(watch.looking.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert watch.closed == 1


# ---- the sensor


class _Core:
    """Stands for Migration in the sensor."""

    def __init__(self, state: State) -> None:
        past = state not in (State.SEED, State.TAIL)
        journal = SimpleNamespace(refresh=lambda: None, tip_state=state, is_past=lambda _state: past)
        self.context = SimpleNamespace(record=SimpleNamespace(journal=journal))
        self.spec = SimpleNamespace(migration_id="orders")
        self.ran: list[dict[str, Any]] = []

    def run(self, phase: str, **options: Any) -> PhaseResult:
        assert phase == "drain_ready"
        self.ran.append(options)
        return PhaseResult(phase, "ready", {"digest": "d"}, already_done=not options)


@pytest.fixture
def sensor_of(minimal_spec: dict[str, Any]) -> Callable[..., KafkaMigrationDrainSensor]:
    def make(found: _Core, **arguments: Any) -> KafkaMigrationDrainSensor:
        class Sensor(KafkaMigrationDrainSensor):
            @contextmanager
            def open_migration(self, context: Any, **_options: Any) -> Iterator[Any]:
                self.storage_uris = {"journal": "s3://bucket/migrations/orders"}
                yield found

        return Sensor(task_id="drain_ready", spec=minimal_spec, **arguments)

    return make


CONTEXT: Any = {"params": {}}


def test_sensor_defers_with_its_own_timeout(sensor_of: Callable[..., Any], minimal_spec: dict[str, Any]) -> None:
    """A sensor's timeout is not applied to a deferral unless it is handed on."""
    sensor = sensor_of(_Core(State.TAIL))
    with pytest.raises(TaskDeferred) as caught:
        sensor.execute(CONTEXT)
    assert caught.value.timeout == parse_spec(minimal_spec).tail.drain_ready_timeout
    assert caught.value.method_name == "execute_complete"
    assert parse_spec(caught.value.trigger.spec) == parse_spec(minimal_spec)


@pytest.mark.parametrize("state", [State.CUTOVER, State.FINALIZED, State.ROLLED_BACK])
def test_sensor_answers_at_once_when_the_migration_has_gone_on(sensor_of: Callable[..., Any], state: State) -> None:
    found = _Core(state)
    pointers = sensor_of(found).execute(CONTEXT)
    assert found.ran == [{}]
    assert pointers == {
        "migration_id": "orders",
        "phase": "drain_ready",
        "journal": "s3://bucket/migrations/orders",
        "summary": "ready",
        "already_done": True,
        "digest": "d",
    }


def test_event_is_checked_once_more(sensor_of: Callable[..., Any]) -> None:
    found = _Core(State.TAIL)
    event = {"status": "ready", **READY}
    assert sensor_of(found).execute_complete(CONTEXT, event)["already_done"] is False
    assert found.ran == [{"event": event}]


def test_failed_event_is_the_error_it_was(sensor_of: Callable[..., Any]) -> None:
    event = drain.failed(ForeignData("somebody writes here")).payload
    with pytest.raises(ForeignData, match="somebody"):
        sensor_of(_Core(State.TAIL)).execute_complete(CONTEXT, event)


def test_sensor_can_wait_in_the_worker(sensor_of: Callable[..., Any]) -> None:
    found = _Core(State.TAIL)
    sensor_of(found, deferrable=False).execute(CONTEXT)
    assert found.ran == [{}]
