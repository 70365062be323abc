"""The documents next to plan.json, made from it: plan.md, runbook.md, permissions.md, cost-estimate.json. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from airflow_provider_kafka_migration.access import permissions
from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import ClusterFacts, Plan, TopicPlan, Verdict
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.groups.left_out import group_reason
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.phase_table import TASKS, Place
from airflow_provider_kafka_migration.plain_secrets import shown_address
from airflow_provider_kafka_migration.spec import MigrationSpec, format_duration

# -- plan cost --------------------------------------------------------------------------------------------------------
#
# The estimated cost of a migration: transfer, S3 requests and storage, with the assumptions. Pure.


_GB = 1_000_000_000
_MONTH_SECONDS = 30 * 86400


class CostItem(Part):
    """One item of the cost: a quantity and its price in US dollars."""

    name: str
    quantity: float
    unit: str
    usd: float


class CostEstimate(Document):
    """``plan/cost-estimate.json``."""

    version: int = 1
    migration_id: str
    plan_digest: str
    items: list[CostItem]
    total_usd: float
    assumptions: list[str] = Field(default_factory=list)


def estimate_cost(spec: MigrationSpec, plan: Plan) -> CostEstimate:
    """Estimate the cost of one migration. Sizes that brokers do not report count as 0; the assumptions state that."""
    rates = spec.estimate
    total = plan.total_bytes
    partitions = sum(len(topic.partitions) for topic in plan.topics)
    via_s3 = spec.seed.via != "direct"
    segments = sum(_segments(item.size_bytes, spec) for topic in plan.topics for item in topic.partitions)
    journal_puts = 60 + 2 * partitions
    copies = 3 if via_s3 else 2
    items = [_item("network transfer", copies * total / _GB, "GB", rates.usd_per_gb_transfer)]
    items.append(_item("validation reads both sides", 2 * total / _GB, "GB", rates.usd_per_gb_transfer))
    items.append(_item("S3 journal requests", journal_puts / 1000, "1000 requests", rates.usd_per_1000_puts))
    if via_s3:
        items.append(_item("S3 segment writes", segments / 1000, "1000 requests", rates.usd_per_1000_puts))
        items.append(_item("S3 segment reads", segments / 1000, "1000 requests", rates.usd_per_1000_gets))
        months = rates.keep_segments.total_seconds() / _MONTH_SECONDS
        items.append(_item("S3 segment storage", total / _GB * months, "GB months", rates.usd_per_gb_month))
    return CostEstimate(
        migration_id=plan.migration_id,
        plan_digest=plan.digest(),
        items=items,
        total_usd=round(sum(item.usd for item in items), 2),
        assumptions=_assumptions(spec, plan),
    )


def _segments(size_bytes: int, spec: MigrationSpec) -> int:
    return math.ceil(max(size_bytes, 0) / spec.seed.segment_max_bytes)


def _item(name: str, quantity: float, unit: str, usd_each: float) -> CostItem:
    return CostItem(name=name, quantity=round(quantity, 3), unit=unit, usd=round(quantity * usd_each, 4))


def _assumptions(spec: MigrationSpec, plan: Plan) -> list[str]:
    rates: dict[str, Any] = spec.estimate.model_dump(mode="json")
    assumptions = [f"estimate.{name} = {value}" for name, value in sorted(rates.items())]
    assumptions.append(f"{plan.total_bytes:,} bytes on the source's leaders, compressed as they are, copied once")
    assumptions.append(
        "data that is produced while the migration runs, and the machines of Spark and Airflow, are not included"
    )
    if any(item.size_bytes < 0 for topic in plan.topics for item in topic.partitions):
        assumptions.append(
            "the source does not tell the size of some partitions: they count as 0, so the estimate is too low"
        )
    return assumptions


# -- plan -------------------------------------------------------------------------------------------------------------


def documents(
    spec: MigrationSpec, plan: Plan, source: ClientConfig | None = None, target: ClientConfig | None = None
) -> dict[str, str]:
    """Return file name -> content. Equal plans give equal documents.

    :param source: the source's connection, for the name of the migration's principal; None: a placeholder is written.
    :param target: the same for the target.
    """
    cost = estimate_cost(spec, plan)
    principals: dict[permissions.Side, str] = {
        "source": permissions.principal_of(source),
        "target": permissions.principal_of(target),
    }
    return {
        "cost-estimate.json": cost.canonical().decode() + "\n",
        "permissions.md": permissions.markdown(spec, plan, principals),
        "plan.md": plan_markdown(plan, cost),
        "runbook.md": runbook(spec, plan),
    }


# -- plan.md ---------------------------------------------------------------------------------------------------------


def plan_markdown(plan: Plan, cost: CostEstimate | None = None) -> str:
    """Return the plan in a form for people."""
    lines = [
        f"# Plan of {plan.migration_id}",
        "",
        f"Digest `{plan.digest()}`.",
        "",
        *_table(("", "source", "target"), _cluster_rows(plan.source, plan.target)),
        "",
        *_totals(plan, cost),
        "",
        "## Topics",
        "",
        *_table(_TOPIC_HEAD, [_topic_row(topic) for topic in plan.topics]),
        *_config_lines(plan),
        *_not_equal(plan),
    ]
    lines += _section(
        "Consumer groups",
        ("group", "type", "state", "lag", "topics", "topics not migrated"),
        [
            (g.group, g.type, g.state, _number(g.lag), ", ".join(g.topics_in_scope), ", ".join(g.topics_out_of_scope))
            for g in plan.groups
        ],
    )
    lines += _access_lines(plan)
    lines += _section("Not migrated topics", ("topic", "why"), sorted(plan.excluded_topics.items()))
    lines += _section(
        "Not migrated groups",
        ("group", "type", "why"),
        [(group.group, group.type, group_reason(group)) for group in plan.excluded_groups],
    )
    lines += _section("Could not be read", ("what", "why"), sorted(plan.unknown.items()))
    lines += ["", "## Notes", "", *(f"- {note}" for note in plan.notes)]
    return "\n".join(lines) + "\n"


_TOPIC_HEAD = ("topic", "on the target", "partitions", "replicas", "MB", "offsets", "verdicts", "kinds", "codecs")


def _cluster_rows(source: ClusterFacts, target: ClusterFacts) -> list[tuple[str, str, str]]:
    def both(name: str, value: str, other: str) -> tuple[str, str, str]:
        return (name, value, other)

    return [
        both("cluster id", f"`{source.cluster_id}`", f"`{target.cluster_id}`"),
        both("Kafka", source.kafka_version, target.kafka_version),
        both("mode", source.mode, target.mode),
        both("brokers", str(len(source.brokers)), str(len(target.brokers))),
        both("authorizer", _yes(source.authorizer), _yes(target.authorizer)),
        both("features", _features(source), _features(target)),
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _features(facts: ClusterFacts) -> str:
    return ", ".join(f"{name}={level}" for name, level in sorted(facts.features.items())) or "-"


def _totals(plan: Plan, cost: CostEstimate | None) -> list[str]:
    partitions = [item for topic in plan.topics for item in topic.partitions]
    verdicts = Counter(item.verdict.value for item in partitions)
    lines = [
        f"- {len(plan.topics)} topics, {len(partitions)} partitions, {plan.total_bytes / 1e6:,.1f} MB, "
        f"{len(plan.lanes)} lanes",
        "- offsets: " + ", ".join(f"{count} partitions {name}" for name, count in sorted(verdicts.items())),
    ]
    if plan.estimate is not None:
        estimate = plan.estimate
        lines.append(
            f"- estimated time to copy: {_seconds(estimate.copy_seconds)}; to fill {estimate.filler_offsets:,} offsets "
            f"before log starts and about {estimate.marker_offsets:,} holes: {_seconds(estimate.fill_seconds)}"
        )
    if cost is not None:
        lines.append(f"- estimated cost: {cost.total_usd:.2f} USD (cost-estimate.json has the items and assumptions)")
    return lines


def _seconds(value: float) -> str:
    if value < 0:
        return "unknown (the source does not tell the sizes of its partitions)"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _topic_row(topic: TopicPlan) -> tuple[str, ...]:
    verdicts = Counter(item.verdict.value for item in topic.partitions)
    replicas = str(topic.source_replication_factor)
    if topic.replication_factor != topic.source_replication_factor:
        replicas += f" -> {'default' if topic.replication_factor < 0 else topic.replication_factor}"
    return (
        topic.name,
        topic.target_name if topic.target_name != topic.name else "",
        str(len(topic.partitions)),
        replicas,
        f"{sum(max(item.size_bytes, 0) for item in topic.partitions) / 1e6:,.1f}",
        f"{sum(item.end_offset - item.log_start_offset for item in topic.partitions):,}",
        ", ".join(f"{count} {name}" for name, count in sorted(verdicts.items())),
        ", ".join(topic.kinds),
        ", ".join(topic.codecs),
    )


def _config_lines(plan: Plan) -> list[str]:
    dropped = [(t.name, name, why) for t in plan.topics for name, why in sorted(t.dropped_configs.items())]
    drift = [
        (topic.target_name, str(item["config"]), _text(item["target"]), _text(item["source"]), _text(item["planned"]))
        for topic in plan.topics
        for item in topic.drift
    ]
    defaults = [(item["config"], item["source"], item["target"]) for item in plan.defaults_drift]
    return [
        *_section("Configs left out or changed", ("topic", "config", "why"), dropped),
        *_section("Drift of existing topics", ("topic", "config", "target", "source", "planned"), drift),
        *_section("Defaults that differ", ("topic config", "source", "target"), defaults),
    ]


def _text(value: object) -> str:
    return "(default)" if value is None else str(value)


def _not_equal(plan: Plan) -> list[str]:
    rows = [
        (f"{topic.name}-{item.partition}", item.verdict.value, item.reason)
        for topic in plan.topics
        for item in topic.partitions
        if item.verdict is not Verdict.EQUAL
    ]
    return _section("Partitions whose offsets change", ("partition", "verdict", "why"), rows)


def _access_lines(plan: Plan) -> list[str]:
    actions = Counter(acl.action for acl in plan.acls)
    lines = ["", "## ACLs", "", ", ".join(f"{count} {name}" for name, count in sorted(actions.items())) or "none"]
    left = [
        (
            acl.principal,
            acl.permission,
            acl.operation,
            f"{acl.resource_type} {acl.resource_name}",
            acl.action,
            acl.reason,
        )
        for acl in plan.acls
        if acl.action in ("filtered", "unsupported", "deferred", "target_only")
    ]
    lines += _section("ACLs not created", ("principal", "", "operation", "resource", "action", "why"), left)
    lines += _section(
        "SCRAM users",
        ("user", "credentials", "action", "why"),
        [
            (user.name, ", ".join(f"{m} ({i})" for m, i in user.credentials), user.action, user.reason)
            for user in plan.users
        ],
    )
    lines += _section(
        "Client quotas",
        ("entity", "source", "target", "action"),
        [
            (
                ", ".join(f"{kind}={name if name is not None else '(default)'}" for kind, name in quota.entity),
                _values(quota.values),
                _values(quota.target_values),
                quota.action,
            )
            for quota in plan.quotas
        ],
    )
    return lines


def _values(values: dict[str, float]) -> str:
    return ", ".join(f"{key}={value:g}" for key, value in sorted(values.items()))


def _number(value: int) -> str:
    return "?" if value < 0 else f"{value:,}"


def _section(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    found = list(rows)
    return ["", f"## {title}", "", *_table(head, found)] if found else []


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return lines


# -- runbook.md ------------------------------------------------------------------------------------------------------


def runbook(spec: MigrationSpec, plan: Plan) -> str:
    """Return what will happen in this migration, in order, with the commands for on-call."""
    steps = _in_order(_step_texts(spec, plan))
    lines = [
        f"# Runbook of {plan.migration_id}",
        "",
        f"From `{plan.source.cluster_id}` (Kafka {plan.source.kafka_version}, {plan.source.mode}) to "
        f"`{plan.target.cluster_id}` (Kafka {plan.target.kafka_version}, {plan.target.mode}).",
        "",
        "## What happens, in order",
        "",
    ]
    lines += [f"{number}. **{tasks}**: {text}" for number, (tasks, text) in enumerate(steps, 1)]
    lines += ["", "## Commands", "", *_commands(spec), "", "## If something fails", "", *_failures(spec)]
    return "\n".join(lines) + "\n"


def _in_order(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the tasks of each step and its text, in the order of the table of phases.

    :param texts: by task, or by tasks that make one step, separated by commas. A task of the line without a text has
        the summary of its row.
    """
    steps = {task: tasks for tasks in texts for task in tasks.split(", ")}
    shown: set[str] = set()
    for row in TASKS:
        tasks = steps.get(row.id, row.id if row.place is Place.LINE else "")
        if tasks and tasks not in shown:
            shown.add(tasks)
            yield tasks, texts.get(tasks, row.summary)


