"""The log of one partition, as far as phases can see it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.producers import ProducerState
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, records

NOW_MS = 1_777_027_200_000


@dataclass
class Log:
    """Batches in offset order.

    :param lagging: offsets at the end that are not on all in-sync replicas yet.
    :param open_from: first offset of an open transaction; -1: none.
    """

    start: int = 0
    end: int = 0
    batches: list[bytes] = field(default_factory=list)
    lagging: int = 0
    open_from: int = -1
    producers: tuple[ProducerState, ...] = ()
    #: producer id -> (first sequence and base offset of its last batch, next sequence)
    sequences: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def offset(self, which: str) -> int:
        """Answer ListOffsets."""
        if which == "earliest":
            return self.start
        if which == "log_end":
            return self.end
        high_watermark = max(self.end - self.lagging, self.start)
        if which == "stable" and self.open_from >= 0:
            return min(self.open_from, high_watermark)
        return high_watermark

    def first_since(self, timestamp: int) -> int:
        """Answer ListOffsets for a timestamp in ms: the first batch that has it or a later one; -1: none."""
        found = (batch for data in self.batches if (batch := RawBatch(memoryview(data))).max_timestamp >= timestamp)
        return next((max(batch.base_offset, self.start) for batch in found), -1)

    def append(self, data: bytes) -> tuple[int, int]:
        """Append a batch as a leader does; return (error code, base offset)."""
        batch = RawBatch(memoryview(data))
        if batch.producer_id >= 0 and not batch.is_control:
            known = self.sequences.get(batch.producer_id)
            if known is not None and known[0] == batch.base_sequence:
                return error_codes.NONE, known[1]
            if known is not None and known[2] != batch.base_sequence:
                return error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            following = batch.base_sequence + batch.last_offset_delta + 1
            self.sequences[batch.producer_id] = (batch.base_sequence, self.end, following)
        base = self.end
        self.put(data, base)
        return error_codes.NONE, base

    def put(self, data: bytes, base: int) -> None:
        """Store a batch at an offset."""
        self.batches.append(struct.pack(">q", base) + data[8:])
        self.end = RawBatch(memoryview(self.batches[-1])).next_offset

    def write(self, *values: bytes, producer_id: int = -1) -> None:
        """Have an application write one batch."""
        found = [Record(number, NOW_MS, b"key", value, []) for number, value in enumerate(values)]
        sequence = self.sequences.get(producer_id, (0, 0, 0))[2] if producer_id >= 0 else -1
        epoch = 0 if producer_id >= 0 else -1
        self.append(encode_batch(found, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))
        if producer_id >= 0:
            self.producers = (ProducerState(producer_id, 0, sequence, NOW_MS + 10**9, -1, -1),)

    def remember(self, producer_id: int, epoch: int) -> None:
        """Keep the state that a marker leaves behind."""
        others = tuple(state for state in self.producers if state.producer_id != producer_id)
        self.producers = (*others, ProducerState(producer_id, epoch, -1, NOW_MS, 0, -1))

    def cut(self, start: int) -> None:
        """Delete all records below an offset."""
        self.start = max(start, self.start)
        self.end = max(self.end, start)
        self.batches = [item for item in self.batches if RawBatch(memoryview(item)).next_offset > start]

    def read(self, offset: int) -> bytes:
        """Return all batches from the one with this offset on."""
        return b"".join(item for item in self.batches if RawBatch(memoryview(item)).next_offset > offset)

    def values(self) -> dict[int, bytes | None]:
        """Return the values of all data records that exist, by offset."""
        found = {}
        for data in self.batches:
            batch = RawBatch(memoryview(data))
            if not batch.is_control:
                found.update({item.offset: item.value for item in records(batch) if item.offset >= self.start})
        return found


def sentinels_in(log: Log) -> list[int]:
    """Offsets of all sentinel records of a log."""
    return [offset for offset, value in log.values().items() if value is not None and b'"migration_id"' in value]
