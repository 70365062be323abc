"""Records from between holes as full batches, for a target whose offsets are not the source's (``mapped``).

A compacted topic is mostly holes. One batch per run of records between them would often be one batch per record; where
the offset map says anyway where each run lies, records of many runs go as one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from airflow_provider_kafka_migration.kafka.batches import codecs
from airflow_provider_kafka_migration.kafka.batches.batch_columns import Columns, read_columns
from airflow_provider_kafka_migration.kafka.batches.header import RawBatch, build_batch
from airflow_provider_kafka_migration.kafka.batches.records import (
    Timestamps,
    append_record,
    encode_varint,
    least_limit,
    record_too_large,
)

#: Times of one batch lie within it, so that each is a delta of 64 bits.
_TIME_SPAN = 2**63


class PackedBatch(NamedTuple):
    """A full batch whose records the source has at other distances from each other.

    ``runs``: (source offset, number of the batch's records before it) of each stretch of consecutive source offsets.
    """

    batch: RawBatch
    runs: list[tuple[int, int]]


def pack_batches(
    batches: Sequence[RawBatch],
    keep_from_offset: int = 0,
    *,
    timestamps: Timestamps = "visible",
    max_batch_bytes: int | None = None,
    split_bytes: int | None = None,
) -> Iterator[PackedBatch]:
    """The kept records of some batches without the holes between them, as one full batch, or several if too large.

    Parameters and errors are those of :func:`~.batch_records.rebuild`; what was packed before a record that is too
    large has been given.

    :param batches: ascending, with the same codec, none of them a control batch.
    """
    kept = _kept(batches, keep_from_offset, timestamps)
    if kept.offsets:
        yield from _Pack(batches[0].codec, max_batch_bytes, least_limit(max_batch_bytes, split_bytes)).fitting(kept)


def _kept(batches: Sequence[RawBatch], keep_from_offset: int, timestamps: Timestamps) -> Columns:
    offsets: list[int] = []
    times: list[int] = []
    bodies: list[bytes] = []
    for batch in batches:
        columns = read_columns(batch, timestamps)
        if columns.offsets and columns.offsets[0] < keep_from_offset:
            below = sum(offset < keep_from_offset for offset in columns.offsets)
            columns = columns.slice(below, len(columns.offsets))
        offsets += columns.offsets
        times += columns.times
        bodies += columns.bodies
    return Columns(offsets, times, bodies)


class _Pack:
    def __init__(self, codec: int, max_batch_bytes: int | None, split_bytes: int | None) -> None:
        self.codec = codec
        self.max_batch_bytes = max_batch_bytes
        self.split_bytes = split_bytes

    def fitting(self, columns: Columns) -> Iterator[PackedBatch]:
        """These records as one batch; halves of them if it is too large."""
        count = len(columns.offsets)
        if max(columns.times) - min(columns.times) < _TIME_SPAN:
            encoded = self._encode(columns)
            limit = self.max_batch_bytes if count == 1 else self.split_bytes
            if limit is None or len(encoded) <= limit:
                yield PackedBatch(RawBatch(memoryview(encoded)), _runs(columns.offsets))
                return
            if count == 1:
                raise record_too_large(columns.offsets[0], len(encoded), limit)
        yield from self.fitting(columns.slice(0, count // 2))
        yield from self.fitting(columns.slice(count // 2, count))

    def _encode(self, columns: Columns) -> bytes:
        times = columns.times
        base_time = times[0]
        parts: list[bytes] = []
        for number, (time, body) in enumerate(zip(times, columns.bodies, strict=True)):
            append_record(parts, encode_varint(time - base_time), number, body)
        return build_batch(
            codecs.compress(self.codec, b"".join(parts)),
            base_offset=columns.offsets[0],
            last_offset_delta=len(times) - 1,
            record_count=len(times),
            attributes=self.codec,
            base_timestamp=base_time,
            max_timestamp=max(times),
        )


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    expected = None
    for number, offset in enumerate(offsets):
        if offset != expected:
            found.append((offset, number))
        expected = offset + 1
    return found
