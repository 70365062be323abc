"""The documents beside plan.json, made from it alone: plan.md, runbook.md, permissions.md, cost-estimate.json. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from airflow_provider_kafka_migration.access import permissions
from airflow_provider_kafka_migration.documents.plan import ClusterFacts, Plan, TopicPlan, Verdict
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.groups.left_out import group_reason
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.pages.plan_cost import CostEstimate, estimate_cost
from airflow_provider_kafka_migration.plain_secrets import shown_address
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.spec_types import format_duration


def documents(
    spec: MigrationSpec, plan: Plan, source: ClientConfig | None = None, target: ClientConfig | None = None
) -> dict[str, str]:
    """File name -> content. Equal plans give equal documents.

    :param source: connections, for the names of the migration's principals; without them a placeholder is written.
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
    """The plan for people."""
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
    lines += _section("Could not be looked at", ("what", "why"), sorted(plan.unknown.items()))
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
            f"- estimated copy: {_seconds(estimate.copy_seconds)}; {estimate.filler_offsets:,} offsets of log starts "
            f"and about {estimate.marker_offsets:,} holes to fill: {_seconds(estimate.fill_seconds)}"
        )
    if cost is not None:
        lines.append(f"- estimated cost: {cost.total_usd:.2f} USD (cost-estimate.json has the items and assumptions)")
    return lines


def _seconds(value: float) -> str:
    if value < 0:
        return "unknown (the source does not tell its sizes)"
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
        *_section("Drift of topics that are there", ("topic", "config", "target", "source", "planned"), drift),
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
    """What will happen in this migration, in order, with the commands for on-call."""
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
    steps = [
        (
            "plan, precheck",
            f"Read-only on the source. On the target a scratch topic is made and removed. Plan `{plan.digest()[:16]}`.",
        ),
        (
            "topology_copy",
            f"{creating} topics are created on the target, {len(plan.topics) - creating} are there already; "
            f"{filled} log starts are filled. ACLs: {_acl_text(plan)}. Retention and compaction of the target's topics "
            "are off until validate has passed.",
        ),
        (
            "seed",
            f"{plan.total_bytes / 1e6:,.1f} MB in {partitions} partitions, about {copy_time}. Clients notice nothing.",
        ),
        ("tail, drain_ready", _drain_text(spec)),
        ("approve_cutover", "A person reads the facts, types the code and approves."),
        ("cutover.freeze", _freeze_text(spec)),
        (
            "cutover.sentinels, cutover.final_drain",
            f"{sentinel} The target catches up; limit {format_duration(cut.drain_timeout)}, the freeze is lifted "
            f"after {format_duration(cut.max_producer_freeze)}.",
        ),
        (
            "cutover.snapshot_groups, cutover.commit_groups",
            f"{len(plan.groups)} groups get their offsets on the target.",
        ),
        ("cutover.floor_guard", "Logs say READY_FOR_CLIENT_SWITCH: point clients to the target now."),
        ("approve_client_switch", "A person confirms that clients have switched."),
        ("validate, evidence", "All records are compared; retention is put back; the evidence is signed and stored."),
    ]
    lines = [
        f"# Runbook of {plan.migration_id}",
        "",
        f"From `{plan.source.cluster_id}` (Kafka {plan.source.kafka_version}, {plan.source.mode}) to "
        f"`{plan.target.cluster_id}` (Kafka {plan.target.kafka_version}, {plan.target.mode}).",
        "",
        "## What happens, in order",
        "",
    ]
    lines += [f"{number}. **{name}**: {text}" for number, (name, text) in enumerate(steps, 1)]
    lines += ["", "## Commands", "", *_commands(spec), "", "## If something fails", "", *_failures(spec)]
    return "\n".join(lines) + "\n"


def _acl_text(plan: Plan) -> str:
    actions = Counter(acl.action for acl in plan.acls)
    return ", ".join(f"{actions[name]} {name}" for name in sorted(actions)) or "none"


def _drain_text(spec: MigrationSpec) -> str:
    tail = spec.tail
    return (
        f"New records are copied as they come. Ready when every partition lags at most {tail.drain_max_partition_lag} "
        f"records for {format_duration(tail.drain_stable_window)}."
    )


def _freeze_text(spec: MigrationSpec) -> str:
    cut = spec.cutover
    how = {
        "webhook": f"POST to {shown_address(cut.producer_freeze_webhook or '')} with action freeze.",
        "manual": "**Stop all producers of the source before you approve the cutover.**",
        "acl": "DENY WRITE is put on the migrated topics for each principal that may write, and removed afterwards.",
    }[cut.freeze]
    return f"{how} Then end offsets must stand still for {format_duration(cut.freeze_stable_window)}."


def _commands(spec: MigrationSpec) -> list[str]:
    name = spec.migration_id
    return [
        "```sh",
        f"kafka-migration status {name}.yaml            # where it stands",
        f"kafka-migration journal show {name}.yaml      # everything that was done, by whom",
        f"kafka-migration resume {name}.yaml            # go on after a failure (or clear the red task in Airflow)",
        f"kafka-migration resume {name}.yaml --approve CODE   # answer an approval, with the code that it showed",
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
        "- A red task: read its last line (it ends with what to do), then clear it. Each task goes on where it was.",
        f"- Freeze too long: the freeze is lifted after {format_duration(spec.cutover.max_producer_freeze)}, and the "
        f"migration is back in tail: {words.lifted(spec.cutover.freeze)}.",
        "- Abort: answer the cutover's approval with Abort, or use rollback, also in a freeze. Topics and data stay on "
        "the target; rollback-report.json lists them.",
        "- After the client switch there is no way back by rollback: clients write to the target. Go forward.",
    ]
