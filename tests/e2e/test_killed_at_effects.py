"""Every task of the DAG is SIGKILLed before, in the middle of and after its side effects, and cleared as on-call would.

The deaths are the tasks' own (``dags/killed_migration.py``), so they come at the same place each time. A live producer
writes until the webhook freezes it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.dag import build_migration_dag
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import bounds, compare
from harness.load import Kind, TopicLoad, load
from harness.processes import HarnessError, wait_for
from harness.s3 import EVIDENCE_BUCKET
from harness.webhook import FreezeWebhook
from tests.e2e.migration_lab import ROOT, WEBHOOK_SECRET, DagRun, Lab, may_be_cleared

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(7200)]

BUILD = ROOT / "build" / "kills"
#: Each series is one migration: together all tasks, each one small enough for one sitting.
SERIES = {
    "before": ["plan", "spark_check", "precheck", "topology_copy", "schemas"],
    "copy": ["seed", "drain_ready", "approve_cutover"],
    "freeze": ["cutover.freeze", "cutover.sentinels", "tail", "cutover.final_drain"],
    "groups": ["cutover.snapshot_groups", "cutover.commit_groups", "cutover.floor_guard", "cutover.freeze_limit"],
    "proof": ["sync_groups", "approve_client_switch", "validate", "evidence"],
    "abort": ["rollback"],
    "back-out": ["abandon"],
}
#: The answers of a series that ends otherwise, by approval.
ANSWERS = {"abort": {"approve_cutover": "Abort"}, "back-out": {"approve_client_switch": "Back out"}}
MOMENTS = ("before", "middle", "after")
#: Tasks that change a cluster (or call the webhook), in the series in which they die so.
CHANGES = {
    "topology_copy",
    "cutover.freeze",
    "cutover.sentinels",
    "cutover.commit_groups",
    "cutover.floor_guard",
    "validate",
    "rollback",
    "abandon",
}
SPARK = {"seed", "tail", "validate"}
#: Nothing has changed for so long: it will not any more.
STANDSTILL_SECONDS = 300.0
#: A copy that takes some seconds, to be killed in.
SLOW = {"seed": {"lanes": 2, "max_bytes_per_second": "50KB", "segment_max_bytes": "64KiB"}}


@dataclass(frozen=True)
class Scene:
    """One migration's topics and group, and who writes to them."""

    prefix: str
    names: list[str]
    group: str
    middle: Any
    producer: LiveProducer
    webhook: FreezeWebhook

    def cutover(self, **more: Any) -> dict[str, Any]:
        """The spec's section: a freeze by webhook."""
        url, secret = self.webhook.url, "airflow:e2e_webhook"
        return {"freeze": "webhook", "producer_freeze_webhook": url, "webhook_secret": secret, **more}

    @property
    def calls(self) -> list[str]:
        """What the webhook was asked for."""
        return [call.action for call in self.webhook.calls]


@contextmanager
def _scene(lab: Lab, prefix: str) -> Iterator[Scene]:
    topics = [
        TopicLoad(f"{prefix}orders", Kind.KEYED, 3, 2_000, 200, "lz4"),
        TopicLoad(f"{prefix}payments", Kind.TRANSACTIONAL, 2, 1_000, 200, "none"),
    ]
    load(lab.source, topics)
    names = [topic.name for topic in topics]
    group, source = f"{prefix}readers", lab.source.client_config()
    middle = positions(source, names, 0.5)
    commit_offsets(source, group, middle)
    producer = LiveProducer(source, {names[0]: [0, 1]}, records_per_second=20)
    with producer, FreezeWebhook(producer, secret=WEBHOOK_SECRET) as webhook:
        yield Scene(prefix, names, group, middle, producer, webhook)


