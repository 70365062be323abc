"""A tail that goes on after a lifted freeze appends only to topics that have their copy-time settings."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import BrokerUnreachable, FloorViolated, FreezeFailed, MigrationError
from airflow_provider_kafka_migration.phases import final_drain
from airflow_provider_kafka_migration.state import State

FLOOR, LIMIT = "cutover.floor_guard", "cutover.freeze_limit"


def _at_the_last_step(worlds: Worlds) -> World:
    """A target that has lost records, which is found once the configs are restored."""
    world = worlds.at(FLOOR)
    world.target.log("orders", 1).cut(6)
    world.context()
    world.outside.revive()
    return world


def _configs(world: World) -> dict[str, dict[str, str]]:
    return {name: dict(topic.configs) for name, topic in world.target.topics.items()}


def _is_stopped(world: World) -> bool:
    return StopAt.in_force(world.journal_store.get(f"{MIGRATION}/control/tail-stop.json")) is not None


def test_a_freeze_that_is_lifted_behind_the_restore_sets_the_copy_time_settings_again(worlds: Worlds) -> None:
    world = _at_the_last_step(worlds)
    before = _configs(world)
    with pytest.raises(FloorViolated):
        world.run(FLOOR)
    assert world.steps("producer_visible_restored"), "they were restored before"
    assert world.state is State.TAIL
    assert _configs(world) == before
    assert not _is_stopped(world)
    changes = " ".join(world.outside.changes)
    assert changes.index("source.admin.delete_acls") < changes.rindex("target.admin.alter_topic_configs"), (
        "producers do not wait for the target"
    )


def test_killed_anywhere_the_tail_stays_stopped_until_the_settings_are_set(worlds: Worlds) -> None:
    whole = _at_the_last_step(worlds)
    before = _configs(whole)
    with pytest.raises(FloorViolated):
        whole.run(FLOOR)
    for number in range(len(whole.outside.changes)):
        world = _at_the_last_step(worlds)
        world.outside.dies_after = number
        with pytest.raises(Killed):
            world.run(FLOOR)
        world.restart()
        assert _is_stopped(world) or _configs(world) == before, number
        world.clock.sleep(120)
        if not world.steps("freeze_lifted"):
            with pytest.raises(FreezeFailed):
                world.run(LIMIT)
        assert not world.denied, number
        assert not _is_stopped(world), number
        assert _configs(world) == before, number


def _lifted_without_the_target(worlds: Worlds) -> tuple[World, dict[str, dict[str, str]]]:
    world = _at_the_last_step(worlds)
    before = _configs(world)

    def away(_: Any) -> Any:
        world.outside.fail("target.admin.*", BrokerUnreachable("away"))
        return {}

    world.outside.fail("source.admin.delete_acls", away, times=1)
    with pytest.raises(FloorViolated):
        world.run(FLOOR)
    return world, before


def test_a_target_that_is_away_keeps_the_tail_stopped_and_not_the_producers(worlds: Worlds) -> None:
    world, before = _lifted_without_the_target(worlds)
    assert not world.denied
    assert world.steps("freeze_lifted")[-1].details["tail_waits"]
    assert _is_stopped(world)
    assert _configs(world) != before
    world.source.log("orders").write(b"late")
    end = world.target.log("orders").end
    world.restart()
    with pytest.raises(MigrationError, match="away"):
        world.run("tail", to_its_stop=True)
    assert _is_stopped(world)
    assert world.target.log("orders").end == end

    world.outside.heal()
    world.restart()
    world.run("tail")
    assert not _is_stopped(world)
    assert _configs(world) == before
    assert world.target.log("orders").end > end


def test_a_tail_that_waits_is_stopped_for_good_by_a_rollback(worlds: Worlds) -> None:
    world, _ = _lifted_without_the_target(worlds)
    world.outside.heal()
    world.restart()
    world.run("rollback")
    assert world.state is State.ROLLED_BACK
    assert _is_stopped(world)
    world.run("tail", to_its_stop=True)
    assert _is_stopped(world)


def test_a_tail_that_begins_again_sets_the_settings_whatever_the_lift_has_done(worlds: Worlds) -> None:
    """An older release, for instance, has lifted the freeze."""
    world = _at_the_last_step(worlds)
    before = _configs(world)
    with pytest.raises(FloorViolated):
        world.run(FLOOR)
    world.target.topics["orders"].configs["message.timestamp.type"] = "LogAppendTime"
    world.restart()
    world.run("tail")
    assert _configs(world) == before


def test_a_stop_that_is_written_after_the_lift_does_not_stop_the_tail(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a final drain that was slow, and was killed before it could see that its freeze has ended."""
    world = worlds.at("cutover.final_drain")
    write = final_drain.write_tail_stop

    def slowly(*given: Any) -> None:
        mine = world.context()
        world.clock.sleep(120)
        world.use(world._new_context())
        with pytest.raises(FreezeFailed, match="was lifted"):
            world.run(LIMIT)
        world.use(mine)
        write(*given)
        raise Killed

    monkeypatch.setattr(final_drain, "write_tail_stop", slowly)
    with pytest.raises(Killed):
        world.run("cutover.final_drain")
    world.restart()
    assert _is_stopped(world)
    world.source.log("orders").write(b"after the lift")
    world.run("tail")
    assert not _is_stopped(world)
    assert world.target.log("orders").end == world.source.log("orders").end
