"""A migration with schema registries: ids kept or translated, new schemas in the tail, conflicts, outages, freezes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.registries import SECTION, avro, with_id
from phase_world.world import ORDER, World, Worlds

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.proof import PartitionContent
from airflow_provider_kafka_migration.documents.schemas import SchemaCheck, SchemaIdSettings, TopicIdSettings
from airflow_provider_kafka_migration.errors import (
    FreezeFailed,
    PrecheckBlocked,
    RegistryRefused,
    RegistryUnreachable,
    SchemaConflicts,
    SchemaIdUnresolved,
    SchemasIncomplete,
    SchemaTopicRefused,
    Terminal,
    ValidationFailed,
)
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.journal.entries import JournalEntry
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.schema_ids.id_map import wanted_key
from airflow_provider_kafka_migration.schemas import check, sync
from airflow_provider_kafka_migration.state import State

pytestmark = pytest.mark.slow

TRANSLATE = {**SECTION, "ids": "translate"}
WITH_TOPIC = {"topic": "_schemas"}
READONLY = {**SECTION, "source_registry": "readonly"}
DOWN = RegistryUnreachable("nobody answers")
ALL_CHECKS = dict(precheck.CHECKS)


def modes(world: World, role: Any) -> dict[str, str]:
    found: dict[str, str] = world.registries.state(role)["modes"]
    return found


def ids_on_target(world: World, topic: str, partition: int = 0) -> list[int]:
    values = world.target.log(topic, partition).values().values()
    return [int.from_bytes(value[1:5], "big") for value in values if value is not None and value[:1] == b"\0"]


def id_map(world: World) -> dict[int, int]:
    document = world.context().record.schema_id_map()
    assert document is not None
    return {source: target for _, source, target in document.ids}


# -- the task ---------------------------------------------------------------------------------------------------------


def test_the_task_copies_schemas_with_their_ids(worlds: Worlds) -> None:
    world = worlds.at("schemas", schemas=SECTION)
    result = world.run("schemas")
    source, target = (world.registries.state(role) for role in ("source", "target"))
    assert target["subjects"] == source["subjects"]
    assert target["configs"]["orders-value"] == source["configs"]["orders-value"]
    assert target["modes"] == {"": "READWRITE"}
    assert result.details["registered"] == 5
    assert "4 subjects with 5 versions" in result.summary
    assert id_map(world) == {number: number for number in (1, 3, 7, 9, 12)}
    world.restart()
    assert world.run("schemas").already_done
    assert len(world.steps(steps.SCHEMAS_COPIED)) == 1


def test_without_registries_the_task_journals_nothing(worlds: Worlds) -> None:
    world = worlds.at("schemas")
    count = len(world.context().journal.entries())
    world.outside.revive()
    result = world.run("schemas")
    assert (result.summary, result.already_done) == ("no schema registry is configured", False)
    assert len(world.context().journal.entries()) == count
    assert world.outside.changes == []


def test_a_plan_that_could_not_read_the_registries_is_no_plan_without_schemas(worlds: Worlds) -> None:
    world = worlds.at("plan", schemas=SECTION)
    world.outside.fail("target.registry.*", DOWN)
    for phase in ("plan", "precheck", "topology_copy"):
        world.run(phase)
    world.outside.heal()
    with pytest.raises(Terminal, match="the plan has no schemas, although the spec names schema registries"):
        world.run("schemas")
    assert world.registries.state("target")["subjects"] == {}


def test_conflicts_stop_the_task_by_name_before_anything_is_written(worlds: Worlds) -> None:
    world = worlds.at("schemas", schemas=SECTION)
    world.registries.seed("target", "taken-value", '"long"', id=3)
    before = world.registries.state("target")
    with pytest.raises(SchemaConflicts, match="the id 3 belongs to another schema") as caught:
        world.run("schemas")
    assert [item["subject"] for item in caught.value.details["conflicts"]] == ["orders-value"]
    assert world.registries.state("target") == before
    assert world.steps(steps.SCHEMAS_COPIED) == []


def test_reported_conflicts_leave_out_only_what_they_concern(worlds: Worlds) -> None:
    world = worlds.at("schemas", schemas={**SECTION, "on_conflict": "note", "ids": "keep"})
    world.registries.seed("target", "taken-value", '"long"', id=3)
    result = world.run("schemas")
    target = world.registries.state("target")["subjects"]
    assert sorted(target) == ["address", "gone-value", "orders-value", "state-value", "taken-value"]
    assert sorted(target["orders-value"]) == [1]
    assert "1 conflicts" in result.summary


def test_what_the_target_refuses_fails_the_task_after_all_others_are_there(worlds: Worlds) -> None:
    world = worlds.at("schemas", schemas=SECTION)

    def refuse(*_: Any) -> Any:
        raise RegistryRefused("not like this")

    world.outside.fail("target.registry.register", refuse, times=1)
    with pytest.raises(SchemasIncomplete, match="not like this"):
        world.run("schemas")
    world.restart()
    world.run("schemas")
    assert world.registries.state("target")["subjects"] == world.registries.state("source")["subjects"]


# -- whole migrations -------------------------------------------------------------------------------------------------


def test_kept_ids_stay_in_the_records(worlds: Worlds) -> None:
    world = worlds.at("validate", schemas=SECTION)
    assert ids_on_target(world, "orders") == [1, 3, 3]
    assert world.target.log("orders").values() == world.source.log("orders").values()
    final = world.evidence_store.get(f"{MIGRATION}/{keys.FINAL_SCHEMA_IDS}")
    assert final is not None
    assert [row[1:] for row in json.loads(final)["ids"]] == [[number, number] for number in (1, 3, 7, 9, 12)]


def test_translated_ids_are_in_the_records(worlds: Worlds) -> None:
    world = worlds.at("validate", schemas=TRANSLATE)
    known = id_map(world)
    assert known[3] != 3, "the target numbers its schemas by itself"
    assert ids_on_target(world, "orders") == [known[1], known[3], known[3]]
    assert world.target.log("orders").values().keys() == world.source.log("orders").values().keys()
    attempt = world.context().record.freeze()
    assert attempt is not None
    step = world.context().record.cutover_step(attempt, steps.FINAL_SCHEMAS)
    assert step is not None
    assert step["id_map"]["ids"] == 5


def test_a_schema_that_is_new_in_the_tail_is_there_before_its_records(worlds: Worlds) -> None:
    world = worlds.at("tail", schemas=TRANSLATE)
    world.registries.seed("source", "orders-value", avro("Order", "number", "note", "more"), id=20, version=4)
    world.source.log("orders").write(with_id(20))
    world.run("tail")
    known = id_map(world)
    assert ids_on_target(world, "orders")[-1] == known[20]
    assert known[20] != 20


def test_an_id_of_a_subject_outside_the_filter_is_taken_up_when_a_record_has_it(worlds: Worlds) -> None:
    world = worlds.at("tail", schemas={**TRANSLATE, "exclude": ["gone-value"]})
    world.source.log("orders").write(with_id(12))
    world.run("tail")
    assert ids_on_target(world, "orders")[-1] == id_map(world)[12]


def test_an_id_that_nobody_has_passes_once_the_registry_says_so(worlds: Worlds) -> None:
    world = worlds.at("tail", schemas=TRANSLATE)
    world.source.log("orders").write(with_id(4711))
    world.run("tail")
    assert ids_on_target(world, "orders")[-1] == 4711
    document = world.context().record.schema_id_map()
    assert document is not None
    assert document.absent == [(".", 4711)]


def test_an_unknown_id_holds_only_its_partition_while_the_registry_is_down(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phase_world import jobs

    monkeypatch.setattr(jobs, "_PATIENCE", 5)
    world = worlds.at("tail", schemas=TRANSLATE)
    world.registries.seed("source", "orders-value", avro("Order", "later"), id=20, version=4)
    for partition in (0, 1):
        world.source.log("orders", partition).write(with_id(20 if not partition else 3))
    world.outside.fail("source.registry.*", DOWN)
    world.run("tail")
    assert ids_on_target(world, "orders", 0) == [id_map(world)[number] for number in (1, 3, 3)]
    assert ids_on_target(world, "orders", 1)[-1] == id_map(world)[3]
    world.outside.heal()
    monkeypatch.setattr(jobs, "_PATIENCE", 150)
    world.run("tail")
    assert ids_on_target(world, "orders", 0)[-1] == id_map(world)[20]


def test_the_last_schemas_come_with_the_final_drain(worlds: Worlds) -> None:
    """The tail's own process has died; the final drain answers for it."""
    world = worlds.at("cutover.final_drain", schemas=TRANSLATE)
    world.registries.seed("source", "orders-value", avro("Order", "late"), id=20, version=4)
    world.run("cutover.final_drain")
    assert 20 in id_map(world)
    final = world.evidence_store.get(f"{MIGRATION}/{keys.FINAL_SCHEMA_IDS}")
    assert final is not None
    assert b"20" in final


