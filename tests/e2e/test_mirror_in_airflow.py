"""A mirror through its DAG, in a real Airflow, on real brokers, with Spark: killed, paused, resumed and promoted.

Promotions stop the producers themselves, through a webhook.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
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
from harness.webhook import Call, FreezeWebhook
from tests.e2e.migration_lab import WAIT_SECONDS, WEBHOOK_SECRET, DagRun, Lab, Person, kill_all

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]


def _mirror_spec(
    lab: Lab, name: str, prefix: str, webhook: FreezeWebhook, *, max_producer_freeze: str = "10m"
) -> dict[str, Any]:
    return lab.spec(
        name,
        prefix,
        kind="mirror",
        mirror={"source_alias": "A", "target_alias": "B", "sync_interval": "500ms"},
        seed={"slice_seconds": 5},
        # On a busy machine a Python worker needs seconds of each slice to begin.
        tail={"slice_seconds": 10},
        topology={"refresh_interval": "1s"},
        cutover={
            "freeze": "webhook",
            "producer_freeze_webhook": lab.address_file(name, webhook.url),
            "webhook_secret": "airflow:e2e_webhook",
            "max_producer_freeze": max_producer_freeze,
        },
    )


def _person(lab: Lab, spec: Mapping[str, Any], folder: Path) -> Person:
    file = folder / "mirror.yaml"
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return Person(lab, file)


def _count(lab: Lab, topics: list[str]) -> int:
    found = bounds(lab.target.client_config(), topics)
    return sum(item.end for numbers in found.values() for item in numbers.values())


def test_a_mirror_is_killed_paused_resumed_and_promoted(lab: Lab, prefix: str, tmp_path: Path) -> None:
    """Nobody clears anything: Airflow starts the task again, and a resumed mirror goes on by itself.

    The producer writes until the promotion stops it.
    """
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
    producer = LiveProducer(source, {orders: [0, 1]}, records_per_second=100)
    with producer, FreezeWebhook(producer, secret=WEBHOOK_SECRET) as webhook:
        spec = _mirror_spec(lab, "mirrored", prefix, webhook)
        person = _person(lab, spec, tmp_path)
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

        run.wait("freeze_limit", "deferred")
        at_the_end = positions(source, [orders], 1.0)
        commit_offsets(source, group, at_the_end)
        promoted = person.asks("promote", "--reason", "moved")
        assert promoted["state"] == "promoted", promoted
        assert producer.frozen
        run.wait(None, "success")

    details = promoted["details"]
    assert details["possibly_lost"] == 0
    assert details["late_writes"] == details["not_checked"] == {}
    assert details["problems"] == []
    assert (details["freeze"]["method"], details["freeze"]["attempt"]) == ("webhook", 1)
    assert set(run.states().values()) == {"success"}
    assert run.states()["freeze_limit"] == "success"
    _check_what_airflow_shows(lab, run)
    compare(source, target, remote, fenced=True).check()
    assert producer.count() > 500
    _check_nothing_lost(lab, producer)
    assert committed_offsets(target, group, [remote[orders]]) == {
        (remote[topic], number): offset for (topic, number), offset in at_the_end.items()
    }

    before_objects = run.objects()
    run.clear("plan", downstream=True)
    run.wait(None, "success")
    assert run.objects() == before_objects, "a mirror that has ended is left alone"
    assert _shown(webhook.calls) == [("freeze", "until a deadline"), ("freeze", "for good")]


@pytest.mark.soak
def test_a_mirror_that_hangs_does_not_keep_its_producers_stopped(lab: Lab, prefix: str, tmp_path: Path) -> None:
    """``freeze_limit`` frees them while the task ``mirror`` cannot; it goes on as soon as it can, and is promoted."""
    load(lab.source, [TopicLoad(f"{prefix}orders", Kind.KEYED, 2, 1_000, 200, "lz4")])
    orders, remote = f"{prefix}orders", f"A.{prefix}orders"
    source, target = lab.source.client_config(), lab.target.client_config()
    producer = LiveProducer(source, {orders: [0, 1]}, records_per_second=100)
    with producer, FreezeWebhook(producer, secret=WEBHOOK_SECRET) as webhook:
        spec = _mirror_spec(lab, "hanging", prefix, webhook, max_producer_freeze="30s")
        person = _person(lab, spec, tmp_path)
        run = lab.trigger(spec, "kafka_mirror")
        run.spark_driver("tail")
        wait_for("the mirror follows", lambda: _count(lab, [remote]) > 1_000, WAIT_SECONDS, 0.5)
        run.wait("freeze_limit", "deferred")
        hanging = psutil.Process(lab.airflow.task(run.dag_id, run.run_id, "mirror")["pid"])

        def hang(_: Call) -> None:
            if len(webhook.calls) == 1:
                os.kill(hanging.pid, signal.SIGSTOP)

        webhook.answer = hang
        try:
            refused = person.asks("promote", "--timeout", "300")
            assert hanging.status() == psutil.STATUS_STOPPED
            # The request has no outcome in the journal, so producers are freed once more when it can no longer arrive.
            assert _asked(webhook) == ["freeze", "unfreeze", "unfreeze"]
            assert not producer.frozen
            assert refused["error"]["code"] == "REQUEST_REFUSED", refused
            assert "max_producer_freeze has passed" in refused["error"]["what"]
            assert person.asks("status")["state"] == "mirroring"
            run.wait("freeze_limit", "deferred")
            assert "freeze 1 was lifted after" in run.log("freeze_limit")
        finally:
            hanging.send_signal(signal.SIGCONT)
        # It wakes up in the middle of its request, and cannot know when the receiver gets that.
        wait_for("the request is taken back", lambda: _asked(webhook).count("unfreeze") == 3, WAIT_SECONDS, 0.5)
        assert not producer.frozen
        before = producer.count()
        wait_for("the mirror goes on", lambda: _count(lab, [remote]) > 1_000 + before, WAIT_SECONDS, 0.5)
        run.wait("mirror", "running")

        promoted = _promoted_in_time(person)
        assert producer.frozen
        run.wait(None, "success")

    assert set(run.states().values()) == {"success"}
    assert promoted["details"]["freeze"]["attempt"] >= 2
    assert promoted["details"]["problems"] == []
    assert _shown(webhook.calls)[-2:] == [("freeze", "until a deadline"), ("freeze", "for good")]
    compare(source, target, {orders: remote}, fenced=True).check()
    _check_nothing_lost(lab, producer)


def _promoted_in_time(person: Person) -> dict[str, Any]:
    """The result, of however many attempts it takes: on a busy machine the limit may pass without any fault."""

    def asked() -> dict[str, Any] | None:
        answer = person.asks("promote")
        assert "error" not in answer or "max_producer_freeze" in answer["error"]["what"], answer
        return None if "error" in answer else answer

    return wait_for("a promotion within its limit", asked, WAIT_SECONDS, 1.0)


def _asked(webhook: FreezeWebhook) -> list[str]:
    return [call.action for call in list(webhook.calls)]


def _shown(calls: list[Call]) -> list[tuple[str, str]]:
    """What the webhook was asked for, and for how long."""
    return [(call.action, "for good" if call.body["deadline"] is None else "until a deadline") for call in calls]


def _check_nothing_lost(lab: Lab, producer: LiveProducer) -> None:
    acknowledged = {(f"A.{topic}", number): found for (topic, number), found in producer.acknowledged.items()}
    assert not producer.failed
    assert lost_records(lab.target.client_config(), acknowledged) == []


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
