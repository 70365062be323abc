"""Every task of the DAG is SIGKILLed at a random moment and cleared, as on-call would; it still ends well."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress

import psutil
import pytest

from airflow_provider_kafka_migration import phase_table
from harness.compare import compare
from harness.load import Kind, TopicLoad, load
from harness.processes import HarnessError, wait_for
from tests.e2e.migration_lab import ROOT, WAIT_SECONDS, DagRun, Lab, may_be_cleared

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(7200)]

BUILD = ROOT / "build" / "kills"
SEEDS = [int(seed) for seed in os.environ.get("KILL_SEEDS", "1,2").split(",")]
#: Tasks in their order. ``tail`` is killed while others go on; approvals while they ask.
TASKS = tuple(row.id for row in phase_table.TASKS if not row.needs_journal_only)
_ENDED = {"success", "awaiting_input", "deferred"}


def _kill(run: DagRun, task_id: str, delay_seconds: float) -> bool:
    """SIGKILL for the task's process group and all below it, some time after it was first seen running."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (state := run.states().get(task_id)) != "running":
        if state in _ENDED:
            return False
        assert time.monotonic() < deadline, (task_id, run.states())
        time.sleep(0.1)
    pid = run.lab.airflow.task(run.dag_id, run.run_id, task_id).get("pid")
    time.sleep(delay_seconds)
    if not pid or not psutil.pid_exists(pid):
        return False
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
            with suppress(psutil.NoSuchProcess):
                os.kill(process.pid, signal.SIGKILL)
    return True


def _settle(run: DagRun, task_id: str) -> None:
    """Wait until Airflow has noticed, and clear the task with what is below it, as the runbook says."""
    run.wait(task_id, "up_for_retry", "failed", *_ENDED)
    if run.states()[task_id] in _ENDED:
        return
    wait_for(f"a red {task_id}", lambda: _is_red_or_ended(run, task_id), WAIT_SECONDS, 0.5)
    if run.states()[task_id] not in _ENDED:
        with suppress(HarnessError):
            run.clear(task_id, downstream=True)


def _is_red_or_ended(run: DagRun, task_id: str) -> bool:
    states = run.states()
    return states[task_id] in _ENDED or may_be_cleared(task_id, states)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_task_is_killed_once(lab: Lab, prefix: str, seed: int) -> None:
    rng = random.Random(seed)
    topics = [
        TopicLoad(f"{prefix}orders", Kind.KEYED, 3, 3_000, 300, "lz4"),
        TopicLoad(f"{prefix}payments", Kind.TRANSACTIONAL, 2, 2_000, 300, "none"),
    ]
    load(lab.source, topics)
    begun = time.monotonic()
    run = lab.trigger(lab.spec(f"killed-{seed}", prefix))
    killed: dict[str, float] = {}
    for task_id in TASKS:
        delay = rng.choice([0.0, 0.5, 2.0, 5.0]) * rng.random()
        if _kill(run, task_id, delay):
            killed[task_id] = round(delay, 2)
            _settle(run, task_id)
        if task_id.startswith("approve_"):
            run.approve(task_id)
            run.wait(task_id, "success")
        elif task_id not in ("tail", "sync_groups"):
            run.wait(task_id, "success")
    run.wait(None, "success")
    names = [topic.name for topic in topics]
    compare(lab.source.client_config(), lab.target.client_config(), names, fenced=True).check()
    summary = {"version": 1, "seed": seed, "killed_after_seconds": killed, "seconds": round(time.monotonic() - begun)}
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / f"dag-random-{seed}.json").write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n")
    assert len(killed) >= 8, f"seed {seed}: only {killed} were killed"
