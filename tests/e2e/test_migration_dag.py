"""Whole migrations through the DAG, in a real Airflow, on real brokers, with Spark."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import bounds, compare
from harness.load import Kind, TopicLoad, load, tiny_topics
from harness.processes import wait_for
from harness.s3 import EVIDENCE_BUCKET
from harness.webhook import FreezeWebhook
from tests.e2e.migration_lab import CHOSEN, WAIT_SECONDS, WEBHOOK_SECRET, DagRun, Lab, kill_all

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

#: A setting of Spark that is no secret: where it is found, a secret would be found, too.
PLANTED = "planted-in-the-conf-of-spark"


def _check_equal(lab: Lab, topics: list[TopicLoad]) -> None:
    compacted = [topic.name for topic in topics if topic.kind is Kind.COMPACTED]
    names = [topic.name for topic in topics]
    compare(lab.source.client_config(), lab.target.client_config(), names, compacted=compacted, fenced=True).check()


def _has_link(run: DagRun, task_id: str) -> bool:
    return (run.links(task_id)["Journal"] or "").endswith(f"{run.migration_id}/journal.jsonl")


def _journal(run: DagRun) -> list[dict[str, object]]:
    found = run.objects()
    key = next(key for key in found if key.endswith("journal.jsonl"))
    return [json.loads(line) for line in found[key].decode().splitlines()]


def _evidence(run: DagRun) -> dict[str, dict[str, object]]:
    found = run.objects(EVIDENCE_BUCKET)
    envelope = json.loads(next(body for key, body in found.items() if key.endswith("/evidence.json")))
    bundle: dict[str, dict[str, object]] = json.loads(envelope["bundle_json"])
    return bundle


def test_whole_migration_under_load(lab: Lab, prefix: str, secrets_folder: Path) -> None:
    """Every kind of topic, a producer that writes until the webhook freezes it, a group in the middle."""
    topics = tiny_topics(prefix)
    load(lab.source, topics)
    plain = next(topic for topic in topics if topic.kind is Kind.PLAIN)
    group, source = f"{prefix}readers", lab.source.client_config()
    middle = positions(source, [plain.name], 0.5)
    commit_offsets(source, group, middle)

    producer = LiveProducer(source, {plain.name: [0, 1]}, records_per_second=20)
    with producer, FreezeWebhook(producer, secret=WEBHOOK_SECRET) as webhook:
        spec = lab.spec(
            "whole",
            prefix,
            cutover={
                "freeze": "webhook",
                "producer_freeze_webhook": lab.address_file("whole", webhook.url),
                "webhook_secret": "airflow:e2e_webhook",
            },
        )
        spec["spark"]["conf"].update(lab.event_logs(PLANTED))
        run = lab.trigger(spec)
        run.approve("approve_cutover")
        run.wait("cutover.floor_guard", "success")
        assert producer.frozen
        run.wait("sync_groups", "running")
        # Airflow calls a task running a second before its first line.
        for task_id in ("tail", "sync_groups", "approve_client_switch", "cutover.freeze_limit"):
            wait_for(f"link of {task_id}", partial(_has_link, run, task_id), WAIT_SECONDS, every_seconds=0.5)
        assert run.states()["sync_groups"] == "running", "the links are there before it has ended"
        run.approve("approve_client_switch")
        run.wait(None, "success")

    states = run.states()
    assert {name for name, state in states.items() if state != "success"} == CHOSEN
    assert {states[name] for name in CHOSEN} == {"skipped"}
    _check_equal(lab, topics)
    assert not producer.failed
    assert lost_records(lab.target.client_config(), producer.acknowledged) == []
    assert committed_offsets(lab.target.client_config(), group, [plain.name]) == middle
    assert _journal(run)[-1]["to"] == "finalized"
    assert any(key.endswith("evidence.json") for key in run.objects(EVIDENCE_BUCKET))

    assert "is task hand-over (5 times): each took" in run.log("approve_cutover"), "the executor was measured"
    _check_what_airflow_shows(lab, run)
    _check_no_secrets(lab, run, secrets_folder)
    # Everything from the plan on is cleared in the soak: twenty tasks one after the other.
    _check_clearing_is_quick_and_changes_nothing(lab, run, "approve_client_switch")


def _check_what_airflow_shows(lab: Lab, run: DagRun) -> None:
    airflow = lab.airflow
    for task_id in ("plan", "seed", "cutover.floor_guard", "validate", "evidence", "approve_cutover"):
        pointers = airflow.xcom(run.dag_id, run.run_id, task_id)
        assert pointers["migration_id"] == run.migration_id, task_id
        assert pointers["journal"].endswith(f"/journal/{run.migration_id}"), task_id
        assert len(json.dumps(pointers)) < 1000, task_id
    assert "partitions" in airflow.state_store(run.dag_id, run.run_id, "seed")["progress"]["message"]
    assert run.links("evidence")["Evidence"].endswith("/evidence.json")
    assert sorted(lab.told(run.migration_id)) == [
        "approval_wanted approve_client_switch",
        "approval_wanted approve_cutover",
        "drain_ready drain_ready",
        "finalized evidence",
        "freeze cutover.floor_guard",
        "freeze cutover.freeze",
    ]
    events = airflow.request("GET", "/assets/events", limit=100)["asset_events"]
    assert [event["uri"] for event in events if run.migration_id in event["uri"]] == [
        f"kafka-migration://{run.migration_id}/cutover"
    ]


def _check_no_secrets(lab: Lab, run: DagRun, secrets_folder: Path) -> None:
    """Not in logs, XCom, rendered fields or any other table, nor in any object, nor in Spark's event logs."""
    kept = run.everything_airflow_keeps()
    password = lab.secrets()[0]
    planted = run.everything_airflow_keeps(password)
    assert _places(planted, password) == {"xcom", "rendered_task_instance_fields"}, "the search finds a secret there"
    assert _places(kept, run.migration_id) >= {"xcom", "logs"}
    events = {path.name: path.read_bytes() for path in lab.events.rglob("*") if path.is_file()}
    drivers = {name: content for name, content in events.items() if PLANTED.encode() in content}
    assert len(drivers) >= 3, f"event logs of seed, tail and validate: {sorted(events)}"
    assert all(run.migration_id.encode() in content for content in drivers.values())
    stored = b"\n".join([*run.objects().values(), *run.objects(EVIDENCE_BUCKET).values()])
    for secret in lab.secrets():
        assert not _places(kept, secret), f"Airflow keeps {secret}"
        assert not _places(events, secret), f"Spark's event logs have {secret}"
        assert secret.encode() not in stored, f"an object holds {secret}"
    assert list(secrets_folder.iterdir()) == []


