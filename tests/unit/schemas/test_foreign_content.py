"""What the target registry has of its own stays, and is named: versions, levels and modes of others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from registry_world import Gate, Killed, World, avro, client, reference, run_gated, world

from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.documents.schemas import SchemaCheck
from airflow_provider_kafka_migration.errors import SchemaConflicts
from airflow_provider_kafka_migration.schema_ids.id_map import wanted_key
from airflow_provider_kafka_migration.schemas.check import judge
from airflow_provider_kafka_migration.schemas.sync import selection_of
from airflow_provider_kafka_migration.schemas.verify import MAX_UNKNOWN_ASKED, FoundInRecords, compare_registries
from airflow_provider_kafka_migration.schemas.written import last_plan, written_schemas
from harness.fake_registry.habits import CONFLUENT_WITH_RULES

pytestmark = pytest.mark.slow

ORDER = avro("Order", "id")
NEWER = avro("Order", "id", "n", n=0)
CART = '{"type":"record","name":"Cart","fields":[{"name":"o","type":"Order"}]}'
FULL = {"compatibilityLevel": "FULL"}
RULES = {"domainRules": [{"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true"}]}
NONE = {"compatibilityLevel": "NONE"}


def states(at: World, subject: str) -> dict[int, bool]:
    """Whether each version of a subject of the target is deleted."""
    return {number: item["deleted"] for number, item in at.target_subjects()[subject].items()}


def check(at: World, ids: Iterable[int] = ()) -> SchemaCheck:
    record = at.context.record
    record.journal.refresh()
    plan = last_plan(record)
    assert plan is not None
    found = FoundInRecords(ids={(".", number): "orders-0 at offset 3" for number in ids})
    with at.pair() as pair:
        return compare_registries(
            pair.source,
            pair.target,
            plan,
            record.schema_id_map(),
            found,
            selection=selection_of(record),
            at="2026-01-01T00:00:00Z",
        )


# -- live versions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_mode", ["keep", "translate", "auto"])
def test_a_live_version_of_the_target_is_not_deleted(tmp_path: Path, id_mode: str) -> None:
    with world(tmp_path, ids=id_mode, on_conflict="note") as at:
        at.target.seed("orders-value", ORDER, id=1)
        at.source.seed("orders-value", ORDER, id=1, deleted=True)
        at.source.seed("orders-value", NEWER, id=2, version=2)
        result = at.synchronize()
        assert (result.deleted, states(at, "orders-value")) == (0, {1: False, 2: False})
        assert [(item.kind, item.subject, item.version) for item in result.conflicts] == [
            ("version", "orders-value", 1)
        ]
        assert result.id_mode == ("translate" if id_mode == "translate" else "keep")
        assert at.ids() == {1: 1, 2: 2}


@pytest.mark.parametrize("id_mode", ["keep", "translate", "auto"])
def test_a_live_subject_of_the_target_stops_the_migration(tmp_path: Path, id_mode: str) -> None:
    with world(tmp_path, ids=id_mode) as at:
        at.target.seed("orders-value", ORDER, id=1)
        at.source.seed("orders-value", ORDER, id=1, deleted=True)
        with pytest.raises(SchemaConflicts, match="this migration has not registered"):
            at.synchronize()
        assert at.target.writes == []


@pytest.mark.parametrize("id_mode", ["keep", "translate"])
def test_what_the_migration_has_registered_is_deleted_later(tmp_path: Path, id_mode: str) -> None:
    with world(tmp_path, ids=id_mode) as at:
        at.source.seed("orders-value", ORDER, id=1)
        at.source.seed("orders-value", NEWER, id=2, version=2)
        at.synchronize()
        at.source.store.subjects["orders-value"][1].deleted = True
        result = at.synchronize("tail")
        assert (result.deleted, result.conflicts, states(at, "orders-value")) == (1, [], {1: True, 2: False})


@pytest.mark.parametrize("id_mode", ["keep", "translate"])
def test_what_the_target_had_first_is_not_deleted_later(tmp_path: Path, id_mode: str) -> None:
    with world(tmp_path, ids=id_mode) as at:
        at.target.seed("orders-value", ORDER, id=1)
        at.source.seed("orders-value", ORDER, id=1)
        assert at.synchronize().conflicts == []
        at.source.store.subjects["orders-value"][1].deleted = True
        result = at.synchronize("tail")
        assert (result.deleted, len(result.conflicts), states(at, "orders-value")) == (0, 1, {1: False})


@pytest.mark.parametrize("id_mode", ["keep", "translate"])
def test_a_kill_between_registration_and_deletion(tmp_path: Path, id_mode: str) -> None:
    """Only the journal can tell that the live version is the migration's own."""
    section = {"source": "env:SOURCE_REGISTRY", "target": "env:TARGET_REGISTRY", "ids": id_mode}
    with world(tmp_path, ids=id_mode) as at:
        at.source.seed("orders-value", ORDER, id=1, deleted=True)
        whole = Gate(None)
        with world(tmp_path / "whole", ids=id_mode) as other:
            other.source.seed("orders-value", ORDER, id=1, deleted=True)
            run_gated(
                tmp_path / "whole", client(other.source, "source"), client(other.target, "target"), whole, section
            )
        delete = next(number for number, line in enumerate(whole.log) if "delete_version" in line)
        with pytest.raises(Killed):
            run_gated(tmp_path, client(at.source, "source"), client(at.target, "target"), Gate(delete), section)
        assert states(at, "orders-value") == {1: False}
        run_gated(tmp_path, client(at.source, "source"), client(at.target, "target"), Gate(None), section)
        assert states(at, "orders-value") == {1: True}


