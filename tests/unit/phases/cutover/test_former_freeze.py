"""A task of a freeze that has ended wakes up in the next one; and a tail that fails beside a freeze does not end it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.errors import BrokerRefused, CopyFailed, PhaseOver
from airflow_provider_kafka_migration.freeze import frozen, stops
from airflow_provider_kafka_migration.phases import final_drain, freeze
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.state import State


def _next_freeze(world: World) -> None:
    """Another process of the same owner lifts the freeze, a person approves again, and the next freeze begins."""
    sleeper = world.context()
    world.use(world._new_context())
    first = world.context().record.freeze()
    assert first is not None
    frozen.lift(world.context(), first, reason="its step has failed")
    world.run("tail")
    world.run("drain_ready")
    world.approve("cutover")
    world.run("cutover.freeze")
    world.use(sleeper)


def _once(act: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    left = [act]

    def run(*given: Any, **more: Any) -> Any:
        if left:
            left.pop()()
        return then(*given, **more)

    return run


def _check_next_goes_on(world: World) -> None:
    world.use(None)
    assert world.state is State.CUTOVER
    assert world.denied == {"User:shop"}
    assert [entry.step_key for entry in world.steps(steps.FREEZE_VERIFIED)][-1] == "2"
    assert [entry.step_key for entry in world.steps(steps.FREEZE_LIFTED)] == ["1"]


def test_ready_never_follows_for_a_freeze_that_was_lifted(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last write before READY takes long. By then the next freeze is in force, and its copy is not complete."""
    world = worlds.at("cutover.floor_guard")
    put, act = MigrationRecord.put_result, _once(lambda: _next_freeze(world), lambda: None)

    def slowly(self: MigrationRecord, name: str, *given: Any) -> Any:
        if name == keys.FROZEN_TIME:
            act()
        return put(self, name, *given)

    monkeypatch.setattr(MigrationRecord, "put_result", slowly)
    with pytest.raises(PhaseOver, match="freeze 2 has begun"):
        world.migration().run("cutover.floor_guard")
    assert world.steps(steps.READY) == []
    _check_next_goes_on(world)


def test_a_step_that_fails_late_does_not_end_the_next_freeze(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.at("cutover.final_drain")

    def refuse(*_: Any) -> None:
        raise BrokerRefused("this took minutes")

    monkeypatch.setattr(final_drain, "write_tail_stop", _once(lambda: _next_freeze(world), refuse))
    with pytest.raises(PhaseOver, match="freeze 2 has begun"):
        world.run("cutover.final_drain")
    _check_next_goes_on(world)


def test_a_freeze_that_was_lifted_asks_for_nothing_in_the_next_one(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("cutover.freeze")
    monkeypatch.setattr(stops, "check_closed", _once(lambda: _next_freeze(world), stops.check_closed))
    with pytest.raises(PhaseOver):
        world.run("cutover.freeze")
    assert "1" not in [entry.step_key for entry in world.steps(steps.CHANGE_BEGUN)]
    _check_next_goes_on(world)


def test_a_lift_that_waits_frees_nobody_of_the_next_freeze(worlds: Worlds) -> None:
    """Two processes lift the freeze. Both wait for a request of a third one, which was killed."""
    world = worlds.at("cutover.sentinels")
    slow = world.context()
    slow.journal.step(steps.CHANGE_BEGUN, "1", {"what": "1 DENY ACLs", "seconds": 30.0})
    slow.sleep = _once(lambda: _next_freeze(world), world.clock.sleep)
    attempt = slow.record.freeze()
    assert attempt is not None
    with pytest.raises(PhaseOver, match="freeze 2 has begun"):
        frozen.lift(slow, attempt, reason="it lasts too long")
    _check_next_goes_on(world)


@pytest.mark.parametrize("place", ["while they are asked", "while it is verified"])
def test_a_tail_that_fails_beside_a_freeze_does_not_end_it(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Airflow starts the tail again; the drain waits for it."""
    world = worlds.at("cutover.freeze")

    def fail() -> None:
        world._new_context().journal.fail(CopyFailed("the source was away for a moment"))

    if place == "while they are asked":
        admin = type(world.context().source.admin)
        monkeypatch.setattr(admin, "create_acls", _once(fail, admin.create_acls))
    else:
        monkeypatch.setattr(freeze, "verify", _once(fail, freeze.verify))
    world.run("cutover.freeze")
    assert [entry.step_key for entry in world.steps(steps.FREEZE_VERIFIED)] == ["1"]
    assert not any(entry.details.get("undone") for entry in world.steps(steps.CHANGE_ENDED))
    assert world.denied == {"User:shop"}
