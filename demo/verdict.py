"""The result: an independent comparison of both clusters, the verified evidence, the summary."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from demo import access, schemas
from demo.groups import GROUPS, Switched
from demo.schemas import SchemasVerdict
from demo.world import FOLDER, MIGRATION_ID, World
from harness.compare import Comparison, compare
from harness.load import Kind
from harness.s3 import DATA_BUCKET, EVIDENCE_BUCKET

_VERIFY_SECONDS = 120
FINAL_STATE = "finalized"


@dataclass
class Verdict:
    """The content of the summary. ``problems`` is empty when the migration was correct."""

    states: list[str]
    comparison: Comparison
    groups: list[Switched]
    schemas: SchemasVerdict
    frozen_seconds: float
    verdicts: dict[str, int]
    evidence_path: Path
    evidence_verified: bool
    evidence_says: str
    independent: dict[str, Any]
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """``summary.json``."""
        return {
            "migration_id": MIGRATION_ID,
            "states": self.states,
            "topics": [
                {
                    "name": topic.name,
                    "source_records": topic.source_records,
                    "target_records": topic.target_records,
                    "content_equal": topic.content_equal,
                    "offsets_equal": topic.offsets_equal,
                }
                for topic in self.comparison.topics.values()
            ],
            "groups": [
                {"group": group.group, "reread": group.reread, "skipped": group.skipped} for group in self.groups
            ],
            "schemas": self.schemas.summary(),
            "frozen_seconds": self.frozen_seconds,
            "independent": self.independent,
            "evidence_path": str(self.evidence_path),
            "evidence_verified": self.evidence_verified,
            "seconds": round(self.seconds, 1),
        }


def judge(world: World, groups: Sequence[Switched]) -> Verdict:
    """Compare everything, fetch and verify the evidence."""
    compacted = [topic.name for topic in world.topics if topic.kind is Kind.COMPACTED]
    comparison = compare(
        world.source.client_config(),
        world.target.client_config(),
        [*(topic.name for topic in world.topics), *schemas.TOPICS],
        compacted=compacted,
        fenced=True,
    )
    evidence = _fetch(world, EVIDENCE_BUCKET, f"kafka/{MIGRATION_ID}/evidence.json", "evidence.json")
    _fetch(world, EVIDENCE_BUCKET, f"kafka/{MIGRATION_ID}/offset-map.json", "offset-map.json")
    journal = _fetch(world, DATA_BUCKET, f"journal/{MIGRATION_ID}/journal.jsonl", "journal.jsonl")
    key = FOLDER / "evidence.pub"
    key.write_text(world.keys.public_hex + "\n", encoding="utf-8")
    verified, says = _verify(evidence, key)
    bundle = json.loads(json.loads(evidence.read_bytes())["bundle_json"])
    verdict = Verdict(
        states=_states(journal),
        comparison=comparison,
        groups=list(groups),
        schemas=_judge_schemas(world, comparison),
        frozen_seconds=float(bundle["cutover"]["frozen_time"]["frozen_seconds"]),
        verdicts=_verdicts(FOLDER / "offset-map.json"),
        evidence_path=evidence,
        evidence_verified=verified,
        evidence_says=says,
        independent=_independent(bundle),
    )
    verdict.problems = _problems(verdict, world)
    return verdict


def _judge_schemas(world: World, comparison: Comparison) -> SchemasVerdict:
    """Compare the registries, and decode with the target's what consumers can read there."""
    records = sum(comparison.topics[topic].source_records for topic in schemas.TOPICS)
    decoded = schemas.decode(world.client(world.target, access.CONSUMER), world.target_registry.url)
    return schemas.judge_schemas(
        schemas.stored(world.source_registry), schemas.stored(world.target_registry), decoded, records
    )


def _fetch(world: World, bucket: str, key: str, name: str) -> Path:
    """Copy an object next to the summary, because S3 ends with the demo."""
    path = FOLDER / name
    path.write_bytes(world.s3.client().get_object(Bucket=bucket, Key=key)["Body"].read())
    return path


def _verify(evidence: Path, key: Path) -> tuple[bool, str]:
    """The result of ``kafka-migration verify-evidence`` with the key from outside the evidence."""
    command = [str(Path(sys.executable).with_name("kafka-migration")), "verify-evidence", str(evidence)]
    done = subprocess.run([*command, "--public-key", str(key)], capture_output=True, text=True, timeout=_VERIFY_SECONDS)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def _independent(bundle: dict[str, Any]) -> dict[str, Any]:
    """What the evidence says of the proof by Spark's own Kafka source; without records if it did not run."""
    checks = bundle["validation"]["checks"]
    rows = next((check["partitions"] for check in checks if check["name"] == "independent"), [])
    return {
        "records": sum(row.get("compared", 0) for row in rows),
        "differences": sum(row.get("difference_count", 0) for row in rows),
        "reader": next((row["reader"] for row in rows if row.get("reader")), ""),
    }


