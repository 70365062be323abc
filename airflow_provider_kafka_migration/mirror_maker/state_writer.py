"""Writes exact positions of consumer groups into MirrorMaker 2's state topics, so that its clients can use them.

``RemoteClusterUtils.translateOffsets`` reads checkpoints; a MirrorMaker 2 that takes over reads checkpoints and offset
syncs. Checkpoints are the exact channel. Offset syncs are the fallback for groups without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from airflow_provider_kafka_migration.errors import BrokerBusy, BrokerRefused, ForeignData, PermissionMissing, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.wire_admin import AUTHORIZATION_CODES
from airflow_provider_kafka_migration.kafka.auth import kerberos
from airflow_provider_kafka_migration.kafka.batches.api import LegacyBatch, RawBatch, records
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.logs import read_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.mirror_maker.formats import (
    Checkpoint,
    Heartbeat,
    OffsetSync,
    StateRecord,
)
from airflow_provider_kafka_migration.mirror_maker.state_topics import StateTopics

_FLUSH_SECONDS = 60.0

_Record = TypeVar("_Record", Checkpoint, OffsetSync)


class GroupPosition(NamedTuple):
    """A committed offset of a group on both sides; both exist."""

    group: str
    source_topic: str
    target_topic: str
    partition: int
    upstream_offset: int
    downstream_offset: int
    metadata: str = ""
    #: whether the upstream offset has a record, whose copy is at the downstream offset
    has_record: bool = False


@dataclass(frozen=True)
class Written:
    """How many records a round has written."""

    checkpoints: int = 0
    offset_syncs: int = 0
    heartbeats: int = 0


@dataclass
class _Known:
    """What the state topics hold: value by key, and the newest sync of each source partition."""

    checkpoints: dict[bytes, bytes] = field(default_factory=dict)
    newest_syncs: dict[TopicPartition, int] = field(default_factory=dict)


class StateWriter:
    """Writes the state of one flow. It must be the only writer of its topics: two flows have two aliases.

    It reads the topics when it starts, so that a restarted writer continues, and then writes only what has changed.
    It never writes a tombstone, a negative offset or into a transaction: each of them breaks Kafka's readers.

    :param wire: of the target; the topics have to exist.
    :raises ForeignData: a topic holds a tombstone or a record of another format.
    """

    def __init__(self, config: ClientConfig, wire: Wire, topics: StateTopics) -> None:
        self._topics = topics
        self._known = _Known()
        for record in _decoded(wire, topics.checkpoints, Checkpoint.decode):
            key, value = record.encode()
            self._known.checkpoints[key] = value
        for sync in _decoded(wire, topics.offset_syncs, OffsetSync.decode):
            self._known.newest_syncs[sync.topic, sync.partition] = sync.upstream_offset
        self._sender = StateSender(config, wire)

    def write(
        self,
        positions: Iterable[GroupPosition],
        last_records: Mapping[TopicPartition, tuple[int, int]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> Written:
        """Write what has changed since the last round, and a heartbeat; return when the target has it.

        :param positions: exact positions of groups that have been copied.
        :param last_records: by source partition, the offsets of the last copied record on both sides.
        :raises MigrationError: the target has not taken a record; the next round writes it again.
        """
        positions = list(positions)
        checkpoints = self._new_checkpoints(positions)
        syncs = self._new_syncs(positions, last_records)
        now_ms = int(clock() * 1000)
        topics = self._topics
        beats = {
            topics.heartbeats: Heartbeat(topics.source_alias, topics.target_alias, now_ms),
            # MirrorMaker 2 copies the source's own topic there, which holds the beats of the opposite direction.
            topics.remote_heartbeats: Heartbeat(topics.target_alias, topics.source_alias, now_ms),
        }
        self._send(
            [(topics.offset_syncs, sync) for sync in syncs]
            + [(topics.checkpoints, item) for item in checkpoints.values()]
            + list(beats.items())
        )
        self._known.checkpoints.update({key: item.encode().value for key, item in checkpoints.items()})
        self._known.newest_syncs.update({(sync.topic, sync.partition): sync.upstream_offset for sync in syncs})
        return Written(len(checkpoints), len(syncs), len(beats))

    def _new_checkpoints(self, positions: Iterable[GroupPosition]) -> dict[bytes, Checkpoint]:
        found = {}
        for item in sorted(positions):
            made = Checkpoint(
                item.group,
                item.target_topic,
                item.partition,
                item.upstream_offset,
                item.downstream_offset,
                item.metadata,
            )
            key, value = made.encode()
            if self._known.checkpoints.get(key) != value:
                found[key] = made
        return found

    def _new_syncs(
        self, positions: Iterable[GroupPosition], last_records: Mapping[TopicPartition, tuple[int, int]]
    ) -> list[OffsetSync]:
        """Return syncs above those that were written, ascending: a smaller one wipes what readers hold.

        Only offsets with a record count: for a group beyond a sync, a reader continues behind the sync's record. With
        an offset in a hole that would skip the record that follows the hole.
        """
        found = {OffsetSync(topic, number, *offsets) for (topic, number), offsets in last_records.items()}
        found |= {
            OffsetSync(item.source_topic, item.partition, item.upstream_offset, item.downstream_offset)
            for item in positions
            if item.has_record
        }
        newest = self._known.newest_syncs
        return sorted(sync for sync in found if sync.upstream_offset > newest.get((sync.topic, sync.partition), -1))

    def _send(self, items: Sequence[tuple[str, StateRecord]]) -> None:
        self._sender.send([StateMessage(topic, *record.encode(), partition=0) for topic, record in items])


class StateMessage(NamedTuple):
    """One record to write. Without a value it removes the key; -1: the partition follows from the key."""

    topic: str
    key: bytes
    value: bytes | None
    partition: int = -1


class StateSender:
    """Writes records of state topics to the target, and waits until it has them.

    :param wire: of the target.
    """

    def __init__(self, config: ClientConfig, wire: Wire) -> None:
        self._config, self._wire = config, wire
        self._producer = Producer(
            {
                **config.librdkafka(),
                "acks": "all",
                "enable.idempotence": True,
                # As Java's clients choose it: compaction and Connect expect each key in one partition.
                "partitioner": "murmur2_random",
                "message.timeout.ms": int(_FLUSH_SECONDS * 1000),
            }
        )

    def send(self, items: Sequence[StateMessage]) -> None:
        """Write records in their order.

        :raises MigrationError: the target has not taken a record.
        """
        failures: list[tuple[str, KafkaError]] = []
        first = items[0].topic if items else ""
        if self._config.kerberos is not None:
            # librdkafka does not renew tickets here, and they end after some hours.
            where = Where(cluster="target", topic=first)
            kerberos.fill_ticket_cache(self._config.kerberos, self._wire.connection().host, where)

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append((message.topic() or "", error))

        for item in items:
            try:
                self._produce(item, report)
            except BufferError:
                self._producer.flush(_FLUSH_SECONDS)
                self._produce(item, report)
            except KafkaException as error:
                raise _failure(item.topic, error.args[0]) from None
        left = self._producer.flush(_FLUSH_SECONDS)
        if failures:
            raise _failure(*failures[0])
        if left:
            raise BrokerBusy(
                f"{left} records of the state topics were not acknowledged within {_FLUSH_SECONDS:.0f} seconds",
                where=Where(cluster="target", topic=first),
                next_step="check the target's brokers; the next round writes them again",
            )

    def _produce(self, item: StateMessage, report: Callable[[KafkaError | None, Message], None]) -> None:
        self._producer.produce(item.topic, item.value, item.key, item.partition, on_delivery=report)


def _failure(topic: str, error: KafkaError) -> PermissionMissing | BrokerBusy | BrokerRefused:
    where = Where(cluster="target", topic=topic)
    if error.code() in AUTHORIZATION_CODES:
        return PermissionMissing(
            f"a state topic may not be written: {error.name()}",
            where=where,
            next_step="grant the principal Write on it, or leave out the state of MirrorMaker 2",
        )
    text = f"a state topic was not written: {error.name()}: {error.str()}"
    if error.code() < 0 or error_codes.retriable(error.code()):
        return BrokerBusy(text, where=where, next_step="check the target's brokers; the next round writes it again")
    return BrokerRefused(text, where=where, next_step="see the broker's message and its log")


def latest(wire: Wire, topic: str) -> dict[bytes, bytes]:
    """Return the newest value of each key of a state topic, in the order in which the values were written.

    :raises ForeignData: a record has no key or no value.
    """
    key = (topic, 0)
    start, end = (wire.list_offsets([key], which)[key] for which in ("earliest", "latest"))
    found: dict[bytes, bytes] = {}
    for batch in read_span(wire, key, start, end):
        if isinstance(batch, RawBatch) and batch.is_control:
            continue
        for record in batch.records() if isinstance(batch, LegacyBatch) else records(batch):
            if record.key is None or record.value is None:
                raise ForeignData(
                    "a state topic holds a record without key or value, which stops every reader of it",
                    where=Where(cluster="target", topic=topic, partition=0, offset=record.offset),
                    next_step="delete the topic and start again; it is then written from the exact offset map",
                )
            found.pop(bytes(record.key), None)
            found[bytes(record.key)] = bytes(record.value)
    return found


def _decoded(wire: Wire, topic: str, decode: Callable[[bytes, bytes], _Record]) -> list[_Record]:
    found = []
    for key, value in latest(wire, topic).items():
        try:
            found.append(decode(key, value))
        except ValueError as error:
            raise ForeignData(
                f"a state topic holds a record of another format: {error}",
                where=Where(cluster="target", topic=topic, partition=0),
                next_step="another tool writes to it: choose another alias, or stop that tool and delete the topic",
            ) from None
    return found