SPELLED = 'syntax = "proto3"; package t; message A {} message M { .t.A a = 1; }'
SHORT = 'syntax = "proto3"; package t; message A {} message M { A a = 1; }'


def test_an_equal_version_that_answers_a_registration_is_not_deleted(tmp_path: Path) -> None:
    """The target drops rule sets, so it answers the registration with the version that it had before."""
    with world(tmp_path, ids="translate", source_kind=CONFLUENT_WITH_RULES) as at:
        at.target.seed("orders-value", ORDER, id=1)
        at.source.seed("orders-value", ORDER, id=5, deleted=True, rule_set=RULES)
        at.source.seed("orders-value", NEWER, id=6, version=2)
        result = at.synchronize()
        assert states(at, "orders-value") == {1: False, 2: False}
        assert (result.registered, result.deleted) == (1, 0)
        assert [(item.subject, item.version, item.error["code"]) for item in result.failed] == [
            ("orders-value", 1, "SCHEMA_CONFLICTS")
        ]
        again = at.synchronize("tail")
        assert (again.deleted, states(at, "orders-value")) == (0, {1: False, 2: False})
        assert [(item.kind, item.version) for item in again.conflicts] == [("version", 1)]
        rows = written_schemas(at.context.record)
        assert [row["source_versions"] for row in rows] == [[2]]


