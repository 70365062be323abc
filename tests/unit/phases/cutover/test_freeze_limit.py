"""The limit of a freeze holds when no step of the cutover is left to keep it."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from phase_support import Clock, make_context

from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import FreezeFailed, PhaseOver, StorageUnavailable
from airflow_provider_kafka_migration.freeze import frozen
from airflow_provider_kafka_migration.migration import FreezeWatch, Migration
from airflow_provider_kafka_migration.phases import freeze_limit
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.triggers import drain as drain_trigger
from airflow_provider_kafka_migration.triggers.freeze_limit import FreezeLimitTrigger


def frozen_context(folder: Path, clock: Clock) -> PhaseContext:
    """In ``cutover``; producers were frozen just now, for 60 s at most."""
    context = make_context(folder, state=State.CUTOVER, clock=clock, cutover={"freeze": "manual"})
    frozen_now(context)
    context.journal_store.put(
        context.key(keys.TAIL_STOP), StopAt(migration_id="m1", offsets={"orders-0": 1}).canonical()
    )
    return context


def frozen_now(context: PhaseContext) -> None:
    now = context.now()
    details = {
        "method": "manual",
        "requested_at": iso(now),
        "deadline": iso(now + context.spec.cutover.max_producer_freeze),
    }
    context.journal.step(steps.FREEZE_REQUESTED, key="1", details=details)


def pass_deadline(context: PhaseContext, clock: Clock, more: float = freeze_limit.LATE_SECONDS + 1) -> None:
    clock.sleep(context.spec.cutover.max_producer_freeze.total_seconds() + more)


def test_it_waits_while_there_is_time_and_leaves_the_steps_theirs(tmp_path: Path) -> None:
    clock = Clock()
    context = frozen_context(tmp_path, clock)
    assert not freeze_limit.check_limit(context.record)["ready"]
    assert "left" in freeze_limit.check_limit(context.record)["summary"]
    pass_deadline(context, clock, more=1)
    assert not freeze_limit.check_limit(context.record)["ready"], "the step that runs lifts at the deadline itself"
    assert freeze_limit.run(context).details == {"watch": True, "nothing_to_lift": False}
    assert context.journal.tip_state is State.CUTOVER


@pytest.mark.parametrize("failed", [False, True])
def test_an_overdue_freeze_is_lifted_and_somebody_is_told(tmp_path: Path, failed: bool) -> None:
    clock = Clock()
    context = frozen_context(tmp_path, clock)
    if failed:  # a group that could not be committed: the step failed for good, with time left
        context.journal.fail(ValueError("a step"))
    pass_deadline(context, clock)
    assert freeze_limit.check_limit(context.record)["ready"]
    with pytest.raises(FreezeFailed, match="was lifted") as caught:
        freeze_limit.run(context)
    assert "drain_ready" in caught.value.next_step
    assert context.journal.tip_state is State.TAIL, "from where it can be rolled back, or cut over again"
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.lifted
    assert StopAt.in_force(context.journal_store.get(context.key(keys.TAIL_STOP))) is None
    assert freeze_limit.run(context).details == {"watch": True, "nothing_to_lift": True}, (
        "cleared, it watches the next attempt"
    )


def test_a_lift_that_was_interrupted_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the state went back, before the producers were unfrozen."""
    clock = Clock()
    context = frozen_context(tmp_path, clock)
    pass_deadline(context, clock)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(frozen, "lift", killed)
        with pytest.raises(KeyboardInterrupt):
            freeze_limit.run(context)
    assert context.journal.tip_state is State.TAIL
    assert freeze_limit.check_limit(context.record)["ready"]
    with pytest.raises(FreezeFailed, match="was lifted"):
        freeze_limit.run(context)


def test_ready_for_the_switch_wins_when_it_came_first(tmp_path: Path) -> None:
    clock = Clock()
    context = frozen_context(tmp_path, clock)
    attempt = context.record.freeze()
    assert attempt is not None
    pass_deadline(context, clock)
    context.journal.step(steps.READY, key="1", only_in={State.CUTOVER})
    with pytest.raises(PhaseOver):
        frozen.back_to_tail(context.record, "late", unless_ready=attempt)
    assert freeze_limit.run(context).details == {"watch": True, "nothing_to_lift": True}
    assert context.journal.tip_state is State.CUTOVER
    assert "nothing is frozen" not in freeze_limit.check_limit(context.record)["summary"]
    for summary in (freeze_limit.check_limit(context.record)["summary"], freeze_limit.run(context).summary):
        assert "producers stay stopped" in summary
        assert "clear it" in summary, "floor_guard died behind READY: only it goes on from there"


