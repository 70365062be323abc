"""Triggers outlive refused credentials and long outages: they read the connections again, and wait on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_releases import TaskDeferred

import airflow_provider_kafka_migration.migration as core
from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    ConnectionInvalid,
    ForeignData,
    StillFrozen,
    StorageRefused,
    StorageUnavailable,
    Transient,
)
from airflow_provider_kafka_migration.operators.freeze_limit import KafkaMigrationFreezeLimitOperator
from airflow_provider_kafka_migration.phases.freeze_limit import journal_unreachable
from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.triggers import drain
from airflow_provider_kafka_migration.triggers.freeze_limit import FreezeLimitTrigger

pytestmark = pytest.mark.slow

NOT_READY = {"ready": False, "summary": "lag 7", "stable_since": None}
READY = {"ready": True, "summary": "lag 0", "stable_since": "2026-01-01T00:00:00.000Z"}
NOW = datetime(2026, 4, 24, 10, 40, tzinfo=UTC)


@pytest.fixture
def spec(minimal_spec: dict[str, Any], connection: Callable[..., None]) -> dict[str, Any]:
    for name in ("kafka_source", "kafka_target"):
        connection(name, conn_type="kafka", extra={"bootstrap.servers": "a:1", "sasl.password": "secret"})
    connection("aws_s3", conn_type="aws", login="key", password="secret")
    return minimal_spec


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The trigger's pauses, which take no time."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(drain.asyncio, "sleep", sleep)
    monkeypatch.setattr(drain, "elapsed_seconds", lambda: sum(found))
    return found


class Answers:
    """What one look after the other meets, whichever watch it is made with."""

    def __init__(self, *answers: Any) -> None:
        self.left: Iterator[Any] = iter(answers)
        self.opened = 0

    def open(self, *_: Any) -> Any:
        self.opened += 1
        return SimpleNamespace(check=self.check, close=lambda: None)

    def check(self) -> Any:
        answer = next(self.left)
        if isinstance(answer, Exception):
            raise answer
        return answer


def event_of(trigger: drain.DrainTrigger) -> Any:
    async def first() -> Any:
        events = [event async for event in trigger.run()]
        assert len(events) == 1
        return events[0].payload

    return asyncio.run(asyncio.wait_for(first(), 120))


def draining(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> Answers:
    found = Answers(*answers)
    monkeypatch.setattr(core.DrainWatch, "open", found.open)
    return found


@pytest.mark.parametrize("kind", [AuthenticationFailed, StorageRefused, ConnectionInvalid])
def test_refused_credentials_are_read_again(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, pauses: list[float], kind: type[Exception]
) -> None:
    """A password that was rotated is in the connection a moment later."""
    answers = draining(monkeypatch, NOT_READY, kind("refused"), kind("refused"), READY)
    assert event_of(drain.DrainTrigger(spec=spec))["status"] == "ready"
    assert answers.opened == 3


def test_credentials_that_stay_refused_end_the_wait_with_the_reason(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    draining(monkeypatch, *[AuthenticationFailed("wrong password", next_step="correct it")] * 1000)
    error = drain.event_error(event_of(drain.DrainTrigger(spec=spec)))
    assert isinstance(error, AuthenticationFailed)
    assert error.next_step == "correct it"
    assert 300 < sum(pauses) < 1800, "some minutes for whoever changes them, and not days"


def test_an_outage_between_refusals_is_no_refusal(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    many = [StorageUnavailable("away")] * 200
    draining(monkeypatch, AuthenticationFailed("no"), *many, AuthenticationFailed("no"), *many, READY)
    assert event_of(drain.DrainTrigger(spec=spec))["status"] == "ready"


def test_what_is_no_refusal_and_cannot_pass_ends_it(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    draining(monkeypatch, ForeignData("somebody writes here"))
    assert isinstance(drain.event_error(event_of(drain.DrainTrigger(spec=spec))), ForeignData)
    assert pauses == []


def test_credentials_that_cannot_be_had_at_the_start_are_waited_for(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """A triggerer that restarts while STS is away."""
    answers = draining(monkeypatch, READY)
    fetch, failures = drain.prefetch, [StorageUnavailable("STS is away")] * 3

    async def prefetch(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await fetch(*arguments, **options)

    monkeypatch.setattr(drain, "prefetch", prefetch)
    assert event_of(drain.DrainTrigger(spec=spec))["status"] == "ready"
    assert answers.opened == 1
    assert len(pauses) == 2, "the first failure was at the very start"


# -- the limit of a freeze -------------------------------------------------------------------------------------------


def attempt(*, is_open: bool) -> FreezeAttempt:
    return FreezeAttempt(1, "webhook", NOW, NOW + timedelta(hours=1), NOW, lifted=not is_open)


class Limit(FreezeLimitTrigger):
    """Looks with real watches, whose looks at the journal are answered here."""

    answers: Iterator[Any]

    def open_watch(self, spec: Any, resolver: Any) -> core.FreezeWatch:
        answers = self.answers

        class Watch(core.FreezeWatch):
            def check(self) -> dict[str, Any]:
                answer = next(answers)
                if isinstance(answer, Exception):
                    raise answer
                known, found = answer
                self.see(known)
                return dict(found)

            def close(self) -> None:
                return None

        return Watch(core.Migration.open(spec, "freeze-watch", resolver, actor="test"))


def limit_event(spec: dict[str, Any], *answers: Any) -> Any:
    trigger = Limit(spec=spec, poll_seconds=2.0)
    trigger.answers = iter(answers)
    return event_of(trigger)


@pytest.mark.parametrize("error", [StorageUnavailable("S3 is away"), StorageRefused("the keys have ended")])
@pytest.mark.parametrize("known", [None, attempt(is_open=False)], ids=["no freeze yet", "lifted"])
def test_while_nothing_is_frozen_an_outage_of_minutes_is_waited_out(
    spec: dict[str, Any], pauses: list[float], known: FreezeAttempt | None, error: Exception
) -> None:
    outage = [error] * 10
    looks = [item for _ in range(20) for item in ((known, NOT_READY), *outage)]
    assert limit_event(spec, *looks, (known, READY))["status"] == "ready"
    assert max(pauses) == 60.0


@pytest.mark.parametrize("error", [StorageUnavailable("S3 is away"), StorageRefused("the keys have ended")])
def test_after_ten_minutes_without_a_look_the_task_is_to_look(
    spec: dict[str, Any], pauses: list[float], error: Exception
) -> None:
    """Perhaps only the triggerer cannot read the journal, and a freeze has begun."""
    found = limit_event(spec, (None, NOT_READY), *[error] * 1000)
    assert (found["status"], found["nothing_to_lift"]) == ("failed", True)
    assert 590 <= sum(pauses) <= 660
    assert max(pauses) == 60.0
    pauses.clear()
    # The task could not read it either: its next trigger is as patient, although it has never read the journal.
    trigger = Limit(spec=spec, poll_seconds=2.0, nothing_to_lift=True)
    trigger.answers = iter([error] * 1000)
    path, arguments = trigger.serialize()
    assert path.endswith(".Limit")
    assert arguments["nothing_to_lift"] is True
    assert event_of(trigger)["nothing_to_lift"] is True
    assert 590 <= sum(pauses) <= 660


def test_connections_that_are_refused_at_the_start_are_waited_for_while_nothing_is_frozen(
    minimal_spec: dict[str, Any], pauses: list[float]
) -> None:
    """There is no such connection on the triggerer: a task that starts again and again would take a slot for good."""
    found = event_of(FreezeLimitTrigger(spec=minimal_spec, nothing_to_lift=True))
    assert (found["status"], found["nothing_to_lift"]) == ("failed", True)
    assert isinstance(drain.event_error(found), ConnectionInvalid)
    assert 590 <= sum(pauses) <= 660
    pauses.clear()
    assert event_of(FreezeLimitTrigger(spec=minimal_spec))["nothing_to_lift"] is False
    assert pauses == []


@pytest.mark.parametrize("error", [StorageUnavailable("S3 is away"), StorageRefused("the keys have ended")])
@pytest.mark.parametrize("seen", [True, False], ids=["frozen", "never read"])
def test_in_a_freeze_or_not_knowing_somebody_is_told_soon(
    spec: dict[str, Any], pauses: list[float], seen: bool, error: Exception
) -> None:
    before = [(attempt(is_open=True), NOT_READY)] if seen else []
    payload = limit_event(spec, *before, *[error] * 300)
    assert payload["nothing_to_lift"] is False
    assert type(drain.event_error(payload)) is type(error)
    assert max(pauses) == 5.0
    assert sum(pauses) < 180


def test_what_is_known_of_the_freeze_outlives_a_new_watch(spec: dict[str, Any], pauses: list[float]) -> None:
    outage = [StorageUnavailable("S3 is away")] * 300
    found = limit_event(spec, (None, NOT_READY), *outage[:5], (attempt(is_open=True), NOT_READY), *outage)
    assert (found["status"], found["nothing_to_lift"]) == ("failed", False)


class Opened:
    """A task's migration that is opened anew for each try."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.opened = 0
        self.spec = SimpleNamespace(migration_id="orders")

    def run(self, _: str) -> PhaseResult:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        result: PhaseResult = answer
        return result