def cleared_to_the_end(
    run: DagRun,
    options: Mapping[str, str] | None = None,
    answer: Callable[[DagRun, str], object] | None = None,
) -> dict[str, int]:
    """Clear what is red as the runbook says, answer what asks, until the run is green; how often each was cleared.

    :param options: answers by approval; "Approve" without.
    :param answer: answers an approval, by its task id, instead.
    """
    cleared: dict[str, int] = {}
    states: dict[str, str | None] = {}
    changed_at = time.monotonic()
    while run.lab.airflow.run_state(run.dag_id, run.run_id) != "success":
        former, states = states, run.states()
        changed_at = time.monotonic() if states != former else changed_at
        assert time.monotonic() < changed_at + STANDSTILL_SECONDS, states
        for task_id, state in states.items():
            with suppress(HarnessError, OSError):  # the scheduler may just be at it
                if may_be_cleared(task_id, states):
                    run.clear(task_id, downstream=True)
                    cleared[task_id] = cleared.get(task_id, 0) + 1
                    break  # what is below it has another state now
                if state == "awaiting_input" and answer is not None:
                    answer(run, task_id)
                elif state == "awaiting_input":
                    run.approve(task_id, (options or {}).get(task_id, "Approve"))
        time.sleep(1)
    return cleared


def entries(run: DagRun) -> list[dict[str, Any]]:
    """The journal itself, not the view of it."""
    found = sorted(
        (key, body) for key, body in run.objects().items() if "/journal/" in key.partition(run.migration_id)[2]
    )
    assert found
    return [json.loads(body) for _, body in found]


def steps(run: DagRun, name: str) -> list[dict[str, Any]]:
    return [entry for entry in entries(run) if entry["step"] == name]


def _check_good_end(lab: Lab, run: DagRun, scene: Scene) -> None:
    """Finalized, everything equal, nothing twice."""
    source, target = lab.source.client_config(), lab.target.client_config()
    compare(source, target, scene.names, fenced=True).check()
    assert scene.producer.count() > 0
    assert not scene.producer.failed
    assert lost_records(target, scene.producer.acknowledged) == []
    assert committed_offsets(target, scene.group, scene.names) == scene.middle
    assert entries(run)[-1]["to"] == "finalized"
    assert len(steps(run, "seed_done")) == 1
    assert any(key.endswith("evidence.json") for key in run.objects(EVIDENCE_BUCKET))


def moments(task_id: str) -> set[str]:
    more = {"changed"} if task_id in CHANGES else set()
    more |= {"working"} if task_id in SPARK else set()
    return {f"{task_id}.{when}" for when in {*MOMENTS, *more}}


def write_summary(name: str, summary: Mapping[str, Any]) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / f"dag-{name}.json").write_text(json.dumps({"version": 2, **summary}, indent=2, sort_keys=True) + "\n")


def test_every_task_is_in_a_series() -> None:
    named = [task_id for tasks in SERIES.values() for task_id in tasks]
    assert sorted(named) == sorted(build_migration_dag().task_ids)


@pytest.mark.parametrize("name", SERIES)
def test_killed_three_times_each(killing_lab: Lab, kills: Path, name: str) -> None:
    lab, tasks = killing_lab, SERIES[name]
    kills.write_text(json.dumps(tasks))
    begun = time.monotonic()
    with _scene(lab, f"k{name}.") as scene:
        spec = lab.spec(f"killed-{name}", scene.prefix, cutover=scene.cutover(), **(SLOW if name == "copy" else {}))
        run = lab.trigger(spec, "killed_migration")
        cleared = cleared_to_the_end(run, ANSWERS.get(name))
        seconds = round(time.monotonic() - begun)

        named = {path.name for path in kills.parent.iterdir()}
        deaths = sorted(death for death in named if death.rpartition(".")[0] in tasks)
        write_summary(name, {"deaths": deaths, "cleared": cleared, "seconds": seconds})
        assert {moment for task_id in tasks for moment in moments(task_id)} <= set(deaths)
        if name == "abort":
            _check_rolled_back(lab, run, scene)
        elif name == "back-out":
            _check_backed_out(run, scene)
        else:
            _check_good_end(lab, run, scene)
            assert set(scene.calls) == {"freeze"}
            assert len(steps(run, "freeze_lifted")) == 0


