"""``plan --diff`` and the folder of documents, without clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.cli.plan import PlanFormat, diff_answer, write_document
from airflow_provider_kafka_migration.cli.plan import _comparable as comparable
from airflow_provider_kafka_migration.cli.plan import _earlier as read_earlier
from airflow_provider_kafka_migration.documents.plan import Plan, SchemaPlanSummary
from airflow_provider_kafka_migration.documents.schemas import SchemaPlan
from airflow_provider_kafka_migration.errors import DocumentUnreadable

CASE = Path(__file__).resolve().parents[2] / "cases" / "plan" / "plan.v1.json"


@pytest.fixture
def plans() -> tuple[Plan, Plan]:
    """A plan, and a later one: a config has changed, a topic is new, offsets have moved."""
    before = Plan.parse(CASE.read_bytes())
    first, *rest = before.topics
    moved = first.partitions[0].model_copy(update={"end_offset": 999_999})
    changed = first.model_copy(
        update={"target_configs": {"retention.ms": "5"}, "partitions": [moved, *first.partitions[1:]]}
    )
    added = first.model_copy(update={"name": "shop.z|new", "target_name": "shop.z|new"})
    return before, before.model_copy(update={"topics": [changed, *rest, added]})


def test_differences_for_people_machines_and_reviews(plans: tuple[Plan, Plan]) -> None:
    before, after = plans
    name = before.topics[0].name
    head, text = (str(item) for item in diff_answer(before, after, PlanFormat.table, moving=False).text)
    assert head == f"plan {before.digest()[:8]} -> {after.digest()[:8]}: 2 changes"
    assert "retention.ms" in text
    assert "end_offset" not in text
    answer = diff_answer(before, after, PlanFormat.json, moving=True)
    assert answer.raw is not None
    found = json.loads(answer.raw)
    assert found == answer.data["diff"]
    paths = {change["path"] for change in found["changes"]}
    assert f"topics[{name}].partitions[0].end_offset" in paths
    assert "topics[shop.z|new]" in paths
    table = diff_answer(before, after, PlanFormat.markdown, moving=False).raw or ""
    assert r"| topics[shop.z\|new] | - |" in table
    assert "| after |" in table


def test_equal_plans_say_so(plans: tuple[Plan, Plan]) -> None:
    before, _ = plans
    for form in (PlanFormat.table, PlanFormat.markdown):
        answer = diff_answer(before, before, form, moving=True)
        assert "the plans are equal" in (answer.raw or " ".join(str(item) for item in answer.text))


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), ("{}", "not a plan"), ("[", "not a plan")])
def test_a_wrong_earlier_plan_is_told_before_any_cluster_is_asked(
    invoke: Any, spec_file: Path, tmp_path: Path, content: str | None, said: str
) -> None:
    earlier = tmp_path / "earlier.json"
    if content is not None:
        earlier.write_text(content)
    result = invoke("plan", spec_file, "--diff", earlier, "--json")
    assert result.exit_code != 0
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "DOCUMENT_UNREADABLE"
    assert said in error["what"]


def test_documents_go_into_a_new_folder_or_say_why_not(tmp_path: Path) -> None:
    write_document(tmp_path / "deep" / "down" / "plan.json", b"x")
    assert (tmp_path / "deep" / "down" / "plan.json").read_bytes() == b"x"
    with pytest.raises(DocumentUnreadable, match="cannot be written"):
        write_document(tmp_path / "deep" / "down" / "plan.json" / "more", b"x")


# -- schema plans -----------------------------------------------------------------------------------------------------


def with_schemas(before: Plan, folder: Path, reason: str) -> tuple[Plan, SchemaPlan]:
    """The plan with a schema plan, both written as a migration writes them."""
    schemas = SchemaPlan(migration_id=before.migration_id, id_mode="keep", reason=reason)
    document = f"schemas/plan-{schemas.digest()[:16]}.json"
    summary = SchemaPlanSummary(document=document, digest=schemas.digest(), id_mode="keep")
    made = before.model_copy(update={"schemas": summary})
    write_document(folder / document, schemas.canonical())
    write_document(folder / "plan.json", made.canonical())
    write_document(folder / "plans" / "0123.json", made.canonical())
    return made, schemas


def test_the_schema_plan_of_an_earlier_plan_is_found_next_to_it(plans: tuple[Plan, Plan], tmp_path: Path) -> None:
    made, schemas = with_schemas(plans[0], tmp_path, "first")
    for place in (tmp_path / "plan.json", f"file://{tmp_path}/plan.json", tmp_path / "plans" / "0123.json"):
        assert read_earlier(str(place), None) == (made, schemas)
    write_document(tmp_path / "old.json", plans[0].canonical())
    assert read_earlier(str(tmp_path / "old.json"), None) == (plans[0], None)


@pytest.mark.parametrize("content", [None, b"[", b"{}", "other"])
def test_another_schema_plan_is_not_that_of_the_earlier_plan(
    plans: tuple[Plan, Plan], tmp_path: Path, content: bytes | str | None
) -> None:
    made, schemas = with_schemas(plans[0], tmp_path, "first")
    assert made.schemas is not None
    file = tmp_path / made.schemas.document
    if content is None:
        file.unlink()
    else:
        other = schemas.model_copy(update={"reason": "other"}).canonical()
        file.write_bytes(content if isinstance(content, bytes) else other)
    assert read_earlier(str(tmp_path / "plan.json"), None) == (made, None)


def test_schema_plans_are_compared_if_both_are_at_hand(plans: tuple[Plan, Plan], tmp_path: Path) -> None:
    before, first = with_schemas(plans[0], tmp_path / "a", "first")
    after, second = with_schemas(plans[0], tmp_path / "b", "second")
    both = comparable(before, first, after, second)
    answer = diff_answer(before, after, PlanFormat.table, moving=False, schemas=both)
    assert "schemas.reason: first -> second" in " ".join(str(item) for item in answer.text)
    lost = comparable(before, None, after, second)
    assert lost is None
    text = " ".join(str(item) for item in diff_answer(before, after, PlanFormat.table, moving=False, schemas=lost).text)
    assert "schemas.digest" in text
    assert "only figures of schemas are compared" in text
    assert comparable(plans[0], None, after, second) == (None, second)
