"""Compare-and-append: sends decided steps to the target's leaders and checks every answer.

All copiers of a migration share one producer id and count records per partition, so the broker's sequence check accepts
a batch only if it is exactly the next one (KIP-98). A refusal or an unexpected answer never leads to a guess: the
partition is reset, and its log determines where the copy resumes.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from airflow_provider_kafka_migration.copy.append_errors import (
    OutOfOrder,
    dropped,
    has_replaced_timestamps,
    marker_error,
    replaced_timestamps,
    too_large,
    unexpected_end,
    unexpected_offset,
)
from airflow_provider_kafka_migration.copy.holes import (
    MARKERS_API_KEY,
    MAX_MARKERS_PER_REQUEST,
    MAX_OFFSETS_PER_FILL,
    EmptyTransactions,
    Fill,
    connection_marker_parts,
    marker_errors,
    markers_are_refused,
)
from airflow_provider_kafka_migration.copy.limits import SliceLimits, Throttling
from airflow_provider_kafka_migration.copy.partition import Confirmed, CopyState, PartitionCopy, Sent, Trouble
from airflow_provider_kafka_migration.copy.transform import Append, Hole
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.errors import MigrationError, SliceExpired, Terminal, Transient, Where
from airflow_provider_kafka_migration.kafka import error_codes, produce
from airflow_provider_kafka_migration.kafka.batches.api import patched_header
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire, api_version, by_topic

log = logging.getLogger(__name__)

#: A broker remembers the last five batches of a producer id and partition (``ProducerStateEntry``).
MAX_IN_FLIGHT_BATCHES = 5
MAX_REQUESTS_PER_CHANNEL = 3
MAX_REQUEST_BYTES = 8 * 1024 * 1024
#: Two connections to each leader: a broker answers one connection's requests one after the other.
CHANNELS_PER_BROKER = 2
#: After losing the answer for markers, wait this long for them to arrive before reading the log end.
LOST_MARKERS_SECONDS = 0.3
_LIST_OFFSETS_API_KEY = 2
_LIST_OFFSETS_VERSION = 5
_PRODUCE_TIMEOUT_MS = 30_000


@dataclass(eq=False)
class Channel:
    """One connection to a leader, and the partitions that it carries."""

    broker_id: int
    number: int
    connection: BrokerConnection
    requests: int = 0
    #: partitions with unanswered requests, and how many; of these, those with marker requests
    unanswered: Counter[PartitionCopy] = field(default_factory=Counter)
    filling: Counter[PartitionCopy] = field(default_factory=Counter)
    #: nothing is sent until then, because the broker throttles
    muted_until: float = 0.0
    copies: dict[PartitionCopy, None] = field(default_factory=dict)


@dataclass(frozen=True)
class MarkerIdentity:
    """Producer id and epoch of this incarnation of the lane: the fencing token of its markers."""

    producer_id: int
    producer_epoch: int


class TargetWriter(ABC):
    """The connections of a lane's writer to the target, and what it has to report.

    :param limits: nothing is sent after their deadline.
    :param wake: ends the lane's wait when background work has ended. Thread-safe.
    """

    def __init__(self, target: Wire, limits: SliceLimits, wake: Callable[[], object]) -> None:
        self._target = target
        self._limits = limits
        self._wake = wake
        self._channels: dict[tuple[int, int], Channel] = {}
        #: what has happened since the last poll
        self._events: list[Confirmed | Trouble] = []
        self.throttling = Throttling()

    @property
    def connections(self) -> list[BrokerConnection]:
        """All open connections."""
        return [channel.connection for channel in self._channels.values()]

    def poll(self) -> list[Confirmed | Trouble]:
        """Return what the target has confirmed since the last poll, and errors."""
        events, self._events = self._events, []
        return events

    def _report(self, copy: PartitionCopy, error: MigrationError) -> None:
        self._events.append(Trouble.of(copy, error))

    def next_due(self, now: float) -> float:
        """Return when to poll or to send next even if no answer comes before (monotonic clock)."""
        if self._events:
            return now
        muted = [channel.muted_until for channel in self._channels.values() if channel.muted_until > now]
        return min(muted, default=now + 1.0)

    def _channel(self, broker_id: int, number: int) -> Channel:
        """Return an open channel to a broker."""
        key = (broker_id, number)
        channel = self._channels.get(key)
        if channel is None or channel.connection.closed:
            connection = self._target.open_connection(broker_id)
            connection.send_deadline = self._limits.deadline
            channel = Channel(broker_id, number, connection)
            self._channels[key] = channel
        return channel

    def lose(self, connection: BrokerConnection, error: MigrationError) -> None:
        """Drop a broken connection, if it is one of this writer."""
        for channel in list(self._channels.values()):
            if channel.connection is connection:
                self._lose(channel, error)

    def _lose(self, channel: Channel, error: MigrationError) -> None:
        """Drop a channel: the outcome of everything that it carried is unknown."""
        channel.connection.close()
        if self._channels.get((channel.broker_id, channel.number)) is channel:
            del self._channels[(channel.broker_id, channel.number)]
        for copy in list(channel.copies):
            self._report(copy, error)
            self.detach(copy)

    @abstractmethod
    def detach(self, copy: PartitionCopy) -> None:
        """Take a partition off its channels; the next attach looks up its leader again."""

    def close(self) -> None:
        """Close all connections; unanswered requests have an unknown outcome."""
        for channel in self._channels.values():
            channel.connection.close()
        self._channels.clear()


class Appender(TargetWriter):
    """The target side of a lane.

    :param busy: a live view of the partitions that have something to send; :meth:`send` reads it.
    :param limits: nothing is sent after their deadline.
    :param transactional_id: of the lane: it fences the markers of the lane's former incarnations, and serves empty
        transactions where the migration may not write markers.
    :param wake: ends the lane's wait when a fill by empty transactions has ended. Thread-safe.
    """

    def __init__(
        self,
        target: Wire,
        producers: ProducerIds,
        *,
        busy: Collection[PartitionCopy],
        limits: SliceLimits,
        transactional_id: str,
        wake: Callable[[], object],
    ) -> None:
        super().__init__(target, limits, wake)
        self._producers = producers
        self._busy = busy
        self._transactional_id = transactional_id
        self._identity: MarkerIdentity | None = None
        self._channel_of: dict[PartitionCopy, Channel] = {}
        self._transactions: EmptyTransactions | None = None
        self._markers_refused = False
        #: why holes cannot be filled at all
        self._fill_error: Terminal | None = None

    # -- channels ----------------------------------------------------------------------------------------------------

    def attach(self, copies: Iterable[PartitionCopy]) -> None:
        """Give each partition a channel to its present leader."""
        todo = [copy for copy in copies if copy not in self._channel_of]
        if not todo:
            return
        leaders = self._target.leaders([copy.target_key for copy in todo])
        for copy in todo:
            number = copy.spec.partition % CHANNELS_PER_BROKER
            channel = self._channel(leaders[copy.target_key], number)
            channel.copies[copy] = None
            self._channel_of[copy] = channel

    def detach(self, copy: PartitionCopy) -> None:
        """Take a partition off its channel; the next attach looks up its leader again."""
        channel = self._channel_of.pop(copy, None)
        if channel is not None:
            channel.copies.pop(copy, None)
        self._target.forget_leaders([copy.target_key])

    def _lose(self, channel: Channel, error: MigrationError) -> None:
        if channel.filling:
            # The broker may still write these markers, so later ones must fence them, and the log end needs a moment to
            # settle.
            self._identity = None
            for copy in channel.filling:
                copy.write.settles_at = time.monotonic() + LOST_MARKERS_SECONDS
        super()._lose(channel, error)

    def close(self) -> None:
        if self._transactions is not None:
            self._transactions.close()
        super().close()
        self._channel_of.clear()

    # -- how holes are filled ----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Find out how holes can be filled; call it before the first log end is read.

        Where the migration may not write markers, this ends the transactions that former incarnations left open.
        """
        self._markers_refused = markers_are_refused(self._target)
        if self._markers_refused:
            self._fall_back()

    def _fall_back(self) -> None:
        _say_once(
            "the migration cannot write control markers on the target (it lacks ClusterAction on the cluster, or Alter "
            "since Kafka 3.8, or the brokers lack the api): holes are filled by empty transactions, which takes longer"
        )
        transactions = EmptyTransactions(
            self._target.config, self._transactional_id, deadline=self._limits.deadline, wake=self._wake
        )
        try:
            transactions.begin()
        except Terminal as error:
            # Partitions without holes need no empty transactions, so this error stops only those with holes.
            transactions.close()
            self._fill_error = error
        except BaseException:
            transactions.close()
            raise
        else:
            self._transactions = transactions

    def is_settling(self, copy: PartitionCopy) -> bool:
        """Return whether unanswered requests may still move the log end, so that it is not reliable yet."""
        if self._transactions is not None and self._transactions.is_filling(copy.target_key):
            return True
        return any(channel.unanswered[copy] > 0 for channel in self._channels.values())

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, now: float) -> None:
        """Send what can be sent now.

        :raises SliceExpired: the deadline has passed.
        """
        self._limits.check()
        if self._markers_refused:
            self._collect_fills()
        for channel, copies in self._waiting().items():
            if now < channel.muted_until:
                continue
            try:
                self._send_markers(channel, copies, now)
                while channel.requests < MAX_REQUESTS_PER_CHANNEL and self._send_appends(channel, copies, now):
                    pass
            except Transient as error:
                if isinstance(error, SliceExpired):
                    raise
                self._lose(channel, error)
        if self._markers_refused:
            self._submit_fills(now)

    def _waiting(self) -> dict[Channel, list[PartitionCopy]]:
        """Return the partitions with something to send, by channel."""
        found: dict[Channel, list[PartitionCopy]] = {}
        for copy in self._busy:
            channel = self._channel_of.get(copy)
            if channel is not None:
                found.setdefault(channel, []).append(copy)
        return found

    def _send_appends(self, channel: Channel, copies: list[PartitionCopy], now: float) -> bool:
        batches: list[produce.ProduceBatch] = []
        sent: dict[TopicPartition, tuple[PartitionCopy, int, Sent]] = {}
        size = 0
        for copy in copies:
            if not self._may_append(copy) or size >= MAX_REQUEST_BYTES:
                continue
            step, waiting, sequence = copy.write.take_append()
            copy.write.note_hole(now)
            header = patched_header(
                step.batch, self._producers.data_producer_id, self._producers.data_producer_epoch, sequence
            )
            batches.append(produce.ProduceBatch(*copy.target_key, header, step.batch.payload))
            sent[copy.target_key] = (copy, copy.incarnation, waiting)
            size += waiting.size_bytes
        if not batches:
            return False
        version = api_version(channel.connection, produce.API_KEY, produce.MAX_VERSION)
        parts = produce.encode(batches, timeout_ms=_PRODUCE_TIMEOUT_MS)
        channel.requests += 1
        channel.unanswered.update(copy for copy, _, _ in sent.values())
        channel.connection.submit(
            produce.API_KEY, version, parts, lambda frame: self._on_produced(channel, version, sent, frame)
        )
        return True

    @staticmethod
    def _may_append(copy: PartitionCopy) -> bool:
        return (
            copy.state is CopyState.RUNNING
            and bool(copy.write.pending)
            and not copy.write.filling
            # A partition without producer state accepts any sequence: if the first batch were refused (too large, for
            # instance), the second one would be written in its place. So the first one is sent alone.
            and len(copy.write.in_flight) < (MAX_IN_FLIGHT_BATCHES if copy.write.has_appended else 1)
            and isinstance(copy.write.pending[0], Append)
        )

    @staticmethod
    def _may_fill(copy: PartitionCopy) -> bool:
        return (
            copy.state is CopyState.RUNNING
            and bool(copy.write.pending)
            and not copy.write.filling
            # The broker checks no sequence for markers: they may be sent only once everything sent before is confirmed.
            and not copy.write.in_flight
            and isinstance(copy.write.pending[0], Hole)
        )

    def _send_markers(self, channel: Channel, copies: list[PartitionCopy], now: float) -> None:
        ready = [] if self._markers_refused else [copy for copy in copies if self._may_fill(copy)]
        first = [copy for copy in ready if _registers(copy)]
        if first:
            for copy in first:
                copy.write.registers = True
            self._send_markers_of(channel, first, _registering_identity(self._producers), now)
        others = [copy for copy in ready if not copy.write.registers]
        if not others:
            return
        try:
            identity = self._marker_identity()
        except SliceExpired:
            raise
        except MigrationError as error:
            for copy in others:
                self._report(copy, error)
            return
        self._send_markers_of(channel, others, identity, now)

    def _send_markers_of(
        self, channel: Channel, ready: list[PartitionCopy], identity: MarkerIdentity, now: float
    ) -> None:
        counts: dict[TopicPartition, int] = {}
        sent: dict[TopicPartition, tuple[PartitionCopy, int]] = {}
        for copy in ready:
            copy.write.note_hole(now)
            copy.write.filling = _offsets_to_fill(copy, MAX_MARKERS_PER_REQUEST)
            counts[copy.target_key] = copy.write.filling
            sent[copy.target_key] = (copy, copy.incarnation)
        version, parts = connection_marker_parts(
            channel.connection, counts, identity.producer_id, identity.producer_epoch
        )
        errors: dict[TopicPartition, int] = {}
        channel.unanswered.update(ready)
        channel.filling.update(ready)
        channel.connection.submit(
            MARKERS_API_KEY, version, parts, lambda frame: errors.update(marker_errors(frame)), flexible=True
        )
        # Same connection, so the broker reads the log end after it has written the markers: one round trip.
        body = _log_end_request(list(counts))
        channel.connection.submit(
            _LIST_OFFSETS_API_KEY,
            _LIST_OFFSETS_VERSION,
            [body],
            lambda frame: self._on_filled(channel, sent, errors, frame),
        )

    def _marker_identity(self) -> MarkerIdentity:
        """Return the fencing token of this incarnation.

        It is requested when the first marker is needed, and again after marker requests were lost.

        :raises Terminal: the migration may not use the transactional id.
        :raises Transient: the coordinator does not answer.
        """
        if self._identity is None:
            self._identity = MarkerIdentity(*self._target.init_producer_id(self._transactional_id))
        return self._identity

    def _collect_fills(self) -> None:
        """Collect what empty transactions have filled, so that the appends behind it can be sent."""
        if self._transactions is None and self._fill_error is None:
            self._fall_back()
        for filled in self._transactions.collect() if self._transactions is not None else ():
            copy, incarnation = filled.token
            if copy.incarnation != incarnation:
                continue
            if filled.error is not None:
                self._report(copy, filled.error)
            else:
                copy.figures.transaction_holes += max(filled.log_end_offset - copy.write.confirmed_offset, 0)
                self._judge_fill(copy, filled.log_end_offset)

    def _submit_fills(self, now: float) -> None:
        fills: dict[TopicPartition, Fill] = {}
        for copy in list(self._busy):
            if copy not in self._channel_of or not self._may_fill(copy) or self.is_settling(copy):
                continue
            if self._fill_error is not None:
                self._report(copy, self._fill_error)
                continue
            copy.write.note_hole(now)
            copy.write.filling = _offsets_to_fill(copy, MAX_OFFSETS_PER_FILL)
            fills[copy.target_key] = Fill(copy.write.filling, copy.write.confirmed_offset, (copy, copy.incarnation))
        if fills and self._transactions is not None:
            self._transactions.submit(fills)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _on_produced(
        self,
        channel: Channel,
        version: int,
        sent: dict[TopicPartition, tuple[PartitionCopy, int, Sent]],
        frame: memoryview,
    ) -> None:
        channel.requests -= 1
        channel.unanswered.subtract(copy for copy, _, _ in sent.values())
        channel.unanswered += Counter()
        answer = produce.decode(frame[4:], version)
        now_ms = time.time_ns() // 1_000_000
        if answer.throttle_time_ms > 0:
            channel.muted_until = self.throttling.note(answer.throttle_time_ms, time.monotonic())
        for item in answer.partitions:
            copy, incarnation, waiting = sent[(item.topic, item.partition)]
            if copy.incarnation != incarnation:
                continue
            if item.error_code:
                self._report(copy, self._append_error(copy, item))
            elif item.base_offset != waiting.target_offset:
                self._report(copy, unexpected_offset(copy, waiting, item.base_offset))
            elif has_replaced_timestamps(waiting, item.log_append_time):
                error = replaced_timestamps(copy, waiting, item.log_append_time, item.base_offset, stays=True)
                self._report(copy, error)
            else:
                copy.confirm_append(now_ms)
                self._events.append(Confirmed(copy))

    def _append_error(self, copy: PartitionCopy, item: produce.ProducedPartition) -> MigrationError:
        what = "the broker refused the append" + (f" ({item.error_message})" if item.error_message else "")
        where = Where(
            cluster="target", topic=item.topic, partition=item.partition, offset=copy.write.confirmed_source_offset
        )
        if item.error_code in (
            error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
            error_codes.DUPLICATE_SEQUENCE_NUMBER,
            error_codes.UNKNOWN_PRODUCER_ID,
        ):
            return OutOfOrder(what, where=where, next_step="none: the copier reads the target's log end again")
        if item.error_code in (error_codes.MESSAGE_TOO_LARGE, error_codes.RECORD_LIST_TOO_LARGE):
            return too_large(copy.write.in_flight[0], what, where)
        return error_codes.error_for(item.error_code, what, where=where, needs="Write")

    def _on_filled(
        self,
        channel: Channel,
        sent: dict[TopicPartition, tuple[PartitionCopy, int]],
        errors: dict[TopicPartition, int],
        frame: memoryview,
    ) -> None:
        for counts in (channel.unanswered, channel.filling):
            counts.subtract(copy for copy, _ in sent.values())
        channel.unanswered += Counter()
        channel.filling += Counter()
        answer = ListOffsetsResponse.decode(bytes(frame), version=_LIST_OFFSETS_VERSION, header=True)
        for topic in answer.topics:
            for item in topic.partitions:
                copy, incarnation = sent[(topic.name, item.partition_index)]
                if copy.incarnation != incarnation:
                    continue
                code = errors.get((topic.name, item.partition_index), 0) or item.error_code
                if code == error_codes.CLUSTER_AUTHORIZATION_FAILED:
                    self._markers_refused = True
                if code:
                    where = Where(cluster="target", topic=topic.name, partition=item.partition_index)
                    self._report(copy, marker_error(code, where))
                else:
                    self._judge_fill(copy, item.offset)

    def _judge_fill(self, copy: PartitionCopy, log_end_offset: int) -> None:
        """Judge a fill by the log end after it: how much of it was written, and whether another writer was there."""
        if (
            log_end_offset > copy.write.confirmed_offset + copy.write.filling
            or log_end_offset < copy.write.confirmed_offset
        ):
            self._report(copy, unexpected_end(copy, log_end_offset))
        elif log_end_offset == copy.write.confirmed_offset:
            where = Where(cluster="target", topic=copy.spec.target_topic, partition=copy.spec.partition)
            self._report(copy, dropped(where))
        else:
            copy.confirm_fill(log_end_offset, time.monotonic())
            self._events.append(Confirmed(copy))


