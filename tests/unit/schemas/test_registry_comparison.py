"""The comparison of both registries after a copy finds each kind of difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from schema_snapshots import avro, plan_of, registered, snapshot

from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.documents.schemas import SchemaCheck, SchemaIdMap
from airflow_provider_kafka_migration.registry.model import RegisteredSchema, Schema
from airflow_provider_kafka_migration.schemas.check import judge
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot, SubjectSnapshot
from airflow_provider_kafka_migration.schemas.verify import FoundInRecords, target_ids, verify

A, B, C = avro("A", "x"), avro("B", "x"), avro("C", "x")
GUID = "3c56e55a-9e5b-105e-df40-078ac6b3fb16"
SELECTION = Selection(prefix="x.")
IN_RECORDS = FoundInRecords({(".", 7): "orders-0 at offset 3", (".", 99): "orders-0 at offset 4"}, {GUID: "orders-1"})


def source() -> RegistrySnapshot:
    found = snapshot(
        registered("a", 3, 7, A),
        registered("a", 5, 9, B, deleted=True),
        replace(registered("b", 1, 8, C, refs=[("A", "a", 3)]), guid=GUID),
        configs={"a": {"compatibilityLevel": "NONE"}, ":.p:": {"compatibilityLevel": "FULL"}},
        modes={"b": "READONLY"},
        contexts=[".", ".p"],
    )
    found.ids[(".", 99)] = None
    return found


def target(mode: str) -> RegistrySnapshot:
    """The target as a correct copy leaves it: with kept ids, or translated (versions from 1, ids + 100)."""
    keep = mode == "keep"
    first, second, ids = (3, 5, [7, 9, 8]) if keep else (1, 2, [107, 109, 108])
    found = snapshot(
        registered("x.a", first, ids[0], A),
        registered("x.a", second, ids[1], B, deleted=True),
        replace(registered("x.b", 1, ids[2], C, refs=[("A", "x.a", first)]), guid=GUID),
        configs={"x.a": {"compatibilityLevel": "NONE"}, ":.p:": {"compatibilityLevel": "FULL"}},
        modes={"x.b": "READONLY"},
        contexts=[".", ".p"],
    )
    found.ids[(".", ids[0])] = Schema("AVRO", A)
    return found


MAP = SchemaIdMap(
    migration_id="m",
    id_mode="translate",
    ids=[(".", 7, 107), (".", 8, 108), (".", 9, 109)],
    guids=[(GUID, GUID)],
    absent=[(".", 99)],
)


def check(
    mode: str,
    there: RegistrySnapshot,
    here: RegistrySnapshot | None = None,
    found: FoundInRecords = IN_RECORDS,
    selection: Selection = SELECTION,
    id_map: SchemaIdMap | None = None,
) -> SchemaCheck:
    here = here or source()
    planned = plan_of(source(), ids=mode, selection=selection)
    given = (id_map or MAP) if mode == "translate" else None
    return verify(here, there, planned, given, found, selection=selection, at="now")


@pytest.mark.parametrize("mode", ["keep", "translate"])
def test_a_correct_copy_has_no_difference(mode: str) -> None:
    result = check(mode, target(mode))
    assert (result.differences, result.unread) == ([], {})
    assert (result.subjects, result.versions, result.deleted_versions) == (2, 3, 1)
    assert (result.ids_in_records, result.ids_resolved, result.ids_unknown_to_source) == (3, 2, [99])


def changed(snapshot: RegistrySnapshot, subject: str, number: int, **values: Any) -> None:
    """Change one version of a snapshot; ``remove=True`` removes it."""
    found = snapshot.subjects[subject]
    versions: list[RegisteredSchema] = []
    for item in found.versions:
        if item.version != number:
            versions.append(item)
        elif not values.get("remove"):
            schema = replace(item.schema, **values.pop("schema", {}))
            versions.append(replace(item, schema=schema, **values))
    snapshot.subjects[subject] = replace(found, versions=tuple(versions))


def level(snapshot: RegistrySnapshot, subject: str, **values: Any) -> None:
    snapshot.subjects[subject] = replace(snapshot.subjects[subject], **values)


def added(snapshot: RegistrySnapshot) -> None:
    found = snapshot.subjects["x.a"]
    snapshot.subjects["x.a"] = replace(found, versions=(*found.versions, registered("x.a", 9, 200, C)))


DAMAGES: dict[str, tuple[Callable[[RegistrySnapshot], object], str]] = {
    "subject": (lambda it: it.subjects.pop("x.b"), "x.b on the target does not have it"),
    "version": (lambda it: changed(it, "x.a", 5, remove=True), "x.a on the target does not have it"),
    "text": (lambda it: changed(it, "x.a", 3, schema={"text": C}), "its text differs"),
    "type": (lambda it: changed(it, "x.a", 3, schema={"type": "JSON"}), "its type is JSON instead of AVRO"),
    "reference": (lambda it: changed(it, "x.b", 1, schema={"references": ()}), "its references differ"),
    "metadata": (lambda it: changed(it, "x.a", 3, schema={"metadata": {"a": 1}}), "its metadata or rule set differs"),
    "deleted": (lambda it: changed(it, "x.a", 3, deleted=True), "soft-deleted on the target and live on the source"),
    "restored": (lambda it: changed(it, "x.a", 5, deleted=False), "live on the target and soft-deleted on the source"),
    "id": (lambda it: changed(it, "x.a", 3, id=70), "has the id 70 instead of 7"),
    "extra": (added, "version 9 of x.a (live) is only on the target"),
    "level": (lambda it: level(it, "x.a", config=None), "compatibilityLevel of x.a is not set on the target"),
    "level of its own": (
        lambda it: level(it, "x.b", config={"compatibilityLevel": "FULL"}),
        "compatibilityLevel of x.b is FULL on the target and not set on the source",
    ),
    "level of a context": (lambda it: it.context_configs.clear(), "compatibilityLevel of :.p: is not set"),
    "mode": (lambda it: level(it, "x.b", mode=None), "the mode of x.b is not set on the target and READONLY"),
    "mode left over": (lambda it: level(it, "x.a", mode="IMPORT"), "the mode of x.a is IMPORT on the target"),
    "id in records gone": (lambda it: it.ids.update({(".", 7): None}), "the target registry has no schema under id 7"),
    "id in records foreign": (
        lambda it: it.ids.update({(".", 7): Schema("AVRO", C)}),
        "id 7 of context . occurs in records (orders-0 at offset 3), but id 7 is another schema",
    ),
    "GUID": (lambda it: changed(it, "x.b", 1, guid="other"), f"no copied version has the GUID {GUID}"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_difference_is_found(damage: str) -> None:
    there = target("keep")
    harm, expected = DAMAGES[damage]
    harm(there)
    result = check("keep", there)
    assert any(expected in item.what for item in result.differences), result.differences


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda it: changed(it, "x.a", 1, id=70), "x.a on the target does not have it"),
        (lambda it: changed(it, "x.a", 1, schema={"text": C}), "its text differs"),
        (lambda it: changed(it, "x.a", 2, deleted=False), "live on the target"),
        (lambda it: it.ids.update({(".", 107): Schema("AVRO", C)}), "but id 107 is another schema"),
        (lambda it: changed(it, "x.b", 1, schema={"references": ()}), "its references differ"),
    ],
)
def test_each_difference_of_a_translated_copy_is_found(
    damage: Callable[[RegistrySnapshot], object], expected: str
) -> None:
    there = target("translate")
    damage(there)
    assert any(expected in item.what for item in check("translate", there).differences)


def test_an_id_that_the_map_lacks_is_a_difference() -> None:
    without = MAP.model_copy(update={"ids": MAP.ids[1:]})
    result = check("translate", target("translate"), id_map=without)
    whats = [item.what for item in result.differences]
    assert "id 7 of context . occurs in records (orders-0 at offset 3), but the id map does not have it" in whats


def test_an_id_that_was_absent_while_records_were_copied_is_looked_up_as_it_is() -> None:
    late = MAP.model_copy(update={"absent": [(".", 7), (".", 99)]})
    assert target_ids([(".", 7)], "translate", late, SELECTION) == {(".", 7)}
    there = target("translate")
    there.ids[(".", 7)] = None
    result = check("translate", there, id_map=late)
    assert any("was copied as it is" in item.what for item in result.differences)
    assert result.ids_resolved == 1
    there.ids[(".", 7)] = Schema("AVRO", A)
    assert check("translate", there, id_map=late).differences == []


def test_a_subject_that_came_or_went_since_the_plan() -> None:
    here = source()
    here.subjects["new"] = SubjectSnapshot("new", (registered("new", 1, 50, C),))
    del here.subjects["b"]
    whats = {(item.subject, item.what) for item in check("keep", target("keep"), here).differences}
    assert ("new", "it is not in the last schema plan") in whats
    gone = "it was copied, and then permanently deleted on the source; version 1 of x.b stays live on the target"
    assert any(subject == "b" and what.startswith(gone) for subject, what in whats)


@pytest.mark.parametrize(
    ("role", "key", "what"),
    [
        ("target", "subject x.a", lambda it: it.subjects.pop("x.a")),
        ("target", "subject x.a, version 3", lambda it: changed(it, "x.a", 3, remove=True)),
        ("target", "compatibility level of x.a", lambda it: level(it, "x.a", config=None)),
        ("target", "mode of x.b", lambda it: level(it, "x.b", mode=None)),
        ("target", "schema id 7 in context .", lambda it: it.ids.clear()),
        ("source", "subject b", lambda it: it.subjects.pop("b")),
        ("source", "schema id 99 in context .", lambda it: it.ids.clear()),
    ],
)
def test_what_could_not_be_read_is_neither_equal_nor_different(
    role: str, key: str, what: Callable[[RegistrySnapshot], object]
) -> None:
    snapshots = {"source": source(), "target": target("keep")}
    what(snapshots[role])
    snapshots[role].unread[key] = "timeout"
    found = FoundInRecords(IN_RECORDS.ids)
    result = check("keep", snapshots["target"], snapshots["source"], found)
    assert f"{role}: {key}" in result.unread
    assert result.unread[f"{role}: {key}"] == "timeout"
    assert [item.what for item in result.differences] == []


def test_an_id_that_nobody_looked_up_is_unread() -> None:
    here, there = source(), target("keep")
    here.ids.clear()
    there.ids.clear()
    result = check("keep", there, here)
    assert result.unread["source: schema id 99 in context ."] == "not looked up"
    assert result.unread["target: schema id 7 in context ."] == "not looked up"
    assert result.ids_resolved == 1


def test_ids_that_were_not_gathered_are_unread() -> None:
    found = FoundInRecords(incomplete={"orders": "more ids than the list holds"})
    assert check("keep", target("keep"), found=found).unread == {
        "ids in records of orders": "more ids than the list holds"
    }


def test_an_id_of_a_subject_outside_the_filter_resolves_by_content() -> None:
    here, there = source(), target("keep")
    here.ids[(".", 50)] = Schema("AVRO", C)
    there.ids[(".", 50)] = Schema("AVRO", C)
    found = FoundInRecords({(".", 50): "t-0"})
    assert check("keep", there, here, found).ids_resolved == 1
    there.ids[(".", 50)] = Schema("AVRO", B)
    assert check("keep", there, here, found).differences != []


def test_rule_sets_that_the_target_does_not_keep_are_unread_and_no_difference() -> None:
    here = source()
    changed(here, "a", 3, schema={"rule_set": {"domainRules": []}})
    result = check("keep", target("keep"), here)
    assert list(result.unread) == ["rule set of a, version 3"]
    assert result.differences == []


def test_modes_on_a_registry_without_modes_are_unread() -> None:
    there = target("keep")
    there.kind, there.global_mode = "karapace", None
    level(there, "x.b", mode=None)
    result = check("keep", there)
    assert result.unread == {"mode READONLY of b": "the target registry knows no modes"}


def test_one_schema_deleted_and_registered_again_is_matched_twice() -> None:
    here = snapshot(registered("a", 1, 7, A, deleted=True), registered("a", 2, 7, A))
    there = snapshot(registered("a", 4, 107, A, deleted=True), registered("a", 5, 107, A))
    planned = plan_of(here, ids="translate")
    result = verify(here, there, planned, MAP, FoundInRecords(), selection=Selection(), at="now")
    assert result.differences == []


def test_only_the_latest_versions_leave_older_ones_of_the_target_alone() -> None:
    there = target("keep")
    added(there)
    result = check("keep", there, selection=replace(SELECTION, versions="latest"))
    assert result.differences == []


def test_the_ids_that_the_target_has_to_resolve() -> None:
    ids = [(".p", 7), (".", 7), (".", 99)]
    selection = Selection(contexts={".": ".", ".p": ".q"})
    assert target_ids(ids, "keep", None, selection) == {(".q", 7), (".", 7), (".", 99)}
    # 99 is absent in the map, so records have it unchanged.
    assert target_ids(ids, "translate", MAP, selection) == {(".", 107), (".", 99)}


# -- schemas that the source has deleted permanently ------------------------------------------------------------------


def without_b(**unread: str) -> RegistrySnapshot:
    found = source()
    del found.subjects["b"]
    found.ids[(".", 8)] = None
    found.unread |= unread
    return found


GONE_IDS = FoundInRecords({(".", 8): "the id map"}, {GUID: "the id map"})


def gone(mode: str, there: RegistrySnapshot, here: RegistrySnapshot) -> SchemaCheck:
    number = 108 if mode == "translate" else 8
    there.ids.setdefault((".", number), Schema("AVRO", C))
    planned = plan_of(source(), ids=mode, selection=SELECTION)
    id_map = MAP if mode == "translate" else MAP.model_copy(update={"ids": [(".", 7, 7), (".", 8, 8), (".", 9, 9)]})
    return verify(here, there, planned, id_map, GONE_IDS, selection=SELECTION, at="now")


@pytest.mark.parametrize("mode", ["keep", "translate"])
def test_a_permanent_deletion_on_the_source_is_named_and_no_failure(mode: str) -> None:
    result = gone(mode, target(mode), without_b())
    assert [(item.subject, item.only_on_target) for item in result.differences] == [("b", True)]
    assert judge(result).outcome == Outcome.WARNING
    assert result.unread == {
        f"GUID {GUID} occurs in records (the id map)": "the source registry no longer has its schema, which was "
        "copied; version 1 of x.b on the target has it",
        "id 8 of context . (the id map)": "the source registry no longer has its schema (version 1 of b), which was "
        "copied before",
    }


@pytest.mark.parametrize("mode", ["keep", "translate"])
def test_what_both_registries_have_lost_is_a_failure(mode: str) -> None:
    there = target(mode)
    del there.subjects["x.b"]
    there.ids[(".", 108 if mode == "translate" else 8)] = None
    result = gone(mode, there, without_b())
    assert judge(result).outcome == Outcome.FAILED
    assert sum("neither registry has it" in item.what for item in result.differences) == 1
    assert sum("has no schema under id" in item.what for item in result.differences) == 1


def test_a_source_that_is_not_read_completely_proves_no_deletion() -> None:
    result = gone("keep", target("keep"), without_b(**{"subject c": "HTTP 500"}))
    assert f"source: schema GUID {GUID}" in result.unread
    assert judge(result).outcome == Outcome.FAILED


def test_a_subject_that_is_only_left_out_is_not_deleted() -> None:
    here = without_b()
    here.left_out["b"] = "schemas.exclude: b"
    assert [item.only_on_target for item in gone("keep", target("keep"), here).differences] == [False]


def test_a_registry_without_anything_that_was_copied_is_another_one() -> None:
    here = without_b()
    here.subjects.clear()
    assert judge(gone("keep", target("keep"), here)).outcome == Outcome.FAILED