def _check_rolled_back(lab: Lab, run: DagRun, scene: Scene) -> None:
    """Everything taken back, once; the copied topics stay."""
    assert [entry["to"] for entry in entries(run)].count("rolled_back") == 1
    assert entries(run)[-1]["to"] == "rolled_back"
    reports = [body for key, body in run.objects(EVIDENCE_BUCKET).items() if key.endswith("rollback-report.json")]
    assert len(reports) == 1
    report = json.loads(reports[0])
    assert report["problems"] == []
    assert set(scene.names) <= set(bounds(lab.target.client_config(), scene.names))
    assert not scene.producer.frozen
    assert run.states()["tail"] == "success", "the rollback ends the tail"


def _check_backed_out(run: DagRun, scene: Scene) -> None:
    """Producers write to the source again, and the end is signed, once."""
    assert not scene.producer.frozen
    assert scene.calls[-1] == "unfreeze"
    assert [entry["to"] for entry in entries(run)].count("rolled_back") == 1
    assert (len(steps(run, "abandoned")), len(steps(run, "freeze_lifted"))) == (1, 1)
    [data] = [body for key, body in run.objects(EVIDENCE_BUCKET).items() if key.endswith("/evidence.json")]
    assert verify_evidence(data).bundle.outcome == "ABANDONED"
    assert run.states()["validate"] == "skipped"


@pytest.mark.parametrize(("death", "limit"), [("cutover.freeze.changed", "30s"), ("cutover.final_drain.after", "90s")])
def test_freeze_is_lifted_when_nobody_clears(killing_lab: Lab, kills: Path, death: str, limit: str) -> None:
    """The process of a cutover's task dies, is not tried again, and nobody is there: producers write on all the same.

    Once with producers stopped and nothing but the request in the journal, once when the tail was told to stop.
    """
    lab = killing_lab
    name = death.replace("cutover.", "").replace(".", "-").replace("_", "-")
    begun = time.monotonic()
    kills.write_text(json.dumps([death]))
    with _scene(lab, f"k{name}.") as scene:
        cutover = scene.cutover(max_producer_freeze=limit)
        run = lab.trigger(lab.spec(f"lifted-{name}", scene.prefix, cutover=cutover), "killed_migration_unretried")
        run.approve("approve_cutover")
        run.wait(death.rpartition(".")[0], "failed")
        assert (kills.parent / death).exists()
        assert scene.producer.frozen
        written = scene.producer.count()

        run.wait("cutover.freeze_limit", "failed")  # its red square is how on-call hears of it
        wait_for("producers that write on", lambda: scene.producer.count() > written, 120)
        assert scene.calls == ["freeze", "unfreeze"]
        requested, lifted = steps(run, "freeze_requested")[0], steps(run, "freeze_lifted")[0]
        deadline = datetime.fromisoformat(requested["details"]["deadline"])
        late_seconds = (datetime.fromisoformat(lifted["at"]) - deadline).total_seconds()
        assert 0 < late_seconds < 60
        assert lifted["actor"] == "cutover.freeze_limit"
        assert entries(run)[-1]["to"] == "tail"
        assert run.states()["approve_client_switch"] != "success"

        # As every text says: drain_ready with what is below it. The tail, which was told to stop, goes on by itself.
        assert run.states()["tail"] == "running"
        run.clear("drain_ready", downstream=True)
        cleared = cleared_to_the_end(run)
        _check_good_end(lab, run, scene)
        assert cleared == {}, "nothing else was to be done"
        assert scene.calls == ["freeze", "unfreeze", "freeze", "freeze"]
        assert [entry["step_key"] for entry in steps(run, "freeze_verified")][-1] == "2"
        seconds = round(time.monotonic() - begun)
        write_summary(name, {"deaths": [death], "lifted_late_seconds": late_seconds, "seconds": seconds})