def test_the_final_drain_answers_for_a_tail_whose_own_task_has_died(worlds: Worlds) -> None:
    """Without an answer the record would hold its partition, and the freeze would be lifted."""
    world = worlds.at("cutover.freeze", schemas={**TRANSLATE, "exclude": ["gone-value"]})
    world.source.log("orders").write(with_id(12))
    world.run("cutover.freeze")
    world.run("cutover.sentinels")
    assert 12 not in id_map(world)
    world.run("cutover.final_drain")
    assert ids_on_target(world, "orders") == [id_map(world)[number] for number in (1, 3, 3, 12)]


def waiting_behind_a_conflict(world: World) -> None:
    """A copier waits for the id 20, whose subject cannot be written on the target."""
    world.registries.seed("source", "orders-value", avro("Order", "late"), id=20, version=4)
    world.registries.stores["target"].modes["orders-value"] = "READONLY"


def test_a_partition_that_waits_behind_a_conflict_has_its_reason_in_the_journal(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phase_world import jobs

    monkeypatch.setattr(jobs, "_PATIENCE", 3000)
    world = worlds.at("tail", schemas={**TRANSLATE, "on_conflict": "note"})
    waiting_behind_a_conflict(world)
    world.source.log("orders").write(with_id(20))

    def reasons() -> list[JournalEntry]:
        return [item for item in world.steps(steps.SCHEMAS_FAILED) if item.step_key == "id 20 of context ."]

    copy_once = world.copiers.copy

    def copy(job: CopyJob) -> None:
        copy_once(job)
        if reasons():
            world.copiers.held.clear()

    monkeypatch.setattr(world.copiers, "copy", copy)
    world.run("tail")
    assert len(ids_on_target(world, "orders")) == 3
    (entry,) = reasons()
    assert "orders-value has mode READONLY" in entry.details["error"]["what"]


def test_an_id_that_no_pass_can_answer_stops_the_cutover_before_the_producers(worlds: Worlds) -> None:
    world = worlds.at("cutover.freeze", schemas={**TRANSLATE, "on_conflict": "note"})
    waiting_behind_a_conflict(world)
    world.context().journal_store.put_new(wanted_key(MIGRATION, ".", 20), b"{}")
    with pytest.raises(SchemasIncomplete, match=r"schema id 20 of context \. in records: .* READONLY"):
        world.run("cutover.freeze")
    assert not world.denied


def test_ids_that_the_target_cannot_keep_are_neither_registered_nor_accepted(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("schemas", schemas={**SECTION, "ids": "keep", "on_conflict": "note"})
    monkeypatch.setattr(Registry, "kind", lambda registry: "karapace" if registry.role == "target" else "confluent")
    result = world.run("schemas")
    assert world.registries.state("target")["subjects"] == {}
    assert "1 conflicts" in result.summary


# -- outages ----------------------------------------------------------------------------------------------------------


def test_a_registry_that_is_down_stops_the_cutover_before_the_producers(worlds: Worlds) -> None:
    world = worlds.at("cutover.freeze", schemas=SECTION)
    world.outside.fail("source.registry.*", DOWN)
    with pytest.raises(RegistryUnreachable):
        world.run("cutover.freeze")
    assert not world.denied
    assert world.steps(steps.FREEZE_REQUESTED) == []
    world.outside.heal()
    world.run("cutover.freeze")
    assert world.denied


def test_a_conflict_stops_the_cutover_before_the_producers(worlds: Worlds) -> None:
    world = worlds.at("cutover.freeze", schemas={**SECTION, "ids": "keep"})
    world.registries.seed("target", "taken-value", '"long"', id=20)
    world.registries.seed("source", "orders-value", avro("Order", "late"), id=20, version=4)
    with pytest.raises(SchemaConflicts, match="the id 20 belongs to another schema"):
        world.run("cutover.freeze")
    assert not world.denied
    assert world.state is State.TAIL


def test_schemas_that_were_never_copied_stop_the_cutover(worlds: Worlds) -> None:
    world = worlds.at("cutover.freeze")
    world.change_spec(schemas=SECTION)
    with pytest.raises(FreezeFailed, match="no schemas were copied"):
        world.run("cutover.freeze")
    assert not world.denied


def test_an_outage_in_the_final_drain_keeps_the_freeze_while_there_is_time(worlds: Worlds) -> None:
    world = worlds.at("cutover.final_drain", schemas=SECTION)
    world.outside.fail("target.registry.*", DOWN)
    with pytest.raises(RegistryUnreachable):
        world.run("cutover.final_drain")
    assert world.denied
    world.outside.heal()
    world.run("cutover.final_drain")
    assert world.denied


# -- the source registry at the freeze --------------------------------------------------------------------------------


def test_the_source_registry_becomes_readonly_at_the_freeze(worlds: Worlds) -> None:
    world = worlds.at("cutover.freeze", schemas=READONLY)
    assert modes(world, "source") == {"": "READWRITE"}
    world.run("cutover.freeze")
    assert modes(world, "source") == {"": "READONLY"}
    world.restart()
    world.run("cutover.sentinels")
    world.run("cutover.final_drain")
    assert modes(world, "target") == {"": "READWRITE"}, "the mode of the freeze is not copied"


def test_a_registry_that_does_not_set_modes_stops_the_cutover_before_the_producers(worlds: Worlds) -> None:
    world = worlds.at("cutover.freeze", schemas=READONLY)
    world.outside.fail("source.registry.set_mode", RegistryRefused("HTTP 405"))
    with pytest.raises(RegistryRefused, match="405") as caught:
        world.run("cutover.freeze")
    assert "set schemas.source_registry: leave" in caught.value.next_step
    assert not world.denied
    assert world.state is State.TAIL


def test_a_lifted_freeze_gives_the_source_registry_its_modes_back(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels", schemas=READONLY)
    assert modes(world, "source") == {"": "READONLY"}
    world.clock.sleep(3600)
    with pytest.raises(FreezeFailed, match="longer than max_producer_freeze"):
        world.run("cutover.sentinels")
    assert not world.denied
    assert modes(world, "source") == {"": "READWRITE"}
    assert world.context().record.open_registry_settings("source") == {}


def test_a_registry_that_is_down_does_not_keep_the_producers_frozen(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels", schemas=READONLY)
    world.clock.sleep(3600)
    world.outside.fail("source.registry.*", DOWN)
    with pytest.raises(FreezeFailed):
        world.run("cutover.sentinels")
    assert not world.denied
    (entry,) = world.steps(steps.SOURCE_REGISTRY_READONLY)
    assert "the whole registry: PUT mode READWRITE" in entry.details["error"]["next_step"]
    assert modes(world, "source") == {"": "READONLY"}
    world.outside.heal()
    world.restart()
    world.run("tail")
    assert modes(world, "source") == {"": "READWRITE"}


def test_a_rollback_gives_both_registries_their_modes_back_and_lists_what_stays(worlds: Worlds) -> None:
    world = worlds.at("cutover.final_drain", schemas=READONLY)
    world.run("rollback")
    assert modes(world, "source") == {"": "READWRITE"}
    assert modes(world, "target") == {"": "READWRITE"}
    data = world.evidence_store.get(f"{MIGRATION}/rollback-report.json")
    assert data is not None
    report = json.loads(data)
    assert report["problems"] == []
    rows = {item["subject"]: item["source_versions"] for item in report["left_in_registry"]}
    assert rows == {"address": [1], "gone-value": [1], "orders-value": [1, 3], "state-value": [1]}


def test_a_rollback_names_what_it_cannot_put_back(worlds: Worlds) -> None:
    world = worlds.at("cutover.final_drain", schemas=READONLY)
    world.outside.fail("source.registry.*", DOWN)
    world.run("rollback")
    assert world.state is State.ROLLED_BACK
    data = world.evidence_store.get(f"{MIGRATION}/rollback-report.json")
    assert data is not None
    (problem,) = json.loads(data)["problems"]
    assert problem["part"] == "source registry"
    assert "PUT mode READWRITE" in problem["next_step"]


def test_the_follower_is_not_started_without_registries(worlds: Worlds) -> None:
    world = worlds.at("seed")
    with sync.SchemaFollower(world.context()) as follower:
        assert follower._thread is None


# -- validation and evidence ------------------------------------------------------------------------------------------


def schema_check(world: World) -> Any:
    result = world.context().record.validation()
    assert result is not None
    return result.check("schemas")


@pytest.mark.parametrize("section", [SECTION, TRANSLATE], ids=["keep", "translate"])
def test_the_validation_resolves_each_id_and_the_evidence_has_it(worlds: Worlds, section: dict[str, Any]) -> None:
    world = worlds.at("validate", schemas=section)
    result = world.run("validate")
    assert result.details["checks"]["schemas"]["outcome"] == "PASSED"
    assert "2 of 2 ids in records resolve to the same schema" in schema_check(world).summary
    world.run("evidence")
    assert world.state is State.FINALIZED
    data = world.evidence_store.get(f"{MIGRATION}/evidence.json")
    assert data is not None
    bundle = verify_evidence(data).bundle
    assert bundle.schemas["plan"]["subjects"] == 4
    assert bundle.schemas["check"]["ids_resolved"] == 2
    assert bundle.schemas["final"]["id_map"]["ids"] == 5
    assert {"schema_ids", "schema_plan", "schemas_check"} <= bundle.artifacts.keys()
    reports = [item for key, item in world.evidence_store.objects.items() if key.endswith(".html")]
    assert reports
    assert b"<h2>Schemas</h2>" in reports[-1]


def test_a_validation_without_registries_says_so(worlds: Worlds) -> None:
    world = worlds.at("validate")
    world.run("validate")
    found = schema_check(world)
    assert (found.outcome, found.summary) == ("PASSED", "no schema registry is configured")
    world.run("evidence")
    data = world.evidence_store.get(f"{MIGRATION}/evidence.json")
    assert data is not None
    assert verify_evidence(data).bundle.schemas == {}
    assert b'\\\\"schemas\\\\":{\\\\"check' not in data


def test_another_schema_on_the_target_fails_the_validation_by_name(worlds: Worlds) -> None:
    world = worlds.at("validate", schemas=SECTION)
    world.registries.seed("target", "orders-value", avro("Order", "another"), id=3, version=3)
    with pytest.raises(ValidationFailed, match="schemas"):
        world.run("validate")
    findings = "\\n".join(schema_check(world).findings)
    assert "orders-value version 3: version 3 of orders-value on the target is another schema" in findings
    assert "id 3 of context . occurs in records (orders-0 at offset 6)" in findings


def test_a_version_that_clients_have_registered_since_is_only_named(worlds: Worlds) -> None:
    world = worlds.at("validate", schemas=SECTION)
    world.registries.seed("target", "orders-value", avro("Order", "after"), id=50, version=4)
    world.run("validate")
    found = schema_check(world)
    assert found.outcome == "WARNING"
    assert ["only on the target" in item for item in found.findings] == [True]


def test_a_registry_that_is_down_is_no_result_of_a_validation(worlds: Worlds) -> None:
    world = worlds.at("validate", schemas=SECTION)
    world.outside.fail("target.registry.*", DOWN)
    with pytest.raises(RegistryUnreachable):
        world.run("validate")
    assert world.steps(steps.VALIDATED) == []
    world.outside.heal()
    runs = world.verifier.runs
    assert world.run("validate").details["checks"]["schemas"]["outcome"] == "PASSED"
    assert world.verifier.runs == runs, "the content is not compared again"


def test_ids_that_were_not_gathered_are_not_taken_for_none() -> None:
    settings = SchemaIdSettings(
        id_map_key="k", topics={"orders": TopicIdSettings(parts="value", context=".", rewrite=True)}
    )
    content = PartitionContent(topic="orders", partition=0, source_records=5, target_records=5, compared=5)
    found = check.found_in_records([content], settings)
    assert found.incomplete == {"orders-0": "they were not gathered while its content was compared"}
    judged = check.judge(
        SchemaCheck(
            migration_id="m1",
            at="",
            id_mode="keep",
            unread={"ids in records of orders-0": found.incomplete["orders-0"]},
        )
    )
    assert judged.outcome == "WARNING"


def test_a_schema_that_could_not_be_read_fails_the_check_and_a_level_does_not() -> None:
    unread = {"source: mode of :.a:": "no right"}
    found = SchemaCheck(migration_id="m1", at="", id_mode="keep", unread=unread)
    assert check.judge(found).outcome == "WARNING"
    unread = {"target: subject a, version 1": "HTML"}
    assert check.judge(found.model_copy(update={"unread": unread})).outcome == "FAILED"


# -- what appears, and what a kill leaves -----------------------------------------------------------------------------


def test_the_ids_of_a_topic_that_appears_in_the_tail_are_translated(worlds: Worlds) -> None:
    world = worlds.at("drain_ready", schemas=TRANSLATE)
    world.source.create("new").logs[0].write(with_id(9), with_id(1))
    assert follow.follow(world.context()) == [("new", 0)]
    assert len(world.steps(steps.PLAN_SUPPLEMENTED)) == 1
    job = world.context().record.job("tail")
    assert job is not None
    assert job.schema_ids is not None
    assert {name: item.parts for name, item in job.schema_ids.topics.items()} == {"new": "value", "orders": "value"}
    world.run("tail")
    assert ids_on_target(world, "new") == [id_map(world)[9], id_map(world)[1]]


def test_a_topic_whose_ids_cannot_be_looked_up_waits(worlds: Worlds) -> None:
    world = worlds.at("drain_ready", schemas=TRANSLATE)
    world.source.create("new").logs[0].write(with_id(9))
    world.outside.fail("source.registry.*", DOWN)
    with pytest.raises(RegistryUnreachable):
        follow.follow(world.context())
    assert world.steps(steps.PLAN_SUPPLEMENTED) == []
    world.outside.heal()
    assert follow.follow(world.context()) == [("new", 0)]


def test_a_rollback_puts_back_what_a_killed_copy_has_left(worlds: Worlds) -> None:
    whole = worlds.at("schemas", schemas=SECTION)
    whole.context()
    whole.outside.revive()
    whole.run("schemas")
    names = [change.split()[0] for change in whole.outside.changes]
    world = worlds.at("schemas", schemas=SECTION)
    world.context()
    world.outside.revive()
    world.outside.dies_after = names.index("target.registry.register") + 1
    with pytest.raises(Killed):
        world.run("schemas")
    assert "IMPORT" in modes(world, "target").values()
    world.restart()
    world.run("rollback")
    assert modes(world, "target") == {"": "READWRITE"}
    assert world.state is State.ROLLED_BACK


def test_a_policy_that_a_person_changes_reaches_the_seed(worlds: Worlds) -> None:
    world = worlds.at("seed", schemas={**TRANSLATE, "strict": True})
    world.source.log("orders").write(with_id(4711))
    with pytest.raises(SchemaIdUnresolved):
        world.run("seed")
    world.restart()
    world.change_spec(schemas={**TRANSLATE, "strict": False})
    world.run("seed")
    assert ids_on_target(world, "orders")[-1] == 4711


# -- a registry that moves with its topic -----------------------------------------------------------------------------


def checking_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the precheck look at the registries."""
    names = ("clusters", "schema registries", "schemas")
    monkeypatch.setattr(precheck, "CHECKS", {name: ALL_CHECKS[name] for name in names})


def register_on_source(world: World, version: int, id: int) -> None:
    """Have a client register a schema, which the source registry keeps in its topic, and write a record with it."""
    world.registries.seed("source", "new-value", avro("New", f"field{version}"), id=id, version=version)
    world.registries.write_topic("source", world.source.log("_schemas"))
    world.source.log("orders").write(with_id(id))


def moved_with_its_topic(world: World) -> None:
    """Run a migration until the clients have switched. The target registry does not run before that."""
    world.outside.fail("target.registry.*", DOWN)
    for phase in ORDER[: ORDER.index("validate")]:
        world.clock.sleep(1)
        if phase == "tail":
            register_on_source(world, 1, 20)
        world.run(phase)
        if phase == "tail":
            register_on_source(world, 2, 21)
            world.run("tail")
    world.outside.heal()


def evidence_of(world: World) -> Any:
    world.run("evidence")
    data = world.evidence_store.get(f"{MIGRATION}/evidence.json")
    assert data is not None
    return verify_evidence(data).bundle


def test_a_registry_moves_with_its_topic(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    checking_registries(monkeypatch)
    world = worlds.at("plan", schemas={**SECTION, **WITH_TOPIC})
    moved_with_its_topic(world)
    assert world.target.log("_schemas").values() == world.source.log("_schemas").values()
    assert ids_on_target(world, "orders") == [1, 3, 3, 20, 21]
    assert world.registries.state("target")["subjects"] == {}
    assert world.context().record.schema_id_map() is None
    assert not [name for name in (steps.SCHEMAS_COPIED, steps.FINAL_SCHEMAS) if world.steps(name)]
    assert world.evidence_store.get(f"{MIGRATION}/{keys.FINAL_SCHEMA_IDS}") is None

    world.registries.start_on_topic("target", world.target.log("_schemas"))
    for kind in ("subjects", "configs"):
        assert world.registries.state("target")[kind] == world.registries.state("source")[kind]
    result = world.run("validate")
    assert result.details["checks"]["schemas"]["outcome"] == "PASSED", schema_check(world).findings
    assert schema_check(world).summary == (
        "5 subjects, 7 versions (1 deleted), ids kept; 4 of 4 ids in records resolve to the same schema"
    )
    assert not [change for change in world.outside.changes if ".registry." in change]
    bundle = evidence_of(world)
    assert world.state is State.FINALIZED
    assert (bundle.schemas["plan"]["id_mode"], bundle.schemas["plan"]["subjects"]) == ("topic", 4)
    assert (bundle.schemas["check"]["ids_resolved"], bundle.schemas["check"]["differences"]) == (4, [])
    assert (bundle.schemas["final"], bundle.schemas["result"], bundle.schemas["settings"]) == ({}, {}, [])
    assert {"schema_plan", "schemas_check"} <= bundle.artifacts.keys()
    assert "schema_ids" not in bundle.artifacts
    page = next(item for key, item in world.evidence_store.objects.items() if key.endswith(".html"))
    assert b"the registry moves with its own topic" in page
    assert b"Last synchronization" not in page


def test_a_registry_that_was_started_on_something_else_fails_the_validation(worlds: Worlds) -> None:
    world = worlds.at("plan", schemas={**SECTION, **WITH_TOPIC})
    moved_with_its_topic(world)
    world.registries.start_on_topic("target", world.target.log("state"))
    world.registries.stores["target"].set_config(None, {"compatibility": "NONE"})
    with pytest.raises(ValidationFailed, match="schemas"):
        world.run("validate")
    findings = "\n".join(schema_check(world).findings)
    assert "orders-value version 3: orders-value on the target does not have it" in findings
    assert "compatibilityLevel of the registry is NONE on the target and BACKWARD on the source" in findings
    assert "id 21 of context . occurs in records (orders-0 at offset 9)" in findings


def test_a_registry_that_is_not_started_yet_is_no_result(worlds: Worlds) -> None:
    world = worlds.at("plan", schemas={**SECTION, **WITH_TOPIC})
    moved_with_its_topic(world)
    world.outside.fail("target.registry.*", DOWN)
    with pytest.raises(RegistryUnreachable):
        world.run("validate")
    assert world.steps(steps.VALIDATED) == []


def test_without_registries_only_the_topic_moves_and_the_evidence_says_so(worlds: Worlds) -> None:
    world = worlds.at("validate", schemas=WITH_TOPIC)
    assert world.target.log("_schemas").values() == world.source.log("_schemas").values()
    assert world.target.log("_schemas").end > 5
    result = world.run("validate")
    assert result.details["checks"]["schemas"]["outcome"] == "WARNING"
    bundle = evidence_of(world)
    assert bundle.schemas["plan"]["id_mode"] == "topic"
    assert bundle.schemas["check"] == {}
    (row,) = [item for item in bundle.validation["checks"] if item["name"] == "schemas"]
    assert "the registries were not compared" in row["findings"][0]


@pytest.mark.parametrize("own", [("other-value", 1), ("orders-value", 2)], ids=["another subject", "another version"])
def test_a_target_registry_with_content_of_its_own_is_refused(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, own: tuple[str, int]
) -> None:
    """Before the plan by the plan, after it by the precheck."""
    checking_registries(monkeypatch)
    section = {**SECTION, **WITH_TOPIC}
    world = worlds.at("plan", schemas=section)
    world.registries.seed("target", own[0], '"long"', id=50, version=own[1])
    with pytest.raises(SchemaTopicRefused, match=own[0]):
        world.run("plan")
    world = worlds.at("precheck", schemas=section)
    world.registries.seed("target", own[0], '"long"', id=50, version=own[1])
    with pytest.raises(PrecheckBlocked, match="B112"):
        world.run("precheck")
    assert world.target.created == []
    world.registries.start_on_topic("target", world.source.log("_schemas"))
    world.run("precheck")
