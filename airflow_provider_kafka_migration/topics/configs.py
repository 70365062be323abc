"""Topic configs: what the target topic ends with, what it has while it is copied, and the two steps back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_kafka_migration.documents.plan import ClusterFacts, TopicPlan
from airflow_provider_kafka_migration.kafka.admin.topics import Configs
from airflow_provider_kafka_migration.spec import TopologySection

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

#: Tiered storage (KIP-405): not while copying, and only where brokers have it.
REMOTE = ("remote.", "local.retention.")

#: Records of years pass in minutes while copying: with a short segment.ms (record time) each batch would roll one.
MIN_SEGMENT_MS = 7 * 24 * 3600 * 1000

#: Put back after the content check only: they delete data.
DELETING = (
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "min.compaction.lag.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
)
#: Holds the cleaner back between the two steps. The upper limit has to be set, too: brokers refuse a minimum above it,
#: and it may come from their own ``log.cleaner.max.compaction.lag.ms``.
HELD_BACK = {"min.compaction.lag.ms": LONG_MAX, "max.compaction.lag.ms": LONG_MAX}


def is_4_or_newer(facts: ClusterFacts) -> bool:
    """Whether a cluster runs Kafka 4.0 or newer."""
    match = re.match(r"(\d+)", facts.kafka_version)
    return bool(match) and int(match[1]) >= 4 if match else facts.mode == "kraft"


@dataclass(frozen=True)
class TargetRules:
    """What is known of topic configs on the target.

    :param facts: the target cluster.
    :param defaults: what a new topic would have, by config; ``None`` where the target does not tell.
    :param tiered_storage: whether brokers have remote storage; ``None`` where they do not tell.
    """

    facts: ClusterFacts
    defaults: Mapping[str, str | None] | None = None
    tiered_storage: bool | None = None

    def knows(self, name: str) -> bool | None:
        """Whether the target has this topic config; ``None`` if nobody knows."""
        return None if self.defaults is None else name in self.defaults


def final_configs(
    source: Configs, target: TargetRules, section: TopologySection, replication_factor: int = -1
) -> tuple[dict[str, str], dict[str, str]]:
    """What the target topic ends with, and what is left out or changed with the reason."""
    kept: dict[str, str] = {}
    dropped: dict[str, str] = {}
    wanted = dict(source.overrides)
    if section.use_defaults_from == "source":
        wanted = {**_source_defaults(source, target), **wanted}
    for name, value in sorted(wanted.items()):
        reason = _reason_to_drop(name, value, target, section)
        if reason:
            dropped[name] = reason
        else:
            kept[name] = value
    _map_timestamp_difference(wanted, kept, dropped, target)
    _raise_segment_bytes(kept, dropped, target)
    _lower_min_insync(kept, dropped, target, replication_factor)
    return dict(sorted(kept.items())), dict(sorted(dropped.items()))


def _source_defaults(source: Configs, target: TargetRules) -> dict[str, str]:
    """Values that the source's topics have by default and the target's would not have (KIP-894, ``source``)."""
    return {
        name: item.value
        for name, item in source.values.items()
        if not item.is_override
        and item.value is not None
        and not item.sensitive
        and not item.read_only
        and target.knows(name)
        and target.defaults is not None
        and target.defaults[name] != item.value
    }


def _reason_to_drop(name: str, value: str, target: TargetRules, section: TopologySection) -> str:
    if any(re.fullmatch(pattern, name) for pattern in section.config_exclude):
        return "excluded by topology.config_exclude"
    if name.startswith(REMOTE) and target.tiered_storage is False:
        return "the target's brokers have no tiered storage (remote.log.storage.system.enable)"
    known = target.knows(name)
    if known is False or (known is None and is_4_or_newer(target.facts) and name in DROPPED_SINCE_4):
        return DROPPED_SINCE_4.get(name, "the target does not know this config")
    if known is None and name.startswith(("confluent.", "redpanda.")):
        return "not a config of Apache Kafka"
    return ""


def _map_timestamp_difference(
    wanted: Mapping[str, str], kept: dict[str, str], dropped: dict[str, str], target: TargetRules
) -> None:
    """KIP-937: one limit became two."""
    old = "message.timestamp.difference.max.ms"
    new = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
    if old not in dropped or old not in wanted or dropped[old].startswith("excluded"):
        return
    for name in new:
        if target.knows(name) is not False and name not in wanted:
            kept[name] = wanted[old]
    dropped[old] = f"replaced by {' and '.join(new)} since Kafka 4.0, with the same value"


def _raise_segment_bytes(kept: dict[str, str], dropped: dict[str, str], target: TargetRules) -> None:
    name = "segment.bytes"
    if is_4_or_newer(target.facts) and int(kept.get(name, MIN_SEGMENT_BYTES_4)) < MIN_SEGMENT_BYTES_4:
        dropped[name] = f"{kept[name]} is below what Kafka 4 takes; set to {MIN_SEGMENT_BYTES_4}"
        kept[name] = str(MIN_SEGMENT_BYTES_4)


def _lower_min_insync(
    kept: dict[str, str], dropped: dict[str, str], target: TargetRules, replication_factor: int
) -> None:
    """More in-sync replicas than replicas: nothing could be written, with ELR (KIP-966) not even with acks=1.

    The target's own default may be above it, too, where its brokers are too few for the source's factor.
    """
    name = "min.insync.replicas"
    default = (target.defaults or {}).get(name)
    value = kept.get(name) or default or "1"
    if 0 < replication_factor < int(value):
        whose = "" if name in kept else " by default on the target"
        dropped[name] = f"{value}{whose} is above the replication factor {replication_factor}; set to that"
        kept[name] = str(replication_factor)


def with_excluded(wanted: Mapping[str, str], present: Mapping[str, str], exclude: Sequence[str]) -> dict[str, str]:
    """Configs that are not copied belong to the target: what a topic that is there has of them stays."""
    kept = {name: value for name, value in present.items() if any(re.fullmatch(item, name) for item in exclude)}
    return dict(sorted({**wanted, **kept}.items()))


def drift_of(present: Mapping[str, str], wanted: Mapping[str, str], policy: str) -> list[dict[str, str | None]]:
    """Where a target topic that was there differs from what the source says, and what it will be."""
    return [
        {
            "config": name,
            "target": present.get(name),
            "source": value,
            "planned": present.get(name) if policy == "keep_target" else value,
        }
        for name, value in changes(present, wanted).items()
    ]


def copy_time_configs(topic: TopicPlan, target: ClusterFacts, *, max_batch_bytes: int) -> dict[str, str]:
    """What the topic has while it is copied: the final configs, overlaid."""
    configs = {name: value for name, value in topic.target_configs.items() if not name.startswith(REMOTE)}
    configs.update(COPY_TIME)
    for name in ("min.compaction.lag.ms", "max.compaction.lag.ms"):
        configs.pop(name, None)
    if int(configs.get("segment.ms", MIN_SEGMENT_MS)) < MIN_SEGMENT_MS:
        configs["segment.ms"] = str(MIN_SEGMENT_MS)
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


def stages(topic: TopicPlan, target: ClusterFacts, *, max_batch_bytes: int) -> dict[str, dict[str, str]]:
    """All overrides that the migration will set on a topic, by what they are for, in the order in which they come."""
    return {
        "copy-time": copy_time_configs(topic, target, max_batch_bytes=max_batch_bytes),
        "producer-visible": producer_visible(topic),
        "final": dict(topic.target_configs),
    }


def changes(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """What to set and (None) to delete so that the overrides become what is wanted."""
    found: dict[str, str | None] = {name: value for name, value in wanted.items() if present.get(name) != value}
    found.update({name: None for name in present if name not in wanted})
    return dict(sorted(found.items()))
