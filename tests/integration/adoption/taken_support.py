"""What tests of taken-over mirrors share: topics, the command line, and what has to be true at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml
from confluent_kafka import KafkaException, Producer
from nacl.signing import SigningKey

from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets, positions
from harness.compare import Record, bounds, read_records, record_digest
from harness.load import Kind, TopicLoad
from harness.processes import wait_for

_KEY = SigningKey(bytes(range(32)))
_SECONDS = 400
#: How far the groups of a test have read, as fractions of each partition.
FRACTIONS = (0.05, 0.5, 0.9, 1.0)


@dataclass
class Taken:
    """A mirror that is taken over."""

    source: KafkaCluster
    target: KafkaCluster
    topics: list[TopicLoad]
    spec: Path
    #: source topic -> target topic
    names: Mapping[str, str]

    @property
    def groups(self) -> dict[str, float]:
        """How far each group has read."""
        prefix = self.topics[0].name.removesuffix("orders")
        return {f"{prefix}readers-{int(fraction * 100)}": fraction for fraction in FRACTIONS}

    @property
    def filled(self) -> int:
        """How many partitions have records: one of the topics has an empty one."""
        return sum(topic.partitions for topic in self.topics) - 1 + len(self.names) - len(self.topics)

    def commit_groups(self) -> None:
        """Let all groups commit on the source."""
        for group, fraction in self.groups.items():
            at = positions(self.source.client_config(), self.names, fraction)
            commit_offsets(self.source.client_config(), group, at)

    def command(self, *arguments: str | Path, status: int) -> dict[str, Any]:
        """``kafka-migration``: its JSON answer; the exit status must be this one."""
        environment = {
            "TAKEN_SOURCE": json.dumps(self.source.client_config()),
            "TAKEN_TARGET": json.dumps(self.target.client_config()),
            "TAKEN_KEY": _KEY.encode().hex(),
        }
        program = str(Path(sys.executable).with_name("kafka-migration"))
        process = subprocess.run(
            [program, *map(str, arguments), "--json"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert process.returncode == status, process.stdout + process.stderr
        found: dict[str, Any] = json.loads(process.stdout)
        return found

    def adopted(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The adopted starts of the plan by (source topic, partition)."""
        plan = json.loads(next((self.spec.parent / "journal").rglob("plan.json")).read_text(encoding="utf-8"))
        return {
            (topic["name"], item["partition"]): item["adopted"]
            for topic in plan["topics"]
            for item in topic["partitions"]
            if item.get("adopted")
        }


def loads(prefix: str) -> list[TopicLoad]:
    return [
        TopicLoad(f"{prefix}orders", Kind.PLAIN, 3, 1_500, 120, "lz4"),
        TopicLoad(f"{prefix}payments", Kind.TRANSACTIONAL, 2, 1_000, 120, "none"),
        TopicLoad(f"{prefix}balances", Kind.COMPACTED, 2, 800, 120, "zstd"),
        TopicLoad(f"{prefix}alerts", Kind.EMPTY_PARTITION, 2, 200, 120, "none"),
    ]


def write_identical(cluster: KafkaCluster, topic: str, count: int, timestamp_ms: int) -> None:
    """Records that content cannot tell apart."""
    producer = Producer({"log_level": 2, "linger.ms": 5, **cluster.client_config()})
    for _ in range(count):
        producer.produce(topic, b"beat", b"same", 0, timestamp=timestamp_ms)
    assert producer.flush(120) == 0


def copied(taken: Taken, topic: str) -> int:
    """Records on the target; 0 while the topic does not exist."""
    if taken.names[topic] not in taken.target.admin().list_topics(timeout=60).topics:
        return 0
    try:
        found = bounds(taken.target.client_config(), [taken.names[topic]])
    except KafkaException:  # it is being created
        return 0
    return sum(content.end for content in found[taken.names[topic]].values())


class Mirror(Protocol):
    """A mirror that can be killed."""

    def start(self) -> None:
        """Begin a life."""

    def check_running(self) -> None:
        """Fail if it has ended."""

    def kill(self) -> None:
        """End it with SIGKILL."""


def live_and_die(taken: Taken, mirror: Mirror, topic: str, more: int, seconds: float) -> None:
    """One life: it is killed some seconds after it has copied some more records."""
    wanted = copied(taken, topic) + more
    mirror.start()

    def has_copied() -> bool:
        mirror.check_running()
        return copied(taken, topic) >= wanted

    wait_for(f"{more} records copied by the mirror", has_copied, 180, 0.2)
    time.sleep(seconds)
    mirror.kill()