_said_lock = threading.Lock()
_said: set[str] = set()


def _say_once(text: str) -> None:
    """Log a warning once per process: every slice of every lane would repeat it."""
    with _said_lock:
        is_new = text not in _said
        _said.add(text)
    if is_new:
        log.warning(text)


def _registers(copy: PartitionCopy) -> bool:
    """Return whether the next marker is the first one behind the boundary of an adopted partition.

    It has the data id, and so registers it with the leader, which has no state of it there and would take any sequence
    for its first one. From then on only sequence 0 gets in, also after the broker was killed.
    """
    return copy.spec.adopted and copy.write.confirmed_offset == copy.spec.target_start_offset


def _registering_identity(producers: ProducerIds) -> MarkerIdentity:
    """Return the data id in the epoch below that of the records.

    The first record then raises the epoch, and a registering marker of a dead copier that arrives later is refused.
    """
    return MarkerIdentity(producers.data_producer_id, max(producers.data_producer_epoch - 1, 0))


def _offsets_to_fill(copy: PartitionCopy, limit: int) -> int:
    step = copy.write.pending[0]
    assert isinstance(step, Hole)
    # The first marker after a resume is sent alone: from then on the broker refuses markers of former incarnations, and
    # the copier sees what they have left before it writes many more.
    return min(step.count, limit) if copy.write.has_filled else 1


def _log_end_request(keys: list[TopicPartition]) -> bytes:
    topics = [
        ListOffsetsRequest.ListOffsetsTopic(
            name=topic,
            partitions=[
                ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                    partition_index=number, current_leader_epoch=-1, timestamp=-1
                )
                for number in numbers
            ],
        )
        for topic, numbers in by_topic(keys)
    ]
    request = ListOffsetsRequest(replica_id=-2, isolation_level=0, topics=topics)
    return bytes(request.encode(version=_LIST_OFFSETS_VERSION))
