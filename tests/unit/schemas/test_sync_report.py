"""What ``on_conflict: note`` accepts, and what it never does; registries that cannot keep ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from unittest.mock import patch

import pytest
from registry_world import World, avro, reference, world

from airflow_provider_kafka_migration.documents.proof import CheckResult
from airflow_provider_kafka_migration.documents.schemas import SchemaCheck, SchemaPlan, SchemasResult
from airflow_provider_kafka_migration.errors import SchemaConflicts, SchemasIncomplete, Transient
from airflow_provider_kafka_migration.schemas import check
from airflow_provider_kafka_migration.schemas.complete import synchronize_completely
from airflow_provider_kafka_migration.schemas.sync import Reason, selection_of
from airflow_provider_kafka_migration.schemas.verify import FoundInRecords, compare_registries
from airflow_provider_kafka_migration.schemas.written import last_plan
from harness.fake_registry import Reply, Request

pytestmark = pytest.mark.slow

A, B, C = avro("A", "x"), avro("B", "x"), avro("C", "x")
CART = '{"type":"record","name":"Cart","fields":[{"name":"o","type":"A"}]}'


def completely(at: World, reason: Reason = "final") -> SchemasResult:
    with at.pair() as pair:
        return synchronize_completely(at.context, pair, reason=reason)


def compared(at: World, ids: Iterable[int] = (), guids: Iterable[str] = ()) -> tuple[SchemaPlan, SchemaCheck]:
    """Both registries compared by the last plan, with these ids and GUIDs in records."""
    record = at.context.record
    record.journal.refresh()
    plan = last_plan(record)
    assert plan is not None
    found = FoundInRecords({(".", id_): "orders-0 at offset 3" for id_ in ids}, dict.fromkeys(guids, "orders-0"))
    with at.pair() as pair:
        selection = selection_of(record)
        return plan, compare_registries(
            pair.source, pair.target, plan, record.schema_id_map(), found, selection=selection, at="now"
        )


def judged(at: World, ids: Iterable[int]) -> CheckResult:
    """The verdict of the validation, with these ids in records."""
    found = FoundInRecords({(".", id_): "orders-0 at offset 3" for id_ in ids})
    with (
        patch.object(check, "open_pair", lambda _context: at.pair()),
        patch.object(check, "found_in_records", lambda *_: found),
    ):
        return check.check_schemas(at.context, [], {}, {})


def answers(method: str, part: str, reply: Reply) -> Callable[[Request], Reply | None]:
    return lambda request: reply if request.method == method and part in request.path else None


# -- what is accepted -------------------------------------------------------------------------------------------------


def test_a_refused_global_level_does_not_accept_ids_that_do_not_resolve(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", on_conflict="note", include=["a-.*"], global_config=True) as at:
        at.source.seed("a-value", A, id=100)
        at.source.seed("other-value", B, id=200)
        at.source.store.config = {"compatibilityLevel": "FULL"}
        at.target.before = answers("PUT", "/config", Reply.error(422, 42203, "no"))
        assert [item.subject for item in completely(at).failed] == [""]
        found = judged(at, [100, 200])
        assert found.outcome == "FAILED"
        assert any("id 200 of context . occurs in records" in item for item in found.findings)


def test_only_versions_with_a_conflict_may_be_missing(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", on_conflict="note") as at:
        at.source.seed("a-value", A, id=1)
        at.source.seed("a-value", avro("A", "x", "y", y=0), id=2, version=2)
        at.target.seed("foreign", B, id=1)
        assert [(item.subject, item.version) for item in completely(at).conflicts] == [("a-value", 1)]
        assert judged(at, [2]).outcome == "WARNING"
        at.target.store.subjects["a-value"].pop(2)
        found = judged(at, [])
        assert [item.split(":")[0] for item in found.findings] == ["a-value version 2", "a-value version 1"]
        assert [row["outcome"] for row in found.partitions] == ["FAILED", "WARNING"]


def test_what_the_target_refuses_is_no_accepted_conflict(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", on_conflict="note") as at:
        at.source.seed("a-value", A, id=1)
        at.target.before = answers("POST", "/subjects/a-value/versions", Reply.error(422, 42201, "Invalid schema"))
        assert [item.error["code"] for item in completely(at).failed] == ["SCHEMA_INVALID"]
        assert judged(at, []).outcome == "FAILED"


# -- what is never accepted -------------------------------------------------------------------------------------------


def test_a_target_that_does_not_answer_in_the_last_pass(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", on_conflict="note") as at:
        at.source.seed("a-value", A, id=1)
        at.synchronize()
        at.source.seed("new-value", B, id=2)
        at.target.before = answers("POST", "/subjects/new-value/versions", Reply.error(503, 50301, "busy"))
        with pytest.raises(Transient, match="new-value version 1"):
            completely(at)
        at.target.before = None
        assert completely(at).failed == []


def test_a_subject_of_the_source_that_cannot_be_read_in_the_last_pass(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", on_conflict="note") as at:
        at.source.seed("a-value", A, id=1)
        at.synchronize()
        at.source.seed("new-value", B, id=2)
        at.source.before = answers("GET", "new-value/versions", Reply.error(403, 40301, "no right"))
        with pytest.raises(SchemasIncomplete, match="subject new-value") as raised:
            completely(at)
        assert "on_conflict" not in raised.value.next_step


# -- registries that do not keep ids ----------------------------------------------------------------------------------


def test_nothing_is_registered_where_ids_cannot_be_kept(tmp_path: Path) -> None:
    with world(tmp_path, kind="karapace", ids="keep", on_conflict="note") as at:
        at.source.seed("a-value", A, id=100)
        at.source.seed("b-value", B, id=1)
        result = completely(at)
        assert at.target.writes == []
        assert [(item.kind, item.subject) for item in result.conflicts] == [("unsupported", "")]
        assert result.failed == []
        found = judged(at, [100])
        assert found.outcome == "FAILED"
        assert "a-value version 1: a-value on the target does not have it" in found.findings


def test_a_schema_that_appears_where_ids_cannot_be_kept_stops_the_last_pass(tmp_path: Path) -> None:
    """The mode was decided when everything was on the target already."""
    with world(tmp_path, kind="karapace") as at:
        at.source.seed("a-value", A, id=1)
        at.target.seed("a-value", A, id=1)
        assert at.synchronize().id_mode == "keep"
        at.source.seed("b-value", B, id=7)
        with pytest.raises(SchemaConflicts, match="cannot import schemas under fixed ids"):
            completely(at)
        assert at.target.writes == []


def test_the_first_ignored_id_ends_the_registration(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", on_conflict="note") as at, at.pair() as pair:
        for number in range(1, 9):
            at.source.seed(f"s-{number}", avro(f"S{number}", "x"), id=number)

        def ignore(request: Request) -> None:
            if request.method == "POST" and isinstance(request.body, dict) and "id" in request.body:
                request.body["id"] += 1000

        at.target.before = ignore
        result = at.synchronize("tail", pair)
        assert len(at.target_subjects()) == 1
        assert {item.error["code"] for item in result.failed} == {"SCHEMA_ID_IGNORED"}
        assert len(result.failed) == 8
        at.synchronize("tail", pair)
        assert len(at.target_subjects()) == 1


# -- GUIDs ------------------------------------------------------------------------------------------------------------


def test_a_guid_that_a_renamed_reference_changes_does_not_resolve_with_kept_ids(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", rename={"prefix": "eu-"}) as at:
        plain = at.source.seed("a", A, id=1).content.guid
        changed = at.source.seed("cart", CART, id=2, references=[reference("A", "a")]).content.guid
        at.synchronize()
        plan, found = compared(at, [1, 2], [plain, changed])
        assert (found.ids_in_records, found.ids_resolved) == (4, 3)
        assert f"no copied version has the GUID {changed}" in found.differences[0].what
        assert check.judge(found, plan.conflicts).outcome == "FAILED"
        (note,) = (item for item in plan.notes if "GUID" in item)
        assert "the first is cart" in note
        assert "schemas.ids: translate" in note


def test_references_that_stay_do_not_change_guids(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a", A, id=1)
        guid = at.source.seed("cart", CART, id=2, references=[reference("A", "a")]).content.guid
        at.synchronize()
        plan, found = compared(at, [1, 2], [guid])
        assert found.ids_resolved == 3
        assert not [item for item in plan.notes if "GUID" in item]