def test_ready_is_refused_when_the_freeze_was_given_up_first(tmp_path: Path) -> None:
    clock = Clock()
    context = frozen_context(tmp_path, clock)
    pass_deadline(context, clock)
    with pytest.raises(FreezeFailed):
        freeze_limit.run(context)
    with pytest.raises(PhaseOver):
        context.journal.step(steps.READY, key="1", only_in={State.CUTOVER})


@pytest.mark.parametrize("state", [State.AWAITING_CLIENT_SWITCH, State.FINALIZED, State.ROLLED_BACK])
def test_it_ends_when_nothing_can_be_frozen_any_more(tmp_path: Path, state: State) -> None:
    if state is State.ROLLED_BACK:
        context = make_context(tmp_path)
        context.journal.transition(State.ROLLED_BACK, "test")
    else:
        context = make_context(tmp_path, state=state)
    assert freeze_limit.check_limit(context.record)["ready"]
    assert freeze_limit.run(context).details["watch"] is False


@pytest.mark.parametrize("state", [State.TAIL, State.DRAIN_READY, State.CUTOVER])
def test_it_stands_by_before_the_freeze(tmp_path: Path, state: State) -> None:
    context = make_context(tmp_path, state=state)
    assert freeze_limit.check_limit(context.record) == {"ready": False, "summary": "nothing is frozen"}
    assert freeze_limit.run(context).details == {"watch": True, "nothing_to_lift": True}


def test_what_a_look_has_read_before_it_failed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of the freeze was read, the one behind it was not."""
    clock = Clock()
    context = make_context(tmp_path, state=State.CUTOVER, clock=clock)
    monkeypatch.setattr(Migration, "_now", staticmethod(clock.now))
    watch = FreezeWatch(Migration.open(context.spec, "freeze-watch", context.resolver, actor="test"))
    monkeypatch.setattr(watch._migration, "reading", lambda: nullcontext(context))
    watch.check()
    assert not watch.may_be_frozen
    frozen_now(context)
    refresh = context.journal.refresh

    def breaks_off(*_: Any) -> None:
        refresh()
        raise StorageUnavailable("503")

    monkeypatch.setattr(context.journal, "refresh", breaks_off)
    with pytest.raises(StorageUnavailable):
        watch.check()
    assert watch.may_be_frozen


def test_the_trigger_reports_an_overdue_freeze_while_the_journal_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections are read again after each failed look, and the new watch has not read any journal."""
    clock = Clock()
    context = frozen_context(tmp_path, clock)
    is_away = False
    list_keys, get = LocalStore.list, LocalStore.get
    watches: list[FreezeWatch] = []
    looks: list[float] = []

    def failing(real: Any) -> Any:
        def call(self: LocalStore, *args: Any, **more: Any) -> Any:
            if is_away:
                raise StorageUnavailable("503")
            return real(self, *args, **more)

        return call

    monkeypatch.setattr(LocalStore, "list", failing(list_keys))
    monkeypatch.setattr(LocalStore, "get", failing(get))

    class Trigger(FreezeLimitTrigger):
        def open_watch(self, spec: Any, resolver: Any) -> FreezeWatch:
            watches.append(FreezeWatch.open(spec, resolver))
            return watches[-1]

    monkeypatch.setattr(Migration, "_now", staticmethod(clock.now))

    async def sleep(seconds: float) -> None:
        nonlocal is_away
        is_away = True
        looks.append(seconds)
        clock.sleep(seconds)

    monkeypatch.setattr(drain_trigger.asyncio, "sleep", sleep)

    async def first_event() -> Any:
        async for event in Trigger(spec=context.spec.model_dump(mode="json"), poll_seconds=2.0).run():
            return event
        raise AssertionError

    event = asyncio.run(first_event()).payload
    assert event["status"] == "ready", "the task has to look, and says what a person must do"
    assert "was to end at" in event["summary"]
    assert len(watches) > 2, "or this test proves nothing"
    limit = context.spec.cutover.max_producer_freeze.total_seconds() + freeze_limit.LATE_SECONDS
    assert limit < sum(looks) <= limit + FreezeLimitTrigger.longest_pause_seconds