def _states(journal: Path) -> list[str]:
    """The states of the migration, in order."""
    states: list[str] = []
    for line in journal.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if not states or states[-1] != entry["to"]:
            states.append(entry["to"])
    return states


def _verdicts(offset_map: Path) -> dict[str, int]:
    """Verdict -> partitions."""
    document = json.loads(offset_map.read_bytes())
    return dict(Counter(partition["verdict"] for partition in document["partitions"]))


def _problems(verdict: Verdict, world: World) -> list[str]:
    problems = []
    if not verdict.states or verdict.states[-1] != FINAL_STATE:
        problems.append(f"the migration is not {FINAL_STATE}: {verdict.states}")
    for topic in verdict.comparison.topics.values():
        if not topic.content_equal:
            problems.append(f"{topic.name}: the content differs")
        if not topic.offsets_equal:
            problems.append(f"{topic.name}: offsets differ")
    problems += [str(difference) for difference in verdict.comparison.differences[:10]]
    if len(verdict.groups) != len(GROUPS):
        problems.append(f"{len(verdict.groups)} of {len(GROUPS)} groups were switched")
    problems += [
        f"group {group.group}: {group.reread} records re-read, {group.skipped} skipped"
        for group in verdict.groups
        if group.reread or group.skipped
    ]
    problems += verdict.schemas.problems
    if not verdict.evidence_verified:
        problems.append(f"the evidence does not verify: {verdict.evidence_says}")
    if not verdict.independent["records"] or verdict.independent["differences"]:
        problems.append(f"the independent proof is not one: {verdict.independent}")
    lost = sum(len(producer.failed) for producer in world.producers)
    if lost:
        problems.append(f"producers lost {lost} records before the freeze")
    return problems


def show(console: Console, verdict: Verdict) -> None:
    """Print the summary."""
    topics = Table("topic", "records", "on the target", "MB", "on the target", "content", "offsets", box=None)
    for column in topics.columns[1:5]:
        column.justify = "right"
    for topic in verdict.comparison.topics.values():
        topics.add_row(
            topic.name,
            f"{topic.source_records:,}",
            f"{topic.target_records:,}",
            f"{topic.source_bytes / 1e6:.1f}",
            f"{topic.target_bytes / 1e6:.1f}",
            _mark(topic.content_equal, "equal", "DIFFERS"),
            _mark(topic.offsets_equal, "equal", "DIFFER"),
        )
    groups = Table("group", "read on the source", "read on the target", "re-read", "skipped", box=None)
    for group in verdict.groups:
        groups.add_row(
            group.group, str(group.read_on_source), str(group.read_on_target), str(group.reread), str(group.skipped)
        )
    partitions = ", ".join(f"{count} {name}" for name, count in sorted(verdict.verdicts.items()))
    records = sum(topic.source_records for topic in verdict.comparison.topics.values())
    moved = verdict.schemas
    console.print()
    console.print(topics)
    console.print()
    console.print(groups)
    console.print()
    for name, text in (
        ("states", " -> ".join(verdict.states)),
        ("partitions", partitions),
        ("content", f"{records:,} records of each side compared, {verdict.comparison.difference_count} differences"),
        (
            "independently",
            f"{verdict.independent['records']:,} records compared by the {verdict.independent['reader'] or 'nobody'}, "
            f"{verdict.independent['differences']} differences",
        ),
        (
            "schemas",
            f"{moved.versions} versions of {moved.subjects} subjects, ids "
            f"{_mark(moved.ids_kept, 'kept', 'NOT KEPT')}, {moved.decoded_records:,} records decoded on the target",
        ),
        ("producers frozen", f"{verdict.frozen_seconds:.1f} s"),
        ("evidence", f"{verdict.evidence_path}, {_mark(verdict.evidence_verified, 'verified', 'NOT VERIFIED')}"),
        ("time", f"{verdict.seconds:.0f} s"),
    ):
        console.print(f"{name:<18}{text}", highlight=False, soft_wrap=True)
    for problem in verdict.problems:
        console.print(f"[bold red]problem[/]           {problem}", highlight=False, soft_wrap=True)


def _mark(good: bool, yes: str, no: str) -> str:
    return f"[green]{yes}[/]" if good else f"[bold red]{no}[/]"