def _step_texts(spec: MigrationSpec, plan: Plan) -> dict[str, str]:
    """Return the texts with facts of this migration, by task or tasks."""
    cut = spec.cutover
    partitions = sum(len(topic.partitions) for topic in plan.topics)
    estimate = plan.estimate
    copy_time = _seconds(estimate.copy_seconds) if estimate is not None else "unknown"
    filled = sum(1 for topic in plan.topics for item in topic.partitions if item.filler_offsets)
    creating = sum(not topic.exists_on_target for topic in plan.topics)
    sentinel = (
        "A sentinel record is written to each source partition."
        if cut.sentinel == "record"
        else "The end offsets of the source are recorded; nothing is written to the topics."
    )
    return {
        "plan, precheck": "Read-only on the source. On the target a scratch topic is created and removed. "
        f"Plan `{plan.digest()[:16]}`.",
        "topology_copy": f"{creating} topics are created on the target, {len(plan.topics) - creating} exist already; "
        f"{filled} log starts are filled. ACLs: {_acl_text(plan)}. Retention and compaction of the target's topics "
        "are off until validate has passed.",
        "seed": f"{plan.total_bytes / 1e6:,.1f} MB in {partitions} partitions, about {copy_time}. Clients notice "
        "nothing.",
        "tail, drain_ready": _drain_text(spec),
        "approve_cutover": "A person reads the facts, types the code and approves.",
        "cutover.freeze": _freeze_text(spec),
        "cutover.sentinels, cutover.final_drain": f"{sentinel} The target catches up; limit "
        f"{format_duration(cut.drain_timeout)}, the freeze is lifted after {format_duration(cut.max_producer_freeze)}.",
        "cutover.snapshot_groups, cutover.commit_groups": f"{len(plan.groups)} groups get their offsets on the target.",
        "cutover.floor_guard": "The log says READY_FOR_CLIENT_SWITCH: point clients to the target now.",
        "approve_client_switch": "A person confirms that clients have switched.",
        "validate, evidence": "All records are compared; retention is restored; the evidence is signed and stored.",
    }


