"""Consumer groups through MirrorMaker 2 and through us, on the same brokers and data: what is read again or skipped.

``python -m benchmarks.groups [--quick]``: a table, and ``build/bench-groups/summary.json`` with
``rows[{fixture, group, tool, reread, skipped}]``. Every group stands somewhere in a topic; then its consumer
starts on the target. ``reread`` are records that the group had read on the source and gets again, ``skipped`` those
that it had not read and never gets. A group without an offset on the target starts at the beginning (``earliest``).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks import clusters
from benchmarks.peers.base import ROOT, Task
from benchmarks.peers.mirror_maker import MirrorMaker
from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets
from harness.compare import Record, bounds, read_records
from harness.load import Kind, TopicLoad, load

RESULT = ROOT / "build" / "bench-groups" / "summary.json"
_SENTINEL = b"__kbe_sentinel__"
_ONE_MILLISECOND = "one_millisecond"
_FRACTIONS = {"start": 0.0, "tenth": 0.1, "half": 0.5, "most": 0.9, "end": 1.0}
_SETTLE_SECONDS = 10.0
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Row:
    """What one group meets on the target in one fixture."""

    fixture: str
    group: str
    tool: str
    reread: int
    skipped: int


class GroupMirror(MirrorMaker):
    """MirrorMaker 2 that copies all fixtures and syncs their groups.

    :param exact: ``offset.lag.max=0``, its most precise setting; else as it comes.
    """

    def __init__(self, name: str, *, exact: bool) -> None:
        super().__init__()
        self.name = self.title = name
        self._exact = exact

    def properties(self, task: Task) -> dict[str, str]:
        flow = f"{self.name}->target"
        return {
            **super().properties(task),
            f"{flow}.groups": ".*",
            f"{flow}.groups.exclude": "console-consumer-.*",
            f"{flow}.emit.checkpoints.enabled": "true",
            f"{flow}.sync.group.offsets.enabled": "true",
            f"{flow}.emit.checkpoints.interval.seconds": "1",
            f"{flow}.sync.group.offsets.interval.seconds": "1",
            f"{flow}.refresh.groups.interval.seconds": "2",
            **({f"{flow}.offset.lag.max": "0"} if self._exact else {}),
        }


# -- the source ------------------------------------------------------------------------------------------------------


def fill(source: KafkaCluster, records: int) -> dict[str, str]:
    """Fixtures on the source: fixture -> topic."""
    kinds = {
        "plain": Kind.PLAIN,
        "compacted": Kind.COMPACTED,
        "transactional": Kind.TRANSACTIONAL,
        "truncated": Kind.HEAD_DELETED,
        "empty_partition": Kind.EMPTY_PARTITION,
        "log_append_time": Kind.LOG_APPEND_TIME,
    }
    load(source, [TopicLoad(f"f.{name}", kind, 2, records, 100) for name, kind in kinds.items()])
    topics = {name: f"f.{name}" for name in kinds}
    topics[_ONE_MILLISECOND] = f"f.{_ONE_MILLISECOND}"
    # Records of long ago: retention would leave an empty fixture, in which every tool is perfect.
    source.create_topics({topics[_ONE_MILLISECOND]: (1, {"retention.ms": "-1"})})
    producer = Producer(source.client_config())
    for number in range(1000):
        producer.produce(topics[_ONE_MILLISECOND], b"%d" % number, partition=0, timestamp=1_700_000_000_000)
    producer.flush(30)
    return topics


def place_groups(source: KafkaCluster, topics: Mapping[str, str]) -> list[str]:
    """Groups at several places of every topic; one commits to half of the partitions only."""
    config = source.client_config()
    found = bounds(config, topics.values())
    for name, fraction in _FRACTIONS.items():
        offsets = {
            (topic, number): content.log_start + int((content.end - content.log_start) * fraction)
            for topic, numbers in found.items()
            for number, content in numbers.items()
        }
        commit_offsets(config, f"g.{name}", offsets)
    return [f"g.{name}" for name in _FRACTIONS]


# -- counting --------------------------------------------------------------------------------------------------------


def _identity(record: Record) -> tuple[Any, ...]:
    return (record.key, record.value, record.headers)


def count(
    source: KafkaCluster, target: KafkaCluster, topics: Mapping[str, str], groups: Sequence[str], prefix: str, tool: str
) -> list[Row]:
    """One row per fixture and group."""
    rows = []
    for fixture, topic in topics.items():
        before = read_records(source.client_config(), topic)
        after = read_records(target.client_config(), f"{prefix}{topic}")
        for group in groups:
            had = committed_offsets(source.client_config(), group, [topic])
            if not had or not any(before.values()):
                raise SystemExit(f"{fixture}, {group}: no records or no commits, so nothing would be measured")
            has = committed_offsets(target.client_config(), group, [f"{prefix}{topic}"])
            reread = skipped = 0
            for (_, number), offset in had.items():
                records = [item for item in before.get(number, []) if item.key != _SENTINEL]
                read = Counter(_identity(item) for item in records if item.offset < offset)
                unread = Counter(_identity(item) for item in records if item.offset >= offset)
                first = has.get((f"{prefix}{topic}", number), 0)
                gets = Counter(
                    _identity(item) for item in after.get(number, []) if item.offset >= first and item.key != _SENTINEL
                )
                reread += (gets & read).total()
                skipped += (unread - gets).total()
            rows.append(Row(fixture, group, tool, reread, skipped))
    return rows


# -- the tools -------------------------------------------------------------------------------------------------------


def mirror(
    source: KafkaCluster,
    target: KafkaCluster,
    topics: Mapping[str, str],
    groups: Sequence[str],
    folder: Path,
    *,
    exact: bool,
) -> list[Row]:
    """Through MirrorMaker 2, until the groups' offsets on the target have stood still for some seconds."""
    tool = "mm2_lag_max_0" if exact else "mm2"
    partitions = {topic: len(numbers) for topic, numbers in bounds(source.client_config(), topics.values()).items()}
    target.create_topics({f"{tool}.{topic}": (number, {}) for topic, number in partitions.items()})
    peer = GroupMirror(tool, exact=exact)
    task = Task(source.bootstrap, target.bootstrap, "f[.].*", "", 2, folder / tool, read_committed=True, linger_ms=5)
    wanted = {topic: _size(source, topic) for topic in topics.values()}
    peer.start(task)
    try:
        deadline, state, since = time.monotonic() + _PATIENCE_SECONDS, None, time.monotonic()
        while time.monotonic() < deadline:
            peer.measure()
            complete = all(_size(target, f"{tool}.{topic}") >= size for topic, size in wanted.items())
            names = [f"{tool}.{topic}" for topic in topics.values()]
            now = {group: committed_offsets(target.client_config(), group, names) for group in groups}
            if now != state or not complete:
                state, since = now, time.monotonic()
            if time.monotonic() - since > _SETTLE_SECONDS and any(now.values()):
                break
            time.sleep(1)
    finally:
        peer.stop()
    return count(source, target, topics, groups, f"{tool}.", tool)


