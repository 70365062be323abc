"""Journal and evidence count what all runs of seed and tail have copied, not what the last one did."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from cutover_support import Lab

from airflow_provider_kafka_migration.errors import CopyFailed
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.phases import seed
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from harness import compare
from harness.brokers import KafkaCluster
from harness.processes import wait_for

pytestmark = pytest.mark.integration

RECORDS = 3_000


def test_killed_seed_and_tail_are_counted_in_full(
    make_lab: Callable[..., Lab], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("totals")
    _fill(source_cluster, topic)
    slow = {"max_bytes_per_second": 20_000, "segment_max_bytes": 8_192}
    lab = make_lab(
        [topic],
        seed={"via": "s3", "slice_seconds": 60, "lanes": 2, **slow},
        # Nothing is merged in that time: what is shown meanwhile is what the copiers tell.
        tail={"slice_seconds": 300},
    )
    context = _interrupted_seed(lab, topic)
    lab.spec = lab.spec.model_copy(update={"seed": lab.spec.seed.model_copy(update={"max_bytes_per_second": None})})
    again = lab.context()
    seed.run(again)
    done = again.journal.find_step("seed_done")
    assert done is not None
    assert done.details["records"] == RECORDS
    assert f"seed complete: {RECORDS} records" in done.details["summary"]
    seeded = json.loads(again.evidence_store.get(again.key("offset-map.json")) or b"{}")
    assert (seeded["complete"], len(seeded["partitions"])) == (False, 2), "the map is there from the seed's end on"
    again.journal.transition(State.TAIL, "lab")

    _tail_in_two_runs(lab, topic)
    lab.enter_cutover(again)
    lab.advance(again)
    bundle = _bundle(context)
    assert (bundle["seed"]["records"], bundle["seed"]["figures_of"]) == (RECORDS, "all runs")
    sentinels = 2
    assert (bundle["tail"]["records"], bundle["tail"]["figures_of"]) == (70 + sentinels, "all runs")
    assert bundle["tail"]["runs"] == 2
    finished = json.loads(again.evidence_store.get(again.key("offset-map.json")) or b"{}")
    assert (finished["complete"], finished["partitions"][1]["source_end_offset"]) == (True, RECORDS // 2 + 1)
    found = compare.read_records(lab.target_cluster.client_config(), topic)
    assert sum(len(records) for records in found.values()) == RECORDS + 70 + sentinels


def _fill(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, 2)
    producer = Producer({**cluster.client_config(), "linger.ms": 5, "batch.size": 4_000})
    for number in range(RECORDS):
        producer.produce(topic, b"%0200d" % number, b"key", number % 2)
    assert producer.flush(60) == 0


def _interrupted_seed(lab: Lab, topic: str) -> PhaseContext:
    """The first run ends in the middle, and what it has counted is lost, as if it had been killed."""
    opened = lab.context()

    def stop_in_the_middle() -> None:
        keys = [(topic, 0), (topic, 1)]

        def some() -> bool:
            facts = opened.target.admin.describe_topics([topic])
            return topic in facts and sum(opened.target.wire.list_offsets(keys, "log_end").values()) > 300

        wait_for("a part of the copy", some, 120)
        lab.runner.stopping.set()

    watcher = threading.Thread(target=stop_in_the_middle, daemon=True)
    watcher.start()
    with pytest.raises(CopyFailed, match="have not reached their stop offsets"):
        lab.begin()
    watcher.join(60)
    lab.runner.stopping.clear()
    opened.journal_store.put(opened.key("progress/seed.json"), b"")
    return opened


def _tail_in_two_runs(lab: Lab, topic: str) -> None:
    look = lab.context()

    def produce(count: int, end: int) -> None:
        producer = Producer(lab.source_cluster.client_config())
        for number in range(count):
            producer.produce(topic, b"late-%d" % number, b"key", 0)
        assert producer.flush(60) == 0
        wait_for("the copy", lambda: look.target.wire.list_offsets([(topic, 0)], "log_end")[topic, 0] == end, 120)

    def shown() -> str:
        progress = copy_jobs.read_progress(look.record, "tail")
        return "" if progress is None else progress.message

    lab.start_tail()
    produce(40, RECORDS // 2 + 40)
    wait_for("the progress of a slice under way", lambda: "40 records" in shown(), 120)
    lab.kill_tail()
    lab.start_tail()
    produce(30, RECORDS // 2 + 70)


def _bundle(context: PhaseContext) -> dict[str, Any]:
    envelope = json.loads(context.evidence_store.get(context.key("evidence.json")) or b"")
    bundle: dict[str, Any] = json.loads(envelope["bundle_json"])
    return bundle
