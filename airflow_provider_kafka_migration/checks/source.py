"""Precheck of the source: transactions, retention, sentinels, control markers, and tombstones that may be missed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

from airflow_provider_kafka_migration.documents.plan import Finding, Plan, TopicPlan, Verdict
from airflow_provider_kafka_migration.freeze.sentinel_records import sentinel_record
from airflow_provider_kafka_migration.groups.left_out import is_internal
from airflow_provider_kafka_migration.kafka.admin.topics import Configs
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.planning.source_snapshot import copy_seconds
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding, some
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso

# -- precheck source --------------------------------------------------------------------------------------------------
#
# Precheck of the source: transactions that block the copy, and retention that may overtake it.


#: A transaction that stays open this much longer than its own timeout is considered hanging.
HANGING_SECONDS = 60
#: The copy should be done in half of the retention time.
RETENTION_SHARE = 0.5


def check_transactions(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report open transactions: last stable offsets below high watermarks, and the transactional ids."""
    keys = [(topic.name, item.partition) for topic in plan.topics for item in topic.partitions]
    # In this order: without a transaction the last stable offset is the high watermark, which only grows, so on a busy
    # partition the second request returns more.
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
    """Report selected topics that one transactional producer writes together with topics outside of the selection.

    Detected by producer id: the id of a transactional producer that a selected partition and another one remember.
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
    """Report retention that may delete records before they are copied."""
    seconds = copy_seconds(context.record, plan)
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


# -- what the cutover writes to the source -----------------------------------------------------------------------------


#: The first brokers that ignore ``message.format.version`` and always write the format of 0.11.
_ONE_FORMAT_SINCE = (3, 0)
#: Confluent Server checks on the broker that keys or values begin with a known schema id; a sentinel has none.
_SCHEMA_VALIDATION = ("confluent.key.schema.validation", "confluent.value.schema.validation")


def check_sentinels(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report topics that would refuse a sentinel at the cutover, when producers are stopped already."""
    spec = context.spec
    if spec.kind != "migration" or spec.cutover.sentinel != "record":
        return
    configs = context.source.admin.topic_configs([topic.name for topic in plan.topics])
    old_brokers = False
    if any(_version(configs[topic.name].get("message.format.version", "")) < (0, 11) for topic in plan.topics):
        # From 3.0 on, brokers ignore message.format.version; an unknown value counts as an old one.
        broker = context.source.admin.broker_configs(plan.source.brokers[0])
        old_brokers = _version(broker.get("inter.broker.protocol.version", "0")) < _ONE_FORMAT_SINCE
    for topic in plan.topics:
        why = _why_no_sentinel(spec.migration_id, topic, configs[topic.name], context.now(), old_brokers)
        if why:
            yield finding("B054", why, subject=topic.name)


def _why_no_sentinel(migration_id: str, topic: TopicPlan, configs: Configs, now: datetime, old_brokers: bool) -> str:
    version = configs.get("message.format.version", "")
    if old_brokers and _version(version) < (0, 11):
        return f"message.format.version {version} has no headers"
    last = max((item.partition for item in topic.partitions), default=0)
    size_bytes = len(encode_batch([sentinel_record(migration_id, last, iso(now), int(now.timestamp() * 1000))]))
    limit_bytes = int(configs.get("max.message.bytes", "") or size_bytes)
    if limit_bytes < size_bytes:
        return f"max.message.bytes is {limit_bytes}, and a sentinel has {size_bytes} bytes"
    needed = int(configs.get("min.insync.replicas", "") or 1)
    if 0 < topic.source_replication_factor < needed:
        return f"min.insync.replicas is {needed}, and its partitions have {topic.source_replication_factor} replicas"
    checked = [name for name in _SCHEMA_VALIDATION if configs.get(name, "").lower() == "true"]
    return f"{' and '.join(checked)} is true, and a sentinel has no schema" if checked else ""


