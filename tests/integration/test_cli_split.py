"""``backup`` and ``restore`` on the command line: neither process is given the other one's cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource

from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets, positions
from harness.compare import compare
from harness.load import load, tiny_topics
from harness.processes import wait_for
from tests.integration.copy.test_copy_kills import writing
from tests.integration.test_cli_migration import Command

pytestmark = pytest.mark.integration

Process = subprocess.Popen[str]


@dataclass
class Halves:
    """A spec and the two commands, each with the connection of its own side alone."""

    spec: Path
    backup: Command
    restore: Command
    topics: list[str]
    group: str
    offsets: dict[Any, int]

    started: list[Process] = field(default_factory=list)

    def follow(self, name: str) -> Process:
        """``backup --follow`` or ``restore --follow`` in the background; killed at the latest when the test ends."""
        command = {"backup": self.backup, "restore": self.restore}[name]
        self.started.append(command.start(name, self.spec, "--follow", "--json"))
        return self.started[-1]

    def end(self) -> None:
        """Kill what still runs, and say what it had to say: a failed test shows it."""
        for process in self.started:
            if process.returncode is None:
                process.kill()
                out, err = process.communicate(timeout=240)
                print(f"{process.args} still ran, and had said:\n{out}{err}")


def answered(process: Process, *, seconds: float = 120) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON answer."""
    out, err = process.communicate(timeout=seconds)
    assert out, err
    answer: dict[str, Any] = json.loads(out)
    return process.returncode, answer


@pytest.fixture
def halves(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> Iterator[Halves]:
    """All kinds of topics, an empty one, one that is written to later, and a group."""
    prefix = f"{unique_name('half')}."
    topics = tiny_topics(prefix)
    load(source_cluster, topics, seed=41)
    for name in ("empty", "live"):
        source_cluster.create_topic(
            prefix + name, 2, config={"retention.ms": "7200000000", "segment.bytes": "10485760"}
        )
    group = f"{prefix}readers"
    offsets = positions(
        source_cluster.client_config(), [f"{prefix}orders", f"{prefix}payments", f"{prefix}clicks"], 0.5
    )
    commit_offsets(source_cluster.client_config(), group, offsets)
    pattern = prefix.replace(".", r"\.") + ".*"
    content = {
        "migration_id": prefix.strip(".").lower().replace("_", "-"),
        "source": {"conn_id": "env:HALF_SOURCE"},
        "target": {"conn_id": "env:HALF_TARGET"},
        "storage": {"journal": f"file://{tmp_path}/store", "evidence": f"file://{tmp_path}/store"},
        "topics": {"include": [pattern]},
        "groups": {"include": [pattern]},
        "seed": {"segment_max_bytes": "64KiB"},
        "tail": {"slice_seconds": 4, "segment_linger": "200ms"},
    }
    spec = tmp_path / "migration.yaml"
    spec.write_text(yaml.safe_dump(content), encoding="utf-8")
    names = [*(topic.name for topic in topics), f"{prefix}empty", f"{prefix}live"]
    made = Halves(
        spec,
        Command({"HALF_SOURCE": json.dumps(source_cluster.client_config())}),
        Command({"HALF_TARGET": json.dumps(target_cluster.client_config())}),
        names,
        group,
        offsets,
    )
    yield made
    made.end()


def end_of(cluster: KafkaCluster, topic: str) -> int:
    """Sum of a topic's end offsets; 0 if it is not there. Leaders of a new topic may still be on their way."""
    consumer = Consumer({**cluster.client_config(), "group.id": "looks"})

    def ends() -> list[int] | None:
        found = consumer.list_topics(timeout=60).topics.get(topic)
        numbers = [] if found is None else list(found.partitions)
        try:
            places = [consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10) for number in numbers]
        except KafkaException:
            return None
        return [0, *(end for _, end in places)]

    try:
        return sum(wait_for("end offsets", ends, 20))
    finally:
        consumer.close()


def check_equal(halves: Halves, source: KafkaCluster, target: KafkaCluster) -> None:
    compare(source.client_config(), target.client_config(), halves.topics).check()
    read = sorted({topic for topic, _ in halves.offsets})
    assert committed_offsets(target.client_config(), halves.group, read) == committed_offsets(
        source.client_config(), halves.group, read
    )
    live = halves.topics[-1]
    resource = ConfigResource(ConfigResource.Type.TOPIC, live)
    admin = target.admin()
    configs = admin.describe_configs([resource])[resource].result()
    assert (configs["retention.ms"].value, configs["segment.bytes"].value) == ("7200000000", "10485760")


