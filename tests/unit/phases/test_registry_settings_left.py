"""Modes that a killed pass or a late request has left: the retried copy, the validation and the rollback find them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from phase_world.jobs import MIGRATION
from phase_world.registries import SECTION
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.errors import RegistryRefused, RegistryUnreachable, ValidationFailed
from airflow_provider_kafka_migration.freeze import final_schemas
from airflow_provider_kafka_migration.phases import groups
from airflow_provider_kafka_migration.record.registry_settings import journal_restored, journal_setting, open_settings
from airflow_provider_kafka_migration.state import State

pytestmark = pytest.mark.slow

DOWN = RegistryUnreachable("nobody answers")
READONLY = {**SECTION, "source_registry": "readonly"}


def leave_import(world: World, *, closed: bool = False) -> None:
    """Leave the target registry in mode IMPORT, as a pass does that is killed."""
    journal = world.context().journal
    journal_setting(journal, "target", "mode", {"": "READWRITE"}, "IMPORT", reason="test")
    if closed:
        journal_restored(journal, "target", "mode", [""], {}, reason="test")
    world.registries.stores["target"].set_mode(None, "IMPORT", force=True)
    assert modes(world) == {"": "IMPORT"}


def modes(world: World, role: Any = "target") -> dict[str, str]:
    return dict(world.registries.state(role)["modes"])


def still_open(world: World, role: Any = "target") -> set[str]:
    journal = world.context().journal
    journal.refresh()
    return set(open_settings(journal, role, "mode"))


def schema_check(world: World) -> Any:
    result = world.context().record.validation()
    assert result is not None
    return result.check("schemas")


def report(world: World) -> dict[str, Any]:
    data = world.evidence_store.get(f"{MIGRATION}/rollback-report.json")
    assert data is not None
    return dict(json.loads(data))


# -- retried copies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "phase", "options"), [("validate", "tail", {"to_its_stop": True}), ("tail", "seed", {})]
)
def test_a_retried_copy_with_nothing_to_do_puts_modes_back(
    worlds: Worlds, at: str, phase: str, options: dict[str, bool]
) -> None:
    world = worlds.at(at, schemas=SECTION)
    leave_import(world)
    world.restart()
    assert world.run(phase, **options).already_done
    assert modes(world) == {"": "READWRITE"}
    assert still_open(world) == set()


# -- cutover ----------------------------------------------------------------------------------------------------------


def test_the_end_of_the_drain_puts_back_what_a_pass_of_the_tail_has_left(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("cutover.final_drain", schemas=SECTION)
    last_pass = final_schemas.synchronize_completely

    def then_leave(*args: Any, **options: Any) -> Any:
        found = last_pass(*args, **options)
        leave_import(world)
        return found

    monkeypatch.setattr(final_schemas, "synchronize_completely", then_leave)
    world.run("cutover.final_drain")
    assert modes(world) == {"": "READWRITE"}
    assert still_open(world) == set()


def test_modes_are_put_back_before_clients_switch(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.at("approve_switch", schemas=SECTION)
    leave_import(world)
    answers = iter([False, True])
    monkeypatch.setattr(groups, "_switched", lambda _record: next(answers))
    groups.sync_until_switch(world.context(), sleep=lambda _: None)
    assert modes(world) == {"": "READWRITE"}
    assert still_open(world) == set()


# -- validation -------------------------------------------------------------------------------------------------------


def test_the_validation_puts_back_what_a_killed_pass_has_left(worlds: Worlds) -> None:
    world = worlds.at("validate", schemas=SECTION)
    leave_import(world)
    world.run("validate")
    assert schema_check(world).outcome == "PASSED"
    assert modes(world) == {"": "READWRITE"}
    assert still_open(world) == set()


def test_a_mode_that_a_late_request_has_set_fails_the_validation(worlds: Worlds) -> None:
    world = worlds.at("validate", schemas=SECTION)
    leave_import(world, closed=True)
    with pytest.raises(ValidationFailed, match="schemas"):
        world.run("validate")
    (finding,) = schema_check(world).findings
    assert finding.startswith("the whole registry: its mode is IMPORT")
    assert "before, it was READWRITE" in finding
    world.registries.stores["target"].set_mode(None, "READWRITE")
    world.run("validate")
    assert schema_check(world).outcome == "PASSED"


def test_a_mode_that_cannot_be_put_back_fails_the_validation(worlds: Worlds) -> None:
    world = worlds.at("validate", schemas=SECTION)
    leave_import(world)
    world.outside.fail("target.registry.set_mode", RegistryRefused("not like this"))
    with pytest.raises(ValidationFailed, match="schemas"):
        world.run("validate")
    (finding,) = schema_check(world).findings
    assert finding.startswith("the whole registry: its mode was changed for a while and could not be put back")
    assert "not like this" in finding
    assert "clear validate" in finding


def test_an_import_mode_of_others_is_only_named(worlds: Worlds) -> None:
    world = worlds.at("validate", schemas=SECTION)
    world.registries.stores["target"].set_mode(None, "IMPORT", force=True)
    world.run("validate")
    found = schema_check(world)
    assert found.outcome == "WARNING"
    assert "which the migration has not set" in found.findings[0]
    assert modes(world) == {"": "IMPORT"}


# -- rollback ---------------------------------------------------------------------------------------------------------


def test_a_source_registry_that_is_down_does_not_keep_the_target_from_its_modes(worlds: Worlds) -> None:
    world = worlds.at("cutover.final_drain", schemas=READONLY)
    leave_import(world)
    world.outside.fail("source.registry.*", DOWN)
    world.run("rollback")
    assert world.state is State.ROLLED_BACK
    assert modes(world) == {"": "READWRITE"}
    assert [item["part"] for item in report(world)["problems"]] == ["source registry"]


def test_a_rollback_that_is_run_again_puts_back_what_is_still_open(worlds: Worlds) -> None:
    world = worlds.at("cutover.final_drain", schemas=READONLY)
    leave_import(world)
    world.outside.fail("*.registry.*", DOWN)
    world.run("rollback")
    problems = report(world)["problems"]
    assert [item["part"] for item in problems] == ["source registry", "target registry"]
    assert all("run" in item["next_step"] for item in problems)
    world.restart()
    again = world.run("rollback")
    assert again.already_done
    assert "2 parts could NOT be restored" in again.summary
    assert (modes(world), modes(world, "source")) == ({"": "IMPORT"}, {"": "READONLY"})
    world.outside.heal()
    world.restart()
    entries = len(world.context().journal.entries())
    again = world.run("rollback")
    assert (modes(world), modes(world, "source")) == ({"": "READWRITE"}, {"": "READWRITE"})
    assert again.details["restored_now"] == {"source_registry": 1, "target_registry": 1}
    assert again.details["problems"] == []
    # The journal has ended, so what it has open stays so; a mode that somebody sets later is not touched.
    assert len(world.context().journal.entries()) == entries
    world.registries.stores["target"].set_mode(None, "READONLY")
    assert world.run("rollback").already_done
    assert modes(world) == {"": "READONLY"}
