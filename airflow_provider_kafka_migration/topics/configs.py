"""Topic configs: the final ones on the target, the ones during the copy, and the two steps that restore them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from airflow_provider_kafka_migration.documents.plan import ClusterFacts, TopicPlan
from airflow_provider_kafka_migration.kafka.admin.topics import Configs
from airflow_provider_kafka_migration.spec import TopologySection

LONG_MAX = str(2**63 - 1)

#: Topic configs that newer brokers no longer know, and what replaced them.
DROPPED_SINCE_4 = {
    "message.format.version": "removed in Kafka 4.0: records are always of format 2 there",
    "message.timestamp.difference.max.ms": "replaced by message.timestamp.before.max.ms and .after.max.ms",
    "message.downconversion.enable": "removed in Kafka 4.0: all clients understand format 2",
}
MIN_SEGMENT_BYTES_4 = 1024 * 1024

#: Configs of every topic while it is copied, whatever its configs before and after. The broker must accept old
#: timestamps unchanged, must not delete or compact anything before the content is proven, and must not recompress.
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
#: Brokers from 3.6 to 3.9 know both. There ``before.max.ms`` at its default, which is Long.MAX, leaves the decision to
#: ``difference.max.ms``; one less lifts both, whatever the broker's own limits are.
COPY_TIME_TIMESTAMPS_BOTH = {
    **dict.fromkeys(COPY_TIME_TIMESTAMPS, str(2**63 - 2)),
    **COPY_TIME_TIMESTAMPS_OLD,
}

#: A limit of Kafka 4.4 and newer: a compressed batch with a larger record is refused, and stored ones can neither be
#: compacted nor looked up by time. Older versions have none.
DECOMPRESSED = "max.decompressed.message.bytes"
NO_DECOMPRESSED_LIMIT = str(2**31 - 9)

#: Tiered storage (KIP-405): not set during the copy, and afterwards only where the brokers support it.
REMOTE = ("remote.", "local.retention.")

#: The copy writes years of records in minutes: with a short segment.ms (record time) each batch would roll a segment.
MIN_SEGMENT_MS = 7 * 24 * 3600 * 1000

#: Restored only after the content check, because they delete data.
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
#: Holds the cleaner back between the two steps. The maximum must be set as well: brokers refuse a minimum above it, and
#: it may come from their own ``log.cleaner.max.compaction.lag.ms``.
HELD_BACK = {"min.compaction.lag.ms": LONG_MAX, "max.compaction.lag.ms": LONG_MAX}


#: In a mirror, once a topic is copied, these follow its own settings. Timestamps, sizes and compression stay as during
#: the copy, because records still arrive from the source.
MIRRORED = (
    "cleanup.policy",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "segment.bytes",
    "segment.jitter.ms",
    "segment.ms",
)
RETENTION = ("retention.bytes", "retention.ms")

#: They decide which records stay, and what a record is for its readers. A topic keeps them even where nobody has set
#: them on it and only the source's brokers have them by default: the target's defaults could delete what was copied.
DECIDING = frozenset(
    {
        "cleanup.policy",
        "delete.retention.ms",
        DECOMPRESSED,
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.type",
        "min.compaction.lag.ms",
        "retention.bytes",
        "retention.ms",
    }
)

#: Set or removed by the copy itself, whatever topology.config_exclude says.
SET_BY_COPY = frozenset(
    {
        *COPY_TIME,
        *COPY_TIME_TIMESTAMPS,
        *COPY_TIME_TIMESTAMPS_OLD,
        *DELETING,
        *HELD_BACK,
        DECOMPRESSED,
        "max.message.bytes",
        "segment.ms",
    }
)


def is_left_alone(name: str, exclude: Sequence[str]) -> bool:
    """Return whether a config belongs to the target: it is excluded, and the copy does not need it.

    Such configs may change on the target at any time, for instance throttles of a reassignment.
    """
    return name not in SET_BY_COPY and any(re.fullmatch(item, name) for item in exclude)


def is_4_or_newer(facts: ClusterFacts) -> bool:
    """Whether a cluster runs Kafka 4.0 or newer."""
    match = re.match(r"(\d+)", facts.kafka_version)
    return bool(match) and int(match[1]) >= 4 if match else facts.mode == "kraft"


def _limits_decompressed(facts: ClusterFacts) -> bool:
    """Whether a cluster runs Kafka 4.4 or newer."""
    match = re.match(r"(\d+)\.(\d+)", facts.kafka_version)
    return match is not None and (int(match[1]), int(match[2])) >= (4, 4)


def timestamp_limits(facts: ClusterFacts) -> dict[str, str]:
    """Return the topic configs with which a cluster's brokers accept any timestamp."""
    if is_4_or_newer(facts):
        return COPY_TIME_TIMESTAMPS
    match = re.match(r"3\.(\d+)", facts.kafka_version)
    if match and int(match[1]) >= 6:
        return COPY_TIME_TIMESTAMPS_BOTH
    return COPY_TIME_TIMESTAMPS if facts.mode == "kraft" and not match else COPY_TIME_TIMESTAMPS_OLD


@dataclass(frozen=True)
class TargetRules:
    """What is known about topic configs on the target.

    :param facts: the target cluster.
    :param defaults: the defaults of a new topic, by config; ``None`` where the target does not report them.
    :param tiered_storage: whether the brokers have remote storage; ``None`` where they do not report it.
    """

    facts: ClusterFacts
    defaults: Mapping[str, str | None] | None = None
    tiered_storage: bool | None = None

    def knows(self, name: str) -> bool | None:
        """Whether the target has this topic config; ``None`` if that is unknown."""
        return None if self.defaults is None else name in self.defaults


