"""A mirror through its DAG, in a real Airflow, on real brokers, with Spark: killed, paused, resumed and promoted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from airflow_provider_kafka_migration.documents.mirror import Promotion
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import bounds, compare
from harness.load import Kind, TopicLoad, load
from harness.processes import wait_for
from tests.e2e.migration_lab import WAIT_SECONDS, DagRun, Lab, Person, kill_all

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]


def _mirror_spec(lab: Lab, name: str, prefix: str) -> dict[str, Any]:
    return lab.spec(
        name,
        prefix,
        kind="mirror",
        mirror={"source_alias": "A", "target_alias": "B", "sync_interval": "500ms"},
        seed={"slice_seconds": 5},
        # On a busy machine a Python worker needs seconds of each slice to begin.
        tail={"slice_seconds": 10},
        topology={"refresh_interval": "1s"},
    )


def _count(lab: Lab, topics: list[str]) -> int:
    found = bounds(lab.target.client_config(), topics)
    return sum(item.end for numbers in found.values() for item in numbers.values())


def test_a_mirror_is_killed_paused_resumed_and_promoted(lab: Lab, prefix: str, tmp_path: Path) -> None:
    """Nobody clears anything: Airflow starts the task again, and a resumed mirror goes on by itself."""
    topics = [
        TopicLoad(f"{prefix}orders", Kind.KEYED, 2, 1_000, 200, "lz4"),
        TopicLoad(f"{prefix}payments", Kind.TRANSACTIONAL, 2, 500, 200, "none"),
    ]
    load(lab.source, topics)
    names = [topic.name for topic in topics]
    remote = {name: f"A.{name}" for name in names}
    orders, group = names[0], f"{prefix}readers"
    source, target = lab.source.client_config(), lab.target.client_config()
    commit_offsets(source, group, positions(source, [orders], 0.5))
    spec = _mirror_spec(lab, "mirrored", prefix)
    file = tmp_path / "mirror.yaml"
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    person = Person(lab, file)

    with LiveProducer(source, {orders: [0, 1]}, records_per_second=100) as producer:
        run = lab.trigger(spec, "kafka_mirror")
        driver = run.spark_driver("tail")
        before = producer.count()
        wait_for("the mirror follows", lambda: _count(lab, [remote[orders]]) > 1_000 + before, WAIT_SECONDS, 0.5)
        pid = lab.airflow.task(run.dag_id, run.run_id, "mirror")["pid"]
        assert pid in kill_all(driver)

        again = _next_driver(run, driver.pid)
        before = producer.count()
        wait_for("the mirror follows again", lambda: _count(lab, [remote[orders]]) > 1_000 + before, WAIT_SECONDS, 0.5)

        paused = person.asks("pause", "--reason", "window", "--timeout", "300")
        assert (paused["state"], paused["details"]["reason"]) == ("paused", "window")
        run.wait("mirror", "deferred")
        wait_for("the end of the driver", lambda: _has_ended(again), WAIT_SECONDS)
        stopped = _count(lab, list(remote.values()))
        time.sleep(3)
        assert _count(lab, list(remote.values())) == stopped
        assert person.asks("status")["state"] == "paused"

        assert person.asks("resume", "--timeout", "300")["state"] == "mirroring"
        run.wait("mirror", "running")

    commit_offsets(source, group, positions(source, [orders], 1.0))
    promoted = person.asks("promote", "--reason", "moved")
    assert promoted["state"] == "promoted", promoted
    assert promoted["details"]["possibly_lost"] == 0
    run.wait(None, "success")

    assert set(run.states().values()) == {"success"}
    _check_what_airflow_shows(lab, run)
    compare(source, target, remote, fenced=True).check()
    acknowledged = {(remote[topic], number): found for (topic, number), found in producer.acknowledged.items()}
    assert producer.count() > 500
    assert lost_records(target, acknowledged) == []
    ends = {
        (remote[topic], number): item.end
        for topic in [orders]
        for number, item in bounds(source, [topic])[topic].items()
    }
    assert committed_offsets(target, group, [remote[orders]]) == ends

    before_objects = run.objects()
    run.clear("plan", downstream=True)
    run.wait(None, "success")
    assert run.objects() == before_objects, "a mirror that has ended is left alone"


def _has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def _next_driver(run: DagRun, former_pid: int) -> Any:
    """The driver of the attempt that Airflow has started by itself."""
    found: list[Any] = []

    def another() -> bool:
        driver = run.spark_driver("tail")
        found.append(driver)
        return bool(driver.pid != former_pid)

    wait_for("another driver", another, WAIT_SECONDS, 0.5)
    return found[-1]


def _check_what_airflow_shows(lab: Lab, run: DagRun) -> None:
    pointers = lab.airflow.xcom(run.dag_id, run.run_id, "mirror")
    assert (pointers["phase"], pointers["state"]) == ("mirror", "promoted")
    assert pointers["summary"].startswith("promoted by ")
    assert run.links("mirror")["Journal"].endswith(f"{run.migration_id}/journal.jsonl")
    assert lab.airflow.task(run.dag_id, run.run_id, "mirror")["try_number"] == 2, "the killed attempt, and the next one"
    assert "cutover" not in run.log("mirror")
    document = next(body for key, body in run.objects().items() if key.endswith("results/promotion.json"))
    assert {item.source_end_offset - item.mirrored_until for item in Promotion.parse(document).partitions} == {0}
