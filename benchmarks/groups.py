"""``python -m benchmarks.groups`` (``make bench-groups``): what consumer groups go through when they move.

The same topics and groups, first through MirrorMaker 2 (``sync.group.offsets``), then through a migration and a mirror
of this package, by the command line; in one run. Then a consumer of each group starts on the target: how many records
does it get again, how many never? Writes ``build/bench-groups/summary.json`` and a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from benchmarks.groups_fixtures import (
    FIXTURES,
    PREFIX,
    Content,
    Group,
    content_of,
    fill,
    judge,
    read_on,
    settle,
    unread,
)
from benchmarks.peers.base import ROOT, Task
from benchmarks.peers.mirror_maker import MirrorMaker
from benchmarks.run import write_json
from harness.brokers import KafkaCluster
from harness.clients import committed_offsets
from harness.processes import HarnessError, Process, start, wait_for

RESULTS = ROOT / "build" / "bench-groups"
_ALIAS = "mm2"
_MIRROR_ALIAS = "mirrored"
_TOOLS = ["mm2", "ours", "mirror"]
#: What a migration needs in addition. Without sentinel records the topics hold what their applications wrote, and
#: nothing else is counted.
_MIGRATION = {
    "cutover": {"freeze": "manual", "freeze_stable_window": "1s", "sentinel": "end_offsets"},
    "evidence": {"signing_key": "env:BENCH_KEY"},
}
_MIRROR = {
    "migration_id": "bench-mirror",
    "kind": "mirror",
    "mirror": {"source_alias": _MIRROR_ALIAS, "target_alias": "target", "sync_interval": "1s"},
}
#: After the last change of a group's offsets on the target MirrorMaker 2 has had several rounds more.
_SETTLED_SECONDS = 12.0
_MIRROR_SECONDS = 180.0
_STEP_SECONDS = 300.0

Say = Callable[[str], None]


class GroupMirror(MirrorMaker):
    """MirrorMaker 2 with everything that moves groups, as often as it can; committed records only."""

    name = _ALIAS
    title = "MirrorMaker 2"
    tasks = 2

    def properties(self, task: Task) -> dict[str, str]:
        flow = f"{self.name}->target"
        return {
            **super().properties(task),
            f"{flow}.topics": PREFIX.replace(".", r"\\.") + ".*",
            f"{flow}.groups": PREFIX.replace(".", r"\\.") + ".*",
            f"{flow}.groups.exclude": "none",
            f"{flow}.emit.checkpoints.enabled": "true",
            f"{flow}.emit.checkpoints.interval.seconds": "1",
            f"{flow}.sync.group.offsets.enabled": "true",
            f"{flow}.sync.group.offsets.interval.seconds": "1",
            f"{flow}.refresh.groups.interval.seconds": "5",
            f"{flow}.sync.topic.configs.enabled": "true",
            f"{self.name}.consumer.isolation.level": "read_committed",
        }


def mirror(source: KafkaCluster, target: KafkaCluster, groups: Sequence[Group], folder: Path, say: Say) -> None:
    """Run MirrorMaker 2 until records have arrived and the groups' offsets stand still."""
    wanted = {item.topic: _count(content_of(source, item.topic)) for item in FIXTURES}
    task = Task(source.bootstrap, target.bootstrap, PREFIX, "", 2, folder, read_committed=True)
    peer = GroupMirror()
    try:
        peer.start(task)
        wait_for("MirrorMaker 2's copy", lambda: _has_all(peer, target, wanted), _MIRROR_SECONDS, 1.0)
        say("MirrorMaker 2: all records are there; waiting for its groups to stand still")
        _wait_settled(lambda: [committed_offsets(target.client_config(), g.name, _topics(target)) for g in groups])
    finally:
        peer.stop()


def _count(content: Content) -> int:
    return sum(map(len, content.records.values()))


def _topics(target: KafkaCluster) -> set[str]:
    return {name for name in target.admin().list_topics(timeout=10).topics if name.startswith(f"{_ALIAS}.{PREFIX}")}


