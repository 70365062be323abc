"""The plan of a migration with schema registries: read, stored, covered by the approval; never "nothing" by mistake."""

from __future__ import annotations

import json

import pytest
from phase_world.jobs import MIGRATION
from phase_world.registries import SECTION
from phase_world.world import Worlds

from airflow_provider_kafka_migration.approvals import request
from airflow_provider_kafka_migration.approvals.code import code_of
from airflow_provider_kafka_migration.errors import RegistryUnreachable, SchemaTopicRefused
from airflow_provider_kafka_migration.record import keys


def test_the_plan_points_to_the_schema_plan(worlds: Worlds) -> None:
    world = worlds.at("plan", schemas=SECTION)
    result = world.run("plan")
    record = world.context().record
    summary = record.plan().schemas
    assert summary is not None
    found = record.schema_plan()
    assert found is not None
    assert summary.digest == found.digest()
    assert [item.subject for item in found.subjects] == ["address", "gone-value", "orders-value", "state-value"]
    assert (summary.subjects, summary.versions, summary.deleted_versions, summary.conflicts) == (4, 5, 1, 0)
    assert summary.id_mode == "keep"
    assert "4 subjects" in result.summary
    assert world.registries.state("target")["subjects"] == {}
    assert not [change for change in world.outside.changes if ".registry." in change]


def test_a_plan_without_registries_has_no_schemas(worlds: Worlds) -> None:
    world = worlds.at("plan")
    world.run("plan")
    assert world.context().record.plan().schemas is None
    assert world.context().record.schema_plan() is None
    assert not [key for key in world.journal_store.objects if "schemas" in key]


def test_two_plans_of_unchanged_registries_are_equal(worlds: Worlds) -> None:
    world = worlds.at("plan", schemas=SECTION)
    world.run("plan")
    first = world.stored(keys.PLAN)
    world.restart()
    world.run("plan")
    assert world.stored(keys.PLAN) == first


@pytest.mark.parametrize("role", ["source", "target"])
def test_a_registry_that_is_down_is_unknown(worlds: Worlds, role: str) -> None:
    world = worlds.at("plan", schemas=SECTION)
    world.outside.fail(f"{role}.registry.*", RegistryUnreachable("nobody answers"))
    world.run("plan")
    plan = world.context().record.plan()
    assert plan.schemas is None
    assert plan.unknown == {"schemas": "nobody answers"}


def test_the_code_of_the_approval_covers_the_schema_plan(worlds: Worlds) -> None:
    world = worlds.at("precheck", schemas=SECTION)
    context = world.context()
    before = code_of(request.make_binding(context.record, context.source, "cutover"))
    plan = json.loads(world.journal_store.objects[f"{MIGRATION}/plan.json"])
    plan["schemas"]["digest"] = "0" * 64
    world.journal_store.objects[f"{MIGRATION}/plan.json"] = json.dumps(plan).encode()
    assert code_of(request.make_binding(context.record, context.source, "cutover")) != before


def test_a_registry_that_moves_with_its_topic_is_only_explained(worlds: Worlds) -> None:
    world = worlds.at("plan", schemas={"topic": "state"})
    world.run("plan")
    found = world.context().record.schema_plan()
    assert found is not None
    assert (found.id_mode, found.subjects, found.conflicts) == ("topic", [], [])
    assert "start the target registry on the copied topic state" in found.notes[0]


def test_a_target_registry_on_a_topic_of_its_own_does_not_fit_a_copied_topic(worlds: Worlds) -> None:
    world = worlds.at("plan", schemas={"topic": "state", "target": SECTION["target"]})
    world.registries.seed("target", "other-value", '"string"', id=1)
    with pytest.raises(SchemaTopicRefused, match="other-value"):
        world.run("plan")


def test_topics_are_sampled_for_ids(worlds: Worlds) -> None:
    world = worlds.at("plan", schemas=SECTION)
    world.run("plan")
    found = world.context().record.schema_plan()
    assert found is not None
    assert [(item.topic, item.parts) for item in found.topics] == [("orders", "value"), ("state", "none")]
    summary = world.context().record.plan().schemas
    assert summary is not None
    assert summary.topics_with_ids == 1
