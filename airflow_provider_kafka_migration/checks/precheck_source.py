"""Precheck of the source: transactions that hold the copy back, and retention that may overtake it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from airflow_provider_kafka_migration.documents.findings import Finding
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.groups.left_out import is_internal
from airflow_provider_kafka_migration.planning.plan_measure import copy_seconds
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding, some

#: A transaction that is open for longer than its own timeout and this is not ended by anybody.
HANGING_SECONDS = 60
#: The copy should be done in half of the retention time.
RETENTION_SHARE = 0.5


def check_transactions(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Open transactions: last stable offsets below high watermarks, and who holds them."""
    keys = [(topic.name, item.partition) for topic in plan.topics for item in topic.partitions]
    # In this order: without a transaction the last stable offset is the high watermark, which only grows, so a busy
    # partition answers the second question with more.
    high = context.source.wire.list_offsets(keys, "latest")
    stable = context.source.wire.list_offsets(keys, "stable")
    held = [key for key in keys if stable[key] < high[key]]
    if held:
        names = [f"{topic}-{partition}" for topic, partition in held]
        yield finding("W050", f"the last stable offset is below the high watermark in {some(names)}", partitions=names)
    now_ms = int(context.now().timestamp() * 1000)
    selected = {topic.name for topic in plan.topics}
    for item in context.source.admin.open_transactions() or []:
        if item.error is not None or not any(topic in selected for topic, _ in item.partitions):
            continue
        age_ms = now_ms - item.start_time_ms if item.start_time_ms > 0 else 0
        if age_ms > item.timeout_ms + HANGING_SECONDS * 1000:
            seen = f"{item.transactional_id} is open for {age_ms / 1000:.0f} s, its timeout is {item.timeout_ms} ms"
            yield finding("W051", seen, subject=item.transactional_id, producer_id=item.producer_id)


def check_coupled_topics(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Topics that one transactional producer writes together, some of them outside of the selection.

    Seen by producer ids: a producer id of transactions that a selected partition and another one remember.
    """
    selected = {topic.name for topic in plan.topics}
    others = [name for name, why in plan.excluded_topics.items() if not is_internal(why)]
    if not others or not any("transactional" in topic.kinds for topic in plan.topics):
        return
    keys = [(topic.name, item.partition) for topic in plan.topics for item in topic.partitions]
    facts = context.source.admin.describe_topics(others)
    keys += [(name, item.partition) for name, topic in facts.items() for item in topic.partitions if not topic.error]
    by_producer: dict[int, set[str]] = defaultdict(set)
    for (topic_name, _), found in context.source.admin.producers(keys).items():
        for state in found.producers:
            if state.coordinator_epoch >= 0 or state.transaction_start >= 0:
                by_producer[state.producer_id].add(topic_name)
    pairs: dict[str, set[str]] = defaultdict(set)
    for topics in by_producer.values():
        for name in topics & selected:
            pairs[name] |= topics - selected
    for name in sorted(pairs):
        if pairs[name]:
            outside = sorted(pairs[name])
            yield finding("W052", f"written in one transaction with {some(outside)}", subject=name, topics=outside)


def check_retention(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Retention that may delete records before they are copied."""
    seconds = copy_seconds(context, plan)
    if seconds <= 0:
        return
    names = [topic.name for topic in plan.topics]
    configs = context.source.admin.topic_configs(names)
    short = []
    for name in names:
        if "delete" not in configs[name].get("cleanup.policy", "delete"):
            continue
        retention_ms = int(configs[name].get("retention.ms", "-1") or -1)
        if 0 <= retention_ms < seconds * 1000 / RETENTION_SHARE:
            short.append(f"{name} ({retention_ms / 1000:.0f} s)")
    if short:
        yield finding(
            "W063",
            f"the copy takes about {seconds:.0f} s; retention.ms of {some(short)}",
            topics=short,
        )
