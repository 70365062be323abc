"""The approval operators in a real Airflow, answered over REST as the UI does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.airflow import AirflowStandalone
from harness.processes import wait_for
from tests.e2e.migration_lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

DAG = "approvals"
FIRST, SECOND = "aaaa1111", "bbbb2222"


@pytest.fixture(scope="module")
def folder(lab: Lab) -> Path:
    """Where the DAG finds the present code and writes the answers."""
    found = lab.folder / "approvals"
    (found / "code").write_text(FIRST)
    return found


@pytest.fixture(scope="module")
def airflow(lab: Lab) -> AirflowStandalone:
    return lab.airflow


def _start(airflow: AirflowStandalone, folder: Path) -> str:
    (folder / "code").write_text(FIRST)
    run = airflow.trigger(DAG)
    airflow.wait_for(DAG, run, "approve_cutover", ["awaiting_input"])
    return run


def _refused(airflow: AirflowStandalone, run: str) -> None:
    """Wait until the approval has failed, and the scheduler has told all below.

    Airflow 3.3.2's scheduler ends with a ``StaleDataError`` if a task is cleared before that.
    """
    airflow.wait_for(DAG, run, None, ["failed"])
    assert airflow.task_states(DAG, run)["approve_cutover"] == "failed"


def _answers(folder: Path) -> list[dict[str, object]]:
    file = folder / "answers.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_stale_and_missing_codes_are_refused_and_the_present_one_goes_on(
    airflow: AirflowStandalone, folder: Path
) -> None:
    run = _start(airflow, folder)
    airflow.answer(DAG, run, "approve_cutover", ["Approve"])
    _refused(airflow, run)

    (folder / "code").write_text(SECOND)
    airflow.clear(DAG, run, ["approve_cutover"], downstream=True)
    airflow.wait_for(DAG, run, "approve_cutover", ["awaiting_input"])
    asked = airflow.hitl(DAG, run, "approve_cutover")
    assert asked is not None
    assert FIRST in asked["body"], "Airflow shows the present text after a clear now: the warning can go"
    log = airflow.task_log(DAG, run, "approve_cutover")
    assert "still shows the text of this task's first attempt" in log
    assert SECOND in log

    airflow.answer(DAG, run, "approve_cutover", ["Approve"], {"code": FIRST})
    _refused(airflow, run)
    airflow.clear(DAG, run, ["approve_cutover"], downstream=True)
    airflow.answer(DAG, run, "approve_cutover", ["Approve"], {"code": SECOND})
    airflow.wait_for(DAG, run, "go", ["success"])
    assert airflow.task_states(DAG, run)["rollback"] == "skipped"

    *_, stale, good = _answers(folder)
    assert (stale["code"], good["code"]) == (FIRST, SECOND)
    assert FIRST in str(good["body_shown"]), "the evidence must have the text that the person saw"
    assert good["responders"][0]["user_id"]  # type: ignore[index]


def test_not_yet_asks_again_in_the_same_task(airflow: AirflowStandalone, folder: Path) -> None:
    run = _start(airflow, folder)
    page = airflow.hitl(DAG, run, "approve_cutover")
    assert page is not None
    assert page["options"] == ["Approve", "Not yet", "Abort"]
    assert FIRST in page["body"]
    assert set(page["params"]) == {"code"}
    assert page["params"]["code"]["value"] == ""

    before = len(_answers(folder))
    airflow.answer(DAG, run, "approve_cutover", ["Not yet"])
    # Not the task's state: it may run and wait again between two of our requests.
    wait_for("the answer", lambda: len(_answers(folder)) > before, 120, every_seconds=0.2)
    airflow.wait_for(DAG, run, "approve_cutover", ["awaiting_input"])
    assert [item["decision"] for item in _answers(folder)][-1] == "not_yet"
    airflow.answer(DAG, run, "approve_cutover", ["Approve"], {"code": FIRST})
    airflow.wait_for(DAG, run, "go", ["success"])
    airflow.answer(DAG, run, "approve_client_switch", ["Approve"], {"code": FIRST})
    airflow.wait_for(DAG, run, None, ["success"])
    assert airflow.task_states(DAG, run) == {
        "approve_client_switch": "success",
        "approve_cutover": "success",
        "end": "success",
        "go": "success",
        "rollback": "skipped",
    }
    assert airflow.xcom(DAG, run, "approve_cutover")["decision"] == "approve"


def test_abort_runs_the_rollback_and_nothing_else(airflow: AirflowStandalone, folder: Path) -> None:
    run = _start(airflow, folder)
    airflow.answer(DAG, run, "approve_cutover", ["Abort"])
    airflow.wait_for(DAG, run, None, ["success"])
    assert airflow.task_states(DAG, run) == {
        "approve_client_switch": "skipped",
        "approve_cutover": "success",
        "end": "skipped",
        "go": "skipped",
        "rollback": "success",
    }


@pytest.mark.soak
def test_nobody_answers_in_time(airflow: AirflowStandalone) -> None:
    run = airflow.trigger("approvals_timeout")
    airflow.wait_for("approvals_timeout", run, None, ["failed"])
    states = airflow.task_states("approvals_timeout", run)
    assert states == {"approve_cutover": "failed", "go": "upstream_failed"}
    assert airflow.task("approvals_timeout", run, "approve_cutover")["try_number"] == 1, "it is not asked again"
