"""Holes without the right to write markers: empty transactions leave one control marker per partition.

InitProducerId, AddPartitionsToTxn, EndTxn: no record is written, and the coordinator's marker takes exactly one offset
of each partition, under transaction versions 1 and 2 alike. It needs Write on the topics and on the transactional ids,
no right on the cluster. One transaction fills one offset of many partitions; several ids, each on a connection of its
own, hide the round trips. An id whose epoch a newer incarnation has raised can do nothing any more.

EndTxn answers before the marker is written, so the log end is waited for. An open transaction of a dead copier is ended
by the coordinator at a time of its own choosing, and leaves a marker then: each incarnation therefore takes all ids
over (:meth:`EmptyTransactions.begin`) before it looks at a log end.
"""

from __future__ import annotations

import contextlib
import logging
import select
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
)

from airflow_provider_kafka_migration.copy.holes import MARKERS_API_KEY, MARKERS_VERSION
from airflow_provider_kafka_migration.copy.transactional_errors import PAUSES
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    BrokerUnreachable,
    MigrationError,
    SliceExpired,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import clock, error_codes
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.wire import TRANSACTION_COORDINATOR, TopicPartition, Wire, by_topic

log = logging.getLogger(__name__)

#: Transactional ids of one lane: about four times the speed of a single one on a single partition.
IDS_PER_LANE = 8
#: Offsets of one fill; others wait for it, and its end is looked at once.
MAX_OFFSETS_PER_FILL = 64
MAX_PARTITIONS_PER_TRANSACTION = 500
#: No transaction begins so close to the end of the slice, so that none stays open there.
LAST_BEGIN_SECONDS = 0.3
#: The markers of an ended transaction are on the log's end after this time, or are asked for by ending it again.
MARKER_SECONDS = 5.0
TRANSACTION_TIMEOUT_MS = 30_000

#: What is open when the copier closes is ended within this time.
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
    :param token: given back with the answer.
    """

    offsets: int
    from_offset: int
    token: Any


class Filled(NamedTuple):
    """The end of a fill: the log end that was reached, or why nothing is known."""

    key: TopicPartition
    token: Any
    log_end_offset: int
    error: MigrationError | None


def markers_are_refused(wire: Wire) -> bool:
    """Whether this principal may not write control markers on this cluster, or its brokers do not know how.

    Asked with a marker for a topic that cannot exist: brokers look at the permission first, then at the partition.
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
    """Fill some partitions once, for trying it out; blocks.

    :raises PermissionMissing: Write or Describe on the transactional ids is missing.
    :raises SliceExpired: not within ``seconds``.
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
    #: a request without an answer, since then (monotonic clock)
    asked_at: float | None = None
    due: float = 0.0
    tries: int = 0

    def again(self) -> None:
        """Ask once more after a pause that grows."""
        self.asked_at = None
        self.due = time.monotonic() + PAUSES[min(self.tries, len(PAUSES) - 1)]
        self.tries += 1

    def go_on(self, *, ending: bool) -> None:
        """The next request, at once."""
        self.asked_at, self.ending, self.due, self.tries = None, ending, 0.0, 0

    def forget(self) -> None:
        """The transaction is over."""
        self.keys = []
        self.go_on(ending=False)


class EmptyTransactions:
    """Fills holes of one lane's partitions, in a thread of its own.

    :param transactional_id: of the lane; the ids used are ``<it>.hole-<n>``.
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
        """Take all ids over. When it returns, every transaction of former incarnations is over, markers written.

        :raises PermissionMissing: Write or Describe on the transactional ids is missing.
        """
        self._take_over()
        self._thread = threading.Thread(target=self._run, name="empty-transactions", daemon=True)
        self._thread.start()

    def submit(self, fills: Mapping[TopicPartition, Fill]) -> None:
        """Fill; each partition is answered once by :meth:`collect`."""
        with self._changed:
            self._wanted.update(fills)
            self._changed.notify()

    def collect(self) -> list[Filled]:
        """Answers since the last call."""
        with self._changed:
            found = list(self._answers)
            self._answers.clear()
        return found

    def is_filling(self, key: TopicPartition) -> bool:
        """Whether this partition's log may still grow by a fill, so that its end says nothing yet."""
        with self._changed:
            return key in self._wanted or key in self._under_way

    def close(self) -> None:
        """Stop after what is under way, within a moment, and close all connections."""
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
        """Log ends after the fill, and the partitions that were refused."""
        if len(self._ids) < len(self._names):
            self._take_over()
        left = {key: fill.offsets for key, fill in fills.items()}
        errors: dict[TopicPartition, MigrationError] = {}
        try:
            self._transact(left, errors)
        except SliceExpired:
            raise
        except Transient as error:
            # The outcome of what was open is unknown: taken over again it is known, and the log end tells it.
            log.info("empty transactions: %s", error.what)
            self._take_over()
            ends = self._wire.list_offsets(fills, "log_end")
            errors.update({key: error for key, end in ends.items() if end == fills[key].from_offset})
            return ends, errors
        expected = {key: fill.from_offset + fill.offsets for key, fill in fills.items() if key not in errors}
        return self._wait_for_markers(expected), errors

    def _transact(self, left: dict[TopicPartition, int], errors: dict[TopicPartition, MigrationError]) -> None:
        """Run transactions until nothing is left to fill; ``left`` counts what no transaction was begun for."""
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
            "the slice has ended before a hole was filled",
            where=self._where,
            next_step="none: the next slice goes on from the target's log end",
        )

    @staticmethod
    def _take_work(item: _Id, left: dict[TopicPartition, int]) -> None:
        """One offset of each partition that needs some: as many partitions as one transaction takes."""
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
        # An error of the transaction is said of each of its partitions.
        if self._is_settled(item, next(iter(refused.values()))):
            return
        for key, code in refused.items():
            where = Where(cluster=self._where.cluster, topic=key[0], partition=key[1])
            errors[key] = error_codes.error_for(code, "no transaction takes the partition", where=where, needs="Write")
            left[key] = 0
        # Nothing was added: the others are tried again without them.
        item.keys = [key for key in item.keys if key not in refused]
        item.go_on(ending=False)

    def _on_ended(self, item: _Id, frame: memoryview) -> None:
        answer = EndTxnResponse.decode(bytes(frame), version=_END_VERSION, header=True)
        if not answer.error_code:
            item.forget()
        elif not self._is_settled(item, answer.error_code):
            raise error_codes.error_for(answer.error_code, "an empty transaction cannot be ended", where=self._where)

    def _is_settled(self, item: _Id, code: int) -> bool:
        """Errors of a whole transaction: asked again, or raised. False: an error of single partitions."""
        if code == error_codes.CONCURRENT_TRANSACTIONS:
            # The markers of the id's last transaction are not written yet.
            item.again()
            return True
        if code in error_codes.FENCED:
            raise SliceExpired(
                "a newer incarnation of this lane has fenced this one",
                where=self._where,
                next_step="none: the newer one goes on",
            )
        if code in error_codes.COORDINATOR_MOVED:
            raise BrokerBusy(
                f"the transaction coordinator refused: {error_codes.name(code)}",
                where=self._where,
                next_step="none: the ids are taken over again",
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
        """Log ends once they are where ended transactions must bring them, or cannot be brought there."""
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
        """InitProducerId for each id: its last transaction is over when it answers."""
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
        # Nothing was written, so nothing is committed; the marker takes an offset all the same.
        committed=False,
    )
    return bytes(request.encode(version=_END_VERSION))
