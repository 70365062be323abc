"""A process that dies after any change it has made: the next one ends where the first would have, nothing twice."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.outside import Killed
from phase_world.registries import SECTION
from phase_world.world import KEYS, ORDER, World, Worlds

from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.changes import open_changes
from airflow_provider_kafka_migration.record.registry_settings import open_settings
from airflow_provider_kafka_migration.state import State

#: Tracing doubles their time, and they take lines that other tests take, too.
pytestmark = [pytest.mark.no_cover, pytest.mark.slow]

#: Steps that each run of a phase journals, because it has checked again.
_EACH_RUN = {"prechecked"}
#: Modes that are set for a while: after a kill for fewer subjects, or not at all.
_FOR_A_WHILE = {"schema_mode_setting", "schema_mode_restored", "schema_level_setting", "schema_level_restored"}
#: Outcomes of requests. A killed process leaves its intent without one, and the next finds the request done: whoever
#: ends what the change belongs to waits until that request cannot take effect any more.
_OUTCOMES = {steps.CHANGE_ENDED}
#: Steps whose keys are times.
_TIMES = {"drain_ready"}
#: A topic that was created by a process that died before it could journal that is adopted by the next one.
_SAME = {"topic_adopted": "topic_created"}
#: Without registries, the task of the schemas does nothing; neither does the check of Spark where this process copies.
PHASES = [phase for phase in ORDER if phase not in ("tail", "approve_cutover", "schemas", "spark_check")]
#: Those that write to a registry in their own thread, and a spec that makes them do so.
WITH_REGISTRIES = {
    "schemas": SECTION,
    "cutover.freeze": {**SECTION, "source_registry": "readonly"},
    "cutover.final_drain": {**SECTION, "source_registry": "readonly"},
}


def outcome(world: World) -> dict[str, Any]:
    """Everything that a migration has done outside, and what its journal says; without times and random ids."""
    journal = world.context().journal
    done = [
        (_SAME.get(str(entry.step), entry.step), entry.step_key if entry.step not in _TIMES else "")
        for entry in journal.steps()
        if entry.step not in _EACH_RUN | _FOR_A_WHILE | _OUTCOMES
    ]
    return {
        "logs": {
            (role, name, number): (log.start, log.end, {offset: _kind(value) for offset, value in log.values().items()})
            for role, cluster in (("source", world.source), ("target", world.target))
            for name, topic in cluster.topics.items()
            for number, log in enumerate(topic.logs)
        },
        "configs": {name: topic.configs for name, topic in world.target.topics.items()},
        "created": world.target.created,
        "groups": {name: group.offsets for name, group in world.target.groups.items()},
        "commits": sorted(world.target.commits, key=str),
        "acls": (world.source.acls, world.target.acls),
        "registries": {role: world.registries.state(role) for role in ("source", "target")},
        "open settings": [
            open_settings(journal, role, kind) for role in ("source", "target") for kind in ("mode", "config")
        ],
        "steps": sorted(set(done), key=str),
        "states": journal.history,
    }


def _kind(value: bytes | None) -> bytes | None:
    return b"sentinel" if value is not None and b'"migration_id"' in value else value


_CHANGES: dict[str, tuple[int, dict[str, Any]]] = {}


def changes_of(worlds: Worlds, phase: str, **sections: Any) -> tuple[int, dict[str, Any]]:
    """How many changes a phase makes, and what they end in."""
    key = f"{phase} {sections}"
    if key not in _CHANGES:
        world = worlds.at(phase, **sections)
        world.context()
        world.outside.revive()
        world.run(phase)
        _CHANGES[key] = len(world.outside.changes), outcome(world)
    return _CHANGES[key]


@pytest.mark.parametrize("phase", PHASES)
def test_the_next_process_ends_where_the_killed_one_would_have(worlds: Worlds, phase: str) -> None:
    kill_everywhere(worlds, phase)


@pytest.mark.parametrize("phase", WITH_REGISTRIES)
def test_registries_end_as_if_nobody_had_been_killed(worlds: Worlds, phase: str) -> None:
    """All schemas, each once; and the modes that they had before."""
    kill_everywhere(worlds, phase, schemas=WITH_REGISTRIES[phase])


def kill_everywhere(worlds: Worlds, phase: str, **sections: Any) -> None:
    """Kill a phase after each of its changes, run it again, and compare."""
    count, expected = changes_of(worlds, phase, **sections)
    assert count > 1
    before = _without_outcome(worlds.at(phase, **sections))
    for number in range(count):
        world = worlds.at(phase, **sections)
        world.context()
        world.outside.revive()
        world.outside.dies_after = number
        with pytest.raises(Killed):
            world.run(phase)
        world.restart()
        world.run(phase)
        assert outcome(world) == expected, f"killed after change {number}"
        assert _without_outcome(world) <= before + 1, "only the request during which a process died"


def _without_outcome(world: World) -> int:
    journal = world.context().journal
    keys = {str(entry.step_key) for entry in journal.steps(steps.CHANGE_BEGUN)}
    return sum(len(open_changes(journal, key)) for key in keys)


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_that_is_done_changes_nothing_when_it_runs_again(worlds: Worlds, phase: str) -> None:
    world = worlds.at(phase)
    world.run(phase)
    expected = outcome(world)
    world.restart()
    world.context()
    world.outside.revive()
    world.run(phase)
    assert outcome(world) == expected
    done = [change for change in world.outside.changes if change.startswith(("source.", "target.", "copiers."))]
    assert done == []


@pytest.mark.parametrize("place", [0.3, 0.8])
def test_a_migration_that_is_killed_once_in_each_phase_is_finalized(worlds: Worlds, place: float) -> None:
    counts = {phase: changes_of(worlds, phase)[0] for phase in PHASES}
    world = worlds.at(ORDER[0])
    for phase in ORDER:
        if phase in counts:
            world.context()
            world.outside.revive()
            world.outside.dies_after = int(counts[phase] * place)
            with pytest.raises(Killed):
                world.run(phase)
            world.restart()
        world.run(phase)
    assert world.state is State.FINALIZED
    for topic, partition in KEYS:
        source, target = world.source.log(topic, partition), world.target.log(topic, partition)
        assert target.values() == source.values()
        assert [_kind(value) for value in source.values().values()].count(b"sentinel") == 1
