"""How long each cluster keeps the records of a topic, and what the target would delete that the source keeps.

Judged by effective values: what is set on the topic, else the brokers' default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from airflow_provider_kafka_migration.errors import BrokerRefused
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.topics import probe

_UNLIMITED = -1


@dataclass(frozen=True)
class Keeping:
    """What decides how long a topic's records stay on a cluster.

    :param retention_ms: -1: no limit.
    :param retention_bytes: of each partition; -1: no limit.
    """

    deletes: bool
    compacts: bool
    retention_ms: int
    retention_bytes: int

    @classmethod
    def of(cls, get: Callable[[str], str | None]) -> Keeping | None:
        """Read it from effective configs; None: a value is not known or no number, so nothing can be said.

        Another check asks the target's controller whether it accepts the value, and names the setting.
        """
        policy, time, size = get("cleanup.policy"), get("retention.ms"), get("retention.bytes")
        if not policy or not time or not size:
            return None
        try:
            return cls("delete" in policy, "compact" in policy, int(time), int(size))
        except ValueError:
            return None

    @property
    def longest_ms(self) -> int:
        """How long a record stays that retention alone may delete; -1: for good."""
        return self.retention_ms if self.deletes else _UNLIMITED

    @property
    def most_bytes(self) -> int:
        """How many bytes of a partition retention alone may keep; -1: all."""
        return self.retention_bytes if self.deletes else _UNLIMITED

    def loses_more_than(self, source: Keeping) -> list[str]:
        """Return by which settings records go that the source keeps, for people."""
        found = []
        if self.compacts and not source.compacts:
            found.append("cleanup.policy compacts it, and the source does not")
        for mine, others, what in (
            (self.longest_ms, source.longest_ms, "milliseconds that records stay"),
            (self.most_bytes, source.most_bytes, "bytes of a partition that stay"),
        ):
            if _is_less(mine, others):
                found.append(f"{what}: {_shown(mine)} on the target, {_shown(others)} on the source")
        return found


def _is_less(limit: int, other: int) -> bool:
    return limit != _UNLIMITED and (other == _UNLIMITED or limit < other)


def _shown(limit: int) -> str:
    return "unlimited" if limit == _UNLIMITED else str(limit)


def defaults_of(record: MigrationRecord, target: Cluster) -> dict[str, str]:
    """Return the target's defaults of a new topic; empty where it does not report them."""
    answer = target.admin.new_topic_configs(probe.scratch_topic(record, target))
    return {name: item.value for name, item in answer.values.items() if item.value is not None}


def older_offsets(wire: Wire, partitions: Iterable[TopicPartition], age_ms: int, now_ms: int) -> int | None:
    """Return how many offsets hold records that are older than an age, up to the first younger record.

    None: brokers refuse to look records up by their time. Those of Kafka 4.4 do where a stored record is larger than
    ``max.decompressed.message.bytes`` of today.

    Retention deletes whole segments, and the active one last, so it may delete fewer at first.

    :raises MigrationError: the cluster cannot be asked.
    """
    keys = sorted(partitions)
    if not keys or age_ms == _UNLIMITED:
        return 0
    starts, ends = wire.list_offsets(keys, "earliest"), wire.list_offsets(keys, "latest")
    try:
        younger = wire.offsets_for(keys, max(0, now_ms - age_ms))
    except BrokerRefused:
        return None
    # -1: no record is younger.
    return sum(max(0, (younger[key] if younger[key] >= 0 else ends[key]) - starts[key]) for key in keys)
