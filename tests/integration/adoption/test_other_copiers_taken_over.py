"""Copies of anything else: a consumer group that has committed, or contents alone. Only plans are made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from harness.brokers import KafkaCluster
from harness.clients import commit_offsets
from harness.compare import Record, read_records
from harness.load import Kind, TopicLoad, load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@dataclass
class Copied:
    """A topic that a simple copier has copied in part."""

    source: KafkaCluster
    target: KafkaCluster
    topic: str
    folder: Path

    def plan(self, **adopt: Any) -> dict[str, Any]:
        """Plan with a section ``adopt``: the only partition of the plan."""
        spec = {
            "migration_id": self.topic.replace(".", "-").lower()[:60],
            "source": {"conn_id": "env:COPIED_SOURCE"},
            "target": {"conn_id": "env:COPIED_TARGET"},
            "storage": {"journal": f"file://{self.folder}/journal", "evidence": f"file://{self.folder}/evidence"},
            "topics": {"include": [self.topic.replace(".", r"\.")]},
            "groups": {"include": [self.topic.replace(".", r"\.") + ".*"]},
            "offsets": {"mode": "auto"},
            "cutover": {"freeze": "manual"},
            "evidence": {"signing_key": "env:COPIED_KEY"},
            "adopt": {"stable_window": "1s", **adopt},
        }
        path = self.folder / "migration.yaml"
        path.write_text(yaml.safe_dump(spec), encoding="utf-8")
        environment = {
            "COPIED_SOURCE": json.dumps(self.source.client_config()),
            "COPIED_TARGET": json.dumps(self.target.client_config()),
            "COPIED_KEY": "00" * 32,
        }
        program = str(Path(sys.executable).with_name("kafka-migration"))
        process = subprocess.run(
            [program, "plan", str(path), "--json"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        found: dict[str, Any] = json.loads(process.stdout)["plan"]
        return found

    def start(self, **adopt: Any) -> dict[str, Any]:
        """The adopted start of the partition."""
        plan = self.plan(**adopt)
        assert plan["adoption"]["refused"] == 0
        start: dict[str, Any] = plan["topics"][0]["partitions"][0]["adopted"]
        return start

    def is_refused(self, **adopt: Any) -> bool:
        """Whether the partition is refused."""
        plan = self.plan(**adopt)
        assert plan["topics"][0]["partitions"][0].get("adopted") is None
        return bool(plan["adoption"]["refused"] == 1)


def _write(cluster: KafkaCluster, topic: str, records: list[Record]) -> None:
    producer = Producer({"log_level": 2, "linger.ms": 5, **cluster.client_config()})
    for record in records:
        headers = list(record.headers)
        producer.produce(topic, record.value, record.key, 0, timestamp=record.timestamp, headers=headers)
    assert producer.flush(120) == 0


@pytest.fixture
def copied(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> Copied:
    """A source with transactions, some aborted, and an empty target topic."""
    topic = unique_name("copied")
    load(source_cluster, [TopicLoad(topic, Kind.TRANSACTIONAL, 1, 1_500, 80)])
    target_cluster.create_topics({topic: (1, {})})
    return Copied(source_cluster, target_cluster, topic, tmp_path)


def test_a_group_that_has_committed_and_contents_alone_give_the_same_start(copied: Copied) -> None:
    records = read_records(copied.source.client_config(), copied.topic)[0]
    group = f"{copied.topic}.copier"
    _write(copied.target, copied.topic, records[:700])
    commit_offsets(copied.source.client_config(), group, {(copied.topic, 0): records[500].offset})

    by_group = copied.start(**{"from": "redpanda_migrator", "redpanda_migrator": {"group": group}})
    assert (by_group["source_offset"], by_group["target_offset"]) == (records[699].offset + 1, 700)
    assert by_group["proof"] == "content"
    by_content = copied.start(**{"from": "comparison", "compare": "all"})
    assert by_content["source_offset"] == by_group["source_offset"]
    assert by_content["compared_records"] == 700
    assert by_content["earlier"] == {"duplicates": 0, "missing": 0, "aborted_records": 0}

    # A second life from the committed offset on.
    _write(copied.target, copied.topic, records[500:900])
    again = {"from": "redpanda_migrator", "redpanda_migrator": {"group": group}, "compare": "all"}
    assert copied.is_refused(**again), "twice is refused unless the spec says otherwise"
    assert copied.is_refused(**again, on_duplicates="stop")
    twice = copied.start(**again, on_duplicates="note")
    assert (twice["source_offset"], twice["target_offset"]) == (records[899].offset + 1, 1_100)
    assert twice["earlier"] == {"duplicates": 200, "missing": 0, "aborted_records": 0}


@pytest.mark.soak
def test_a_target_that_others_write_to_is_refused(copied: Copied) -> None:
    records = read_records(copied.source.client_config(), copied.topic)[0]
    _write(copied.target, copied.topic, records[:300])
    assert copied.start(**{"from": "comparison"})["source_offset"] == records[299].offset + 1
    stopped = threading.Event()

    def write_on() -> None:
        for record in records[300:]:
            if stopped.wait(0.05):
                return
            _write(copied.target, copied.topic, [record])

    writer = threading.Thread(target=write_on, daemon=True)
    writer.start()
    time.sleep(0.2)
    try:
        assert copied.is_refused(**{"from": "comparison"}), "its log end moves"
    finally:
        stopped.set()
        writer.join(30)
    assert copied.start(**{"from": "comparison"})["source_offset"] > records[299].offset + 1
    _write(copied.target, copied.topic, [Record(-1, 1, b"k", b"of others")])
    assert copied.is_refused(**{"from": "comparison"})