MINIMAL: dict[str, Any] = {
    "migration_id": "orders",
    "source": {"conn_id": "kafka_source"},
    "target": {"conn_id": "kafka_target"},
    "storage": {"conn_id": "aws_s3", "journal": "s3://bucket/migrations", "evidence": "s3://evidence/bundles"},
}


def operator_of(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, opened: Opened, **more: Any) -> Any:
    @contextmanager
    def open_migration(self: Any, *_: Any, **__: Any) -> Iterator[Opened]:
        self.storage_uris = {"journal": "s3://bucket/orders"}
        opened.opened += 1
        yield opened

    monkeypatch.setattr(KafkaMigrationFreezeLimitOperator, "open_migration", open_migration)
    return KafkaMigrationFreezeLimitOperator(task_id="freeze_limit", spec=spec, poll_seconds=0.0, **more)


def test_the_task_looks_itself_when_the_trigger_was_refused(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = PhaseResult("freeze_limit", "told", {"watch": True})
    opened = Opened(StorageRefused("the keys have ended"), StorageRefused("the keys have ended"), watch)
    operator = operator_of(minimal_spec, monkeypatch, opened)
    event = dict(drain.failed(StorageRefused("the keys have ended")).payload)
    with pytest.raises(TaskDeferred):
        operator.execute_complete({"params": {}}, event)
    assert opened.opened == 3, "with connections that are read anew"


UNREACHABLE = journal_unreachable(parse_spec(MINIMAL), StorageUnavailable("S3 is away"))
BLIND = {**drain.failed(StorageUnavailable("S3 is away")).payload, "nothing_to_lift": True}


def journal_says(monkeypatch: pytest.MonkeyPatch, answer: FreezeAttempt | Exception | None) -> None:
    """What a look at the journal from the worker finds."""

    class Watch(core.FreezeWatch):
        @classmethod
        def open(cls, spec: Any, resolver: Any) -> Watch:
            return cls(core.Migration.open(spec, "freeze-watch", resolver, actor="test"))

        def check(self) -> dict[str, Any]:
            if isinstance(answer, Exception):
                raise answer
            self.see(answer)
            return NOT_READY

    monkeypatch.setattr(core, "FreezeWatch", Watch)


def deferred_again(operator: Any, event: dict[str, Any]) -> bool:
    """It waits on without an error; whether it knows that there was nothing to lift."""
    with pytest.raises(TaskDeferred) as caught:
        operator.execute_complete({"params": {}}, event)
    known: bool = caught.value.trigger.serialize()[1]["nothing_to_lift"]
    return known


@pytest.mark.parametrize("nothing", [True, False])
def test_a_worker_that_can_read_the_journal_waits_on(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, nothing: bool
) -> None:
    opened = Opened(PhaseResult("freeze_limit", "told", {"watch": True, "nothing_to_lift": nothing}))
    assert deferred_again(operator_of(minimal_spec, monkeypatch, opened), BLIND) is nothing


def test_an_outage_without_a_freeze_costs_no_tries_however_long_it_is(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal_says(monkeypatch, StorageUnavailable("S3 is away"))
    operator = operator_of(minimal_spec, monkeypatch, Opened(UNREACHABLE), patience_seconds=0.0)
    for _ in range(100):
        assert deferred_again(operator, BLIND)
    with pytest.raises(StillFrozen):
        operator.execute_complete({"params": {}}, {**BLIND, "nothing_to_lift": False})
    with pytest.raises(StillFrozen):
        operator.execute({"params": {}})


@pytest.mark.parametrize(
    ("error", "journal", "is_told"),
    [
        (UNREACHABLE, attempt(is_open=True), True),
        (UNREACHABLE, attempt(is_open=False), False),
        (StillFrozen("the source is away"), StorageUnavailable("S3 is away"), True),
        (StillFrozen("the source is away"), attempt(is_open=True), True),
        (StorageRefused("the keys have ended"), None, False),
    ],
    ids=["can only be read", "can only be read, no freeze", "away since", "cannot be lifted", "no freeze"],
)
def test_a_freeze_that_the_worker_finds_is_no_outage(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: Exception, journal: Any, is_told: bool
) -> None:
    journal_says(monkeypatch, journal)
    operator = operator_of(minimal_spec, monkeypatch, Opened(error), patience_seconds=0.0)
    if is_told:
        with pytest.raises(StillFrozen):
            operator.execute_complete({"params": {}}, BLIND)
    else:
        assert deferred_again(operator, BLIND)


def test_in_the_worker_an_outage_without_a_freeze_costs_no_tries_either(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal_says(monkeypatch, StorageUnavailable("S3 is away"))
    watch = PhaseResult("freeze_limit", "told", {"watch": True, "nothing_to_lift": True})
    over = PhaseResult("freeze_limit", "over", {"watch": False})
    opened = Opened(watch, UNREACHABLE, UNREACHABLE, UNREACHABLE, over)
    operator = operator_of(minimal_spec, monkeypatch, opened, patience_seconds=0.0, deferrable=False)
    assert operator.execute({"params": {}})["summary"] == "over"


def test_refused_for_long_the_task_is_tried_again_and_somebody_is_told(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal error would end its tries, and nobody would keep the limit any more."""
    opened = Opened(StorageRefused("the keys have ended"))
    operator = operator_of(minimal_spec, monkeypatch, opened, patience_seconds=0.0)
    with pytest.raises(StillFrozen, match="the keys have ended") as caught:
        operator.execute({"params": {}})
    assert isinstance(caught.value, Transient)
    assert parse_spec(minimal_spec).migration_id == caught.value.where.migration_id


def test_a_wait_of_hours_is_a_line_a_minute_and_one_more_for_each_trouble(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """The largest lag is at another partition each time, and ``tail`` waits for days."""

    def lag(number: int, **trouble: Any) -> dict[str, Any]:
        return {**NOT_READY, "summary": f"lag {number} at t{number}-a{'x' * (number % 7)}", "total_lag": 1, **trouble}

    hour = [lag(number) for number in range(1800)]
    failing = [lag(number, partitions_failed=1) for number in range(30)]
    draining(monkeypatch, *hour, *failing, READY)
    trigger = drain.DrainTrigger(spec=spec)
    written: list[str] = []
    log = SimpleNamespace(info=lambda pattern, *texts: written.append(pattern % texts), warning=lambda *_: None)
    monkeypatch.setattr(type(trigger), "log", log)
    event_of(trigger)
    assert 100 < len(written) < 125, "ten seconds apart for ten minutes, and then a minute"
    assert [text for text in written[-3:] if text == "lag 0 at t0-a"], "the failure is told at the next line"
