"""``plan --diff`` and the folder of documents, without clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.cli.plan import PlanFormat, diff_answer, write_document
from airflow_provider_kafka_migration.documents.plan import Plan
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
