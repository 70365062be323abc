"""Ids that copiers wait for and no pass can answer: each pass says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_world import World, avro, world

from airflow_provider_kafka_migration.documents.schemas import SchemaFailure, SchemasResult
from airflow_provider_kafka_migration.errors import MigrationError, SchemasIncomplete, Transient
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.schema_ids.id_map import wanted_key
from airflow_provider_kafka_migration.schemas.complete import synchronize_completely
from harness.fake_registry import Reply, Request

pytestmark = pytest.mark.slow


def want(at: World, value: int | str) -> None:
    at.context.journal_store.put_new(wanted_key("m1", ".", value), b"{}")


def held(result: SchemasResult) -> list[SchemaFailure]:
    return [item for item in result.failed if item.schema_id]


def last_pass(at: World) -> None:
    with at.pair() as pair:
        synchronize_completely(at.context, pair, reason="final")


def read_only(at: World) -> None:
    """The schema with the id 100 cannot be written on the target."""
    at.source.seed("ok-value", avro("K", "x"), id=1)
    at.synchronize()
    at.target.seed("a-value", avro("Z", "x"), id=50)
    at.target.store.modes["a-value"] = "READONLY"
    at.source.seed("a-value", avro("A", "x"), id=100)
    want(at, 100)


@pytest.mark.parametrize("on_conflict", ["stop", "note"])
def test_a_conflict_is_named_as_the_reason(tmp_path: Path, on_conflict: str) -> None:
    with world(tmp_path, ids="translate", on_conflict=on_conflict) as at:
        read_only(at)
        result = at.synchronize("tail")
        (failure,) = held(result)
        assert failure.name == "schema id 100 of context . in records"
        assert "a-value has mode READONLY" in failure.error["what"]
        assert any("id 100 of context ." in str(line) and "READONLY" in str(line) for line in at.lines)
        at.synchronize("tail")
        assert at.steps().count((steps.SCHEMAS_FAILED, "id 100 of context .")) == 1
        with pytest.raises(MigrationError, match="READONLY"):
            last_pass(at)
        at.target.store.modes.pop("a-value")
        assert held(at.synchronize("tail")) == []
        assert 100 in at.ids()


def test_the_last_pass_names_the_id_even_where_conflicts_are_reported(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", on_conflict="note") as at:
        read_only(at)
        with pytest.raises(SchemasIncomplete, match=r"schema id 100 of context \. in records"):
            last_pass(at)


def test_a_target_without_guids(tmp_path: Path) -> None:
    with world(tmp_path, kind="karapace", ids="translate") as at:
        guid = at.source.seed("a-value", avro("A", "x"), id=100).content.guid
        at.synchronize()
        want(at, guid)
        (failure,) = held(at.synchronize("tail"))
        assert failure.schema_id == f"GUID {guid}"
        assert "(karapace) has given no GUID" in failure.error["what"]
        assert (steps.SCHEMAS_FAILED, f"GUID {guid}") in at.steps()
        with pytest.raises(SchemasIncomplete, match=guid):
            last_pass(at)


def test_a_refusal_of_the_target_is_the_reason(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", avro("A", "x"), id=100)
        want(at, 100)
        busy = True

        def answer(request: Request) -> Reply | None:
            if request.method != "POST" or "/versions" not in request.path:
                return None
            return Reply.error(503, 50301, "busy") if busy else Reply.error(422, 42201, "no such type")

        at.target.before = answer
        with pytest.raises(Transient, match="id 100"):
            last_pass(at)
        busy = False
        (failure,) = held(at.synchronize("tail"))
        assert "no such type" in failure.error["what"]
        assert failure.error["kind"] == "terminal"


def test_a_source_that_is_read_in_part_is_the_reason(tmp_path: Path) -> None:
    unknown = "00000000-0000-0000-0000-0000000000ff"
    with world(tmp_path, ids="translate", include=["a-.*"]) as at:
        at.source.seed("a-value", avro("A", "x"), id=5)
        at.source.seed("closed", avro("C", "x"), id=6)
        at.synchronize()
        want(at, unknown)
        want(at, 999)

        def refuse(request: Request) -> Reply | None:
            closed = "/closed/" in request.path or request.path == "/schemas/ids/999"
            return Reply.error(403, 40301, "no right") if closed else None

        at.source.before = refuse
        found = {item.schema_id: item.error for item in held(at.synchronize("tail"))}
        assert sorted(found) == [f"GUID {unknown}", "id 999 of context ."]
        assert "could not be read" in found[f"GUID {unknown}"]["what"]
        assert "could not be asked for it" in found["id 999 of context ."]["what"]
        assert {error["kind"] for error in found.values()} == {"transient"}