def _acl_text(plan: Plan) -> str:
    actions = Counter(acl.action for acl in plan.acls)
    return ", ".join(f"{actions[name]} {name}" for name in sorted(actions)) or "none"


def _drain_text(spec: MigrationSpec) -> str:
    tail = spec.tail
    return (
        "New records are copied as they arrive. The migration is ready when every partition's lag has been at most "
        f"{tail.drain_max_partition_lag} records for {format_duration(tail.drain_stable_window)}."
    )


def _freeze_text(spec: MigrationSpec) -> str:
    cut = spec.cutover
    how = {
        "webhook": f"POST to {shown_address(cut.producer_freeze_webhook or '')} with action freeze.",
        "manual": "**Stop all producers of the source before you approve the cutover.**",
        "acl": "DENY WRITE is set on the migrated topics for each principal that may write, and removed afterwards.",
    }[cut.freeze]
    return f"{how} Then end offsets must not move for {format_duration(cut.freeze_stable_window)}."


def _commands(spec: MigrationSpec) -> list[str]:
    name = spec.migration_id
    return [
        "```sh",
        f"kafka-migration status {name}.yaml            # the current state",
        f"kafka-migration journal show {name}.yaml      # everything that was done, and by whom",
        f"kafka-migration resume {name}.yaml            # continue after a failure (or clear the red task in Airflow)",
        f"kafka-migration resume {name}.yaml --approve CODE   # answer an approval, with the code from its text",
        f"kafka-migration plan {name}.yaml --diff plan.json   # what has changed on the clusters since this plan",
        f"kafka-migration rollback {name}.yaml          # until clients may switch; lifts a freeze",
        f"kafka-migration offset-map show {name}.yaml   # offsets of both sides",
        f"kafka-migration verify-evidence {spec.storage.evidence_location}/{name}/evidence.json",
        "```",
        "",
        f"`{name}.yaml` is the spec. Journal: `{spec.storage.journal}/{name}/journal.jsonl`.",
    ]


