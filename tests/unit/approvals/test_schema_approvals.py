"""Approvals of a migration whose schemas move: what they show, and what their code depends on."""

from __future__ import annotations

from pathlib import Path

import pytest
from phase_support import make_context

from airflow_provider_kafka_migration.approvals import request
from airflow_provider_kafka_migration.documents.plan import SchemaPlanSummary
from airflow_provider_kafka_migration.documents.schemas import SchemaConflict, SchemaPlan, SchemasResult
from airflow_provider_kafka_migration.errors import DocumentUnreadable
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import PhaseContext

SECTION = {"source": "env:R_SOURCE", "target": "env:R_TARGET"}


def with_schemas(context: PhaseContext, reason: str) -> SchemaPlan:
    made = SchemaPlan(migration_id="m1", id_mode="translate", reason=reason)
    document = keys.schema_plan(made.digest())
    context.journal_store.put(context.key(document), made.canonical())
    summary = SchemaPlanSummary(document=document, digest=made.digest(), id_mode=made.id_mode)
    plan = context.record.plan().model_copy(update={"schemas": summary})
    context.journal_store.put(context.key(keys.PLAN), plan.canonical())
    return made


def test_the_approval_shows_the_schemas_of_the_plan_and_its_code_covers_them(tmp_path: Path) -> None:
    context = make_context(tmp_path, schemas=SECTION)
    assert "## Schemas" not in request.make_facts(context, "cutover").body
    with_schemas(context, "the target has other ids")
    first = request.make_facts(context, "cutover")
    assert "- why: the target has other ids" in first.body
    assert "**The registries have not been synchronized yet.**" in first.body
    with_schemas(context, "somebody decided so")
    assert request.make_facts(context, "cutover").code != first.code, "another schema plan is another plan"


def test_the_approval_shows_the_last_synchronization(tmp_path: Path) -> None:
    context = make_context(tmp_path, schemas=SECTION)
    with_schemas(context, "for a test")
    conflict = SchemaConflict(kind="id", subject="orders-value", what="id 7 is taken")
    result = SchemasResult(
        migration_id="m1", reason="tail", at="2026-01-01T00:00:00Z", id_mode="translate", ids=3, conflicts=[conflict]
    )
    context.record.put_result(keys.SCHEMAS, result)
    facts = request.make_facts(context, "cutover")
    assert "- last synchronization: 2026-01-01T00:00:00Z: 0 subjects, 0 versions, 3 ids" in facts.body
    assert "| id | orders-value | id 7 is taken |" in facts.body
    assert facts.facts["schemas"]["result"]["ids"] == 3


def test_a_lost_schema_plan_is_an_error_and_not_an_empty_section(tmp_path: Path) -> None:
    context = make_context(tmp_path, schemas=SECTION)
    made = with_schemas(context, "for a test")
    path = tmp_path / "store" / context.key(keys.schema_plan(made.digest()))
    path.unlink()
    with pytest.raises(DocumentUnreadable, match="is missing"):
        request.make_facts(context, "cutover")
