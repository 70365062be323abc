"""Holes of a source log on the target: control markers for holes inside, fillers for a log start above 0.

A control marker takes one offset and no consumer of any isolation level sees it. ``WriteTxnMarkers`` (api 27) with n
markers appends n control batches; it needs ClusterAction on the cluster, or Alter since 3.8 (KIP-1037).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping

from kafka.protocol.producer.transaction import WriteTxnMarkersResponse

from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.errors import BrokerBusy, ForeignData, Transient, Where
from airflow_provider_kafka_migration.kafka import error_codes, produce
from airflow_provider_kafka_migration.kafka.batches.api import (
    LegacyBatch,
    RawBatch,
    Record,
    encode_batch,
    patched_header,
)
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import fetch_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire, api_version, by_topic

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
    """Body of WriteTxnMarkers v1: ``counts`` ABORT markers for each partition.

    Partitions share marker entries, so the entries are as many as the largest count. The coordinator epoch is always
    0: it must not go down on one producer id, and equal ones are accepted. ABORT, since some brokers (Redpanda) take
    no other.
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
    """Error code by partition of a WriteTxnMarkers answer (header included); the last entry of a partition wins.

    A broker answers all markers of one producer id in one entry, which may say 0 though most of them were dropped:
    only the log end tells how many were written.
    """
    answer = WriteTxnMarkersResponse.decode(bytes(frame), version=MARKERS_VERSION, header=True)
    errors: dict[TopicPartition, int] = {}
    for marker in answer.markers:
        for topic in marker.topics:
            for item in topic.partitions:
                errors[(topic.name, item.partition_index)] = item.error_code
    return errors


def filler_batch(count: int, now_ms: int) -> memoryview:
    """A gzip batch of ``count`` records without key and value: about 1.4 bytes per thousand offsets on the wire."""
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

    Fillers have a producer id of their own and sequence = target offset, so filling is compare-and-append as well: it
    can be killed, repeated and raced. Their timestamps are current, so that the producer's state does not expire.

    :param on_progress: called with (offsets filled, offsets wanted).
    :returns: the log end, equal to ``until_offset``.
    :raises ForeignData: the partition holds something else, or its end is beyond ``until_offset``.
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
            f"the log end is {position}, but nothing was to be written at or beyond {until_offset} yet",
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
            # Another filler was faster, or our lost answer had been a success: the log end tells.
            return _log_end(wire, key)
        if answer.error_code:
            if answer.error_code in error_codes.STALE_METADATA:
                wire.forget_leaders([key])
            raise error_codes.error_for(answer.error_code, "fillers were refused", where=where, needs="Write")
        if answer.base_offset != position:
            raise ForeignData(
                f"fillers were written at {answer.base_offset} instead of {position}",
                where=where,
                next_step="find who writes to this target topic; delete the topic and clear topology_copy",
            )
        return position + count

    return wire.retrying(attempt)


def _log_end(wire: Wire, key: TopicPartition) -> int:
    """The log end once the high watermark has reached it: what a dead filler left is then there to stay."""

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
            f"the log ends at {log_end_offset}, and its last record cannot be read",
            where=where,
            next_step="clear topology_copy when the broker is well again",
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
    """(version, body) of a marker request for a connection.

    :raises BrokerRefused: the broker does not know the api at all.
    """
    low, high = connection.api_versions.get(MARKERS_API_KEY, (-1, -1))
    if not low <= MARKERS_VERSION <= high:
        raise error_codes.error_for(
            error_codes.UNSUPPORTED_VERSION,
            "WriteTxnMarkers version 1 is not offered",
            where=Where(cluster=connection.config.name, broker=str(connection.broker_id)),
        )
    return MARKERS_VERSION, [encode_markers(counts, producer_id, producer_epoch)]