def _failures(spec: MigrationSpec) -> list[str]:
    return [
        "- A red task: read the last line of its log (it ends with what to do), then clear it. Each task continues "
        "where it stopped.",
        f"- Freeze too long: the freeze is lifted after {format_duration(spec.cutover.max_producer_freeze)}, and the "
        f"migration is back in tail: {words.lifted(spec.cutover.freeze)}.",
        "- Abort: answer the cutover's approval with Abort, or use rollback, also in a freeze. Topics and data stay on "
        "the target; rollback-report.json lists them.",
        "- After the client switch a rollback is not possible, because clients write to the target: complete the "
        "migration.",
    ]


# -- plan diff --------------------------------------------------------------------------------------------------------
#
# What changed between two plans, for people and machines. Pure.


#: Figures that change all the time on a live cluster; shown only on request.
MOVING = frozenset(
    {
        "end_offset",
        "estimate",
        "estimated_holes",
        "estimated_records",
        "high_watermark",
        "lag",
        "size_bytes",
        "state",
        "total_bytes",
    }
)
#: Lists of the plan whose items have an identity: list -> fields that identify an item.
_KEYS: dict[str, tuple[str, ...]] = {
    "topics": ("name",),
    "partitions": ("partition",),
    "groups": ("group",),
    "excluded_groups": ("group",),
    "acls": (
        *("principal", "permission", "operation", "resource_type"),
        *("resource_name", "pattern_type", "host", "target_resource_name"),
    ),
    "users": ("name",),
    "quotas": ("entity",),
    "group_configs": ("group",),
    "lanes": ("lane",),
    "drift": ("config",),
    "defaults_drift": ("config",),
}


