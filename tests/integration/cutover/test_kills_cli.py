"""A whole migration by the command line, SIGKILLed at every journal entry, object and cluster write that it makes.

Each life of the process dies at the first fault point that none before it has died at (:mod:`kill_server`); the points
are found by running. What is counted at the end is what an operator would look at: both clusters, the groups, the
journal, the evidence.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.journal.view import verify_journal
from airflow_provider_kafka_migration.storage.local import LocalStore
from harness import compare
from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets, positions
from harness.load import Kind, TopicLoad, load
from harness.webhook import FreezeWebhook

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(3600)]

HERE = Path(__file__).parent
BUILD = HERE.parents[2] / "build" / "kills"
#: What the points must include, whatever else there is: each kind of side effect in each part of a migration.
EXPECTED = (
    "journal: planned claimed",
    "journal: precheck transition",
    "journal: topology_copy transition",
    "journal: seed transition",
    "journal: seed seed_done",
    "journal: tail transition",
    "journal: cutover tail_done",
    "journal: drain_ready transition",
    "journal: cutover freeze_requested 1",
    "journal: cutover freeze_verified 1",
    "journal: cutover cutover_step 1/sentinels",
    "journal: cutover cutover_step 1/final_drain",
    "journal: cutover cutover_step 1/snapshot_groups",
    "journal: cutover cutover_step 1/commit_groups",
    "journal: cutover ready_for_client_switch 1",
    "journal: awaiting_client_switch transition",
    "journal: awaiting_client_switch client_switch_acknowledged",
    "journal: validating transition",
    "journal: finalized transition",
    "topology_copy: create_topics #1",
    "seed: produce #1",
    "cutover: produce #1",
    "cutover: offset_commit #1",
)


@dataclass
class Lives:
    """All lives of one migration's command line."""

    server: subprocess.Popen[str]
    spec: Path
    when: str
    folder: Path
    statuses: list[int] = field(default_factory=list)

    @property
    def points(self) -> list[str]:
        done = self.folder / "points"
        return done.read_text(encoding="utf-8").splitlines() if done.exists() else []

    def _state(self) -> str:
        entries = sorted((self.folder / "journal").glob("*/journal/*.json"))
        return str(json.loads(entries[-1].read_text(encoding="utf-8"))["to"]) if entries else "start"

    def live(self, *arguments: str) -> tuple[int, str]:
        """One life; its exit status (-9: killed) and what it printed."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        output = self.folder / "output"
        wanted = {
            "arguments": [*arguments, "--json"],
            "when": self.when,
            "state": self._state(),
            "done": str(self.folder / "points"),
            "output": str(output),
        }
        self.server.stdin.write(json.dumps(wanted) + "\n")
        self.server.stdin.flush()
        line = self.server.stdout.readline()
        assert line, "the server of the lives has ended"
        self.statuses.append(json.loads(line)["status"])
        return self.statuses[-1], output.read_text(encoding="utf-8", errors="replace")

    def to_the_switch(self) -> None:
        """Bring the migration to where clients are told to switch, unharmed."""
        when, self.when = self.when, "never"
        status, text = self.live("run", str(self.spec))
        assert status == 10, text
        status, text = self.live("run", str(self.spec), "--approve", _json(text)["waiting"]["code"])
        assert (status, _json(text)["waiting"]["approval"]) == (10, "client_switch"), text
        self.when = when

    def to_the_end(self, most: int = 1000) -> None:
        """Live until the migration is finalized; approvals are given with the code that was shown."""
        code: str | None = None
        for _ in range(most):
            status, text = self.live("run", str(self.spec), *(["--approve", code] if code else []))
            if status == 0:
                return
            if status == 10:
                code = _json(text)["waiting"]["code"]
            elif status != -9:
                # A code that was taken before the process died is not given twice.
                assert code is not None, text
                assert _json(text)["error"]["code"] == "APPROVAL_REFUSED", text
                code = None
        pytest.fail(f"no end after {most} lives: {self.points[-3:]}")


def _json(text: str) -> dict[str, Any]:
    """The answer; lines of the log before it may have braces, too."""
    lines = text.splitlines()
    found: dict[str, Any] = json.loads("\n".join(lines[lines.index("{") : len(lines) - lines[::-1].index("}")]))
    return found


@contextmanager
def lives(spec: Path, when: str, folder: Path, environment: dict[str, str]) -> Iterator[Lives]:
    import os

    server = subprocess.Popen(
        [sys.executable, str(HERE / "kill_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
    )
    try:
        yield Lives(server, spec, when, folder)
    finally:
        server.kill()
        server.wait(10)


def write_spec(folder: Path, prefix: str, cutover: dict[str, Any]) -> Path:
    pattern = prefix.replace(".", r"\.") + ".*"
    content = {
        "migration_id": prefix.strip(".").replace(".", "-"),
        "source": {"conn_id": "env:CLI_SOURCE"},
        "target": {"conn_id": "env:CLI_TARGET"},
        "storage": {"journal": f"file://{folder}/journal", "evidence": f"file://{folder}/evidence"},
        "topics": {"include": [pattern]},
        "groups": {"include": [pattern]},
        "acls": {"write_grants": "at_cutover"},
        "seed": {"slice_seconds": 5, "lanes": 2},
        "tail": {"drain_stable_window": "200ms", "slice_seconds": 2},
        "cutover": {"freeze_stable_window": "200ms", "max_producer_freeze": "1h", **cutover},
        "evidence": {"signing_key": "env:CLI_KEY"},
    }
    path = folder / "migration.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def allow_alice(cluster: KafkaCluster, topic: str) -> None:
    for operation in (AclOperation.WRITE, AclOperation.READ):
        binding = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        admin = cluster.admin()  # must outlive the call
        for future in admin.create_acls([binding]).values():
            future.result(20)


def sentinels(cluster: KafkaCluster, topics: list[str], migration_id: str) -> dict[tuple[str, int], list[int]]:
    mark = ("x-kbe-cutover-sentinel", migration_id.encode())
    return {
        (topic, partition): [record.offset for record in found if mark in record.headers]
        for topic in topics
        for partition, found in compare.read_records(cluster.client_config(), topic).items()
    }


@pytest.mark.parametrize("freeze", ["webhook", "acl"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_side_effect(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    when: str,
    freeze: str,
) -> None:
    prefix = f"kills{unique_name('k').rpartition('.')[2]}{when}{freeze}."
    loads = [
        TopicLoad(f"{prefix}orders", Kind.KEYED, 2, 300, 60, "lz4"),
        TopicLoad(f"{prefix}payments", Kind.TRANSACTIONAL, 1, 200, 60),
        TopicLoad(f"{prefix}clicks", Kind.HEAD_DELETED, 1, 200, 60),
    ]
    topics = [topic.name for topic in loads]
    load(source_cluster, loads)
    group = f"{prefix}readers"
    wanted = positions(source_cluster.client_config(), topics, 0.5)
    commit_offsets(source_cluster.client_config(), group, wanted)
    allow_alice(source_cluster, topics[0])
    environment = {
        "CLI_SOURCE": json.dumps(source_cluster.client_config("admin")),
        "CLI_TARGET": json.dumps(target_cluster.client_config("admin")),
        "CLI_KEY": bytes(range(32)).hex(),
    }
    begun = time.monotonic()
    with FreezeWebhook() as webhook:
        cutover = {"freeze": freeze, **({"producer_freeze_webhook": webhook.url} if freeze == "webhook" else {})}
        spec = write_spec(tmp_path, prefix, cutover)
        migration_id = prefix.strip(".")
        with lives(spec, when, tmp_path, environment) as told:
            try:
                told.to_the_end()
            finally:
                write_summary(told, f"cli-{freeze}-{when}", time.monotonic() - begun)
            status, text = told.live("run", str(spec))
        assert (status, _json(text)["state"]) == (0, "finalized")
        assert [call.action for call in webhook.calls if call.action == "unfreeze"] == []
        check_end(source_cluster, target_cluster, topics, migration_id, tmp_path)
        assert committed_offsets(target_cluster.client_config(), group, topics) == wanted
        kills = told.statuses.count(-9)
        assert kills == len(told.points), "every point was died at once"
        missing = [name for name in EXPECTED if name not in told.points]
        assert not missing, missing
        assert ("webhook: freeze" in told.points) is (freeze == "webhook")
        assert any("create_acls" in name for name in told.points)


@pytest.mark.parametrize("freeze", ["webhook", "acl"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_abandon_killed_at_every_side_effect(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    when: str,
    freeze: str,
) -> None:
    """Clients were told to switch, and none has: the same command ends it, however often it dies."""
    prefix = f"abandons{unique_name('k').rpartition('.')[2]}{when}{freeze}."
    load(source_cluster, [TopicLoad(f"{prefix}orders", Kind.KEYED, 2, 300, 60, "lz4")])
    allow_alice(source_cluster, f"{prefix}orders")
    environment = {
        "CLI_SOURCE": json.dumps(source_cluster.client_config("admin")),
        "CLI_TARGET": json.dumps(target_cluster.client_config("admin")),
        "CLI_KEY": bytes(range(32)).hex(),
    }
    begun = time.monotonic()
    with FreezeWebhook() as webhook:
        cutover = {"freeze": freeze, **({"producer_freeze_webhook": webhook.url} if freeze == "webhook" else {})}
        spec = write_spec(tmp_path, prefix, cutover)
        with lives(spec, when, tmp_path, environment) as told:
            told.to_the_switch()
            status, text = told.live("abandon", str(spec))
            assert status == 10, text
            code = _json(text)["waiting"]["code"]
            told.statuses.clear()
            try:
                for _ in range(200):
                    status, text = told.live("abandon", str(spec), "--approve", code)
                    if status != -9:
                        break
            finally:
                write_summary(told, f"cli-abandon-{freeze}-{when}", time.monotonic() - begun)
        data = _json(text)
        assert (status, data["ok"], data["details"]["problems"]) == (0, True, []), text
        report = verify_journal(LocalStore(tmp_path / "journal"), prefix.strip("."))
        assert report.is_good, report
        evidence = (tmp_path / "evidence" / prefix.strip(".") / "evidence.json").read_bytes()
        assert verify_evidence(evidence).bundle.outcome == "ABANDONED"
        assert denials(source_cluster, f"{prefix}orders") == []
        if freeze == "webhook":
            assert webhook.calls[-1].action == "unfreeze"
        wanted = {"abandoned", "freeze_lifted 1", "rolled_back", "write_grants_taken_back", "transition"}
        missing = [name for name in wanted if not any(point.endswith(f" {name}") for point in told.points)]
        assert not missing, told.points
        assert any("delete_acls" in point for point in told.points)


def denials(cluster: KafkaCluster, topic: str) -> list[str]:
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.DENY,
    )
    admin = cluster.admin()  # must outlive the call
    return [str(item.principal) for item in admin.describe_acls(wanted).result(20)]


def write_summary(told: Lives, name: str, seconds: float) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    kills = told.statuses.count(-9)
    summary = {
        "version": 1,
        "kills": kills,
        "lives": len(told.statuses),
        "seconds": round(seconds),
        "points": told.points,
    }
    (BUILD / f"{name}.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def check_end(source: KafkaCluster, target: KafkaCluster, topics: list[str], migration_id: str, folder: Path) -> None:
    """What must be so, however often the process was killed."""
    compare.compare(source.client_config(), target.client_config(), topics, fenced=True).check()
    on_source = sentinels(source, topics, migration_id)
    assert {len(found) for found in on_source.values()} == {1}
    assert sentinels(target, topics, migration_id) == on_source
    report = verify_journal(LocalStore(folder / "journal"), migration_id)
    assert report.is_good, report
    journal = (folder / "journal" / migration_id / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in journal]
    assert entries[-1]["to"] == "finalized"
    assert sum(entry.get("step") == "seed_done" for entry in entries) == 1
    assert "failed" not in {entry["to"] for entry in entries}
    evidence = (folder / "evidence" / migration_id / "evidence.json").read_bytes()
    assert verify_evidence(evidence).bundle.outcome == "PASSED"
