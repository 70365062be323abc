"""Fills holes of a source log on the target: control markers inside the log, fillers below a log start above 0.

A control marker takes one offset, and no consumer of any isolation level sees it. ``WriteTxnMarkers`` (api 27) with n
markers appends n control batches; it needs ClusterAction on the cluster, or Alter since 3.8 (KIP-1037).
"""

from __future__ import annotations

import contextlib
import logging
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka.protocol.producer.transaction import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from airflow_provider_kafka_migration.copy.append_errors import PAUSES
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    BrokerUnreachable,
    ForeignData,
    MigrationError,
    OutsideOfLog,
    SliceExpired,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import clock, error_codes, produce
from airflow_provider_kafka_migration.kafka.batches.api import (
    LegacyBatch,
    RawBatch,
    Record,
    encode_batch,
    patched_header,
)
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import fetch_span
from airflow_provider_kafka_migration.kafka.wire import (
    TRANSACTION_COORDINATOR,
    TopicPartition,
    Wire,
    api_version,
    by_topic,
)

MARKERS_API_KEY = 27
MARKERS_VERSION = 1

#: Markers in one request: large enough to hide the round trip, small enough for a broker's request handler.
MAX_MARKERS_PER_REQUEST = 2_000
FILLER_BATCH_RECORDS = 100_000


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_markers(counts: Mapping[TopicPartition, int], producer_id: int, producer_epoch: int) -> bytes:
    """Return the body of WriteTxnMarkers v1: ``counts`` ABORT markers for each partition.

    Partitions share marker entries, so there are as many entries as the largest count. The coordinator epoch is always
    0: it must not go down for one producer id, and brokers accept equal ones. The markers are ABORT because some
    brokers (Redpanda) accept no others.
    """
    levels = sorted(set(counts.values()))
    entries: list[bytes] = []
    below = 0
    for level in levels:
        topics = by_topic([key for key, count in counts.items() if count >= level])
        entry = struct.pack(">qhb", producer_id, producer_epoch, 0) + _varint(len(topics) + 1)
        for topic, partitions in topics:
            name = topic.encode()
            entry += _varint(len(name) + 1) + name + _varint(len(partitions) + 1)
            entry += b"".join(struct.pack(">i", number) for number in partitions) + b"\0"
        entry += struct.pack(">i", 0) + b"\0"
        entries.append(entry * (level - below))
        below = level
    return _varint(levels[-1] + 1) + b"".join(entries) + b"\0"


def marker_errors(frame: memoryview) -> dict[TopicPartition, int]:
    """Return the error code by partition of a WriteTxnMarkers answer (header included); a partition's last entry wins.

    A broker answers all markers of one producer id in one entry, which may be 0 although it dropped most of them: only
    the log end shows how many were written.
    """
    answer = WriteTxnMarkersResponse.decode(bytes(frame), version=MARKERS_VERSION, header=True)
    errors: dict[TopicPartition, int] = {}
    for marker in answer.markers:
        for topic in marker.topics:
            for item in topic.partitions:
                errors[(topic.name, item.partition_index)] = item.error_code
    return errors


def filler_batch(count: int, now_ms: int) -> memoryview:
    """Return a gzip batch of ``count`` records without key and value: about 1.4 bytes per thousand offsets."""
    records = [Record(offset, now_ms, None, None, []) for offset in range(count)]
    return memoryview(encode_batch(records, 1))