def write_spec(folder: Path, prefix: str, adopt: dict[str, Any], target_prefix: str) -> Path:
    pattern = prefix.replace(".", r"\.") + ".*"
    content = {
        "migration_id": prefix.strip(".").lower().replace("_", "-")[:60],
        "source": {"conn_id": "env:TAKEN_SOURCE"},
        "target": {"conn_id": "env:TAKEN_TARGET"},
        "storage": {"journal": f"file://{folder}/journal", "evidence": f"file://{folder}/evidence"},
        "topics": {"include": [pattern], "rename": {"prefix": target_prefix}},
        "groups": {"include": [pattern]},
        "offsets": {"mode": "auto"},
        "tail": {"drain_stable_window": "2s", "slice_seconds": 2},
        "cutover": {"freeze": "manual", "freeze_stable_window": "1s", "max_producer_freeze": "5m"},
        "evidence": {"signing_key": "env:TAKEN_KEY"},
        "adopt": adopt,
    }
    path = folder / "migration.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def check_taken_over(taken: Taken, asked: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Approve the cutover that waits, and check contents and groups; return the adopted starts."""
    assert asked["state"] == "drain_ready"
    adopted = taken.adopted()
    assert len(adopted) >= taken.filled, adopted.keys()
    for key, start in sorted(adopted.items()):
        print(key, {name: start[name] for name in ("source_offset", "target_offset", "proof", "compared_records")})
        print("   ", start["earlier"], start["note"])
    assert all(start["earlier"]["missing"] == 0 for start in adopted.values())
    switch = taken.command("resume", taken.spec, "--approve", asked["waiting"]["code"], status=10)
    assert switch["state"] == "awaiting_client_switch"
    check_contents(taken, adopted)
    check_groups(taken)
    done = taken.command("resume", taken.spec, "--approve", switch["waiting"]["code"], status=0)
    assert done["state"] == "finalized"
    return adopted


def check_contents(taken: Taken, adopted: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
    """From the boundary on both logs are equal, record by record; below it, nothing is missing."""
    compacted = {topic.name for topic in taken.topics if topic.kind is Kind.COMPACTED}
    compared = 0
    for name, target_name in taken.names.items():
        sources = read_records(taken.source.client_config(), name)
        targets = read_records(taken.target.client_config(), target_name)
        for number, records in sources.items():
            start = adopted.get((name, number), {"source_offset": 0, "target_offset": 0})
            behind = [record for record in records if record.offset >= start["source_offset"]]
            ours = [record for record in targets[number] if record.offset >= start["target_offset"]]
            assert _plain(behind) == _plain(ours), f"{name}-{number} behind the boundary"
            compared += len(behind)
            shift = start["source_offset"] - start["target_offset"]
            assert [record.offset - shift for record in behind] == [record.offset for record in ours]
            if name not in compacted:
                assert not Counter(_plain(records)) - Counter(_plain(targets[number])), f"{name}-{number} lacks records"
    assert compared > 100


def check_groups(taken: Taken) -> None:
    """Each group goes on at the record that it had not read, and reads all that follow."""
    compacted = {topic.name for topic in taken.topics if topic.kind is Kind.COMPACTED}
    contents = {
        name: (
            read_records(taken.source.client_config(), name),
            read_records(taken.target.client_config(), target),
        )
        for name, target in taken.names.items()
    }
    checked = 0
    for group in taken.groups:
        before = committed_offsets(taken.source.client_config(), group, taken.names)
        after = committed_offsets(taken.target.client_config(), group, taken.names.values())
        for (name, number), offset in before.items():
            sources, targets = contents[name]
            wanted = _plain([record for record in sources[number] if record.offset >= offset])
            place = after[taken.names[name], number]
            reads = _plain([record for record in targets[number] if record.offset >= place])
            assert not Counter(wanted) - Counter(reads), f"{group} skips records of {name}-{number}"
            if name not in compacted and wanted:
                assert reads[:1] == wanted[:1], f"{group} on {name}-{number}"
            checked += 1
    assert checked >= len(taken.groups) * taken.filled


def _plain(records: list[Record]) -> list[bytes]:
    return [record_digest(record) for record in records]
