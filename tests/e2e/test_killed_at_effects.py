"""Every task of the DAG is SIGKILLed before, in the middle of and after its side effects, and cleared as on-call would.

The deaths are the tasks' own (``dags/killed_migration.py``), so they come at the same place each time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.dag import build_migration_dag
from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets, positions
from harness.compare import compare
from harness.load import Kind, TopicLoad, load
from harness.processes import HarnessError
from harness.s3 import EVIDENCE_BUCKET, S3Server
from tests.e2e.migration_lab import ROOT, WAIT_SECONDS, DagRun, Lab, lab_airflow

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(7200)]

BUILD = ROOT / "build" / "kills"
#: Each series is one migration: together all tasks, each one small enough for one sitting.
SERIES = {
    "before": ["plan", "precheck", "topology_copy"],
    "copy": ["seed", "drain_ready", "approve_cutover"],
    "freeze": ["cutover.freeze", "cutover.sentinels", "tail", "cutover.final_drain"],
    "groups": ["cutover.snapshot_groups", "cutover.commit_groups", "cutover.floor_guard", "cutover.freeze_limit"],
    "proof": ["sync_groups", "approve_client_switch", "validate", "evidence"],
}
MOMENTS = ("before", "middle", "after")


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the tasks that are to die."""
    file = tmp_path_factory.mktemp("kills") / "tasks.json"
    file.write_text("[]")
    return file


@pytest.fixture(scope="module")
def lab(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    s3_server: S3Server,
    kills: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("killed-lab")
    dags = folder / "dags"
    dags.mkdir()
    file = dags / "killed_migration.py"
    file.write_bytes((Path(__file__).parent / "dags" / "killed_migration.py").read_bytes())
    airflow = lab_airflow(folder, dags, source_cluster, target_cluster, s3_server, {"KILLS": str(kills)})
    with airflow:
        yield Lab(folder, source_cluster, target_cluster, s3_server, airflow, count(1))


def _cleared_to_the_end(run: DagRun) -> dict[str, int]:
    """Clear what is red, answer what asks, until the run is green; how often each task was cleared."""
    cleared: dict[str, int] = {}
    deadline = time.monotonic() + 3 * WAIT_SECONDS
    while run.lab.airflow.run_state(run.dag_id, run.run_id) != "success":
        assert time.monotonic() < deadline, run.states()
        for task_id, state in run.states().items():
            if state in ("up_for_retry", "failed"):
                cleared[task_id] = cleared.get(task_id, 0) + 1
                with suppress(HarnessError):  # the scheduler may just be at it
                    run.clear(task_id)
            elif state == "awaiting_input":
                with suppress(HarnessError):
                    run.approve(task_id)
        time.sleep(1)
    return cleared


def test_every_task_is_in_a_series() -> None:
    named = [task_id for tasks in SERIES.values() for task_id in tasks]
    assert sorted([*named, "rollback"]) == sorted(build_migration_dag().task_ids)


@pytest.mark.parametrize("name", SERIES)
def test_killed_three_times_each(lab: Lab, kills: Path, name: str) -> None:
    tasks = SERIES[name]
    prefix = f"k{name}."
    topics = [
        TopicLoad(f"{prefix}orders", Kind.KEYED, 3, 2_000, 200, "lz4"),
        TopicLoad(f"{prefix}payments", Kind.TRANSACTIONAL, 2, 1_000, 200, "none"),
    ]
    load(lab.source, topics)
    names = [topic.name for topic in topics]
    group, source = f"{prefix}readers", lab.source.client_config()
    middle = positions(source, names, 0.5)
    commit_offsets(source, group, middle)
    kills.write_text(json.dumps(tasks))
    begun = time.monotonic()
    run = lab.trigger(lab.spec(f"killed-{name}", prefix), "killed_migration")
    cleared = _cleared_to_the_end(run)

    deaths = sorted(path.name for path in kills.parent.iterdir() if path.name != kills.name)
    BUILD.mkdir(parents=True, exist_ok=True)
    summary = {"version": 1, "deaths": deaths, "cleared": cleared, "seconds": round(time.monotonic() - begun)}
    (BUILD / f"dag-{name}.json").write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n")
    assert {f"{task}.{when}" for task in tasks for when in MOMENTS} <= set(deaths)
    compare(source, lab.target.client_config(), names).check()
    assert committed_offsets(lab.target.client_config(), group, names) == middle
    objects = run.objects()
    journal = next(body for key, body in objects.items() if key.endswith("journal.jsonl")).decode().splitlines()
    entries = [json.loads(line) for line in journal]
    assert entries[-1]["to"] == "finalized"
    assert sum(entry["step"] == "seed_done" for entry in entries) == 1
    assert sum(entry["step"] == "freeze_lifted" for entry in entries) == 0
    assert any(key.endswith("evidence.json") for key in run.objects(EVIDENCE_BUCKET))