def fill_log_start(
    wire: Wire,
    topic: str,
    partition: int,
    until_offset: int,
    producers: ProducerIds,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Fill an empty target partition with fillers up to ``until_offset``; the caller then deletes them.

    Fillers have a separate producer id, and their sequence is the target offset, so filling is compare-and-append as
    well: it can be killed, repeated and raced. Their timestamps are current, so that the producer state does not
    expire.

    :param on_progress: called with (offsets filled, offsets wanted).
    :returns: the log end, equal to ``until_offset``.
    :raises ForeignData: the partition holds other records, or its end is beyond ``until_offset``.
    """
    key = (topic, partition)
    where = Where(cluster=wire.config.name, topic=topic, partition=partition)
    position = _log_end(wire, key)
    _check_only_fillers(wire, key, position, producers, where)
    batch: memoryview | None = None
    while position < until_offset:
        count = min(FILLER_BATCH_RECORDS, until_offset - position)
        if batch is None or count != FILLER_BATCH_RECORDS:
            batch = filler_batch(count, int(time.time() * 1000))
        position = _append_filler(wire, key, batch, position, count, producers, where)
        if on_progress is not None:
            on_progress(position, until_offset)
    if position > until_offset:
        raise ForeignData(
            f"the log end is {position}, but nothing should have been written at or beyond {until_offset} yet",
            where=where,
            next_step="find who writes to this target topic; delete the topic and clear topology_copy",
        )
    return position


def _append_filler(
    wire: Wire,
    key: TopicPartition,
    batch: memoryview,
    position: int,
    count: int,
    producers: ProducerIds,
    where: Where,
) -> int:
    raw = RawBatch(batch)
    header = patched_header(raw, producers.filler_producer_id, producers.filler_producer_epoch, position & 0x7FFFFFFF)

    def attempt() -> int:
        leader = wire.leaders([key])[key]
        connection = wire.connection(leader)
        version = api_version(connection, produce.API_KEY, produce.MAX_VERSION)
        parts = produce.encode([produce.ProduceBatch(*key, header, raw.payload)], timeout_ms=30_000)
        answer = produce.decode(connection.call_raw(produce.API_KEY, version, parts), version).partitions[0]
        if answer.error_code in (error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, error_codes.DUPLICATE_SEQUENCE_NUMBER):
            # Another copier's filler was faster, or the answer that was lost had been a success: the log end decides.
            return _log_end(wire, key)
        if answer.error_code:
            if answer.error_code in error_codes.STALE_METADATA:
                wire.forget_leaders([key])
            raise error_codes.error_for(answer.error_code, "the broker refused fillers", where=where, needs="Write")
        if answer.base_offset != position:
            raise ForeignData(
                f"fillers were written at {answer.base_offset} instead of {position}",
                where=where,
                next_step="find who writes to this target topic; delete the topic and clear topology_copy",
            )
        return position + count

    return wire.retrying(attempt)


def _log_end(wire: Wire, key: TopicPartition) -> int:
    """Return the log end once the high watermark has reached it: what a dead copier left in the log is then final."""

    def attempt() -> int:
        end = wire.list_offsets([key], "log_end")[key]
        high_watermark = wire.list_offsets([key], "latest")[key]
        if high_watermark < end:
            raise BrokerBusy(
                f"the high watermark {high_watermark} is behind the log end {end}",
                where=Where(cluster=wire.config.name, topic=key[0], partition=key[1]),
                next_step="wait until the replicas have caught up; then clear the task",
            )
        return end

    return wire.retrying(attempt)


def _check_only_fillers(
    wire: Wire, key: TopicPartition, log_end_offset: int, producers: ProducerIds, where: Where
) -> None:
    log_start = wire.list_offsets([key], "earliest")[key]
    if log_end_offset == log_start:
        return
    batches = fetch_span(wire, key, log_end_offset - 1, isolation=READ_UNCOMMITTED).batches
    if not batches:
        raise Transient(
            f"the log ends at {log_end_offset}, but its last record cannot be read",
            where=where,
            next_step="once the broker has recovered, clear topology_copy",
        )
    if any(isinstance(b, LegacyBatch) or b.producer_id != producers.filler_producer_id for b in batches):
        raise ForeignData(
            "the partition holds records that are not fillers of this migration",
            where=where,
            next_step="delete the target topic (or choose another name) and clear topology_copy",
        )


def connection_marker_parts(
    connection: BrokerConnection, counts: Mapping[TopicPartition, int], producer_id: int, producer_epoch: int
) -> tuple[int, list[bytes]]:
    """Return (version, body) of a marker request for a connection.

    :raises BrokerRefused: the broker does not know the api at all.
    """
    low, high = connection.api_versions.get(MARKERS_API_KEY, (-1, -1))
    if not low <= MARKERS_VERSION <= high:
        raise error_codes.error_for(
            error_codes.UNSUPPORTED_VERSION,
            "the broker does not offer WriteTxnMarkers version 1",
            where=Where(cluster=connection.config.name, broker=str(connection.broker_id)),
        )
    return MARKERS_VERSION, [encode_markers(counts, producer_id, producer_epoch)]


# -- empty transactions -----------------------------------------------------------------------------------------------
#
# Fills holes without the right to write markers: empty transactions leave one control marker per partition.
#
# InitProducerId, AddPartitionsToTxn, EndTxn: no record is written, and the coordinator's marker takes exactly one
# offset of each partition, under transaction versions 1 and 2 alike. This needs Write on the topics and on the
# transactional ids, but no right on the cluster. One transaction fills one offset of many partitions; several ids, each
# on a separate connection, hide the round trips. An id whose epoch a newer incarnation has raised can no longer write.
#
# EndTxn answers before the marker is written, so the thread waits for the log end. The coordinator ends an open
# transaction of a dead copier at an unknown later time, and writes a marker then: each incarnation therefore takes all
# ids over (:meth:`EmptyTransactions.begin`) before it reads a log end.


log = logging.getLogger(__name__)

#: Transactional ids of one lane: about four times the speed of a single one on a single partition.
IDS_PER_LANE = 8
#: Offsets of one fill; other fills wait for it, and the log end is read once for it.
MAX_OFFSETS_PER_FILL = 64
MAX_PARTITIONS_PER_TRANSACTION = 500
#: No transaction begins this close to the end of the slice, so that none stays open there.
LAST_BEGIN_SECONDS = 0.3
#: How long to wait for the markers of ended transactions to move the log end; after that the ids are taken over again.
MARKER_SECONDS = 5.0
TRANSACTION_TIMEOUT_MS = 30_000

#: Transactions that are open when the copier closes are ended within this time.
CLOSE_SECONDS = 1.0

#: The last version that is not flexible; all of 0.11 to 4.x have it.
_ADD_VERSION = 2
_END_VERSION = 2
_ANSWER_SECONDS = 30.0
_POLL_SECONDS = 0.05


class Fill(NamedTuple):
    """What to fill in one partition.

    :param offsets: how many, at most :data:`MAX_OFFSETS_PER_FILL`.
    :param from_offset: the log end now.
    :param token: returned with the answer.
    """

    offsets: int
    from_offset: int
    token: Any


class Filled(NamedTuple):
    """The end of a fill: the log end reached, or the error because of which it is not known."""

    key: TopicPartition
    token: Any
    log_end_offset: int
    error: MigrationError | None


def markers_are_refused(wire: Wire) -> bool:
    """Return whether this principal may not write control markers on this cluster, or its brokers lack the api.

    It sends a marker for a topic that cannot exist: brokers check the permission first, then the partition.
    """
    connection = wire.connection()
    low, high = connection.api_versions.get(MARKERS_API_KEY, (-1, -1))
    if not low <= MARKERS_VERSION <= high:
        return True
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=0,
                producer_epoch=0,
                transaction_result=False,
                # A topic name never has a slash.
                topics=[marker.WritableTxnMarkerTopic(name="kafka-migration/permission", partition_indexes=[0])],
                coordinator_epoch=0,
            )
        ]
    )
    answer = wire.request(request, version=MARKERS_VERSION)
    codes = [item.error_code for entry in answer.markers for topic in entry.topics for item in topic.partitions]
    return error_codes.CLUSTER_AUTHORIZATION_FAILED in codes


def fill_and_wait(
    config: ClientConfig, transactional_id: str, fills: Mapping[TopicPartition, Fill], *, seconds: float
) -> dict[TopicPartition, Filled]:
    """Fill some partitions once, as a trial; blocks.

    :raises PermissionMissing: Write or Describe on the transactional ids is missing.
    :raises SliceExpired: the fill did not end within ``seconds``.
    """
    answered = threading.Event()
    transactions = EmptyTransactions(config, transactional_id, deadline=time.monotonic() + seconds, wake=answered.set)
    try:
        transactions.begin()
        transactions.submit(fills)
        answered.wait(seconds + CLOSE_SECONDS)
        return {item.key: item for item in transactions.collect()}
    finally:
        transactions.close()


@dataclass(eq=False)
class _Id:
    """One transactional id of the lane and its connection to the coordinator."""

    name: str
    producer_id: int
    producer_epoch: int
    connection: BrokerConnection | None = None
    keys: list[TopicPartition] = field(default_factory=list)
    ending: bool = False
    #: when the request that has no answer yet was sent (monotonic clock)
    asked_at: float | None = None
    due: float = 0.0
    tries: int = 0

    def again(self) -> None:
        """Send the request again after a growing pause."""
        self.asked_at = None
        self.due = time.monotonic() + PAUSES[min(self.tries, len(PAUSES) - 1)]
        self.tries += 1

    def go_on(self, *, ending: bool) -> None:
        """Send the next request immediately."""
        self.asked_at, self.ending, self.due, self.tries = None, ending, 0.0, 0

    def forget(self) -> None:
        """Forget the transaction, which is over."""
        self.keys = []
        self.go_on(ending=False)


class EmptyTransactions:
    """Fills holes of one lane's partitions, in a separate thread.

    :param transactional_id: of the lane; the ids used are ``<transactional_id>.hole-<n>``.
    :param deadline: moment of the monotonic clock after which nothing is sent.
    :param wake: called when an answer waits to be collected.
    """

    def __init__(
        self, config: ClientConfig, transactional_id: str, *, deadline: float, wake: Callable[[], object]
    ) -> None:
        self._wire = Wire(config, timeout_seconds=10.0, patience_seconds=10.0)
        self._where = Where(cluster=config.name)
        self._names = [f"{transactional_id}.hole-{number}" for number in range(IDS_PER_LANE)]
        self._deadline = deadline
        self._wake = wake
        self._ids: list[_Id] = []
        self._changed = threading.Condition()
        self._wanted: dict[TopicPartition, Fill] = {}
        self._under_way: frozenset[TopicPartition] = frozenset()
        self._answers: deque[Filled] = deque()
        self._closing_since: float | None = None
        self._thread: threading.Thread | None = None

    # -- the copier's side -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take all ids over and start the thread.

        When it returns, every transaction of former incarnations is over and its markers are written.

        :raises PermissionMissing: Write or Describe on the transactional ids is missing.
        """
        self._take_over()
        self._thread = threading.Thread(target=self._run, name="empty-transactions", daemon=True)
        self._thread.start()

    def submit(self, fills: Mapping[TopicPartition, Fill]) -> None:
        """Fill these partitions; :meth:`collect` returns one answer for each."""
        with self._changed:
            self._wanted.update(fills)
            self._changed.notify()

    def collect(self) -> list[Filled]:
        """Return the answers since the last call."""
        with self._changed:
            found = list(self._answers)
            self._answers.clear()
        return found

    def is_filling(self, key: TopicPartition) -> bool:
        """Return whether a fill may still grow this partition's log, so that its end is not reliable yet."""
        with self._changed:
            return key in self._wanted or key in self._under_way

    def close(self) -> None:
        """Finish open transactions within :data:`CLOSE_SECONDS`, stop, and close all connections."""
        with self._changed:
            self._closing_since = time.monotonic()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._close_connections()
        self._wire.close()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._wanted) or self._closing_since is not None)
                if self._closing_since is not None:
                    return
                fills, self._wanted = self._wanted, {}
                self._under_way = frozenset(fills)
            answers = self._answer(fills)
            with self._changed:
                self._answers.extend(answers)
                self._under_way = frozenset()
            self._wake()

    def _answer(self, fills: Mapping[TopicPartition, Fill]) -> list[Filled]:
        try:
            ends, errors = self._fill(fills)
        except MigrationError as error:
            return [Filled(key, fill.token, -1, error) for key, fill in sorted(fills.items())]
        except Exception as error:
            log.exception("empty transactions failed")
            broken = Transient(f"empty transactions failed: {type(error).__name__}", where=self._where)
            return [Filled(key, fill.token, -1, broken) for key, fill in sorted(fills.items())]
        return [Filled(key, fill.token, ends.get(key, -1), errors.get(key)) for key, fill in sorted(fills.items())]

    def _fill(
        self, fills: Mapping[TopicPartition, Fill]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MigrationError]]:
        """Return the log ends after the fill, and the errors of partitions that were refused."""
        if len(self._ids) < len(self._names):
            self._take_over()
        left = {key: fill.offsets for key, fill in fills.items()}
        errors: dict[TopicPartition, MigrationError] = {}
        try:
            self._transact(left, errors)
        except SliceExpired:
            raise
        except Transient as error:
            # The outcome of open transactions is unknown. Taking the ids over settles it, and the log end shows it.
            log.info("empty transactions: %s", error.what)
            self._take_over()
            ends = self._wire.list_offsets(fills, "log_end")
            errors.update({key: error for key, end in ends.items() if end == fills[key].from_offset})
            return ends, errors
        expected = {key: fill.from_offset + fill.offsets for key, fill in fills.items() if key not in errors}
        return self._wait_for_markers(expected), errors

    def _transact(self, left: dict[TopicPartition, int], errors: dict[TopicPartition, MigrationError]) -> None:
        """Run transactions until nothing is left to fill; ``left`` counts offsets that no transaction has taken yet."""
        while True:
            now = time.monotonic()
            self._check_may_go_on(now)
            for item in self._ids:
                if not item.keys and any(left.values()) and self._may_begin(now):
                    self._take_work(item, left)
                if item.keys and item.asked_at is None and now >= item.due:
                    self._ask(item, left, errors)
            busy = [item for item in self._ids if item.keys]
            if not busy:
                if any(left.values()):
                    raise self._expired()
                return
            self._wait(busy)

    def _may_begin(self, now: float) -> bool:
        return self._closing_since is None and now < self._deadline - LAST_BEGIN_SECONDS

    def _check_may_go_on(self, now: float) -> None:
        closed = self._closing_since is not None and now >= self._closing_since + CLOSE_SECONDS
        if closed or clock.is_over(self._deadline):
            raise self._expired()

    def _expired(self) -> SliceExpired:
        return SliceExpired(
            "the slice ended before a hole was filled",
            where=self._where,
            next_step="none: the next slice continues from the target's log end",
        )

    @staticmethod
    def _take_work(item: _Id, left: dict[TopicPartition, int]) -> None:
        """Assign to an id one offset of each partition that still needs some, up to a transaction's partition limit."""
        item.keys = [key for key, count in left.items() if count][:MAX_PARTITIONS_PER_TRANSACTION]
        for key in item.keys:
            left[key] -= 1
        item.go_on(ending=False)

    def _ask(self, item: _Id, left: dict[TopicPartition, int], errors: dict[TopicPartition, MigrationError]) -> None:
        if item.connection is None or item.connection.closed:
            item.connection = self._connect(item)
        item.asked_at = time.monotonic()
        if item.ending:
            item.connection.submit(
                EndTxnRequest.API_KEY, _END_VERSION, [_end_body(item)], lambda frame: self._on_ended(item, frame)
            )
            return
        item.connection.submit(
            AddPartitionsToTxnRequest.API_KEY,
            _ADD_VERSION,
            [_add_body(item)],
            lambda frame: self._on_added(item, left, errors, frame),
        )

    def _connect(self, item: _Id) -> BrokerConnection:
        connection = self._wire.open_connection(self._wire.coordinator(item.name, TRANSACTION_COORDINATOR))
        connection.send_deadline = self._deadline
        return connection

    def _wait(self, busy: Sequence[_Id]) -> None:
        now = time.monotonic()
        asked = [item for item in busy if item.asked_at is not None and item.connection is not None]
        pauses = [item.due - now for item in busy if item.asked_at is None]
        readers = {item.connection.fileno(): item.connection for item in asked if item.connection is not None}
        writers = [fileno for fileno, connection in readers.items() if connection.wants_write]
        timeout = max(0.0, min([_POLL_SECONDS, *pauses]))
        readable, writable, _ = select.select(list(readers), writers, [], timeout)
        for fileno in writable:
            readers[fileno].on_writable()
        for fileno in readable:
            readers[fileno].on_readable()
        if any(item.asked_at is not None and now - item.asked_at > _ANSWER_SECONDS for item in asked):
            raise BrokerUnreachable(
                "the transaction coordinator does not answer",
                where=self._where,
                next_step="check the target's brokers; then clear the task",
            )

    # -- answers -----------------------------------------------------------------------------------------------------

    def _on_added(
        self,
        item: _Id,
        left: dict[TopicPartition, int],
        errors: dict[TopicPartition, MigrationError],
        frame: memoryview,
    ) -> None:
        answer = AddPartitionsToTxnResponse.decode(bytes(frame), version=_ADD_VERSION, header=True)
        codes = {
            (topic.name, part.partition_index): part.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        }
        no_error = (error_codes.NONE, error_codes.OPERATION_NOT_ATTEMPTED)
        refused = {key: code for key, code in codes.items() if code not in no_error}
        if not refused:
            item.go_on(ending=True)
            return
        # The coordinator repeats an error of the whole transaction for each of its partitions.
        if self._is_settled(item, next(iter(refused.values()))):
            return
        for key, code in refused.items():
            where = Where(cluster=self._where.cluster, topic=key[0], partition=key[1])
            errors[key] = error_codes.error_for(code, "no transaction takes the partition", where=where, needs="Write")
            left[key] = 0
        # Nothing was added: retry the other partitions without the refused ones.
        item.keys = [key for key in item.keys if key not in refused]
        item.go_on(ending=False)

    def _on_ended(self, item: _Id, frame: memoryview) -> None:
        answer = EndTxnResponse.decode(bytes(frame), version=_END_VERSION, header=True)
        if not answer.error_code:
            item.forget()
        elif not self._is_settled(item, answer.error_code):
            raise error_codes.error_for(answer.error_code, "an empty transaction cannot be ended", where=self._where)

    def _is_settled(self, item: _Id, code: int) -> bool:
        """Handle an error of a whole transaction: retry, or raise. False: the error is one of single partitions."""
        if code == error_codes.CONCURRENT_TRANSACTIONS:
            # The markers of the id's previous transaction are not written yet.
            item.again()
            return True
        if code in error_codes.FENCED:
            raise SliceExpired(
                "a newer incarnation of this lane has fenced this one",
                where=self._where,
                next_step="none: the newer one continues",
            )
        if code in error_codes.COORDINATOR_MOVED:
            raise BrokerBusy(
                f"the transaction coordinator refused: {error_codes.name(code)}",
                where=self._where,
                next_step="none: the copier takes the ids over again",
            )
        if code == error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise error_codes.error_for(
                code,
                "the transaction coordinator refused",
                where=self._where,
                needs=f"Write on TransactionalId {item.name}",
            )
        return False

    # -- the log end, and the ids ------------------------------------------------------------------------------------

    def _wait_for_markers(self, expected: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Wait until ended transactions have moved the log ends as expected, or cannot; return the log ends."""
        if not expected:
            return {}
        until = time.monotonic() + MARKER_SECONDS
        tries = 0
        while True:
            ends = self._wire.list_offsets(expected, "log_end")
            if all(ends[key] >= end for key, end in expected.items()):
                return ends
            if time.monotonic() >= until:
                self._take_over()
                return self._wire.list_offsets(expected, "log_end")
            self._check_may_go_on(time.monotonic())
            time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1

    def _take_over(self) -> None:
        """Send InitProducerId for each id: when the coordinator answers, the id's last transaction is over."""
        self._close_connections()
        self._ids = []
        for name in self._names:
            self._check_may_go_on(time.monotonic())
            producer_id, epoch = self._wire.init_producer_id(name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
            self._ids.append(_Id(name, producer_id, epoch))

    def _close_connections(self) -> None:
        for item in self._ids:
            if item.connection is not None:
                with contextlib.suppress(OSError):
                    item.connection.close()


def _add_body(item: _Id) -> bytes:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=item.name,
        v3_and_below_producer_id=item.producer_id,
        v3_and_below_producer_epoch=item.producer_epoch,
        v3_and_below_topics=[topic(name=name, partitions=numbers) for name, numbers in by_topic(item.keys)],
    )
    return bytes(request.encode(version=_ADD_VERSION))


def _end_body(item: _Id) -> bytes:
    request = EndTxnRequest(
        transactional_id=item.name,
        producer_id=item.producer_id,
        producer_epoch=item.producer_epoch,
        # Nothing was written, so nothing is committed; the abort marker takes an offset as well.
        committed=False,
    )
    return bytes(request.encode(version=_END_VERSION))


# -- log starts -------------------------------------------------------------------------------------------------------
#
# Log starts that went back: a broker that dies soon after DeleteRecords forgets the new log start.
#
# Brokers write log starts to a checkpoint once a minute (``log.flush.start.offset.checkpoint.interval.ms``). After a
# crash before that, consumers that begin at the earliest offset can read the fillers below a partition's first offset
# again. This code deletes only fillers again, never records of another producer.


def delete_fillers_again(
    wire: Wire,
    log_starts: Mapping[TopicPartition, int],
    wanted: Mapping[TopicPartition, int],
    filler_producer_id: int,
) -> dict[TopicPartition, int | MigrationError]:
    """Move log starts back to where they were, where fillers lie below.

    :param log_starts: the present log starts.
    :param wanted: first copied offset of each partition.
    :returns: the new log start, or the error, of each partition that needed it.
    """
    done: dict[TopicPartition, int | MigrationError] = {}
    for key, start in sorted(wanted.items()):
        if log_starts.get(key, start) >= start:
            continue
        try:
            if not _begins_with_fillers(wire, key, log_starts[key], filler_producer_id):
                continue
            log.warning(
                "%s-%s: the log start went back from %s to %s (a broker has crashed); deleting the fillers again",
                *key,
                start,
                log_starts[key],
            )
            done[key] = wire.delete_records({key: start})[key]
        except MigrationError as error:
            done[key] = error
    return done


def _begins_with_fillers(wire: Wire, key: TopicPartition, log_start_offset: int, filler_producer_id: int) -> bool:
    try:
        batches = fetch_span(wire, key, log_start_offset, isolation=READ_UNCOMMITTED).batches
    except OutsideOfLog:
        return False  # the log start has moved on meanwhile
    return bool(batches) and isinstance(batches[0], RawBatch) and batches[0].producer_id == filler_producer_id
