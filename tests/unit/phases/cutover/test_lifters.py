"""Whoever lifts a freeze: two at a time, killed at each change, or so slow that the next freeze has begun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from phase_world.cluster import SimCluster
from phase_world.outside import Killed
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.errors import PhaseOver, StillFrozen, StorageUnavailable
from airflow_provider_kafka_migration.freeze import frozen, stops
from airflow_provider_kafka_migration.phases import freeze_limit
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.changes import open_changes
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.base import ObjectStore
from harness.webhook import Call, FreezeWebhook


@pytest.fixture
def world(worlds: Worlds) -> World:
    """Producers are denied."""
    return worlds.at("cutover.sentinels")


def attempt_of(world: World) -> FreezeAttempt:
    found = world.context().record.freeze()
    assert found is not None
    return found


def lift(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    return frozen.lift(context, attempt, reason="a step has failed")


def lifts_elsewhere(world: World) -> None:
    """Another process of the same owner, such as the watch on the limit."""
    other = world._new_context()
    found = other.record.freeze()
    assert found is not None
    lift(other, found)


def freezes_again(world: World, approved: Callable[[], object] = lambda: None) -> None:
    mine = world.context()
    world.use(None)
    for phase in ("tail", "drain_ready"):
        world.run(phase)
    world.approve("cutover")
    approved()
    world.run("cutover.freeze")
    world.use(mine)


def while_removing(world: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[Any, Any], object]) -> None:
    """Let something happen once between the sending of a request to remove ACLs and its effect."""
    admin = type(world.context().source.admin)
    delete, left = admin.delete_acls, [act]

    def delete_acls(self: Any, bindings: Any) -> Any:
        if left:
            left.pop()(self, bindings)
        return delete(self, bindings)

    monkeypatch.setattr(admin, "delete_acls", delete_acls)


def check_lifted_once(world: World) -> None:
    assert world.denied == set()
    assert len(world.steps(steps.FREEZE_LIFTED)) == 1
    assert (world.state, attempt_of(world).lifted) == (State.TAIL, True)


def test_of_two_who_lift_one_journals_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second entry behind the next approval would make that approval void."""
    while_removing(world, monkeypatch, lambda *_: lifts_elsewhere(world))
    first, second = lift(world.context(), attempt_of(world)), world.steps(steps.FREEZE_LIFTED)
    assert first["frozen_seconds"] == second[0].details["frozen_seconds"], "both tell the same"
    check_lifted_once(world)


def test_who_comes_when_it_is_lifted_asks_nobody(world: World) -> None:
    attempt = attempt_of(world)
    lift(world.context(), attempt)
    count = len(world.outside.changes)
    assert lift(world.context(), attempt)["deny_acls_removed"] == 1
    assert len(world.outside.changes) == count
    check_lifted_once(world)


def test_a_stop_that_came_late_is_lifted_and_journaled_again(world: World) -> None:
    lift(world.context(), attempt_of(world))
    world.context().journal.step(steps.FREEZE_CAME_LATE, "1", {})
    lift(world.context(), attempt_of(world))
    assert len(world.steps(steps.FREEZE_LIFTED)) == 2
    assert attempt_of(world).lifted


def overtaken(world: World, receiver: FreezeWebhook, by: Callable[[], object]) -> dict[str, Any]:
    """Lift while the request to free producers is so slow that a later one overtakes it."""
    left = [True]

    def slow(call: Call) -> None:
        if call.action == "unfreeze" and left and left.pop():
            # The one who overtakes has seen what was journaled since.
            world._new_context().journal.step("work_done")
            by()

    receiver.answer = slow  # type: ignore[assignment]
    return lift(world.context(), attempt_of(world))


def test_of_two_who_ask_a_receiver_none_says_that_producers_are_still_frozen(worlds: Worlds) -> None:
    with FreezeWebhook() as receiver:
        cutover = {"freeze": "webhook", "producer_freeze_webhook": receiver.url}
        world = Worlds().at("cutover.sentinels", cutover=cutover)
        done = overtaken(world, receiver, lambda: lifts_elsewhere(world))
        assert done["reason"] == "a step has failed"
        assert len(world.steps(steps.FREEZE_LIFTED)) == 1
        assert attempt_of(world).lifted


def test_who_is_overtaken_by_the_next_freeze_frees_nobody(worlds: Worlds) -> None:
    with FreezeWebhook() as receiver:
        cutover = {"freeze": "webhook", "producer_freeze_webhook": receiver.url}
        world = Worlds().at("cutover.sentinels", cutover=cutover)

        def next_freeze() -> None:
            lifts_elsewhere(world)
            freezes_again(world)

        with pytest.raises(PhaseOver):
            overtaken(world, receiver, next_freeze)
        assert [call.action for call in receiver.calls][-2:] == ["unfreeze", "freeze"]


