"""Schemas copied with their ids and versions, against fake registries."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from registry_world import World, avro, reference, world

from airflow_provider_kafka_migration.errors import SchemaConflicts
from airflow_provider_kafka_migration.record import steps
from harness.fake_registry import Reply, Request

pytestmark = pytest.mark.slow

ORDER = avro("Order", "id")
CART = '{"type":"record","name":"Cart","fields":[{"name":"o","type":"Order"}]}'


def codes(result: Any) -> list[tuple[str, int, str]]:
    return [(item.subject, item.version, item.error["code"]) for item in result.failed]


def same_subjects(at: World) -> bool:
    return bool(at.target_subjects() == at.source.state()["subjects"])


def test_ids_versions_and_gaps_are_kept(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", avro("A", "x"), id=100, version=3)
        at.source.seed("a-value", avro("A", "x", "y", y=0), id=107, version=5)
        at.source.seed("b-value", avro("A", "x"), id=100)
        result = at.synchronize()
        assert (result.id_mode, result.registered, result.deleted, result.failed) == ("keep", 3, 0, [])
        assert at.target_subjects() == at.source.state()["subjects"]
        assert at.ids() == {100: 100, 107: 107}
        assert at.target.state()["modes"] == {"": "READWRITE"}


def test_a_second_run_writes_nothing(tmp_path: Path) -> None:
    with world(tmp_path) as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.seed("a-value", avro("Order", "id", "n", n=0), id=2, version=2, deleted=True)
        at.source.store.configs["a-value"] = {"compatibilityLevel": "FULL"}
        first = at.synchronize()
        assert (first.id_mode, first.registered, first.deleted, first.configs) == ("keep", 2, 1, 1)
        at.target.requests.clear()
        journal = len(at.steps())
        second = at.synchronize()
        assert (second.registered, second.deleted, second.configs, second.failed) == (0, 0, 0, [])
        assert at.target.writes == []
        assert len(at.steps()) == journal


def test_soft_deleted_versions_and_subjects_are_deleted_again(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("gone-value", ORDER, id=5, deleted=True)
        at.source.seed("part-value", avro("P", "a"), id=6, deleted=True)
        at.source.seed("part-value", avro("P", "a", "b", b=1), id=8, version=2)
        at.source.seed("part-value", avro("P", "a", "c", c=1), id=9, version=4, deleted=True)
        result = at.synchronize()
        assert (result.registered, result.deleted, result.failed) == (4, 3, [])
        assert same_subjects(at)
        assert at.ids() == {5: 5, 6: 6, 8: 8, 9: 9}


def test_a_deleted_version_with_deleted_referrers(tmp_path: Path) -> None:
    """A referenced version cannot be deleted before what refers to it."""
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-order", ORDER, id=1, deleted=True)
        at.source.seed("b-cart", CART, id=2, references=[reference("Order", "a-order")], deleted=True)
        at.source.seed("c-live", avro("Live", "x"), id=3)
        result = at.synchronize()
        assert (result.registered, result.deleted, result.failed) == (3, 2, [])
        assert same_subjects(at)


def test_references_with_a_circle_of_subjects_and_a_diamond(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", include=["top", "a"]) as at:
        at.source.seed("a", ORDER, id=1)
        at.source.seed("b", CART, id=2, references=[reference("Order", "a")])
        wrapped = '{"type":"record","name":"Wrap","fields":[{"name":"c","type":"Cart"}]}'
        at.source.seed("a", wrapped, id=3, version=2, references=[reference("Cart", "b"), reference("Order", "a")])
        both = '{"type":"record","name":"Top","fields":[{"name":"o","type":"Order"},{"name":"c","type":"Cart"}]}'
        at.source.seed("top", both, id=4, references=[reference("Order", "a"), reference("Cart", "b")])
        result = at.synchronize()
        assert (result.registered, result.failed) == (4, [])
        assert same_subjects(at)
        # "b" is outside the filter, and moves because others refer to it.
        assert result.subjects == 3


def test_renamed_subjects_are_renamed_in_references(tmp_path: Path) -> None:
    rename = {"prefix": "eu-", "subjects": {"a-order": "orders.central"}}
    with world(tmp_path, ids="keep", rename=rename) as at:
        at.source.seed("a-order", ORDER, id=1, version=4)
        at.source.seed("b-cart", CART, id=2, references=[reference("Order", "a-order", 4)])
        assert at.synchronize().failed == []
        assert sorted(at.target_subjects()) == ["eu-b-cart", "orders.central"]
        content = at.target.store.subjects["eu-b-cart"][1].content
        assert content.references == (("Order", "orders.central", 4),)
        assert at.ids() == {1: 1, 2: 2}
        assert at.synchronize().registered == 0


def test_contexts_keep_ids_of_their_own(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", contexts={".": ".", ".pay": ".money"}) as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.seed(":.pay:a-value", avro("Paid", "x"), id=1)
        at.source.seed(":.other:x", avro("X", "x"), id=1)
        at.source.store.configs[":.pay:"] = {"compatibilityLevel": "FULL_TRANSITIVE"}
        result = at.synchronize()
        assert (result.registered, result.failed) == (2, [])
        assert sorted(at.target_subjects()) == [":.money:a-value", "a-value"]
        assert (at.ids("."), at.ids(".pay")) == ({1: 1}, {1: 1})
        assert at.target.state()["configs"][":.money:"] == {"compatibilityLevel": "FULL_TRANSITIVE"}
        assert at.target.state()["modes"] == {"": "READWRITE"}


def test_identical_schemas_with_different_ids(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", ORDER, id=5)
        at.source.seed("b-value", ORDER, id=9)
        assert at.synchronize().failed == []
        assert same_subjects(at)
        assert at.ids() == {5: 5, 9: 9}


def test_metadata_moves(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", ORDER, id=5, metadata={"properties": {"owner": "me"}})
        assert at.synchronize().failed == []
        assert at.target.store.subjects["a-value"][1].content.metadata == {"properties": {"owner": "me"}}


def test_only_the_latest_version(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", versions="latest", include_deleted=False) as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.seed("a-value", avro("Order", "id", "n", n=0), id=2, version=2)
        at.source.seed("a-value", avro("Order", "id", "m", m=0), id=3, version=3, deleted=True)
        assert at.synchronize().failed == []
        assert list(at.target_subjects()["a-value"]) == [2]
        assert at.ids() == {2: 2}


# -- levels and modes -------------------------------------------------------------------------------------------------


def test_incompatible_history_and_levels(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", avro("A", "x"), id=1)
        at.source.seed("a-value", avro("A", "x", "must"), id=2, version=2)
        at.source.store.configs["a-value"] = {"compatibilityLevel": "FULL"}
        assert at.synchronize().failed == []
        assert same_subjects(at)
        assert at.target.state()["configs"] == {
            "": {"compatibilityLevel": "BACKWARD"},
            "a-value": {"compatibilityLevel": "FULL"},
        }


def test_global_levels_only_if_asked_for(tmp_path: Path) -> None:
    with world(tmp_path / "no", ids="keep") as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.store.config = {"compatibilityLevel": "FULL"}
        at.synchronize()
        assert at.target.store.config == {"compatibilityLevel": "BACKWARD"}
    with world(tmp_path / "yes", ids="keep", global_config=True) as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.store.config = {"compatibilityLevel": "FULL"}
        at.synchronize()
        assert at.target.store.config == {"compatibilityLevel": "FULL"}


def test_a_read_only_subject_becomes_read_only_and_still_gets_new_versions(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.store.modes["a-value"] = "READONLY"
        assert at.synchronize().failed == []
        assert at.target.state()["modes"] == {"": "READWRITE", "a-value": "READONLY"}
        at.source.seed("a-value", avro("Order", "id", "n", n=0), id=2, version=2)
        result = at.synchronize("tail")
        assert (result.registered, result.failed) == (1, [])
        assert same_subjects(at)
        assert at.target.state()["modes"] == {"": "READWRITE", "a-value": "READONLY"}


def test_import_mode_is_set_once_for_a_shared_dependency(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("dep", ORDER, id=1)
        for number in range(2, 6):
            at.source.seed(
                f"user-{number}",
                CART.replace("Cart", f"Cart{number}"),
                id=number,
                references=[reference("Order", "dep")],
            )
        assert at.synchronize().failed == []
        puts = [item.path for item in at.target.writes if item.method == "PUT" and item.path.startswith("/mode")]
        assert sorted(puts) == ["/mode/dep", *(f"/mode/user-{number}" for number in range(2, 6))]
        deleted = [item.path for item in at.target.writes if item.method == "DELETE"]
        assert sorted(deleted) == sorted(puts)


def test_former_modes_come_back(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.seed("b-value", avro("B", "x"), id=2)
        at.target.store.modes["a-value"] = "READWRITE"
        at.synchronize()
        assert at.target.state()["modes"] == {"": "READWRITE", "a-value": "READWRITE"}
        assert same_subjects(at)


@pytest.mark.parametrize("scope", ["", "a-value", ":.x:"])
def test_what_is_in_mode_import_already_stays_so(tmp_path: Path, scope: str) -> None:
    subject = ":.x:a-value" if scope == ":.x:" else "a-value"
    with world(tmp_path, ids="keep") as at:
        at.source.seed(subject, ORDER, id=1)
        if scope:
            at.target.store.modes[scope] = "IMPORT"
        else:
            at.target.store.mode = "IMPORT"
        before = at.target.state()["modes"]
        assert at.synchronize().failed == []
        assert at.target.state()["modes"] == before
        assert not [item for item in at.target.writes if item.path.startswith("/mode")]
        entries = at.context.journal.steps(steps.SCHEMA_MODE_SETTING)
        assert [entry.details["former"] for entry in entries] == [{scope: "IMPORT"}]


def test_a_wider_scope_where_subjects_cannot_be_in_mode_import(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.seed(":.x:b-value", avro("B", "x"), id=1)

        def no_subjects(request: Request) -> Reply | None:
            scope = unquote(request.path).removeprefix("/mode")
            if request.method == "PUT" and scope.startswith("/") and not scope.endswith(":"):
                return Reply.error(422, 42205, "Cannot import since found existing subjects")
            return None

        at.target.before = no_subjects
        result = at.synchronize()
        assert (result.registered, result.failed) == (2, [])
        assert same_subjects(at)
        assert at.target.state()["modes"] == {"": "READWRITE"}
        wide = [
            unquote(item.path) for item in at.target.writes if item.method == "PUT" and item.body == {"mode": "IMPORT"}
        ]
        assert wide[-2:] == ["/mode", "/mode/:.x:"] or wide[-2:] == ["/mode/:.x:", "/mode"]


def test_soft_deleted_versions_of_the_target_survive_import_mode(tmp_path: Path) -> None:
    """Without force, a registry removes the soft-deleted versions of a subject that gets mode IMPORT."""
    with world(tmp_path, ids="keep") as at:
        at.target.seed("a-value", avro("Old", "x"), id=70, version=9, deleted=True)
        at.source.seed("a-value", ORDER, id=1)
        assert at.synchronize().failed == []
        assert sorted(at.target_subjects()["a-value"]) == [1, 9]


# -- conflicts and failures -------------------------------------------------------------------------------------------


def test_a_foreign_schema_under_a_used_id_stops_before_anything_is_written(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.seed("b-value", avro("B", "x"), id=2)
        at.target.seed("foreign", avro("F", "x"), id=1)
        before = at.target.state()
        with pytest.raises(SchemaConflicts, match="id 1 belongs to another schema"):
            at.synchronize()
        assert at.target.writes == []
        assert at.target.state() == before


def test_conflicts_that_are_only_reported(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", on_conflict="note") as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.seed("b-value", avro("B", "x"), id=2)
        at.target.seed("foreign", avro("F", "x"), id=1)
        result = at.synchronize()
        assert [(item.kind, item.subject) for item in result.conflicts] == [("id", "a-value")]
        assert sorted(at.target_subjects()) == ["b-value", "foreign"]
        assert at.ids() == {2: 2}


def test_the_last_pass_writes_all_it_can_and_then_fails(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("b-value", avro("B", "x"), id=2)
        at.synchronize()
        at.source.seed("a-value", ORDER, id=1)
        at.source.seed("c-value", avro("C", "x"), id=3)
        at.target.seed("foreign", avro("F", "x"), id=1)
        with pytest.raises(SchemaConflicts):
            at.synchronize("final")
        assert at.ids() == {2: 2, 3: 3}


def test_an_id_that_is_taken_after_the_plan(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", ORDER, id=1)
        at.source.seed("b-value", avro("B", "x"), id=2)

        def take(request: Request) -> None:
            if request.method == "PUT" and "foreign" not in at.target.store.subjects:
                at.target.seed("foreign", avro("F", "x"), id=1)

        at.target.before = take
        result = at.synchronize()
        assert codes(result) == [("a-value", 1, "SCHEMA_ID_CONFLICT")]
        assert sorted(at.target_subjects()) == ["b-value", "foreign"]
        assert at.target.state()["modes"] == {"": "READWRITE"}


def test_one_failure_stops_only_what_depends_on_it(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-order", ORDER, id=1)
        at.source.seed("b-cart", CART, id=2, references=[reference("Order", "a-order")])
        at.source.seed("c-free", avro("C", "x"), id=3)

        def refuse(request: Request) -> Reply | None:
            if request.path == "/subjects/a-order/versions" and request.method == "POST":
                return Reply.error(422, 42201, "Invalid schema")
            return None

        at.target.before = refuse
        result = at.synchronize()
        assert codes(result) == [("a-order", 1, "SCHEMA_INVALID"), ("b-cart", 1, "SCHEMA_REFERENCE_MISSING")]
        assert at.ids() == {3: 3}
        at.target.before = None
        assert at.synchronize().failed == []
        assert same_subjects(at)
        assert at.ids() == {1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize("scope", ["", "a-value"])
def test_a_read_only_target_is_a_conflict(tmp_path: Path, scope: str) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", ORDER, id=1)
        if scope:
            at.target.seed("a-value", avro("Order", "z"), id=90, version=9)
            at.target.store.modes[scope] = "READONLY"
        else:
            at.target.store.mode = "READONLY"
        with pytest.raises(SchemaConflicts, match="READONLY"):
            at.synchronize()
        assert at.target.writes == []


def test_a_target_that_becomes_read_only_after_the_plan(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", ORDER, id=1)
        planned: list[str] = []

        def close(request: Request) -> None:
            planned.append(request.path)
            if planned.count("/mode") == 2:
                at.target.store.mode = "READONLY"

        at.target.before = close
        result = at.synchronize()
        assert codes(result) == [("a-value", 1, "REGISTRY_READ_ONLY")]
        assert at.target.writes == []
        assert planned.count("/mode") >= 2, "the first one is the plan's"
