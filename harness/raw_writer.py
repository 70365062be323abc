"""Writes batches that client libraries cannot write: any shape, any producer id, transactions step by step.

It uses the product's wire protocol; plain consumers check the written records.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, EndTxnRequest

from airflow_provider_kafka_migration.errors import BrokerBusy, BrokerUnreachable
from airflow_provider_kafka_migration.kafka import produce
from airflow_provider_kafka_migration.kafka.batches.api import HEAD_BYTES, Record, encode_batch
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.wire import TRANSACTION_COORDINATOR, Wire, api_version
from harness.processes import HarnessError, wait_for

#: How long a leader that does not answer is looked up again: brokers learn of a death one after the other.
_LEADER_SECONDS = 60.0
LEADER_MOVED = frozenset({3, 5, 6})
INVALID_TXN_STATE = 48
CONCURRENT_TRANSACTIONS = 51


def plain(*values: bytes | None, timestamp: int = 1_700_000_000_000, key: bytes | None = None) -> list[Record]:
    """Records with these values, offsets 0, 1, 2, ... as a batch has them."""
    return [Record(index, timestamp, key, value, []) for index, value in enumerate(values)]


class RawWriter:
    """One connection pool to one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.wire = Wire(ClientConfig.from_librdkafka({"bootstrap.servers": bootstrap}, "harness"))

    def __enter__(self) -> RawWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def append(self, topic: str, partition: int, data: bytes, transactional_id: str | None = None) -> int:
        """Send one batch as it is; return its base offset.

        :raises HarnessError: the broker refused it; shows the error code.
        """
        code, base_offset = self.try_append(topic, partition, data, transactional_id)
        if code:
            raise HarnessError(f"{topic}-{partition}: append refused with {code}")
        return base_offset

    def try_append(
        self, topic: str, partition: int, data: bytes, transactional_id: str | None = None
    ) -> tuple[int, int]:
        """(error code, base offset) of an append. If the leader has just moved or died, it is looked up again."""
        deadline = time.monotonic() + _LEADER_SECONDS
        for _ in range(50):
            connection = self._leader(topic, partition, deadline)
            version = api_version(connection, produce.API_KEY, produce.MAX_VERSION)
            batch = produce.ProduceBatch(topic, partition, data[:HEAD_BYTES], data[HEAD_BYTES:])
            parts = produce.encode([batch], timeout_ms=10_000, transactional_id=transactional_id)
            body = connection.call_raw(produce.API_KEY, version, parts)
            answer = produce.decode(body, version).partitions[0]
            if answer.error_code not in LEADER_MOVED:
                break
            self.wire.forget_leaders([(topic, partition)])
        return answer.error_code, answer.base_offset

    def _leader(self, topic: str, partition: int, deadline: float) -> BrokerConnection:
        """A connection to the leader. A broker may name a leader that has died; nothing was sent to it then."""
        while True:
            try:
                return self.wire.connection(self.wire.leaders([(topic, partition)])[topic, partition])
            except (BrokerBusy, BrokerUnreachable):
                if time.monotonic() >= deadline:
                    raise
            self.wire.forget_leaders([(topic, partition)])
            time.sleep(0.2)

    def write(self, topic: str, partition: int, records: Sequence[Record], codec: int = 0) -> int:
        """Append records as one batch without a producer id; return its base offset."""
        return self.append(topic, partition, encode_batch(records, codec))


class RawTransactions:
    """A transactional producer, one request at a time."""

    def __init__(self, writer: RawWriter, transactional_id: str) -> None:
        self.writer = writer
        self.transactional_id = transactional_id
        self.producer_id, self.producer_epoch = writer.wire.init_producer_id(transactional_id)
        self._sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int]] = set()

    def _coordinator(self) -> int:
        return self.writer.wire.coordinator(self.transactional_id, TRANSACTION_COORDINATOR)

    def write(self, topic: str, partition: int, records: Sequence[Record], *, transactional: bool = True) -> int:
        """Append a batch of this producer, in a transaction (begun when needed) or outside of one."""
        if transactional:
            self._add(topic, partition)
        sequence = self._sequences.get((topic, partition), 0)
        self._sequences[topic, partition] = sequence + len(records)
        data = encode_batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        for _ in range(500):
            code, base_offset = self.writer.try_append(
                topic, partition, data, self.transactional_id if transactional else None
            )
            if code != INVALID_TXN_STATE:
                break
            time.sleep(0.01)  # the marker of the last transaction is not written yet
        if code:
            raise HarnessError(f"{topic}-{partition}: append refused with {code}")
        return base_offset

    def _add(self, topic: str, partition: int) -> None:
        self._added.add((topic, partition))
        entry = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        for _ in range(500):
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=[entry(name=topic, partitions=[partition])],
            )
            answer = self.writer.wire.request(request, self._coordinator(), version=2)
            code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code != CONCURRENT_TRANSACTIONS:
                break
            time.sleep(0.01)
        if code:
            raise HarnessError(f"AddPartitionsToTxn: {code}")

    def end(self, *, commit: bool) -> None:
        """Commit or abort, and wait for the markers: the coordinator answers before they are written."""
        before = self.writer.wire.list_offsets(self._added, "log_end")
        for _ in range(500):
            request = EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                committed=commit,
            )
            code = self.writer.wire.request(request, self._coordinator(), version=2).error_code
            if code != CONCURRENT_TRANSACTIONS:
                break
            time.sleep(0.01)
        if code:
            raise HarnessError(f"EndTxn: {code}")
        added, self._added = self._added, set()

        def marked() -> bool:
            now = self.writer.wire.list_offsets(added, "log_end")
            return all(now[key] > before[key] for key in added)

        wait_for("transaction markers", marked, 20, every_seconds=0.005)
