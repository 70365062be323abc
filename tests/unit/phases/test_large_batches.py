"""Records that are larger than the limit of the copy, because the limit was lowered after they were written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from phase_world.admin import REFUSED
from phase_world.jobs import MIGRATION
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.copy.append_errors import too_large
from airflow_provider_kafka_migration.errors import Where
from airflow_provider_kafka_migration.kafka.batches.records import record_too_large
from airflow_provider_kafka_migration.phases import seed, tail
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import large_batches

MIB = 1024 * 1024


def stopped(world: World, phase: str, batch_bytes: int, *, topic: str = "orders") -> None:
    """The last job has stopped at a record."""
    error = record_too_large(7, batch_bytes, 16 * MIB).as_dict()
    rows = [{"topic": topic, "partition": 0, "error": error}, {"topic": "state", "partition": 0, "error": None}]
    world.journal_store.put(f"{MIGRATION}/progress/{phase}.json", json.dumps({"partitions": rows}).encode())


def limits(world: World) -> dict[str, str | None]:
    return {name: topic.configs.get("max.message.bytes") for name, topic in world.target.topics.items()}


@pytest.mark.parametrize("phase", ["seed", "tail"])
def test_the_next_run_makes_room_for_the_record(worlds: Worlds, phase: str) -> None:
    world = worlds.at(phase)
    if phase == "seed":
        world.enter(State.SEED)
        seed.prepare(world.context())
    stopped(world, phase, 20 * MIB)
    world.restart()
    (seed if phase == "seed" else tail).prepare(world.context())
    assert limits(world) == {"orders": str(20 * MIB + 64 * 1024), "state": str(16 * MIB)}
    changes = len(world.outside.changes)
    assert large_batches.make_room(world.context(), phase) == []
    assert len(world.outside.changes) == changes, "once"


def test_in_the_end_the_topic_has_the_limit_of_the_plan(worlds: Worlds) -> None:
    world = worlds.at("seed")
    world.enter(State.SEED)
    final = dict(world.context().record.plan().topics[0].target_configs)
    seed.prepare(world.context())
    stopped(world, "seed", 20 * MIB)
    seed.prepare(world.context())
    world.run("rollback")
    assert world.target.topics["orders"].configs.get("max.message.bytes") == final.get("max.message.bytes")


def test_a_record_that_no_request_can_hold_changes_nothing(worlds: Worlds) -> None:
    world = worlds.at("seed")
    world.enter(State.SEED)
    world.target.broker_configs["socket.request.max.bytes"] = str(18 * MIB)
    seed.prepare(world.context())
    stopped(world, "seed", 20 * MIB)
    seed.prepare(world.context())
    assert set(limits(world).values()) == {str(16 * MIB)}
    assert world.steps("large_batches") == []


def test_a_limit_that_the_target_refuses_changes_nothing(worlds: Worlds) -> None:
    world = worlds.at("seed")
    world.enter(State.SEED)
    seed.prepare(world.context())
    stopped(world, "seed", 20 * MIB)
    world.outside.fail("target.admin.alter_topic_configs", lambda answers: dict.fromkeys(answers, REFUSED), times=1)
    assert large_batches.make_room(world.context(), "seed") == []
    assert world.steps("large_batches") == []


def test_other_errors_raise_no_limit(worlds: Worlds) -> None:
    world = worlds.at("seed")
    world.enter(State.SEED)
    seed.prepare(world.context())
    stopped(world, "seed", 20 * MIB, topic="gone")
    seed.prepare(world.context())
    assert set(limits(world).values()) == {str(16 * MIB)}


def test_both_errors_say_how_large_it_is_and_what_to_do() -> None:
    sent: Any = type("Sent", (), {"record_count": 1, "size_bytes": 20 * MIB, "source_offset": 7})
    for error in (too_large(sent, "refused", Where()), record_too_large(7, 20 * MIB, 16 * MIB)):
        assert error.details["batch_bytes"] == 20 * MIB
        assert "it raises max.message.bytes of the target topic for the copy" in error.next_step