def _places(kept: dict[str, bytes], text: str) -> set[str]:
    return {place for place, content in kept.items() if text.encode() in content}


def _check_clearing_is_quick_and_changes_nothing(lab: Lab, run: DagRun, first: str) -> None:
    before, ends = run.objects(), bounds(lab.target.client_config(), [])
    cleared = {name for name, _ in lab.airflow.clear(run.dag_id, run.run_id, [first], downstream=True)}
    assert {first, "validate", "evidence"} <= cleared
    run.wait(None, "success")
    states = run.states()
    assert {name for name, state in states.items() if state != "success"} == CHOSEN
    for task_id in sorted(cleared - CHOSEN):
        log = run.log(task_id)
        assert "the migration is finalized" in log or "already answered: approve" in log, f"{task_id}: {log}"
        assert "Spark-Submit cmd" not in log, f"{task_id} started Spark for nothing"
    assert run.objects() == before
    assert bounds(lab.target.client_config(), []) == ends
    events = lab.airflow.request("GET", "/assets/events", limit=100)["asset_events"]
    assert len([event for event in events if run.migration_id in event["uri"]]) == 1, "no other DAG is started again"


@pytest.mark.soak
def test_a_killed_seed_and_a_deleted_run_go_on(lab: Lab, prefix: str, secrets_folder: Path) -> None:
    """SIGKILL in the middle of the copy, then Airflow's rows, XCom and state store are gone; the migration is not."""
    topics = [TopicLoad(f"{prefix}big", Kind.PLAIN, 4, 40_000, 400, "none")]
    load(lab.source, topics)
    # 16 MB at 2 x 0.5 MB/s: a quarter of a minute to be killed in.
    slow = {"lanes": 2, "max_bytes_per_second": "500KB", "segment_max_bytes": "256KiB"}
    spec = lab.spec("deleted", prefix, seed=slow, cutover={"in_one_task": True})
    first = lab.trigger(spec)
    _kill_the_seed(lab, first, topics[0].name, secrets_folder)
    first.wait("approve_cutover", "awaiting_input")
    first.wait("tail", "running")
    lab.airflow.delete_run(first.dag_id, first.run_id, WAIT_SECONDS)

    _check_refused_without_takeover(lab, first, spec)
    second = lab.trigger(spec, takeover=True)
    second.finish()
    assert "done before" in second.log("plan")
    _check_equal(lab, topics)
    done = json.loads(next(body for key, body in second.objects().items() if key.endswith("progress/seed.json")))
    assert done["records"] < 40_000, "the second attempt copied everything again"
    copied_by_all = _evidence(second)["seed"]
    assert (copied_by_all["records"], copied_by_all["figures_of"]) == (40_000, "all runs")
    _check_the_cutover_ran_in_one_task(second)
    _check_clearing_is_quick_and_changes_nothing(lab, second, "plan")


