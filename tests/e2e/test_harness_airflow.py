"""The harness' Airflow does what the tests of the DAG rely on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.airflow import AirflowApiError
from harness.airflow_components import COMPONENTS, ReplaceableAirflow, kill_component
from harness.processes import HarnessError, is_listening, wait_for
from harness.reaper import descendants

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(600)]

DAGS = """
import subprocess
import time

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Connection, Param, task

with DAG("probe", schedule=None, params={"x": Param(1)}):

    @task
    def first(**context):
        context["task_state_store"].set("progress", {"done": 3})
        print("host is", Connection.get("somewhere").host)
        return {"x": context["params"]["x"]}

    @task
    def last():
        pass

    ask = ApprovalOperator(task_id="ask", subject="go on?", params={"code": Param("", type="string")})
    first() >> ask >> last()

with DAG("failing", schedule=None):

    @task
    def broken():
        raise ValueError("so it goes")

    broken()

with DAG("sleeping", schedule=None):

    @task
    def sleeper():
        child = subprocess.Popen(["sleep", "300"], start_new_session=True)
        print("sleeper is", child.pid, flush=True)
        child.wait()
        time.sleep(300)  # where the child is killed first, the task must not end well before it is killed, too

    sleeper()
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplaceableAirflow]:
    dags = tmp_path_factory.mktemp("dags")
    (dags / "probe.py").write_text(DAGS)
    (dags / "bad.py").write_text("from airflow.sdk import DAG\nraise RuntimeError('bad file')\n")
    connections = {"somewhere": {"conn_type": "generic", "host": "the-host"}}
    with ReplaceableAirflow(tmp_path_factory.mktemp("home"), dags, connections) as started:
        yield started


def test_a_run_with_an_approval_and_its_clear(airflow: ReplaceableAirflow) -> None:
    run = airflow.trigger("probe", {"x": 5}, "a-run")
    assert run == "a-run"
    assert airflow.hitl("probe", run, "first") is None
    airflow.answer("probe", run, "ask", ["Approve"], {"code": "abc"})
    assert airflow.wait_for("probe", run, None, ["success"]) == "success"
    assert airflow.task_states("probe", run) == {"first": "success", "ask": "success", "last": "success"}
    assert airflow.xcom("probe", run, "first") == {"x": 5}
    assert airflow.state_store("probe", run, "first") == {"progress": {"done": 3}}
    assert "host is the-host" in airflow.task_log("probe", run, "first")
    asked = airflow.hitl("probe", run, "ask")
    assert asked is not None
    assert (asked["subject"], asked["params_input"]) == ("go on?", {"code": "abc"})
    # Answered at once after each clear: the early answer that fails a task must not happen.
    for _ in range(3):
        assert {name for name, _ in airflow.clear("probe", run, ["ask"], downstream=True)} == {"ask", "last"}
        airflow.answer("probe", run, "ask", ["Approve"])
        airflow.wait_for("probe", run, None, ["success"])


def test_a_failure_is_told_with_its_log(airflow: ReplaceableAirflow) -> None:
    run = airflow.trigger("failing")
    with pytest.raises(HarnessError, match="so it goes"):
        airflow.wait_for("failing", run, None, ["success"])
    assert airflow.run_state("failing", run) == "failed"


def test_import_errors_and_unknown_things_are_told(airflow: ReplaceableAirflow) -> None:
    wait_for("import error", airflow.import_errors, 120)
    assert "bad file" in airflow.import_errors()["bad.py"]
    with pytest.raises(HarnessError, match="bad file"):
        airflow.wait_dag("not-there", timeout_seconds=1)
    with pytest.raises(AirflowApiError) as caught:
        airflow.run_state("probe", "not-there")
    assert caught.value.status == 404


@pytest.mark.timeout(1800)
def test_components_are_replaced_and_all_of_them_killed(airflow: ReplaceableAirflow) -> None:
    assert airflow.missing() == []
    for name in (*COMPONENTS, COMPONENTS[0]):  # the last one is a replacement
        killed = kill_component(airflow, name)
        wait_for(f"the end of {name}", lambda name=name: name in airflow.missing(), 120)  # type: ignore[misc]
        airflow.replace(name)
        assert airflow.missing() == []
        assert not set(killed) & set(airflow.processes_below())
    run = airflow.trigger("sleeping")
    airflow.wait_for("sleeping", run, "sleeper", ["running"])
    wait_for("sleeper", lambda: _sleepers(airflow), 120)
    commands = [Path(f"/proc/{pid}/cmdline") for pid in airflow.processes_below()]
    airflow.kill()
    assert [path for path in commands if _content(path)] == []
    assert airflow.processes_below() == []
    airflow.start()
    # Airflow has kept the run, and finds the attempt dead after some minutes: it fails, or is scheduled again by the
    # check for orphaned tasks. Nobody is mistaken for the process that was killed.
    wait_for(
        "the end of the dead attempt",
        lambda: airflow.run_state("sleeping", run) == "failed" or bool(_sleepers(airflow)),
        1200,
    )


def _sleepers(airflow: ReplaceableAirflow) -> list[Path]:
    paths = [Path(f"/proc/{pid}/cmdline") for pid in airflow.processes_below()]
    return [path for path in paths if b"sleep\x00300" in _content(path)]


def test_stop_ends_tasks_and_all_they_started(airflow: ReplaceableAirflow) -> None:
    """Comes last: the others cannot run after it."""
    run = airflow.trigger("sleeping")
    airflow.wait_for("sleeping", run, "sleeper", ["running"])
    wait_for("sleeper", lambda: "sleeper is" in airflow.task_log("sleeping", run, "sleeper"), 120)
    running = descendants(airflow.pid)
    commands = [Path(f"/proc/{pid}/cmdline") for pid in running]
    assert any(b"sleep\x00300" in _content(path) for path in commands)
    port = int(airflow.url.rpartition(":")[2])
    airflow.stop()
    assert [path for path in commands if _content(path)] == [], "a zombie has no command line"
    assert not is_listening(port)


def _content(path: Path) -> bytes:
    """Of a file below ``/proc``; empty if the process has ended, collected by its parent or not."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
