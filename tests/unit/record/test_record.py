"""What the record says if a document is missing: nothing was written yet, or something is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from phase_support import make_context, make_plan

from airflow_provider_kafka_migration.approvals import request
from airflow_provider_kafka_migration.documents.plan import Finding, PrecheckResult, SchemaPlanSummary, Severity
from airflow_provider_kafka_migration.documents.schemas import SchemaCheck, SchemaIdMap, SchemaPlan, SchemasResult
from airflow_provider_kafka_migration.errors import DocumentUnreadable, FreezeFailed, Terminal
from airflow_provider_kafka_migration.evidence import bundle
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.topics import copy_settings
from airflow_provider_kafka_migration.topics.target_topics import Presence


def prechecked(context: PhaseContext) -> None:
    warning = Finding(code="W012", severity=Severity.WARNING, title="t", seen="3 and 2", fix="f")
    result = PrecheckResult(migration_id="m1", plan_digest="d", findings=[warning])
    context.record.put_result(keys.PRECHECK, result)
    context.journal.step(steps.PRECHECKED)


def lose(folder: Path, name: str) -> None:
    (folder / "store" / "m1" / name).unlink()


def test_before_anything_was_written_there_is_nothing(tmp_path: Path) -> None:
    record = make_context(tmp_path).record
    assert record.precheck() is None
    assert record.copy_settings() is None
    assert record.freeze() is None
    assert record.groups() is None
    assert record.validation() is None
    assert record.offset_map() is None
    assert record.find_boundary() is None
    with pytest.raises(FreezeFailed, match="the sentinels were not written"):
        record.boundary()
    with pytest.raises(Terminal, match="not allocated yet"):
        record.producer_ids()


def test_a_lost_precheck_is_not_one_without_findings(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    prechecked(context)
    assert [item["code"] for item in request.waived_findings(context.record)] == ["W012"]
    lose(tmp_path, keys.result(keys.PRECHECK))
    with pytest.raises(DocumentUnreadable, match=r"results/precheck\.json is missing"):
        request.waived_findings(context.record)


def test_lost_copy_settings_are_not_taken_from_the_topics_again(tmp_path: Path) -> None:
    """The topics have the configs of the copy by then: those would be restored at the end as their own ones."""
    context, plan = make_context(tmp_path), make_plan()
    present = {topic.target_name: Presence(exists=False) for topic in plan.topics}
    saved = copy_settings.save(context.record, plan, present)
    assert context.record.copy_settings() == saved
    entry = context.journal.find_step(steps.COPY_SETTINGS)
    assert entry is not None
    lose(tmp_path, str(entry.details["document"]))
    with pytest.raises(DocumentUnreadable, match=r"copy-settings-.*\.json is missing"):
        copy_settings.save(context.record, plan, present)


def test_a_lost_plan_is_not_one_without_topics(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    assert context.record.ever_planned() == {topic.name for topic in make_plan().topics}
    lose(tmp_path, keys.PLAN)
    assert not context.record.has_plan()
    with pytest.raises(Terminal, match="there is no plan yet"):
        context.record.ever_planned()


def test_the_evidence_names_lost_results(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    prechecked(context)
    assert bundle._missing_results(context.record) == []
    lose(tmp_path, keys.result(keys.PRECHECK))
    (warning,) = bundle._missing_results(context.record)
    assert warning.startswith("results/precheck.json is missing, although the journal has prechecked")


# -- schemas ----------------------------------------------------------------------------------------------------------


def with_schema_plan(context: PhaseContext) -> SchemaPlan:
    made = SchemaPlan(migration_id="m1", id_mode="translate", reason="for a test")
    digest = made.digest()
    summary = SchemaPlanSummary(document=keys.schema_plan(digest), digest=digest, id_mode="translate")
    context.journal_store.put(context.key(summary.document), made.canonical())
    plan = context.record.plan().model_copy(update={"schemas": summary})
    context.journal_store.put(context.key(keys.PLAN), plan.canonical())
    return made


def test_a_plan_without_schemas_keeps_its_digest(tmp_path: Path) -> None:
    plan = make_context(tmp_path).record.plan()
    assert plan.schemas is None
    assert b"schemas" not in plan.canonical()


def test_the_schema_plan_is_the_one_that_the_plan_names(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    assert context.record.schema_plan() is None
    made = with_schema_plan(context)
    assert context.record.schema_plan() == made
    other = made.model_copy(update={"reason": "changed by somebody"})
    context.journal_store.put(context.key(keys.schema_plan(made.digest())), other.canonical())
    with pytest.raises(DocumentUnreadable, match="not the schema plan that the plan was made with"):
        context.record.schema_plan()
    lose(tmp_path, keys.schema_plan(made.digest()))
    with pytest.raises(DocumentUnreadable, match="is missing"):
        context.record.schema_plan()


def test_a_lost_id_map_is_not_an_empty_one(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    assert context.record.schema_id_map() is None
    assert context.record.schemas_result() is None
    made = SchemaIdMap(migration_id="m1", id_mode="translate", ids=[(".", 1, 2)])
    context.journal_store.put(context.key(keys.SCHEMA_ID_MAP), made.canonical())
    result = SchemasResult(migration_id="m1", reason="schemas", at="2026-04-24T10:40:00Z", id_mode="translate")
    context.record.put_result(keys.SCHEMAS, result)
    context.journal.step(steps.SCHEMAS_COPIED)
    assert context.record.schema_id_map() == made
    assert context.record.schemas_result() == result
    lose(tmp_path, keys.SCHEMA_ID_MAP)
    lose(tmp_path, keys.result(keys.SCHEMAS))
    with pytest.raises(DocumentUnreadable, match=r"schemas/id-map\.json is missing"):
        context.record.schema_id_map()
    with pytest.raises(DocumentUnreadable, match=r"results/schemas\.json is missing"):
        context.record.schemas_result()


def test_a_lost_schema_check_is_not_one_that_was_never_made(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    assert context.record.schema_check() is None
    made = SchemaCheck(migration_id="m1", at="2026-04-24T10:40:00Z", id_mode="keep")
    context.record.put_result(keys.SCHEMAS_CHECK, made)
    context.journal.step(steps.SCHEMAS_CHECKED)
    assert context.record.schema_check() == made
    lose(tmp_path, keys.result(keys.SCHEMAS_CHECK))
    with pytest.raises(DocumentUnreadable, match=r"results/schemas-check\.json is missing"):
        context.record.schema_check()
