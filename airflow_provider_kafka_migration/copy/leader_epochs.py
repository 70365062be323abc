"""Has the source lost records that were read already? Leader epochs tell, as in KIP-320.

Each batch names the epoch of the leader that appended it. An unclean election (or a broker restored from an old disk)
cuts the log and begins another epoch at the cut, so the new log may grow past our position before anybody looks: by
offsets alone it cannot be told from the old one. Fetches name the leader's epoch, so a broker refuses them once the
epoch has risen; then the new leader is asked where the epoch ends that was read last. If that is below our position,
records that were read are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError, SourceTruncated, Transient, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch
from airflow_provider_kafka_migration.kafka.ends import by_leader
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire, by_topic

#: The lowest version that names the epoch of the present leader, so that a stale one does not answer.
_LOWEST_VERSION = 2
_HIGHEST_VERSION = 3
_CONSUMER = -1


class ReadUpTo(NamedTuple):
    """How far a partition was read, and the leader epoch of the last batch."""

    source_offset: int
    epoch: int


def last_epoch(batches: Sequence[AnyBatch]) -> int:
    """Leader epoch of the last of these batches; -1: none has one (message formats 0 and 1)."""
    return max((batch.leader_epoch for batch in batches if isinstance(batch, RawBatch)), default=-1)


def truncated(
    offset: int, read: ReadUpTo, where: Where, *, leader_epoch: int = -1, last_epoch: int = -1
) -> SourceTruncated:
    """The error for a source that ends, or parted from what was read, below our position.

    :param offset: first offset that may be lost; -1: not known.
    :param leader_epoch: of the present leader.
    :param last_epoch: the newest epoch of the present leader that is not above the one that was read.
    """
    lost = f"records {offset}..{read.source_offset - 1}" if offset >= 0 else "some of the records"
    # With an epoch of ours missing altogether the two logs may have parted earlier.
    also = ", and maybe earlier ones," if offset >= 0 and last_epoch < read.epoch else ""
    leader = f"its leader of epoch {leader_epoch}" if leader_epoch >= 0 else "its present leader"
    return SourceTruncated(
        f"the source has lost {lost}{also} after they were read: {leader} does not have what was read under epoch "
        f"{read.epoch} up to offset {read.source_offset}",
        where=where,
        next_step="find out from the source's brokers what was lost (an unclean leader election, or a broker that came "
        "back without its disk): the target may still have these records and the source has others in their place; "
        "to copy the topic again, set offsets.on_source_truncation: recopy and clear the task; or leave the topic out",
        details={
            "truncated_offset": offset,
            "source_offset": read.source_offset,
            "read_epoch": read.epoch,
            "leader_epoch": leader_epoch,
        },
    )


def check_not_truncated(
    wire: Wire, read: Mapping[TopicPartition, ReadUpTo]
) -> dict[TopicPartition, MigrationError | None]:
    """Whether the present leaders still have what was read; None: they do.

    :raises Transient: nobody of the cluster answers.
    """
    found: dict[TopicPartition, MigrationError | None] = {}
    for broker_id, keys in by_leader(wire, read, found).items():
        try:
            found.update(_ask(wire, broker_id, {key: read[key] for key in keys}))
        except Transient as error:
            wire.forget_leaders(keys)
            found.update(dict.fromkeys(keys, error))
    return found


def _ask(
    wire: Wire, broker_id: int, read: Mapping[TopicPartition, ReadUpTo]
) -> dict[TopicPartition, MigrationError | None]:
    connection = wire.connection(broker_id)
    low, high = connection.api_versions.get(OffsetForLeaderEpochRequest.API_KEY, (-1, -1))
    version = min(high, _HIGHEST_VERSION)
    if not max(low, _LOWEST_VERSION) <= version:
        # Brokers before 2.1 and some other products: the comparison at each take-over and the proof remain.
        return dict.fromkeys(read)
    epochs = wire.leader_epochs(read)
    entry = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    request = OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[
            entry(
                topic=topic,
                partitions=[
                    entry.OffsetForLeaderPartition(
                        partition=number,
                        current_leader_epoch=epochs[(topic, number)],
                        leader_epoch=read[(topic, number)].epoch,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(read)
        ],
    )
    answer = connection.call(request, version=version)
    found: dict[TopicPartition, MigrationError | None] = {
        key: BrokerBusy(
            "the broker did not say whether it still has what was read",
            where=Where(cluster=wire.config.name, topic=key[0], partition=key[1]),
            next_step="none: it is asked again",
        )
        for key in read
    }
    for topic in answer.topics:
        for item in topic.partitions:
            key = (topic.topic, item.partition)
            found[key] = _judge(wire, key, item, read[key], epochs[key])
    return found


def _judge(wire: Wire, key: TopicPartition, item: object, read: ReadUpTo, leader_epoch: int) -> MigrationError | None:
    code, epoch, end_offset = (int(getattr(item, name)) for name in ("error_code", "leader_epoch", "end_offset"))
    where = Where(cluster=wire.config.name, topic=key[0], partition=key[1], offset=read.source_offset)
    if code:
        if code in error_codes.STALE_METADATA:
            wire.forget_leaders([key])
        return error_codes.error_for(code, "the end of a leader epoch is not known", where=where, needs="Describe")
    # An end of -1: the leader does not know the epoch of a batch that it must have. An earlier epoch than ours: it has
    # nothing of that epoch, so what it has at these offsets was written by somebody else (KIP-279).
    if end_offset < read.source_offset or epoch < read.epoch:
        cut = end_offset if end_offset < read.source_offset else -1
        return truncated(cut, read, where, leader_epoch=leader_epoch, last_epoch=epoch)
    return None
