"""Topic configs: what the target topic ends with, what it has while it is copied, and the two steps back."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider_kafka_migration.documents.plan import ClusterFacts, TopicPlan

LONG_MAX = str(2**63 - 1)

#: Topic configs that newer brokers do not know any more, and what became of them.
DROPPED_SINCE_4 = {
    "message.format.version": "removed in Kafka 4.0: records are always of format 2 there",
    "message.timestamp.difference.max.ms": "replaced by message.timestamp.before.max.ms and .after.max.ms",
    "message.downconversion.enable": "removed in Kafka 4.0: all clients understand format 2",
}
MIN_SEGMENT_BYTES_4 = 1024 * 1024

#: What a topic has while it is copied, whatever it has before and after. Old timestamps must be taken as they are,
#: nothing may be deleted or compacted before the content is proven, and the broker must not recompress.
COPY_TIME = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "compression.type": "producer",
}
#: Topic-level names since 3.6 (KIP-937).
COPY_TIME_TIMESTAMPS = {
    "message.timestamp.before.max.ms": LONG_MAX,
    "message.timestamp.after.max.ms": LONG_MAX,
}
COPY_TIME_TIMESTAMPS_OLD = {"message.timestamp.difference.max.ms": LONG_MAX}

#: Put back after the content check only: they delete data.
DELETING = ("retention.ms", "retention.bytes", "min.compaction.lag.ms", "max.compaction.lag.ms")
#: Holds the cleaner back between the two steps.
HELD_BACK = {"min.compaction.lag.ms": LONG_MAX}


def is_4_or_newer(facts: ClusterFacts) -> bool:
    """Whether a cluster runs Kafka 4.0 or newer."""
    match = re.match(r"(\d+)", facts.kafka_version)
    return bool(match) and int(match[1]) >= 4 if match else facts.mode == "kraft"


def final_configs(
    source: Mapping[str, str], target: ClusterFacts, exclude: list[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """What the target topic ends with, and what is left out with the reason."""
    kept: dict[str, str] = {}
    dropped: dict[str, str] = {}
    for name, value in sorted(source.items()):
        reason = _reason_to_drop(name, target, exclude)
        if reason:
            dropped[name] = reason
        elif name == "segment.bytes" and is_4_or_newer(target) and int(value) < MIN_SEGMENT_BYTES_4:
            kept[name] = str(MIN_SEGMENT_BYTES_4)
            dropped[name] = f"{value} is below what Kafka 4 takes; set to {MIN_SEGMENT_BYTES_4}"
        else:
            kept[name] = value
    return kept, dropped


def _reason_to_drop(name: str, target: ClusterFacts, exclude: list[str]) -> str:
    if any(re.fullmatch(pattern, name) for pattern in exclude):
        return "excluded by topology.config_exclude"
    if is_4_or_newer(target) and name in DROPPED_SINCE_4:
        return DROPPED_SINCE_4[name]
    if name.startswith(("confluent.", "redpanda.")):
        return "not a config of Apache Kafka"
    return ""


def copy_time_configs(topic: TopicPlan, target: ClusterFacts, *, max_batch_bytes: int) -> dict[str, str]:
    """What the topic has while it is copied: the final configs, overlaid."""
    configs = {**topic.target_configs, **COPY_TIME}
    for name in ("min.compaction.lag.ms", "max.compaction.lag.ms"):
        configs.pop(name, None)
    newer = target.mode == "kraft" or is_4_or_newer(target)
    configs.update(COPY_TIME_TIMESTAMPS if newer else COPY_TIME_TIMESTAMPS_OLD)
    configs["max.message.bytes"] = str(max(max_batch_bytes, int(configs.get("max.message.bytes", "0"))))
    return configs


def producer_visible(topic: TopicPlan) -> dict[str, str]:
    """Configs after the first step back: final for all that a producer can notice; nothing is deleted yet."""
    configs = {name: value for name, value in topic.target_configs.items() if name not in DELETING}
    configs.update({"retention.ms": "-1", "retention.bytes": "-1"})
    if "compact" in topic.target_configs.get("cleanup.policy", ""):
        configs.update(HELD_BACK)
    return configs


def changes(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """What to set and (None) to delete so that the overrides become what is wanted."""
    found: dict[str, str | None] = {name: value for name, value in wanted.items() if present.get(name) != value}
    found.update({name: None for name in present if name not in wanted})
    return dict(sorted(found.items()))
