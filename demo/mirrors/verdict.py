"""The result: both clusters compared record by record in both directions, and what the groups went through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.mirrors.failover import Failover
from demo.mirrors.world import TOPICS, Flow, World
from harness.clients import lost_records
from harness.compare import Comparison, compare
from harness.load import Kind


@dataclass
class Verdict:
    """``problems`` is empty when everything was right."""

    comparisons: dict[str, Comparison]
    failovers: list[Failover]
    kills: int
    acknowledged: int
    lost: int
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> dict[str, Any]:
        """``summary.json``."""
        return {
            "flows": {
                name: [
                    {
                        "topic": topic.name,
                        "records": topic.source_records,
                        "remote_records": topic.target_records,
                        "content_equal": topic.content_equal,
                        "offsets_equal": topic.offsets_equal,
                    }
                    for topic in comparison.topics.values()
                ]
                for name, comparison in self.comparisons.items()
            },
            "failovers": [vars(item) for item in self.failovers],
            "kills": self.kills,
            "acknowledged_records": self.acknowledged,
            "lost_records": self.lost,
            "problems": self.problems,
            "seconds": round(self.seconds, 1),
        }


def judge(world: World, failovers: Sequence[Failover]) -> Verdict:
    """Compare both directions. Producers have stopped, and both flows have copied everything."""
    compacted = [topic.name for topic in TOPICS if topic.kind is Kind.COMPACTED]
    comparisons = {
        flow.name: compare(flow.source.client_config(), flow.target.client_config(), flow.topics, compacted=compacted)
        for flow in world.flows
    }
    lost = {flow.name: _lost(world, flow) for flow in world.flows}
    verdict = Verdict(
        comparisons,
        list(failovers),
        sum(flow.kills for flow in world.flows),
        sum(producer.count() for producer in world.producers.values()),
        sum(lost.values()),
    )
    verdict.problems = [*_differences(verdict), *_group_problems(failovers), *_cycles(world)]
    verdict.problems += [f"{name}: {count} acknowledged records are not there" for name, count in lost.items() if count]
    failed = sum(len(producer.failed) for producer in world.producers.values())
    if failed:
        verdict.problems.append(f"producers could not write {failed} records")
    return verdict


def _lost(world: World, flow: Flow) -> int:
    """Records that the source's producer wrote, and that are not on the target at their offsets."""
    acknowledged = world.producers[flow.source_alias].acknowledged
    remote = {(flow.remote(topic), number): records for (topic, number), records in acknowledged.items()}
    return len(lost_records(flow.target.client_config(), remote))


def _differences(verdict: Verdict) -> list[str]:
    return [
        f"{name}: {difference}"
        for name, comparison in verdict.comparisons.items()
        for difference in comparison.differences[:5]
    ]


def _group_problems(failovers: Sequence[Failover]) -> list[str]:
    return [
        f"{item.flow}: {item.group} by {item.by}: {item.reread} records read again, {item.skipped} skipped"
        for item in failovers
        if item.reread or item.skipped
    ]


def _cycles(world: World) -> list[str]:
    """Topics that should not exist: a copy that was copied back."""
    problems = []
    for flow in world.flows:
        wanted = {*(topic.name for topic in TOPICS), *flow.topics.values()}
        extra = sorted(world.topic_names(flow.target_alias) - wanted)
        if extra:
            problems.append(f"{flow.target_alias} has topics that nobody wanted: {', '.join(extra)}")
    return problems


def show(console: Console, verdict: Verdict) -> None:
    """Print the summary."""
    topics = Table("flow", "topic", "records", "on the other cluster", "content", "offsets", box=None)
    for name, comparison in verdict.comparisons.items():
        for topic in comparison.topics.values():
            topics.add_row(
                name,
                topic.name,
                f"{topic.source_records:,}",
                f"{topic.target_records:,}",
                _mark(topic.content_equal, "equal", "DIFFERS"),
                _mark(topic.offsets_equal, "equal", "DIFFER"),
            )
    groups = Table(
        "flow", "group", "was", "offsets translated by", "read before", "read after", "re-read", "skipped", box=None
    )
    for table, columns in ((topics, topics.columns[2:4]), (groups, groups.columns[4:])):
        for column in columns:
            column.justify = "right"
        table.pad_edge = False
    for item in verdict.failovers:
        counts = (_mark(not count, str(count), f"{count:,}") for count in (item.reread, item.skipped))
        before, after = f"{item.read_on_source:,}", f"{item.read_on_target:,}"
        groups.add_row(item.flow, item.group, item.where, item.by, before, after, *counts)
    console.print()
    console.print(topics)
    console.print()
    console.print(groups)
    console.print()
    for name, text in (
        ("groups", f"{len(verdict.failovers)} failovers: {_total(verdict, 'reread')} records re-read, "
         f"{_total(verdict, 'skipped')} skipped"),
        ("producers", f"{verdict.acknowledged:,} records acknowledged meanwhile, {verdict.lost} of them lost"),
        ("mirrors", f"killed {verdict.kills} times under load"),
        ("time", f"{verdict.seconds:.0f} s"),
    ):  # fmt: skip
        console.print(f"{name:<12}{text}", highlight=False, soft_wrap=True)
    for problem in verdict.problems:
        console.print(f"[bold red]problem[/]     {problem}", highlight=False, soft_wrap=True)


def _total(verdict: Verdict, name: str) -> int:
    return sum(int(getattr(item, name)) for item in verdict.failovers)


def _mark(good: bool, yes: str, no: str) -> str:
    return f"[green]{yes}[/]" if good else f"[bold red]{no}[/]"