def _has_all(peer: GroupMirror, target: KafkaCluster, wanted: Mapping[str, int]) -> bool:
    peer.measure()  # raises when it has ended
    there = _topics(target)
    return all(
        f"{_ALIAS}.{topic}" in there and _count(content_of(target, f"{_ALIAS}.{topic}")) >= count
        for topic, count in wanted.items()
    )


def _wait_settled(look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _MIRROR_SECONDS
    last, since = look(), time.monotonic()
    while time.monotonic() - since < _SETTLED_SECONDS and time.monotonic() < deadline:
        time.sleep(1.0)
        now = look()
        if now != last:
            last, since = now, time.monotonic()


def _program() -> str:
    return str(Path(sys.executable).with_name("kafka-migration"))


class CommandLine:
    """``kafka-migration`` as people call it.

    :param sections: of the spec, instead of a migration's.
    """

    def __init__(
        self, source: KafkaCluster, target: KafkaCluster, folder: Path, sections: Mapping[str, Any] | None = None
    ) -> None:
        folder.mkdir(parents=True)
        self._spec = folder / "migration.yaml"
        pattern = PREFIX.replace(".", r"\.") + ".*"
        content = {
            "migration_id": "bench-groups",
            "source": {"conn_id": "env:BENCH_SOURCE"},
            "target": {"conn_id": "env:BENCH_TARGET"},
            "storage": {"journal": f"file://{folder}/journal", "evidence": f"file://{folder}/evidence"},
            "topics": {"include": [pattern]},
            "groups": {"include": [pattern]},
            "seed": {"via": "direct"},
            "tail": {"drain_stable_window": "2s", "slice_seconds": 5},
            **(_MIGRATION if sections is None else sections),
        }
        self._spec.write_text(yaml.safe_dump(content), encoding="utf-8")
        self._environment = {
            **os.environ,
            "BENCH_SOURCE": json.dumps(source.client_config()),
            "BENCH_TARGET": json.dumps(target.client_config()),
            "BENCH_KEY": bytes(range(32)).hex(),
        }

    def start(self, *command: str, log: Path) -> Process:
        """Start a command in the background."""
        return start(" ".join(command), [_program(), *command, str(self._spec)], log, env=self._environment)

    def __call__(self, *command: str, arguments: Sequence[str] = (), status: int) -> dict[str, Any]:
        """Its JSON answer.

        :raises HarnessError: another exit status.
        """
        done = subprocess.run(
            [_program(), *command, str(self._spec), *arguments, "--json"],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_STEP_SECONDS,
        )
        if done.returncode != status:
            text = f"kafka-migration {' '.join(command)} ended with {done.returncode}"
            raise HarnessError(f"{text}:\n{done.stdout}{done.stderr}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def migrate(source: KafkaCluster, target: KafkaCluster, folder: Path, say: Say) -> None:
    """A whole migration by the command line, both approvals answered."""
    command = CommandLine(source, target, folder)
    code = command("run", status=10)["waiting"]["code"]
    say("ours: the tail follows; the cutover is approved")
    code = command("resume", arguments=["--approve", code], status=10)["waiting"]["code"]
    command("resume", arguments=["--approve", code], status=0)


def mirror_with_ours(source: KafkaCluster, target: KafkaCluster, folder: Path, say: Say) -> None:
    """Run a mirror of this package until it has copied everything and has then brought the groups up to date."""
    command = CommandLine(source, target, folder, _MIRROR)
    running = command.start("mirror", "run", log=folder / "mirror.log")
    try:

        def status() -> Mapping[str, Any]:
            running.check_running()
            return command("mirror", "status", status=0)

        def has_all() -> bool:
            lag = status()["lag"]
            return lag is not None and not lag["total"] and not lag["partitions_unknown"]

        wait_for("the mirror's copy", has_all, _MIRROR_SECONDS, 0.5)
        say("mirror: all records are there; waiting for two rounds of its groups")
        for _ in range(2):
            before = status()["groups"]

            def newer(before: Any = before) -> bool:
                now = status()["groups"]
                return now is not None and (before is None or now["at"] > before["at"])

            wait_for("a round of the mirror's groups", newer, _MIRROR_SECONDS, 0.5)
    finally:
        running.stop()


def measure(
    source: KafkaCluster, target: KafkaCluster, groups: Iterable[Group], tool: str, prefix: str
) -> list[dict[str, Any]]:
    """A row per group: its consumer starts on the target and reads to the end."""
    contents = {item.topic: content_of(source, item.topic) for item in FIXTURES}
    rows = []
    for group in groups:
        topic = group.fixture.topic
        committed = {number: offset for (name, number), offset in group.committed.items() if name == topic}
        expected = unread(contents[topic], committed)
        reread, skipped = judge(expected, read_on(target, group.name, f"{prefix}{topic}"))
        rows.append(
            {
                "fixture": group.fixture.name,
                "group": group.name,
                "tool": tool,
                "reread": reread,
                "skipped": skipped,
                "unread": len(expected),
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a line per group, both tools side by side."""
    tools = sorted({row["tool"] for row in rows}, reverse=True)
    found = {(row["group"], row["tool"]): row for row in rows}
    head = ["fixture", "group", "unread", *(f"{tool}: re-read / skipped" for tool in tools)]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    seen: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        seen.setdefault(row["group"], row)
    for name, row in seen.items():
        cells = [
            f"{found[name, tool]['reread']:,} / {found[name, tool]['skipped']:,}" if (name, tool) in found else ""
            for tool in tools
        ]
        lines.append("| " + " | ".join([row["fixture"], name, f"{row['unread']:,}", *cells]) + " |")
    return "\n".join(lines)


def delete_groups(target: KafkaCluster, groups: Iterable[Group]) -> None:
    """Forget what one tool has committed, before the other one's turn."""
    admin = target.admin()  # must outlive the call
    known = {item.group_id for item in admin.list_consumer_groups(request_timeout=20).result().valid}
    ours = [group.name for group in groups if group.name in known]
    if ours:
        for future in admin.delete_consumer_groups(ours, request_timeout=20).values():
            future.result()


def run(options: argparse.Namespace, folder: Path, stack: ExitStack) -> list[dict[str, Any]]:
    """All rows."""
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {text}", flush=True)

    source = stack.enter_context(KafkaCluster(folder / "source", "3.9.1", authorizer=False, sasl=False))
    target = stack.enter_context(KafkaCluster(folder / "target", "4.1.1", authorizer=False, sasl=False))
    fill(source, options.records)
    groups = settle(source)
    say(f"{len(FIXTURES)} topics of {options.records:,} records, {len(groups)} groups")
    rows: list[dict[str, Any]] = []
    if "mm2" in options.tools:
        mirror(source, target, groups, folder / "mm2", say)
        rows += measure(source, target, groups, "mm2", f"{_ALIAS}.")
        delete_groups(target, groups)
    if "ours" in options.tools:
        migrate(source, target, folder / "ours", say)
        rows += measure(source, target, groups, "ours", "")
        delete_groups(target, groups)
    if "mirror" in options.tools:
        mirror_with_ours(source, target, folder / "mirror", say)
        rows += measure(source, target, groups, "mirror", f"{_MIRROR_ALIAS}.")
    say("done")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if a group that this package moved, by migration or mirror, got a record twice or never."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument("--records", type=int, default=6_000, help="of each topic")
    parser.add_argument("--tools", nargs="+", choices=_TOOLS, default=_TOOLS)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kafka-migration-groups-") as name, ExitStack() as stack:
        rows = run(options, Path(name), stack)
    write_json(RESULTS / "summary.json", {"version": 1, "rows": rows})
    text = table(rows)
    (RESULTS / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 1 if any(row["reread"] or row["skipped"] for row in rows if row["tool"] != "mm2") else 0


if __name__ == "__main__":
    sys.exit(main())