def _version(text: str) -> tuple[int, ...]:
    """Return ``(0, 10, 2)`` of ``0.10.2-IV0``; no version means that brokers no longer have the config."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else (1_000,)


# -- source -----------------------------------------------------------------------------------------------------------


#: A control batch on disk: 61 bytes of header and a record of 17.
MARKER_BYTES = 78
#: The copy should be done in half of the time for which tombstones are kept.
TOMBSTONE_SHARE = 0.5
_DAY_MS = 86_400_000


def marker_count(topic: TopicPlan) -> int:
    """Estimate the number of control markers that the copy of a topic writes."""
    filled = (Verdict.EQUAL, Verdict.SHIFTED)
    return sum(item.estimated_holes for item in topic.partitions if item.verdict in filled)


def check_markers(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report markers: their timestamp is the time when they were written, not that of the records around them."""
    marked = {topic.name: marker_count(topic) for topic in plan.topics if marker_count(topic)}
    if not marked:
        return
    total = sum(marked.values())
    yield finding(
        "I066",
        f"about {total:,} markers, {total * MARKER_BYTES:,} bytes per replica, in {some(sorted(marked))}",
        markers=marked,
    )
    configs = context.source.admin.topic_configs(sorted(marked))
    held = {}
    for topic in plan.topics:
        if topic.name not in marked or "delete" not in configs[topic.name].get("cleanup.policy", "delete"):
            continue
        retention_ms = int(topic.target_configs.get("retention.ms") or configs[topic.name].get("retention.ms", "-1"))
        if retention_ms >= 0:
            size = sum(max(item.size_bytes, 0) for item in topic.partitions)
            held[topic.name] = {"retention_ms": retention_ms, "size_bytes": size + marked[topic.name] * MARKER_BYTES}
    if held:
        listing = [
            f"{name} ({_days(item['retention_ms'])}, {item['size_bytes']:,} bytes)" for name, item in held.items()
        ]
        yield finding("W067", f"up to a full retention.ms longer than on the source: {some(listing)}", topics=held)


def check_tombstones(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report tombstones that compaction may drop before the copy reads them: their keys would stay on the target."""
    names = [topic.name for topic in plan.topics if "compacted" in topic.kinds]
    if not names:
        return
    seconds = _seconds_to_the_end(context.record, plan)
    if seconds < 0:
        yield finding("W068", f"the copy time is unknown, because sizes are unknown; compacted: {some(names)}")
        return
    configs = context.source.admin.topic_configs(names)
    short, unknown = {}, []
    for name in names:
        # The topic's own value, or the broker's default (log.cleaner.delete.retention.ms).
        text = configs[name].get("delete.retention.ms", "")
        if not text:
            unknown.append(name)
        elif int(text) * TOMBSTONE_SHARE < seconds * 1000:
            short[name] = int(text)
    if short:
        listing = [f"{name} ({value / 1000:.0f} s)" for name, value in short.items()]
        seen = f"the copy takes about {seconds:.0f} s; delete.retention.ms of {some(listing)}"
        yield finding("W068", seen, topics=short, copy_seconds=seconds)
    if unknown:
        yield finding("W068", f"the source does not report delete.retention.ms of {some(unknown)}", topics=unknown)


def _seconds_to_the_end(record: MigrationRecord, plan: Plan) -> float:
    """Time to read every log once to its end: copying, filling holes, and the spec's rate limit; -1 if unknown."""
    seconds = copy_seconds(record, plan)
    if seconds < 0 or plan.estimate is None:
        return -1
    limit = record.spec.seed.max_bytes_per_second
    if limit:
        seconds = max(seconds, plan.estimate.copy_bytes / (limit * record.spec.seed.lanes))
    return seconds + max(plan.estimate.fill_seconds, 0)


def _days(milliseconds: int) -> str:
    return f"{milliseconds / _DAY_MS:.1f} days" if milliseconds >= _DAY_MS else f"{milliseconds / 1000:.0f} s"
