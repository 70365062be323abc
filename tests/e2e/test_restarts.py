"""Parts of Airflow die while a migration waits; nobody clears anything."""

from __future__ import annotations

import pytest

from harness.airflow_components import Component, replaced_component
from harness.compare import compare
from harness.load import Kind, TopicLoad, load
from harness.processes import wait_for
from tests.e2e.migration_lab import CHOSEN, WAIT_SECONDS, DagRun, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(3600)]


def _waiting(lab: Lab, prefix: str, migration_id: str) -> tuple[DagRun, list[str]]:
    """A migration whose ``drain_ready`` is deferred while ``tail`` copies; its topics."""
    topics = [TopicLoad(f"{prefix}small", Kind.KEYED, 2, 1_000, 100, "lz4")]
    load(lab.source, topics)
    run = lab.trigger(lab.spec(migration_id, prefix, tail={"drain_stable_window": "45s"}))
    run.wait("drain_ready", "deferred")
    run.wait("tail", "running")
    return run, [topic.name for topic in topics]


def _wait_for_the_tail(run: DagRun, former_pid: int | None) -> None:
    """Until Airflow has noticed that its process is gone, and has started another one by itself."""

    def runs_again() -> bool:
        task = run.lab.airflow.task(run.dag_id, run.run_id, "tail")
        return task["state"] == "running" and task["pid"] not in (None, former_pid)

    wait_for("another process of tail", runs_again, WAIT_SECONDS, 1.0)


def _check_good_end(lab: Lab, run: DagRun, names: list[str]) -> None:
    run.finish()
    assert {name for name, state in run.states().items() if state != "success"} == CHOSEN
    compare(lab.source.client_config(), lab.target.client_config(), names, fenced=True).check()


def test_restart_of_airflow_while_it_waits(lab: Lab, prefix: str) -> None:
    """Scheduler, triggerer and all tasks end while ``drain_ready`` is deferred and ``tail`` copies."""
    run, names = _waiting(lab, prefix, "restarted")
    pid = lab.airflow.task(run.dag_id, run.run_id, "tail")["pid"]
    lab.airflow.stop()
    lab.airflow.start()
    run.wait("drain_ready", "success")
    _wait_for_the_tail(run, pid)
    _check_good_end(lab, run, names)


@pytest.mark.parametrize("component", ["triggerer", "scheduler"])
def test_component_dies_while_it_waits(lab: Lab, prefix: str, component: Component) -> None:
    """SIGKILL for the component alone; with the scheduler the tasks of its executor die, ``tail`` among them."""
    run, names = _waiting(lab, prefix, f"{component}-died")
    pid = lab.airflow.task(run.dag_id, run.run_id, "tail")["pid"]
    with replaced_component(lab.airflow, component) as killed:
        assert (pid in killed) == (component == "scheduler")
        run.wait("drain_ready", "success")
        if component == "scheduler":
            _wait_for_the_tail(run, pid)
        _check_good_end(lab, run, names)
