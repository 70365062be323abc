"""A migration with schema registries, from the plan to the evidence: ids kept."""

from __future__ import annotations

from phase_world.registries import SECTION
from phase_world.world import Worlds

from airflow_provider_kafka_migration.record import steps


def test_the_task_copies_schemas_with_their_ids(worlds: Worlds) -> None:
    world = worlds.at("schemas", schemas=SECTION)
    result = world.run("schemas")
    source, target = (world.registries.state(role) for role in ("source", "target"))
    assert target["subjects"] == source["subjects"]
    assert target["configs"]["orders-value"] == source["configs"]["orders-value"]
    assert target["modes"] == {"": "READWRITE"}
    assert result.details["registered"] == 5
    assert "4 subjects with 5 versions" in result.summary
    found = world.context().record.schema_id_map()
    assert found is not None
    assert found.ids == [(".", number, number) for number in (1, 3, 7, 9, 12)]
    world.restart()
    assert world.run("schemas").already_done
    assert len(world.steps(steps.SCHEMAS_COPIED)) == 1


def test_without_registries_the_task_journals_nothing(worlds: Worlds) -> None:
    world = worlds.at("schemas")
    count = len(world.context().journal.entries())
    world.outside.revive()
    result = world.run("schemas")
    assert (result.summary, result.already_done) == ("no schema registry is configured", True)
    assert len(world.context().journal.entries()) == count
    assert world.outside.changes == []