def final_configs(
    source: Configs, target: TargetRules, section: TopologySection, replication_factor: int = -1
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the final configs of the target topic, and the configs left out or changed, with the reasons."""
    kept: dict[str, str] = {}
    dropped: dict[str, str] = {}
    defaults = _source_defaults(source, target)
    if section.use_defaults_from == "target":
        defaults = {name: value for name, value in defaults.items() if name in DECIDING}
    wanted = {**defaults, **source.overrides}
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
    """Defaults of the source's topics that differ from the target's (KIP-894, ``source``).

    Where the target does not report its defaults, those that decide which records stay count as different.
    """
    found = {
        name: item.value
        for name, item in source.values.items()
        if not item.is_override and item.value is not None and not item.sensitive and not item.read_only
    }
    if target.defaults is None:
        return {name: value for name, value in found.items() if name in DECIDING}
    if target.knows(DECOMPRESSED) and DECOMPRESSED not in source.values:
        found[DECOMPRESSED] = NO_DECOMPRESSED_LIMIT
    return {name: value for name, value in found.items() if target.defaults.get(name, value) != value}


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
    """Replace the one timestamp limit with the two that KIP-937 introduced."""
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
        dropped[name] = f"{kept[name]} is below the minimum of Kafka 4; set to {MIN_SEGMENT_BYTES_4}"
        kept[name] = str(MIN_SEGMENT_BYTES_4)


def _lower_min_insync(
    kept: dict[str, str], dropped: dict[str, str], target: TargetRules, replication_factor: int
) -> None:
    """Lower ``min.insync.replicas`` to the replication factor: above it, nothing could be written, and with ELR
    (KIP-966) not even with acks=1.

    The target's own default may also be above it, if the target has too few brokers for the source's factor.
    """
    name = "min.insync.replicas"
    default = (target.defaults or {}).get(name)
    value = kept.get(name) or default or "1"
    if 0 < replication_factor < int(value):
        whose = "" if name in kept else " by default on the target"
        dropped[name] = f"{value}{whose} is above the replication factor {replication_factor}; lowered to that"
        kept[name] = str(replication_factor)


def with_excluded(wanted: Mapping[str, str], present: Mapping[str, str], exclude: Sequence[str]) -> dict[str, str]:
    """Keep the excluded configs of an existing topic: configs that are not copied belong to the target."""
    kept = {name: value for name, value in present.items() if any(re.fullmatch(item, name) for item in exclude)}
    return dict(sorted({**wanted, **kept}.items()))


def drift_of(present: Mapping[str, str], wanted: Mapping[str, str], policy: str) -> list[dict[str, str | None]]:
    """Where an existing target topic differs from the source, and which value it gets."""
    return [
        {
            "config": name,
            "target": present.get(name),
            "source": value,
            "planned": present.get(name) if policy == "note" else value,
        }
        for name, value in changes(present, wanted).items()
    ]


def copy_time_configs(topic: TopicPlan, target: ClusterFacts, *, max_batch_bytes: int) -> dict[str, str]:
    """Return the configs of a topic during the copy: the final configs with the copy-time ones on top."""
    configs = {name: value for name, value in topic.target_configs.items() if not name.startswith(REMOTE)}
    configs.update(COPY_TIME)
    for name in ("min.compaction.lag.ms", "max.compaction.lag.ms"):
        configs.pop(name, None)
    if int(configs.get("segment.ms", MIN_SEGMENT_MS)) < MIN_SEGMENT_MS:
        configs["segment.ms"] = str(MIN_SEGMENT_MS)
    configs.update(timestamp_limits(target))
    if _limits_decompressed(target):
        configs[DECOMPRESSED] = NO_DECOMPRESSED_LIMIT
    configs["max.message.bytes"] = str(max(max_batch_bytes, int(configs.get("max.message.bytes", "0"))))
    return configs


def while_mirrored(
    copy_time: Mapping[str, str], final: Mapping[str, str], retention: Literal["source", "own"]
) -> dict[str, str]:
    """Return the configs of a topic that is mirrored: those of the copy, with what deletes and compacts from its own.

    :param retention: with ``source``, the mirror moves the log start itself, and retention stays off.
    """
    names = (*MIRRORED, *RETENTION) if retention == "own" else MIRRORED
    configs = {name: value for name, value in copy_time.items() if name not in names}
    configs.update({name: final[name] for name in names if name in final})
    return configs


def producer_visible(topic: TopicPlan) -> dict[str, str]:
    """Configs after the first restore step: final in all that a producer can notice; nothing is deleted yet."""
    configs = {name: value for name, value in topic.target_configs.items() if name not in DELETING}
    configs.update({"retention.ms": "-1", "retention.bytes": "-1"})
    if "compact" in topic.target_configs.get("cleanup.policy", ""):
        configs.update(HELD_BACK)
    return configs


def stages(topic: TopicPlan, target: ClusterFacts, *, max_batch_bytes: int) -> dict[str, dict[str, str]]:
    """All overrides that the migration sets on a topic, by purpose, in the order in which it sets them."""
    if topic.merged:
        return {name: dict(topic.target_configs) for name in ("copy-time", "producer-visible", "final")}
    return {
        "copy-time": copy_time_configs(topic, target, max_batch_bytes=max_batch_bytes),
        "producer-visible": producer_visible(topic),
        "final": dict(topic.target_configs),
    }


def changes(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """Return what to set, and (None) what to delete, so that the overrides become the wanted ones."""
    found: dict[str, str | None] = {name: value for name, value in wanted.items() if present.get(name) != value}
    found.update({name: None for name in present if name not in wanted})
    return dict(sorted(found.items()))