def test_backup_then_restore(halves: Halves, source_cluster: KafkaCluster, target_cluster: KafkaCluster) -> None:
    early = halves.restore("restore", halves.spec, status=3)
    assert "there is no backup" in early["error"]["what"]
    done = halves.backup("backup", halves.spec, status=0)["details"]
    assert done["source_bytes"] > 0
    again = halves.backup("backup", halves.spec, status=0)["details"]
    assert (again["records"], again["manifest_digest"]) == (0, done["manifest_digest"])
    restored = halves.restore("restore", halves.spec, status=0)["details"]
    assert restored["complete"] is True
    assert restored["compared_records"] > 1000
    check_equal(halves, source_cluster, target_cluster)
    # Later records: a second backup and a second restore take only what is new.
    with writing(source_cluster, halves.topics[-1], 5):
        time.sleep(0.5)
    more = halves.backup("backup", halves.spec, status=0)["details"]
    assert 0 < more["source_bytes"] < done["source_bytes"]
    halves.restore("restore", halves.spec, status=0)
    check_equal(halves, source_cluster, target_cluster)


@pytest.mark.soak
def test_both_sides_end_soon_on_sigterm_and_go_on(
    halves: Halves, source_cluster: KafkaCluster, target_cluster: KafkaCluster
) -> None:
    """In the middle of a slice, with records under way."""
    live = halves.topics[-1]
    content = yaml.safe_load(halves.spec.read_text(encoding="utf-8"))
    # Longer than the wait for the answer: a process that waited for its slice would miss it.
    content["tail"]["slice_seconds"] = 600
    halves.spec.write_text(yaml.safe_dump(content), encoding="utf-8")
    with writing(source_cluster, live, 8):
        backup = halves.follow("backup")
        wait_for("the first segments", lambda: any(halves.spec.parent.rglob("*.log")), 240)
        restore = halves.follow("restore")
        wait_for("the target to follow", lambda: end_of(target_cluster, live) > 0, 240)
        for process, number, expected in ((backup, signal.SIGTERM, 143), (restore, signal.SIGINT, 130)):
            process.send_signal(number)
            status, answer = answered(process, seconds=240)
            assert (status, answer["ok"], answer["error"]["code"]) == (expected, False, "INTERRUPTED")
    assert halves.backup("backup", halves.spec, "--finish", status=0)["details"]["source_bytes"] > 0
    assert halves.restore("restore", halves.spec, status=0)["details"]["complete"] is True
    check_equal(halves, source_cluster, target_cluster)


@pytest.mark.soak
def test_the_end_of_a_backup_is_not_that_of_the_next_one(
    halves: Halves, source_cluster: KafkaCluster, target_cluster: KafkaCluster
) -> None:
    """Continuous backups that are told their end at once."""
    for turn in range(2):
        with writing(source_cluster, halves.topics[-1], 7 + turn):
            time.sleep(0.3)
        assert halves.backup("backup", halves.spec, "--finish", status=0)["details"]["source_bytes"] > 0
        assert halves.restore("restore", halves.spec, "--follow", status=0)["details"]["complete"] is True
    check_equal(halves, source_cluster, target_cluster)


@pytest.mark.soak
def test_both_follow_are_killed_and_end_together(
    halves: Halves, source_cluster: KafkaCluster, target_cluster: KafkaCluster
) -> None:
    live = halves.topics[-1]

    def target_end() -> int:
        return end_of(target_cluster, live)

    with writing(source_cluster, live, 6):
        for _ in range(2):
            backup = halves.follow("backup")
            wait_for("the first segments", lambda: any(halves.spec.parent.rglob("*.log")), 120)
            restore = halves.follow("restore")
            before = target_end()
            wait_for("the target to follow", lambda before=before: target_end() > before, 120)
            for process in (backup, restore):
                process.send_signal(signal.SIGKILL)
                process.communicate()
        backup, restore = halves.follow("backup"), halves.follow("restore")
        before = target_end()
        wait_for("the target to follow", lambda: target_end() > before, 120)
    halves.backup("backup", halves.spec, "--finish", status=0)
    for process in (backup, restore):
        status, answer = answered(process)
        assert status == 0, answer
    # The restore may have ended before the last backup said that it is complete: once more is always right.
    assert halves.restore("restore", halves.spec, status=0)["details"]["complete"] is True
    check_equal(halves, source_cluster, target_cluster)
