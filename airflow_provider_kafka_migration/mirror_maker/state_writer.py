"""Writes exact positions of consumer groups into MirrorMaker 2's state topics, so that its clients can use them.

``RemoteClusterUtils.translateOffsets`` reads checkpoints; a MirrorMaker 2 that takes over reads checkpoints and offset
syncs. Checkpoints are the exact channel. Offset syncs are the fallback for groups without one. What is known of a topic
is always what it holds: each round begins by reading what has been added to it, so a record of a former writer that
arrives late is noticed, and replaced.
"""

from __future__ import annotations

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
    fits,
)
from airflow_provider_kafka_migration.mirror_maker.state_topics import StateCluster, StateTopics

_FLUSH_SECONDS = 60.0

_Record = TypeVar("_Record", Checkpoint, OffsetSync, Heartbeat)


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


def _unchecked() -> None:
    return None


class StateWriter:
    """Writes the positions of groups of one flow. It must be the only writer of its topics: two flows have two aliases.

    It reads the topics when it starts, so that a restarted writer continues, and then writes only what has changed.
    It never writes a tombstone, a negative offset or into a transaction: each of them breaks Kafka's readers.

    :param target: its topic of checkpoints has to exist.
    :param syncs_on: the cluster whose topic has the offset syncs; it has to exist. None: the target.
    :raises ForeignData: a topic holds a tombstone or a record of another format.
    """

    def __init__(self, target: StateCluster, topics: StateTopics, syncs_on: StateCluster | None = None) -> None:
        self._topics = topics
        self._known = _Known()
        self._logs = (
            StateLog(target.wire, topics.checkpoints),
            StateLog((syncs_on or target).wire, topics.offset_syncs),
        )
        self._read()
        self._sender = StateSender(target.config, target.wire)
        self._sync_sender = self._sender if syncs_on is None else StateSender(syncs_on.config, syncs_on.wire)

    def write(
        self,
        positions: Iterable[GroupPosition],
        last_records: Mapping[TopicPartition, tuple[int, int]],
        *,
        check: Callable[[], None] = _unchecked,
    ) -> Written:
        """Write what differs from what the topics hold; return when the brokers have it.

        :param positions: exact positions of groups that have been copied.
        :param last_records: by source partition, the offsets of the last copied record on both sides.
        :param check: called directly before each write; what it raises ends the round.
        :raises ForeignData: a topic holds a tombstone or a record of another format.
        :raises MigrationError: a broker has not taken a record; the next round writes it again.
        """
        positions = list(positions)
        self._read()
        checkpoints = self._new_checkpoints(positions)
        syncs = self._new_syncs(positions, last_records)
        topics = self._topics
        if syncs:
            check()
            self._send_syncs([StateMessage(topics.offset_syncs, *sync.encode(), partition=0) for sync in syncs])
            self._known.newest_syncs.update({(sync.topic, sync.partition): sync.upstream_offset for sync in syncs})
        if checkpoints:
            check()
            self._send([StateMessage(topics.checkpoints, *item.encode(), partition=0) for item in checkpoints.values()])
            self._known.checkpoints.update({key: item.encode().value for key, item in checkpoints.items()})
        return Written(len(checkpoints), len(syncs))

    def _read(self) -> None:
        """Take in what the topics have got since the last time; their own records, too."""
        checkpoints, syncs = (log.read() for log in self._logs)
        if checkpoints.is_whole:
            self._known.checkpoints.clear()
        for item in _decoded(checkpoints, Checkpoint.decode):
            key, value = item.encode()
            self._known.checkpoints[key] = value
        if syncs.is_whole:
            self._known.newest_syncs.clear()
        for sync in _decoded(syncs, OffsetSync.decode):
            self._known.newest_syncs[sync.topic, sync.partition] = sync.upstream_offset

    def _new_checkpoints(self, positions: Iterable[GroupPosition]) -> dict[bytes, Checkpoint]:
        found = {}
        for item in sorted(positions):
            made = Checkpoint(
                item.group,
                item.target_topic,
                item.partition,
                item.upstream_offset,
                item.downstream_offset,
                # A text that is too long must not keep the others from being written.
                item.metadata if fits(item.metadata) else "",
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

    def _send(self, items: Sequence[StateMessage]) -> None:
        self._sender.send(items)

    def _send_syncs(self, items: Sequence[StateMessage]) -> None:
        self._sync_sender.send(items)


class StateMessage(NamedTuple):
    """One record to write. Without a value it removes the key; -1: the partition follows from the key."""

    topic: str
    key: bytes
    value: bytes | None
    partition: int = -1


class StateSender:
    """Writes records of state topics to a cluster, and waits until it has them.

    :param wire: of that cluster.
    :param patience_seconds: how long a record is sent again; then it is dropped.
    """

    def __init__(self, config: ClientConfig, wire: Wire, *, patience_seconds: float = _FLUSH_SECONDS) -> None:
        self._config, self._wire = config, wire
        self._patience_seconds = patience_seconds
        self._producer = Producer(
            {
                **config.librdkafka(),
                "acks": "all",
                "enable.idempotence": True,
                # As Java's clients choose it: compaction and Connect expect each key in one partition.
                "partitioner": "murmur2_random",
                "message.timeout.ms": int(patience_seconds * 1000),
            }
        )

    def send(self, items: Sequence[StateMessage]) -> None:
        """Write records in their order.

        :raises MigrationError: the cluster has not taken a record.
        """
        failures: list[tuple[str, KafkaError]] = []
        cluster = self._config.name
        first = items[0].topic if items else ""
        if self._config.kerberos is not None:
            # librdkafka does not renew tickets here, and they end after some hours.
            where = Where(cluster=cluster, topic=first)
            kerberos.fill_ticket_cache(self._config.kerberos, self._wire.connection().host, where)

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append((message.topic() or "", error))

        for item in items:
            try:
                self._produce(item, report)
            except BufferError:
                self._producer.flush(self._patience_seconds)
                self._produce(item, report)
            except KafkaException as error:
                raise _failure(cluster, item.topic, error.args[0]) from None
        left = self._producer.flush(self._patience_seconds)
        if failures:
            raise _failure(cluster, *failures[0])
        if left:
            raise BrokerBusy(
                f"{left} records of the state topics were not acknowledged within {self._patience_seconds:.0f} seconds",
                where=Where(cluster=cluster, topic=first),
                next_step="check the cluster's brokers; the next round writes them again",
            )

    def _produce(self, item: StateMessage, report: Callable[[KafkaError | None, Message], None]) -> None:
        self._producer.produce(item.topic, item.value, item.key, item.partition, on_delivery=report)


def _failure(cluster: str, topic: str, error: KafkaError) -> PermissionMissing | BrokerBusy | BrokerRefused:
    where = Where(cluster=cluster, topic=topic)
    if error.code() in AUTHORIZATION_CODES:
        return PermissionMissing(
            f"a state topic may not be written: {error.name()}",
            where=where,
            next_step="grant the principal Write on it, or leave out the state of MirrorMaker 2",
        )
    text = f"a state topic was not written: {error.name()}: {error.str()}"
    if error.code() < 0 or error_codes.retriable(error.code()):
        return BrokerBusy(text, where=where, next_step="check the cluster's brokers; the next round writes it again")
    return BrokerRefused(text, where=where, next_step="see the broker's message and its log")


class Read(NamedTuple):
    """The newest value of each key among the records that were read, in the order in which they were written.

    :param is_whole: whether it is all that the topic holds, and not only what has been added.
    """

    topic: str
    cluster: str
    values: dict[bytes, bytes]
    is_whole: bool


class StateLog:
    """A state topic that is read piece by piece. A topic that was created again is read from its start.

    :param last: begin with this many of the last offsets; None: at the log's start.
    """

    def __init__(self, wire: Wire, topic: str, *, last: int | None = None) -> None:
        self._wire, self._topic, self._last = wire, topic, last
        #: the next offset to read; None: nothing was read yet
        self._position: int | None = None
        self._topic_id = ""

    def read(self) -> Read:
        """Read what has been added since the last time; after an error the same again.

        :raises ForeignData: a record has no key or no value.
        """
        key = (self._topic, 0)
        topic_id = self._wire.metadata([self._topic])[self._topic].topic_id
        start, end = (self._wire.list_offsets([key], which)[key] for which in ("earliest", "latest"))
        position = self._position
        # Before Kafka 2.8 topics have no ids.
        is_whole = position is None or position > end or topic_id != self._topic_id
        if position is None or is_whole:
            position = start if self._last is None else end - self._last
        position = max(position, start)
        found: dict[bytes, bytes] = {}
        for batch in read_span(self._wire, key, position, end):
            if isinstance(batch, RawBatch) and batch.is_control:
                continue
            for record in batch.records() if isinstance(batch, LegacyBatch) else records(batch):
                if not position <= record.offset < end:
                    continue
                if record.key is None or record.value is None:
                    raise ForeignData(
                        "a state topic holds a record without key or value, which stops every reader of it",
                        where=Where(cluster=self._wire.config.name, topic=self._topic, offset=record.offset),
                        next_step="delete the topic and start again; it is then written from the exact offset map",
                    )
                found.pop(bytes(record.key), None)
                found[bytes(record.key)] = bytes(record.value)
        self._position, self._topic_id = end, topic_id
        return Read(self._topic, self._wire.config.name, found, is_whole)


def latest(wire: Wire, topic: str) -> dict[bytes, bytes]:
    """Return the newest value of each key of a state topic, in the order in which the values were written.

    :raises ForeignData: a record has no key or no value.
    """
    return StateLog(wire, topic).read().values


def _decoded(read: Read, decode: Callable[[bytes, bytes], _Record]) -> list[_Record]:
    return [decoded(read, key, value, decode) for key, value in read.values.items()]


def decoded(read: Read, key: bytes, value: bytes, decode: Callable[[bytes, bytes], _Record]) -> _Record:
    """Parse one record.

    :raises ForeignData: it has another format.
    """
    try:
        return decode(key, value)
    except ValueError as error:
        raise ForeignData(
            f"a state topic holds a record of another format: {error}",
            where=Where(cluster=read.cluster, topic=read.topic, partition=0),
            next_step="another tool writes to it: choose another alias, or stop that tool and delete the topic",
        ) from None
