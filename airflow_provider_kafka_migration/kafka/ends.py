"""Where logs begin and end, asked without waiting for any single partition: one without a leader stops only itself."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kafka.protocol.consumer import ListOffsetsRequest

from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError, Transient, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire, by_topic

_T = TypeVar("_T")
_EARLIEST, _LATEST = -2, -1
_VERSION = 5
#: KIP-405: the first offset that the leader has on its own disks, from Kafka 3.4 on
_EARLIEST_LOCAL = -4
_LOCAL_VERSION = 8
#: In ``details`` of an error: the cluster says that there is no such topic.
MISSING_TOPIC = "missing_topic"


@dataclass(frozen=True)
class LogEnds:
    """Start and ends of one log; all exclusive but the start."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int

    @property
    def settled(self) -> bool:
        """All that the leader has is replicated: what a dead copier left is there to stay."""
        return self.high_watermark >= self.log_end_offset


def read_ends(wire: Wire, keys: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnds | MigrationError]:
    """Ends of every partition, or what stands in the way.

    :raises Transient: nobody of the cluster answers.
    """
    found: dict[TopicPartition, LogEnds | MigrationError] = {}
    for broker_id, group in by_leader(wire, keys, found).items():
        found.update(_ends_at(wire, broker_id, group))
    return found


def by_leader(
    wire: Wire, keys: Iterable[TopicPartition], problems: MutableMapping[TopicPartition, _T | MigrationError]
) -> dict[int, list[TopicPartition]]:
    """Partitions by their present leader; those without one go to ``problems``."""
    wanted = sorted(set(keys))
    topics = wire.metadata({topic for topic, _ in wanted}) if wanted else {}
    groups: dict[int, list[TopicPartition]] = {}
    for key in wanted:
        topic = topics.get(key[0])
        leader = -1 if topic is None else topic.leaders.get(key[1], -1)
        if leader >= 0:
            groups.setdefault(leader, []).append(key)
            continue
        where = Where(cluster=wire.config.name, topic=key[0], partition=key[1])
        if topic is not None and topic.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            problems[key] = topic_missing(wire.config.name, *key)
        elif topic is not None and topic.error_code and not error_codes.retriable(topic.error_code):
            problems[key] = error_codes.error_for(topic.error_code, "the topic cannot be described", where=where)
        else:
            problems[key] = BrokerBusy(
                "the partition has no leader",
                where=where,
                next_step="check that the topic exists and its brokers run; then clear the task",
            )
    return dict(sorted(groups.items()))


def topic_missing(cluster: str, topic: str, partition: int) -> BrokerBusy:
    """The cluster says that there is no such topic. Transient: a broker that has just started may not know it yet."""
    return BrokerBusy(
        "the topic is not there",
        where=Where(cluster=cluster, topic=topic, partition=partition),
        next_step="check whether somebody has deleted the topic",
        details={MISSING_TOPIC: topic},
    )


def _ends_at(
    wire: Wire, broker_id: int, keys: Sequence[TopicPartition]
) -> dict[TopicPartition, LogEnds | MigrationError]:
    try:
        # The log end first: a high watermark asked for later can only be further on.
        log_end = list_offsets_at(wire, broker_id, keys, _LATEST, replica_id=-2)
        high_watermark = list_offsets_at(wire, broker_id, keys, _LATEST)
        log_start = list_offsets_at(wire, broker_id, keys, _EARLIEST)
    except Transient as error:
        return dict.fromkeys(keys, error)
    found: dict[TopicPartition, LogEnds | MigrationError] = {}
    for key in keys:
        start, high, end = log_start[key], high_watermark[key], log_end[key]
        if isinstance(start, int) and isinstance(high, int) and isinstance(end, int):
            found[key] = LogEnds(start, high, end)
        else:
            found[key] = next(item for item in (end, high, start) if not isinstance(item, int))
    return found


def local_log_start(wire: Wire, key: TopicPartition, leader_epoch: int) -> int | None:
    """First offset that a leader has on its own disks, not in remote storage; None: nobody can tell.

    Without remote storage it is the log start.

    :param leader_epoch: of the leader that is meant. Another one refuses the question: what is local there says
        nothing of the answers of this one. -1: not known, so nobody can tell.
    :raises MigrationError: the leader does not answer, or refuses; it is asked for again.
    """
    if leader_epoch < 0:
        return None
    broker_id = wire.leaders([key])[key]
    versions = wire.connection(broker_id).api_versions.get(ListOffsetsRequest.API_KEY, (0, 0))
    if not versions[0] <= _LOCAL_VERSION <= versions[1]:
        return None
    found = list_offsets_at(wire, broker_id, [key], _EARLIEST_LOCAL, leader_epoch=leader_epoch, version=_LOCAL_VERSION)[
        key
    ]
    if isinstance(found, MigrationError):
        wire.forget_leaders([key])
        raise found
    return found


def list_offsets_at(
    wire: Wire,
    broker_id: int,
    keys: Sequence[TopicPartition],
    timestamp: int,
    *,
    replica_id: int = -1,
    leader_epoch: int = -1,
    version: int = _VERSION,
) -> dict[TopicPartition, int | MigrationError]:
    """ListOffsets at one broker; errors of single partitions are values.

    :param replica_id: -2, the "debugging" replica, gives the leader's log end in place of its high watermark.
    :param leader_epoch: of the leader that is asked; it refuses if it is of another epoch. -1: not compared.
    :raises Transient: the broker does not answer.
    """
    entry = ListOffsetsRequest.ListOffsetsTopic
    request = ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=0,
        topics=[
            entry(
                name=topic,
                partitions=[
                    entry.ListOffsetsPartition(
                        partition_index=number, current_leader_epoch=leader_epoch, timestamp=timestamp
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(keys)
        ],
    )
    answer = wire.connection(broker_id).call(request, version=version)
    found: dict[TopicPartition, int | MigrationError] = {}
    for topic in answer.topics:
        for item in topic.partitions:
            key = (topic.name, item.partition_index)
            where = Where(cluster=wire.config.name, topic=key[0], partition=key[1])
            found[key] = (
                error_codes.error_for(item.error_code, "offsets cannot be listed", where=where)
                if item.error_code
                else item.offset
            )
    return found
