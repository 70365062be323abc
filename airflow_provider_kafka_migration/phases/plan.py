"""Plan: what will happen, from the spec and the live clusters. Reads only; two plans of the same clusters are equal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.plan import GroupPlan, PartitionPlan, Plan, TopicPlan, Verdict
from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.kafka.admin_configs import Configs
from airflow_provider_kafka_migration.kafka.admin_topics import TopicFacts
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.phases.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.phases.plan_acls import plan_acls
from airflow_provider_kafka_migration.phases.topology_configs import changes, final_configs
from airflow_provider_kafka_migration.replication.lanes import assign_lanes
from airflow_provider_kafka_migration.spec import INTERNAL_TOPICS, MigrationSpec

PHASE = "plan"
STEP = "planned"


def run(context: PhaseContext) -> PhaseResult:
    """Make the plan, write ``plan.json`` and journal its digest."""
    context.progress(Progress(PHASE, "looking at both clusters"))
    plan = make_plan(context)
    digest = plan.digest()
    data = plan.canonical()
    key = context.key("plan.json")
    context.journal.check_holds()
    context.journal_store.put(context.key(f"plans/{digest[:16]}.json"), data)
    context.journal_store.put(key, data)
    last = context.journal.find_step(STEP)
    partitions = sum(len(topic.partitions) for topic in plan.topics)
    summary = f"plan {digest[:8]}: {len(plan.topics)} topics, {partitions} partitions, {len(plan.groups)} groups"
    details = {"digest": digest, "uri": f"{context.journal_store.uri}/{key}", "summary": summary}
    if last is None or last.details.get("digest") != digest:
        context.journal.step(STEP, details=details, reason=summary)
    return PhaseResult(PHASE, summary, details)


def make_plan(context: PhaseContext) -> Plan:
    """The plan of the clusters as they are now.

    :raises Terminal: nothing is selected, or two topics would get the same name.
    """
    spec = context.spec
    source, target = context.source.admin, context.target.admin
    source_facts, target_facts = source.facts(), target.facts()
    described = source.describe_topics()
    selected = {name: item for name, item in described.items() if spec.topics.selects(name)}
    excluded = {
        name: "internal" if any(re.fullmatch(pattern, name) for pattern in INTERNAL_TOPICS) else "not selected"
        for name in sorted(described.keys() - selected.keys())
    }
    _check_selection(context, selected)
    keys = [(name, item.partition) for name, facts in selected.items() for item in facts.partitions]
    ends = _Ends(context, keys)
    configs = source.topic_configs(sorted(selected))
    on_target = target.describe_topics([spec.topics.target_name(name) for name in sorted(selected)])
    target_configs = target.topic_configs([name for name, facts in sorted(on_target.items()) if facts.error is None])
    topics = []
    for name, facts in sorted(selected.items()):
        wanted, dropped = final_configs(configs[name].overrides, target_facts, list(spec.topology.config_exclude))
        target_name = spec.topics.target_name(name)
        present = target_configs.get(target_name)
        topics.append(
            TopicPlan(
                name=name,
                target_name=target_name,
                topic_id=facts.topic_id,
                partitions=[_partition(spec, name, item.partition, ends) for item in facts.partitions],
                replication_factor=_replication_factor(spec, facts, len(target_facts.brokers)),
                source_replication_factor=facts.replication_factor,
                source_configs=dict(sorted(configs[name].overrides.items())),
                target_configs=wanted,
                dropped_configs=dropped,
                kinds=_kinds(configs[name]),
                exists_on_target=present is not None,
                drift=[] if present is None else _drift(present.overrides, wanted),
            )
        )
    return Plan(
        migration_id=spec.migration_id,
        source=source_facts,
        target=target_facts,
        topics=topics,
        groups=_groups(context, selected),
        acls=plan_acls(context, set(selected)),
        lanes=assign_lanes({key: ends.sizes.get(key, -1) for key in keys}, spec.seed.lanes),
        excluded_topics=excluded,
        notes=_notes(),
        spec_digest=canonical_digest(spec.model_dump(mode="json")),
    )


class _Ends:
    """Log starts and ends of all partitions, asked for once."""

    def __init__(self, context: PhaseContext, keys: list[TopicPartition]) -> None:
        wire = context.source.wire
        self.start = wire.list_offsets(keys, "earliest")
        self.stable = wire.list_offsets(keys, "stable")
        self.high_watermark = wire.list_offsets(keys, "latest")
        self.sizes: dict[TopicPartition, int] = {}
        for log_dir in context.source.admin.log_dirs():
            for key, size in log_dir.sizes.items():
                # Replicas differ a little; the largest is the leader's or close to it.
                self.sizes[key] = max(size, self.sizes.get(key, -1))


def _check_selection(context: PhaseContext, selected: Mapping[str, TopicFacts]) -> None:
    if not selected:
        raise Terminal(
            "no topic of the source is selected",
            where=context.where(PHASE),
            next_step="check topics.include and topics.exclude, and that the source principal may describe topics",
        )
    targets: dict[str, list[str]] = {}
    for name in sorted(selected):
        targets.setdefault(context.spec.topics.target_name(name), []).append(name)
    collisions = {target: names for target, names in targets.items() if len(names) > 1}
    if collisions:
        listing = "; ".join(f"{target} from {', '.join(names)}" for target, names in sorted(collisions.items()))
        raise Terminal(
            f"several topics would get the same name on the target: {listing}",
            where=context.where(PHASE),
            next_step="change topics.rename",
            details={"collisions": collisions},
        )


def _partition(spec: MigrationSpec, topic: str, partition: int, ends: _Ends) -> PartitionPlan:
    key = (topic, partition)
    start, stable = ends.start[key], ends.stable[key]
    verdict, reason = _verdict(spec, start)
    return PartitionPlan(
        partition=partition,
        log_start_offset=start,
        end_offset=stable,
        high_watermark=ends.high_watermark[key],
        size_bytes=ends.sizes.get(key, -1),
        verdict=verdict,
        reason=reason,
        source_start_offset=start,
        target_start_offset=start if verdict is Verdict.EQUAL else 0,
    )


def _verdict(spec: MigrationSpec, start: int) -> tuple[Verdict, str]:
    section = spec.offsets
    if section.mode == "mapped":
        return Verdict.MAPPED, "offsets.mode: mapped"
    if section.mode == "shifted" and start:
        return Verdict.SHIFTED, f"offsets.mode: shifted; the log starts at {start}"
    if section.mode == "auto" and start > section.max_filler_offsets:
        return Verdict.SHIFTED, f"the log starts at {start}, more than offsets.max_filler_offsets"
    return Verdict.EQUAL, "the log starts at 0" if not start else f"the log start {start} is filled"


def _replication_factor(spec: MigrationSpec, facts: TopicFacts, target_brokers: int) -> int:
    wanted = spec.topology.replication_factor
    if wanted == "target_default":
        return -1
    return min(facts.replication_factor if wanted == "source" else int(wanted), target_brokers)


def _kinds(configs: Configs) -> list[str]:
    kinds = []
    if "compact" in configs.get("cleanup.policy"):
        kinds.append("compacted")
    if configs.get("message.timestamp.type") == "LogAppendTime":
        kinds.append("log_append_time")
    return kinds


def _drift(present: Mapping[str, str], wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"config": name, "target": present.get(name), "planned": value}
        for name, value in changes(present, wanted).items()
    ]


def _groups(context: PhaseContext, selected: Mapping[str, TopicFacts]) -> list[GroupPlan]:
    listings = context.source.admin.list_groups()
    names = [name for name in sorted(listings) if context.spec.groups.selects(name)]
    offsets = context.source.admin.groups_offsets(names, require_stable=False)
    plans = []
    for name in names:
        topics = sorted({topic for topic, _ in offsets[name].offsets})
        plans.append(
            GroupPlan(
                group=name,
                type=listings[name].type,
                state=listings[name].state,
                topics_in_scope=[topic for topic in topics if topic in selected],
                topics_out_of_scope=[topic for topic in topics if topic not in selected],
            )
        )
    return plans


def _notes() -> list[str]:
    return [
        "SCRAM secrets cannot be read from a cluster: users are listed, not copied",
        "transactional ids are not portable: the target starts clean",
        "delegation tokens are not copied",
    ]