def _size(cluster: KafkaCluster, topic: str) -> int:
    """Records that a reader sees."""
    return sum(len(records) for records in read_records(cluster.client_config(), topic).values())


def ours(
    source: KafkaCluster,
    target: KafkaCluster,
    topics: Mapping[str, str],
    groups: Sequence[str],
    folder: Path,
    *,
    mode: str,
) -> list[Row]:
    """Through a whole migration by the command line, up to the client switch."""
    tool = f"ours_{mode}"
    prefix = f"{tool}."
    folder = folder / tool
    folder.mkdir(parents=True)
    spec = folder / "migration.yaml"
    content = {
        "migration_id": tool.replace("_", "-"),
        "source": {"conn_id": "env:BENCH_SOURCE"},
        "target": {"conn_id": "env:BENCH_TARGET"},
        "storage": {"journal": (folder / "store").as_uri()},
        "topics": {"include": [r"f\..*"], "rename": {"prefix": prefix}},
        "groups": {"include": [r"g\..*"]},
        "acls": {"policy": "skip", "quotas": "skip"},
        "offsets": {"mode": mode},
        "tail": {"drain_stable_window": "2s"},
        "cutover": {"freeze": "manual", "freeze_stable_window": "1s", "max_producer_freeze": "5m"},
        "evidence": {"signing_key": "env:BENCH_KEY"},
    }
    spec.write_text(yaml.safe_dump(content), encoding="utf-8")
    environment = {
        "BENCH_SOURCE": json.dumps(source.client_config()),
        "BENCH_TARGET": json.dumps(target.client_config()),
        "BENCH_KEY": bytes(range(32)).hex(),
    }
    asked = _command(environment, 10, "run", str(spec))
    code = asked["waiting"]["code"]
    switch = _command(environment, 10, "resume", str(spec), "--approve", code)
    assert switch["state"] == "awaiting_client_switch", switch
    return count(source, target, topics, groups, prefix, tool)


def _command(environment: Mapping[str, str], status: int, *words: str) -> dict[str, Any]:
    program = Path(sys.executable).with_name("kafka-migration")
    done = subprocess.run(
        [str(program), *words, "--json"], env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )
    if done.returncode != status:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


# -- all of it -------------------------------------------------------------------------------------------------------


def show(rows: Sequence[Row]) -> None:
    """The rows as a table."""
    table = Table("fixture", "group", "tool", "read again", "skipped")
    for row in rows:
        style = "" if not row.reread and not row.skipped else "yellow" if not row.skipped else "red"
        table.add_row(row.fixture, row.group, row.tool, str(row.reread), str(row.skipped), style=style)
    Console().print(table)


def main() -> int:
    """Exit status 1 if one of our rows is not 0 and 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records, and MirrorMaker 2 once")
    parser.add_argument("--only", default=".*", help="regular expression of tools to run")
    options = parser.parse_args()
    folder = ROOT / "build" / "bench-groups" / "work"
    shutil.rmtree(folder, ignore_errors=True)
    rows: list[Row] = []
    with clusters.source(folder) as source, clusters.target(folder) as target:
        topics = fill(source, 600 if options.quick else 20_000)
        groups = place_groups(source, topics)
        tools: dict[str, Any] = {
            "mm2": lambda: mirror(source, target, topics, groups, folder, exact=False),
            "mm2_lag_max_0": lambda: mirror(source, target, topics, groups, folder, exact=True),
            "ours_auto": lambda: ours(source, target, topics, groups, folder, mode="auto"),
            "ours_mapped": lambda: ours(source, target, topics, groups, folder, mode="mapped"),
        }
        if options.quick:
            del tools["mm2_lag_max_0"]
        for name, run in tools.items():
            if re.fullmatch(options.only, name):
                rows += run()
    RESULT.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    show(rows)
    return int(any(row.reread or row.skipped for row in rows if row.tool.startswith("ours")))


if __name__ == "__main__":
    sys.exit(main())