def _kill_the_seed(lab: Lab, run: DagRun, topic: str, secrets_folder: Path) -> None:
    """The task's process, the Spark driver and its Python workers are killed; cleared, the task copies the rest."""
    target = lab.target.client_config()
    driver = run.spark_driver("seed")

    def copied() -> int:
        return sum(content.end for content in bounds(target, [topic])[topic].values())

    wait_for("a part of the copy", lambda: copied() > 4_000, WAIT_SECONDS, every_seconds=0.2)
    killed = kill_all(driver)
    before = copied()
    assert 4_000 < before < 40_000

    run.wait("seed", "up_for_retry", "failed")
    leftover = list(secrets_folder.iterdir())
    run.clear("seed")
    run.wait("seed", "success")
    assert copied() >= before
    assert sum(entry["step"] == "seed_done" for entry in _journal(run)) == 1
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).name() == "java" for pid in killed)
    assert not [path for path in leftover if path.exists()], "what the killed task left is removed by the next one"


def _check_refused_without_takeover(lab: Lab, first: DagRun, spec: dict[str, Any]) -> None:
    refused = lab.trigger(spec)
    refused.wait("plan", "failed")
    assert "CLAIM_HELD" in refused.log("plan")
    assert first.run_id in refused.log("plan"), "the error names the holder"
    assert lab.airflow.task(refused.dag_id, refused.run_id, "plan")["try_number"] == 1, "nothing a retry could change"
    assert "failed plan" in lab.told(spec["migration_id"])


def _check_the_cutover_ran_in_one_task(run: DagRun) -> None:
    journal = _journal(run)
    assert sum(entry["step"] == "seed_done" for entry in journal) == 1, "nothing was copied twice"
    assert journal[-1]["to"] == "finalized"
    steps = [entry for entry in journal if entry["step"] in ("cutover_step", "ready_for_client_switch")]
    assert {entry["actor"] for entry in steps} == {"cutover.freeze"}, "one process has done the whole cutover"
    assert "All steps run in one task" in run.log("approve_cutover")
    for task_id in ("sentinels", "final_drain", "snapshot_groups", "commit_groups", "floor_guard"):
        assert "already done" in run.log(f"cutover.{task_id}"), task_id


@pytest.mark.soak
def test_abort_rolls_back(lab: Lab, prefix: str) -> None:
    topics = [TopicLoad(f"{prefix}small", Kind.PLAIN, 2, 500, 100, "lz4")]
    load(lab.source, topics)
    run = lab.trigger(lab.spec("aborted", prefix))
    run.approve("approve_cutover", "Abort")
    run.wait(None, "success")
    states = run.states()
    assert states["rollback"] == "success"
    assert states["tail"] == "success", "the rollback ends the tail"
    watch = states.pop("cutover.freeze_limit")
    assert watch == "success", "it has nothing to watch any more"
    assert {states[name] for name in states if name.startswith("cutover.") or name == "evidence"} == {"skipped"}
    assert _journal(run)[-1]["to"] == "rolled_back"
    assert any(key.endswith("rollback-report.json") for key in run.objects(EVIDENCE_BUCKET))


@pytest.mark.soak
def test_rollback_by_its_own_dag(lab: Lab, prefix: str) -> None:
    """It takes the migration over; the run that held it writes nothing more, and rolling back again changes nothing."""
    topics = [TopicLoad(f"{prefix}small", Kind.KEYED, 2, 1_000, 100, "lz4")]
    load(lab.source, topics)
    spec = lab.spec("rolled", prefix)
    first = lab.trigger(spec)
    first.wait("approve_cutover", "awaiting_input")
    rollback = lab.trigger(spec, "kafka_migration_rollback", takeover=True)
    rollback.wait(None, "success")
    assert _journal(rollback)[-1]["to"] == "rolled_back"
    report = next(body for key, body in first.objects(EVIDENCE_BUCKET).items() if key.endswith("rollback-report.json"))
    assert json.loads(report)["problems"] == []
    first.wait("tail", "success", "failed", "up_for_retry")
    before = first.objects()
    again = lab.trigger(spec, "kafka_migration_rollback", takeover=True)
    again.wait(None, "success")
    assert first.objects() == before
    assert first.objects(EVIDENCE_BUCKET)[next(k for k in first.objects(EVIDENCE_BUCKET) if "rollback" in k)] == report
    lab.airflow.delete_run(first.dag_id, first.run_id, WAIT_SECONDS)
