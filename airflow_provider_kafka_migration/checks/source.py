"""Precheck of what compaction and its holes mean: control markers on the target, and tombstones that may be missed."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_kafka_migration.documents.findings import Finding
from airflow_provider_kafka_migration.documents.plan import Plan, TopicPlan, Verdict
from airflow_provider_kafka_migration.planning.plan_measure import copy_seconds
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding, some

#: A control batch on disk: 61 bytes of header and a record of 17.
MARKER_BYTES = 78
#: The copy should be done in half of the time for which tombstones stay.
TOMBSTONE_SHARE = 0.5
_DAY_MS = 86_400_000


def marker_count(topic: TopicPlan) -> int:
    """Control markers that the copy of a topic is estimated to write."""
    filled = (Verdict.EQUAL, Verdict.SHIFTED)
    return sum(item.estimated_holes for item in topic.partitions if item.verdict in filled)


def check_markers(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Markers carry the time at which they were written, not that of the records around them."""
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
    """Tombstones that compaction may drop before the copy has read them: their keys would stay on the target."""
    names = [topic.name for topic in plan.topics if "compacted" in topic.kinds]
    if not names:
        return
    seconds = _seconds_to_the_end(context, plan)
    if seconds < 0:
        yield finding("W068", f"how long the copy takes is not known, since sizes are not; compacted: {some(names)}")
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
        yield finding("W068", f"the source does not say delete.retention.ms of {some(unknown)}", topics=unknown)


def _seconds_to_the_end(context: PhaseContext, plan: Plan) -> float:
    """Until every log was read once to its end: copying, filling holes, and what the rate of the spec allows; or -1."""
    seconds = copy_seconds(context, plan)
    if seconds < 0 or plan.estimate is None:
        return -1
    limit = context.spec.seed.max_bytes_per_second
    if limit:
        seconds = max(seconds, plan.estimate.copy_bytes / (limit * context.spec.seed.lanes))
    return seconds + max(plan.estimate.fill_seconds, 0)


def _days(milliseconds: int) -> str:
    return f"{milliseconds / _DAY_MS:.1f} days" if milliseconds >= _DAY_MS else f"{milliseconds / 1000:.0f} s"
