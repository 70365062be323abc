"""One script of requests for a real broker and for the simulated one: both must answer with the same codes and offsets.

Producer ids, leader epochs and times differ from cluster to cluster; the script names none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from airflow_provider_kafka_migration.kafka import error_codes, produce, transactions
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, read_batches
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchRange
from airflow_provider_kafka_migration.kafka.transactions import Encoded, Producer
from airflow_provider_kafka_migration.kafka.wire import TRANSACTION_COORDINATOR, TopicPartition, Wire

_BUSY = {
    error_codes.CONCURRENT_TRANSACTIONS,
    error_codes.COORDINATOR_LOAD_IN_PROGRESS,
    error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.NOT_COORDINATOR,
    error_codes.NOT_LEADER_OR_FOLLOWER,
}
_PATIENCE_SECONDS = 20.0
#: Of the records. Brokers begin another segment for records of another week, and a fetch ends with its segment.
_START_MS = int(time.time() * 1000) - 3_600_000


def batch(
    count: int, producer_id: int = -1, epoch: int = 0, sequence: int = 0, *, size: int = 3, transactional: bool = False
) -> bytes:
    """A client's batch."""
    found = [Record(number, _START_MS + number, b"k", b"v" * size, []) for number in range(count)]
    return encode_batch(
        found,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
        transactional=transactional,
    )