class Change(Part):
    """One difference. ``before`` is null for an addition, ``after`` for a removal."""

    path: str
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.path}: {_short(self.after)}"
        if self.after is None:
            return f"- {self.path}: {_short(self.before)}"
        return f"~ {self.path}: {_short(self.before)} -> {_short(self.after)}"


class PlanDiff(Document):
    """The differences of two plans, ascending by path."""

    version: int = 1
    before: str = Field(description="digest of the earlier plan")
    after: str = Field(description="digest of the later plan")
    changes: list[Change]


def diff_plans(before: Plan, after: Plan, *, moving: bool = False) -> PlanDiff:
    """Compare two plans.

    :param moving: also show offsets, sizes, lags and states, which change all the time.
    """
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    changes = sorted(_changes("", old, new, moving), key=lambda change: change.path)
    return PlanDiff(before=before.digest(), after=after.digest(), changes=changes)


def as_text(diff: PlanDiff) -> str:
    """Return one line per difference."""
    if not diff.changes:
        return "the plans are equal" if diff.before == diff.after else "nothing but moving figures differs"
    return "\n".join(str(change) for change in diff.changes)


def as_markdown(diff: PlanDiff) -> str:
    """Return the differences as a Markdown table."""
    lines = [f"# Changes of the plan {diff.before[:8]} -> {diff.after[:8]}", ""]
    if not diff.changes:
        return "\n".join([*lines, as_text(diff)]) + "\n"
    rows = [(change.path, _cell(change.before), _cell(change.after)) for change in diff.changes]
    lines += ["| what | before | after |", "|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return "-" if value is None else _short(value)


def _changes(path: str, old: Any, new: Any, moving: bool) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(old.keys() | new.keys()):
            if moving or name not in MOVING:
                yield from _member(f"{path}.{name}" if path else name, name, old.get(name), new.get(name), moving)
        return
    yield Change(path=path, before=old, after=new)


def _member(path: str, name: str, old: Any, new: Any, moving: bool) -> Iterator[Change]:
    keys = _KEYS.get(name)
    if keys is None or not isinstance(old, list) or not isinstance(new, list):
        yield from _changes(path, old, new, moving)
        return
    before, after = _by_key(old, keys), _by_key(new, keys)
    for key in sorted(before.keys() | after.keys()):
        yield from _changes(f"{path}[{key}]", before.get(key), after.get(key), moving)


def _by_key(items: list[Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {" ".join(_diff_text(item[key]) for key in keys): item for item in items}


def _diff_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(f"{kind}={name if name is not None else '(default)'}" for kind, name in value)
    return str(value)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        named = [str(value[key]) for key in ("target_name", "action", "verdict", "state") if key in value]
        return ", ".join(named) or f"{len(value)} fields"
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