def test_an_equal_version_that_answers_a_normalized_registration_is_not_deleted(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", normalize=True, on_conflict="note") as at:
        at.target.seed("m", SPELLED, id=1, kind="PROTOBUF")
        at.source.seed("m", SPELLED, id=5, deleted=True, kind="PROTOBUF")
        at.source.seed("m", SHORT, id=6, version=2, deleted=True, kind="PROTOBUF")
        at.source.seed("m", SHORT.replace("a = 1", "a = 1; A b = 2"), id=7, version=3, kind="PROTOBUF")
        result = at.synchronize()
        assert states(at, "m") == {1: False, 2: False}, "version 1 was there before the migration"
        assert [(item.version, item.error["code"]) for item in result.failed] == [(2, "SCHEMA_CONFLICTS")]
        assert [(item.kind, item.version) for item in result.conflicts] == [("version", 1)]
        result = at.synchronize("tail")
        assert states(at, "m") == {1: False, 2: False}
        assert [(item.kind, item.version) for item in result.conflicts] == [("version", 1), ("version", 2)]


@pytest.mark.parametrize("kill_after", ["schemas/plan", "POST"])
def test_a_kill_does_not_make_an_equal_version_ours(tmp_path: Path, kill_after: str) -> None:
    section = {"source": "env:SOURCE_REGISTRY", "target": "env:TARGET_REGISTRY", "ids": "translate"}
    with world(tmp_path, ids="translate", source_kind=CONFLUENT_WITH_RULES) as at:
        at.target.seed("orders-value", ORDER, id=1)
        at.source.seed("orders-value", ORDER, id=5, rule_set=RULES)
        whole = Gate(None)
        with world(tmp_path / "whole", ids="translate", source_kind=CONFLUENT_WITH_RULES) as other:
            other.target.seed("orders-value", ORDER, id=1)
            other.source.seed("orders-value", ORDER, id=5, rule_set=RULES)
            run_gated(
                tmp_path / "whole", client(other.source, "source"), client(other.target, "target"), whole, section
            )
        register = next(number for number, line in enumerate(whole.log) if "Registry.register" in line)
        kill = register + (kill_after == "POST")
        with pytest.raises(Killed):
            run_gated(tmp_path, client(at.source, "source"), client(at.target, "target"), Gate(kill), section)
        at.source.store.subjects["orders-value"][1].deleted = True
        result = run_gated(tmp_path, client(at.source, "source"), client(at.target, "target"), Gate(None), section)
        assert (result.deleted, states(at, "orders-value")) == (0, {1: False})


# -- levels and modes -------------------------------------------------------------------------------------------------


def settings(at: World, scope: str) -> tuple[Any, Any]:
    return at.target.store.configs.get(scope), at.target.store.modes.get(scope)


@pytest.mark.parametrize("own_level", [True, False])
def test_a_context_with_other_subjects_keeps_its_level_and_mode(tmp_path: Path, own_level: bool) -> None:
    with world(tmp_path, ids="keep", on_conflict="note") as at:
        at.target.seed(":.x:foreign-value", avro("F", "x"), id=1)
        if own_level:
            at.target.store.configs[":.x:"] = dict(FULL)
        at.source.seed(":.x:a-value", avro("A", "x"), id=100)
        at.source.store.configs[":.x:"] = dict(NONE)
        at.source.store.modes[":.x:"] = "READONLY"
        result = at.synchronize()
        assert settings(at, ":.x:") == (FULL if own_level else None, None)
        assert [(item.kind, item.subject) for item in result.conflicts] == [("level", ":.x:"), ("level", ":.x:")]
        assert ":.x:a-value" in at.target_subjects()


def test_a_context_with_another_level_keeps_it(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.target.store.configs[":.x:"] = dict(FULL)
        at.source.seed(":.x:a-value", avro("A", "x"), id=100)
        at.source.store.configs[":.x:"] = dict(NONE)
        with pytest.raises(SchemaConflicts, match=r"context \.x is FULL on the target, and the source has NONE"):
            at.synchronize()
        assert settings(at, ":.x:") == (FULL, None)


def test_a_level_that_the_migration_has_set_follows_the_source(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed(":.x:a-value", avro("A", "x"), id=100)
        at.source.store.configs[":.x:"] = dict(NONE)
        at.source.store.configs[":.x:a-value"] = dict(NONE)
        at.synchronize()
        at.target.seed(":.x:a-value", avro("A", "x", "y", y=0), id=101, version=2)
        for scope in (":.x:", ":.x:a-value"):
            at.source.store.configs[scope] = dict(FULL)
        result = at.synchronize("tail")
        assert (result.configs, result.conflicts) == (2, [])
        assert (settings(at, ":.x:")[0], settings(at, ":.x:a-value")[0]) == (FULL, FULL)


def test_a_context_that_moves_to_the_default_one_does_not_change_the_registry(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", contexts={".x": "."}) as at:
        at.source.seed(":.x:a-value", avro("A", "x"), id=100)
        at.source.store.configs[":.x:"] = dict(NONE)
        at.source.store.modes[":.x:"] = "READONLY"
        before = (at.target.state()["configs"].get(""), at.target.state()["modes"][""])
        assert at.synchronize().failed == []
        assert (at.target.state()["configs"].get(""), at.target.state()["modes"][""]) == before


@pytest.mark.parametrize("own_versions", [True, False])
def test_a_subject_with_versions_of_its_own_keeps_its_level(tmp_path: Path, own_versions: bool) -> None:
    with world(tmp_path, ids="keep", on_conflict="note") as at:
        at.source.seed("a-value", avro("A", "x"), id=100)
        at.source.store.configs["a-value"] = dict(NONE)
        at.target.seed("a-value", avro("A", "x"), id=100)
        at.target.store.configs["a-value"] = dict(FULL)
        if own_versions:
            at.target.seed("a-value", avro("A", "x", "y", y=0), id=101, version=2)
        result = at.synchronize()
        assert settings(at, "a-value")[0] == (FULL if own_versions else NONE)
        assert [(item.kind, item.subject) for item in result.conflicts] == ([("level", "a-value")] * own_versions)


def test_a_level_that_only_the_target_has_is_a_warning(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", avro("A", "x"), id=100)
        at.target.seed("a-value", avro("A", "x"), id=100)
        at.target.store.configs["a-value"] = dict(FULL)
        at.target.store.modes["a-value"] = "READWRITE"
        at.synchronize()
        found = check(at)
        assert [item.only_on_target for item in found.differences] == [True, True]
        assert judge(found).outcome is Outcome.WARNING


# -- ids in records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_mode", ["keep", "translate"])
def test_an_absent_id_that_is_a_schema_of_the_target(tmp_path: Path, id_mode: str) -> None:
    with world(tmp_path, ids=id_mode) as at:
        at.target.seed("foreign", avro("F", "x"), id=3)
        at.source.seed("a-value", avro("A", "x"), id=100)
        at.synchronize()
        found = check(at, [3, 5, 100])
        assert [item.what for item in found.differences] == [
            "id 3 of context . occurs in records (orders-0 at offset 3); the source registry does not have it, and the "
            "target registry has a schema under id 3, with which consumers decode them"
        ]
        assert (found.ids_resolved, found.ids_unknown_to_source, found.ids_not_asked) == (1, [5], 0)
        assert judge(found).outcome is Outcome.FAILED


def test_an_absent_id_that_the_target_has_given_to_a_copied_schema(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", avro("A", "x"), id=100)
        at.synchronize()
        assert at.ids() == {100: 1}
        assert "occurs in records" in check(at, [1, 100]).differences[0].what


def test_only_some_absent_ids_are_asked_for(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", avro("A", "x"), id=100)
        at.synchronize()
        at.target.requests.clear()
        found = check(at, range(1000, 1000 + MAX_UNKNOWN_ASKED + 7))
        asked = [item for item in at.target.requests if "/schemas/ids/" in item.path]
        assert (len(asked), found.ids_not_asked) == (MAX_UNKNOWN_ASKED, 7)
        verdict = judge(found)
        assert verdict.outcome is Outcome.WARNING
        assert "the target registry was not asked for 7 of them" in verdict.findings[-1]


# -- schemas that only records need -----------------------------------------------------------------------------------


def test_a_schema_that_a_record_needed_stays_in_later_plans(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", include=["a-.*"]) as at:
        at.source.seed("a-value", avro("A", "x"), id=100)
        at.source.seed("order", ORDER, id=101)
        at.source.seed("cart", CART, id=102, references=[reference("Order", "order")])
        at.synchronize()
        at.context.journal_store.put_new(wanted_key("m1", ".", 102), b"{}")
        at.synchronize("tail")
        at.source.seed("a-value", avro("A", "x", "y", y=0), id=103, version=2)
        at.synchronize("final")
        found = check(at, [100, 102, 103])
        assert (found.differences, found.unread, found.ids_resolved) == ([], {}, 3)


def test_a_pass_that_was_killed_before_its_journal_entry_is_named_by_the_next(tmp_path: Path) -> None:
    section = {"source": "env:SOURCE_REGISTRY", "target": "env:TARGET_REGISTRY", "ids": "keep"}
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", avro("A", "x"), id=100)
        at.synchronize()
        at.source.seed("b-value", avro("B", "x"), id=101)
        gate = Gate(None)
        with pytest.raises(Killed):
            run_killed_at_result(tmp_path, at, gate, section)
        assert at.ids() == {100: 100, 101: 101}
        at.synchronize()
        assert check(at, [100, 101]).differences == []


def run_killed_at_result(folder: Path, at: World, gate: Gate, section: dict[str, Any]) -> None:
    """One pass that is killed once the map of ids is written, before its result is."""
    from airflow_provider_kafka_migration.record.record import MigrationRecord

    def killed(*_: object) -> None:
        raise Killed("put_result")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MigrationRecord, "put_result", killed)
        run_gated(folder, client(at.source, "source"), client(at.target, "target"), gate, section)