class BrokerScript:
    """Plays the script on one cluster with one broker.

    :param topics: names of two topics with one partition each, of at most 2,000 bytes a batch.
    :param prefix: of transactional ids and groups.
    :param has_second: the cluster knows transaction version 2.
    :ivar answers: what the cluster has answered, by step.
    """

    def __init__(self, wire: Wire, topics: tuple[str, str], prefix: str, *, has_second: bool) -> None:
        self.wire = wire
        self.key: TopicPartition = (topics[0], 0)
        self.other: TopicPartition = (topics[1], 0)
        self.prefix = prefix
        self.has_second = has_second
        self.answers: dict[str, Any] = {}

    def play(self) -> dict[str, Any]:
        """Play everything."""
        self._sequences()
        self._refused_batches()
        self._markers()
        self._first_transactions()
        if self.has_second:
            self._second_transactions()
        self._ends()
        self._fetches()
        self._deletions()
        return self.answers

    def _note(self, step: str, *answer: Any) -> None:
        assert step not in self.answers, step
        self.answers[step] = answer

    # -- requests ----------------------------------------------------------------------------------------------------

    def _produce(self, data: bytes, key: TopicPartition | None = None) -> tuple[int, int]:
        """(error code, base offset)."""

        def attempt() -> tuple[int, int]:
            connection = self.wire.connection(self.wire.leaders([key or self.key])[key or self.key])
            item = produce.ProduceBatch(*(key or self.key), data[:61], data[61:])
            body = produce.encode([item], timeout_ms=10_000)
            found = produce.decode(connection.call_raw(produce.API_KEY, 8, body), 8).partitions[0]
            return found.error_code, found.base_offset

        return self._settled(attempt)

    @staticmethod
    def _settled(attempt: Callable[[], tuple[int, ...]]) -> Any:
        """Repeat while coordinators or leaders are busy: how long that takes differs."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (found := attempt())[0] in _BUSY and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _send(self, encoded: Encoded, broker_id: int, answer: Callable[[memoryview], Any]) -> Any:
        """The answer of a request as the transactional appender sends it, repeated while the coordinator is busy."""

        def attempt() -> tuple[int, ...]:
            box: list[memoryview] = []
            connection = self.wire.connection(broker_id)
            connection.submit(encoded.api_key, encoded.version, encoded.parts, box.append, flexible=encoded.flexible)
            while not box:
                connection.wait(5)
            found = answer(box[0])
            return found if isinstance(found, tuple) else (found,)

        return self._settled(attempt)

    def _write_markers(self, producer_id: int, epoch: int, coordinator_epoch: int = 0, topic: str = "") -> list[int]:
        kind = WriteTxnMarkersRequest.WritableTxnMarker
        name = topic or self.key[0]
        marker = kind(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=False,
            topics=[kind.WritableTxnMarkerTopic(name=name, partition_indexes=[0])],
            coordinator_epoch=coordinator_epoch,
        )
        answer = self.wire.request(WriteTxnMarkersRequest(markers=[marker]), version=1)
        return [part.error_code for item in answer.markers for entry in item.topics for part in entry.partitions]

    def _end(self, key: TopicPartition | None = None) -> int:
        return self.wire.list_offsets([key or self.key], "log_end")[key or self.key]

    # -- idempotent producers ----------------------------------------------------------------------------------------

    def _sequences(self) -> None:
        first, _ = self.wire.init_producer_id()
        second, _ = self.wire.init_producer_id()
        steps = [
            ("first batch", batch(3, first, 0, 0)),
            ("the same again", batch(3, first, 0, 0)),
            ("a gap", batch(2, first, 0, 7)),
            ("the next", batch(2, first, 0, 3)),
            ("other borders", batch(3, first, 0, 2)),
            ("a new epoch with a sequence", batch(1, first, 1, 5)),
            ("a new epoch from 0", batch(1, first, 1, 0)),
            ("the old epoch", batch(1, first, 0, 6)),
            ("an unknown producer with a sequence", batch(2, second, 0, 2_147_483_640)),
            ("it goes on", batch(10, second, 0, 2_147_483_642)),
            ("and wraps", batch(1, second, 0, 4)),
            ("no producer", batch(2)),
        ]
        for name, data in steps:
            self._note(f"append: {name}", *self._produce(data))
        for number in range(5):
            self._produce(batch(1, first, 1, 1 + number))
        self._note("append: the fifth last again", *self._produce(batch(1, first, 1, 1)))
        self._note("append: the sixth last again", *self._produce(batch(1, first, 1, 0)))

    def _refused_batches(self) -> None:
        good = batch(3)
        raw = RawBatch(memoryview(good))
        records = [Record(number, _START_MS, b"k", b"v", []) for number in (0, 2)]
        assert raw.record_count == 3
        control = encode_batch([Record(0, _START_MS, b"\0\0\0\0", b"\0\0\0\0\0\0", [])], control=True)
        self._note("refused: too large", *self._produce(batch(3, size=1000)))
        self._note("refused: fewer records than offsets", *self._produce(encode_batch(records)))
        self._note("refused: a control batch", *self._produce(control))
        self._note("refused: transactional without an id", *self._produce(batch(1, 1, transactional=True)))
        self._note("refused: nothing was written", self._end())

    # -- markers -----------------------------------------------------------------------------------------------------

    def _markers(self) -> None:
        producer, _ = self.wire.init_producer_id()
        self._note("marker: first", self._write_markers(producer, 1), self._end())
        self._note("marker: same epoch", self._write_markers(producer, 1), self._end())
        self._note("marker: older epoch", self._write_markers(producer, 0), self._end())
        self._note("marker: newer coordinator", self._write_markers(producer, 1, 3), self._end())
        self._note("marker: older coordinator", self._write_markers(producer, 1, 0), self._end())
        self._note("marker: no such topic", self._write_markers(producer, 1, topic="kafka-migration-none"))
        self._note("marker: then a sequence above 0", *self._produce(batch(1, producer, 1, 5)))
        self._note("marker: then from 0", *self._produce(batch(1, producer, 1, 0)))
        self._note(
            "marker: fences its data", self._write_markers(producer, 2, 3), *self._produce(batch(1, producer, 1, 1))
        )

    # -- transactions ------------------------------------------------------------------------------------------------

    def _producer(self, name: str) -> Producer:
        full = f"{self.prefix}.{name}"
        return Producer(full, *self.wire.init_producer_id(full))

    def _coordinator(self, producer: Producer) -> int:
        return self.wire.coordinator(producer.transactional_id, TRANSACTION_COORDINATOR)

    def _append(self, producer: Producer, sequence: int, version: int, key: TopicPartition | None = None) -> Any:
        data = batch(2, producer.producer_id, producer.producer_epoch, sequence, transactional=True)
        encoded = transactions.append(producer, key or self.other, data[:61], data[61:], version)
        found = self._send(
            encoded,
            self.wire.leaders([key or self.other])[key or self.other],
            lambda frame: transactions.append_answer(frame, version)[:2],
        )
        return tuple(found)

    def _stable(self) -> tuple[int, int, int]:
        """(last stable offset, high watermark, log end) of the topic with transactions."""
        found = [self.wire.list_offsets([self.other], which)[self.other] for which in ("stable", "latest", "log_end")]  # type: ignore[arg-type]
        return found[0], found[1], found[2]

    def _wait_for_end(self, end: int) -> int:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._end(self.other) < end and time.monotonic() < deadline:
            time.sleep(0.02)
        return self._end(self.other)

    def _first_transactions(self) -> None:
        """Transaction version 1: partitions are added by request."""
        one = self._producer("first")
        coordinator = self._coordinator(one)
        self._note("txn1: not added", self._append(one, 0, 8)[0])
        self._note("txn1: add", *self._add(one, coordinator))
        self._note("txn1: append", self._append(one, 0, 8))
        self._note("txn1: open", *self._stable())
        self._note("txn1: end", self._finish(one, coordinator, 2)[0], self._wait_for_end(3))
        self._note("txn1: ended", *self._stable())
        self._note("txn1: end again", self._finish(one, coordinator, 2)[0])
        # The next incarnation aborts what the former has left open, and fences it.
        self._add(one, coordinator)
        self._append(one, 2, 8)
        two = self._producer("first")
        self._note("txn1: taken over", two.producer_id == one.producer_id, self._wait_for_end(6), *self._stable())
        self._note("txn1: fenced at the coordinator", *self._add(one, coordinator))
        self._note("txn1: fenced at the leader", self._append(one, 4, 8)[0] in error_codes.FENCED | {48})
        self._note("txn1: wrong producer id", *self._add(two._replace(producer_id=two.producer_id + 7), coordinator))

    def _add(self, producer: Producer, coordinator: int) -> Any:
        encoded = transactions.add_partition(producer, self.other)
        return self._send(encoded, coordinator, transactions.add_partition_answer)

    def _finish(self, producer: Producer, coordinator: int, version: int) -> Any:
        encoded = transactions.end_transaction(producer, version)
        return self._send(encoded, coordinator, lambda frame: transactions.end_transaction_answer(frame, version))

    def _second_transactions(self) -> None:
        """Transaction version 2: leaders add partitions, group coordinators add groups, and ends raise the epoch."""
        one = self._producer("second")
        coordinator = self._coordinator(one)
        group = f"{self.prefix}.group"
        group_coordinator = self.wire.coordinator(group)
        self._note("txn2: append", self._append(one, 0, 12))
        commit = transactions.commit_offset(one, group, self.key, 42, "where", 5)
        self._note(
            "txn2: commit of an offset",
            *self._send(commit, group_coordinator, lambda frame: transactions.commit_offset_answer(frame, 5)),
        )
        self._note("txn2: unstable", self._committed(group))
        code, producer_id, epoch = self._finish(one, coordinator, 5)
        self._note("txn2: end", code, producer_id == one.producer_id, epoch - one.producer_epoch, self._wait_for_end(9))
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._committed(group)[2] and time.monotonic() < deadline:
            time.sleep(0.02)
        self._note("txn2: committed", self._committed(group))
        self._note("txn2: the former epoch", self._append(one, 2, 12)[0] in error_codes.FENCED)
        self._note("txn2: the new epoch from 0", self._append(one._replace(producer_epoch=epoch), 0, 12))
        commit = transactions.commit_offset(one._replace(producer_epoch=epoch), group, self.key, 43, "x" * 5000, 5)
        self._note(
            "txn2: metadata too large",
            *self._send(commit, group_coordinator, lambda frame: transactions.commit_offset_answer(frame, 5)),
        )
        self._producer("second")
        self._note("txn2: aborted by the next", self._wait_for_end(12), *self._stable())

    def _committed(self, group: str) -> tuple[int, str, int]:
        """(offset, metadata, error code)."""
        request, version = transactions.fetch_offsets(group, [(self.key[0], [0])])
        answer = self.wire.request(request, self.wire.coordinator(group), version=version)
        found = answer.topics[0].partitions[0]
        return found.committed_offset, found.metadata or "", found.error_code

    # -- reads -------------------------------------------------------------------------------------------------------

    def _list(self, timestamp: int, *, epoch: int = -1, version: int = 5) -> tuple[int, int]:
        """(error code, offset)."""
        entry = ListOffsetsRequest.ListOffsetsTopic
        part = entry.ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[entry(name=self.key[0], partitions=[part])]
        )
        answer = self.wire.request(request, self.wire.leaders([self.key])[self.key], version=version)
        found = answer.topics[0].partitions[0]
        return found.error_code, found.offset

    def _leader_epoch(self) -> int:
        self.wire.metadata([self.key[0]])
        return self.wire.leader_epochs([self.key])[self.key]

    def _ends(self) -> None:
        epoch = self._leader_epoch()
        self._note("offset: latest", *self._list(-1))
        self._note("offset: earliest", *self._list(-2))
        # The last record is older than an hour minus a minute, the markers are not; nothing is of tomorrow.
        for after_ms in (0, 9, 3_540_000, 86_400_000):
            self._note(f"offset: {after_ms} ms after the first record", *self._list(_START_MS + after_ms))
        self._note("offset: local start", *self._list(-4, version=8))
        self._note("offset: this epoch", *self._list(-1, epoch=epoch))
        self._note("offset: an epoch to come", *self._list(-1, epoch=epoch + 1))
        for step, asked in (("this epoch", epoch), ("an epoch to come", epoch + 5)):
            code, found, end = self._epoch_end(asked, epoch)
            self._note(f"epoch end: {step}", code, found - epoch if found >= 0 else found, end)
        self._note("epoch end: a leader to come", self._epoch_end(epoch, epoch + 1)[0])

    def _epoch_end(self, asked: int, leader_epoch: int) -> tuple[int, int, int]:
        """(error code, epoch, end offset)."""
        entry = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        part = entry.OffsetForLeaderPartition(partition=0, current_leader_epoch=leader_epoch, leader_epoch=asked)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[entry(topic=self.key[0], partitions=[part])])
        answer = self.wire.request(request, self.wire.leaders([self.key])[self.key], version=3)
        found = answer.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    def _fetch(self, step: str, *ranges: FetchRange, isolation: int = READ_UNCOMMITTED, max_bytes: int = 10**6) -> None:
        for number, item in enumerate(self.wire.fetch_once(ranges, isolation=isolation, max_bytes=max_bytes)):
            batches, used = read_batches(item.records)
            self._note(
                f"fetch: {step} {number}",
                item.error_code,
                item.high_watermark,
                item.last_stable_offset,
                item.log_start_offset,
                [first for _, first in item.aborted],
                [
                    (found.base_offset, found.next_offset, found.is_control, found.base_sequence, found.record_count)
                    for found in batches
                    if isinstance(found, RawBatch)
                ],
                len(item.records) - used > 0,
            )

    def _fetches(self) -> None:
        end, other_end = self._end(), self._end(self.other)
        whole = FetchRange(*self.key, 0, 10**6)
        self._fetch("everything", whole)
        self._fetch("within a batch", FetchRange(*self.key, 1, 10**6))
        self._fetch("less than a batch", FetchRange(*self.key, 0, 10))
        self._fetch("a batch and a half", FetchRange(*self.key, 0, 150))
        self._fetch("at the end", FetchRange(*self.key, end, 10**6))
        self._fetch("beyond the end", FetchRange(*self.key, end + 1, 10**6))
        self._fetch("another leader", whole._replace(leader_epoch=self._leader_epoch() + 1))
        self._fetch("two partitions, room for one", whole, FetchRange(*self.other, 0, 10**6), max_bytes=10)
        committed = FetchRange(*self.other, 0, 10**6)
        self._fetch("uncommitted", committed)
        self._fetch("committed", committed, isolation=READ_COMMITTED)
        self._fetch("committed, a part", FetchRange(*self.other, 4, 10), isolation=READ_COMMITTED)
        one = self._producer("open")
        self._add(one, self._coordinator(one))
        self._append(one, 0, 8)
        self._fetch("below an open transaction", committed, isolation=READ_COMMITTED)
        self._fetch("at an open transaction", FetchRange(*self.other, other_end, 10**6), isolation=READ_COMMITTED)
        self._fetch("into an open transaction", FetchRange(*self.other, other_end, 10**6))

    def _deletions(self) -> None:
        end = self._end()
        for step, offset in (("to 4", 4), ("back to 2", 2), ("beyond the end", end + 1), ("to the end", -1)):
            entry = DeleteRecordsRequest.DeleteRecordsTopic
            part = entry.DeleteRecordsPartition(partition_index=0, offset=offset)
            request = DeleteRecordsRequest(topics=[entry(name=self.key[0], partitions=[part])], timeout_ms=10_000)
            answer = self.wire.request(request, self.wire.leaders([self.key])[self.key])
            found = answer.topics[0].partitions[0]
            self._note(f"delete: {step}", found.error_code, found.low_watermark, *self._list(-2))
            self._fetch(f"after a deletion {step}", FetchRange(*self.key, 0, 10**6))
        self._note("delete: the end stays", self._end() - end)