def test_a_receiver_that_knows_a_later_order_than_the_journal_is_named(worlds: Worlds) -> None:
    """It remembers a migration of this name whose journal is gone."""
    with FreezeWebhook() as receiver:
        cutover = {"freeze": "webhook", "producer_freeze_webhook": receiver.url}
        world = Worlds().at("cutover.sentinels", cutover=cutover)
        receiver._orders[world.context().migration_id] = 10**6
        with pytest.raises(StillFrozen, match="later request"):
            lift(world.context(), attempt_of(world))


@pytest.mark.slow
def test_a_lifter_that_dies_after_any_change(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels")
    world.outside.revive()
    lift(world.context(), attempt_of(world))
    count = len(world.outside.changes)
    assert count > 3
    for number in range(count):
        world = worlds.at("cutover.sentinels")
        world.outside.revive()
        world.outside.dies_after = number
        with pytest.raises(Killed):
            lift(world.context(), attempt_of(world))
        world.restart()
        if not attempt_of(world).lifted:
            lift(world.context(), attempt_of(world))
        check_lifted_once(world)
        freezes_again(world)
        world.use(None)
        assert world.denied == {"User:shop"}, f"killed after change {number}"


@pytest.mark.parametrize("arrival", ["while the next freeze waits", "never"])
def test_a_request_of_a_dead_lifter_frees_nobody_of_the_next_freeze(
    world: World, monkeypatch: pytest.MonkeyPatch, arrival: str
) -> None:
    sent: list[Any] = []
    delete = type(world.context().source.admin).delete_acls

    def dies(_: Any, bindings: Any) -> None:
        sent.extend(bindings)
        raise Killed

    with monkeypatch.context() as patch:
        while_removing(world, patch, dies)
        with pytest.raises(Killed):
            lift(world.context(), attempt_of(world))
    world.restart()
    lift(world.context(), attempt_of(world))
    assert len(open_changes(world.context().journal, "1/free")) == 1
    left = [sent] if arrival == "while the next freeze waits" else []
    real = world.clock.sleep

    def sleep(seconds: float) -> None:
        real(seconds)
        if left:
            assert len(world.steps(steps.FREEZE_REQUESTED)) == 1, "nobody is asked to stop before that is over"
            delete(SimCluster("source", world.source, world.outside).admin, left.pop())

    freezes_again(world, lambda: setattr(world.context(), "sleep", sleep))
    assert not left, "the next freeze waited for it"
    world.use(None)
    assert world.denied == {"User:shop"}


def test_who_wakes_up_in_the_next_freeze_frees_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked at the journal before the other lifter, and journals its own request behind the next freeze."""
    attempt, left = attempt_of(world), [True]
    real = stops.free

    def late(context: PhaseContext, given: FreezeAttempt) -> dict[str, Any]:
        if left and left.pop():
            lifts_elsewhere(world)
            freezes_again(world)
        return real(context, given)

    monkeypatch.setattr(stops, "free", late)
    with pytest.raises(PhaseOver):
        lift(world.context(), attempt)
    world.use(None)
    assert world.denied == {"User:shop"}
    assert [entry.step_key for entry in world.steps(steps.FREEZE_LIFTED)] == ["1"]
    world.context().journal.verify()


def test_a_watch_that_is_overtaken_goes_on_with_the_next_freeze(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    left, real = [True], stops.free

    def late(context: PhaseContext, given: FreezeAttempt) -> dict[str, Any]:
        if left and left.pop():
            lifts_elsewhere(world)
            freezes_again(world)
        return real(context, given)

    monkeypatch.setattr(stops, "free", late)
    world.clock.sleep((attempt_of(world).deadline - world.clock.now()).total_seconds() + 10)
    result = freeze_limit.run(world.context())
    assert (result.details["watch"], result.details["nothing_to_lift"]) == (True, False)


def test_a_journal_that_takes_no_entry_keeps_nobody_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The migration has left the cutover, and the storage refuses further writes: producers come first."""
    frozen.back_to_tail(world.context().record, "its step has failed")
    put = type(world.journal_store).put_new

    def refuses(self: ObjectStore, key: str, data: bytes) -> None:
        if "/journal/" in key:
            raise StorageUnavailable("no space left")
        put(self, key, data)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(type(world.journal_store), "put_new", refuses)
        with pytest.raises(Exception, match="was lifted, but that cannot be journaled"):
            lift(world.context(), attempt_of(world))
    assert world.denied == set()
    world.restart()
    lift(world.context(), attempt_of(world))
    check_lifted_once(world)
