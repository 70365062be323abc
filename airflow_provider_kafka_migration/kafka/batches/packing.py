"""Packs the records between holes into full batches, for a target whose offsets differ (``mapped``).

A compacted topic is mostly holes. One batch per run of records between holes would often be one batch per record. As
the offset map records the place of each run anyway, records of many runs are sent as one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from airflow_provider_kafka_migration.kafka.batches import header
from airflow_provider_kafka_migration.kafka.batches.header import RawBatch, build_batch
from airflow_provider_kafka_migration.kafka.batches.records import (
    Columns,
    Timestamps,
    append_record,
    encode_varint,
    index_records,
    least_limit,
    read_columns,
    record_too_large,
    stored_deltas,
)

# -- batch join -------------------------------------------------------------------------------------------------------
#
# Several small batches become one: a batch costs the broker and us more than the records in it.
#
# A topic whose producers do not linger has batches of one record. Sent unchanged, each would use one of the five
# requests that a broker keeps in order for a partition; joined, they only cost what their records cost.


_DELTAS = range(-(2**63), 2**63)
#: length, attributes, both deltas, key, value and number of headers
_LEAST_RECORD_BYTES = 7


def join_batches(batches: Sequence[RawBatch]) -> list[RawBatch]:
    """Join several batches into one; keys, values and headers are copied unchanged.

    Batches whose times are too far apart for one batch are returned unchanged.

    :param batches: full CreateTime batches with the same codec; each begins where the previous one ends.
    :raises BatchMalformed: one of them is damaged: under a new CRC the damage would be undetectable.
    """
    first = batches[0]
    base_offset, base_time = first.base_offset, first.base_timestamp
    parts: list[bytes] = []
    latest = first.max_timestamp
    for batch in batches:
        batch.check_crc()
        latest = max(latest, batch.max_timestamp)
        add = _add_stored if batch.codec == header.NONE and batch.record_count == 1 else _add_all
        if not add(parts, batch, batch.base_offset - base_offset, batch.base_timestamp - base_time):
            return list(batches)
    last_offset_delta = batches[-1].last_offset - base_offset
    joined = build_batch(
        header.compress(first.codec, b"".join(parts)),
        base_offset=base_offset,
        last_offset_delta=last_offset_delta,
        record_count=last_offset_delta + 1,
        attributes=first.codec,
        base_timestamp=base_time,
        max_timestamp=latest,
    )
    return [RawBatch(memoryview(joined))]


def _add_all(parts: list[bytes], batch: RawBatch, shift: int, time_shift: int) -> bool:
    """Add the records of a batch to a payload; False if their times do not fit."""
    index = index_records(batch)
    buffer = index.buffer
    for delta, time, body, end in zip(
        stored_deltas(batch, index), index.time_deltas, index.bodies, index.ends, strict=True
    ):
        if time + time_shift not in _DELTAS:
            return False
        append_record(parts, encode_varint(time + time_shift), delta + shift, buffer[body:end])
    return True


def _add_stored(parts: list[bytes], batch: RawBatch, shift: int, time_shift: int) -> bool:
    """Do the same for an uncompressed batch of one record, the most frequent kind, at half the cost.

    Its time delta and its offset delta are normally 0; otherwise :func:`_add_all` handles it.
    """
    buffer = bytes(batch.payload)
    if len(buffer) < _LEAST_RECORD_BYTES:
        return _add_all(parts, batch, shift, time_shift)
    # length (one or two bytes), attributes, time delta, offset delta
    body = 4 if buffer[0] < 128 else 5
    if buffer[body - 3 : body] != b"\0\0\0" or _length(buffer, body) != len(buffer) or time_shift not in _DELTAS:
        return _add_all(parts, batch, shift, time_shift)
    append_record(parts, encode_varint(time_shift), shift, buffer[body:])
    return True


def _length(buffer: bytes, body: int) -> int:
    """Return where the first record ends according to its length field of one or two bytes."""
    encoded = buffer[0] if body == 4 else buffer[0] & 127 | buffer[1] << 7
    return body - 3 + (encoded >> 1)


# -- packing ----------------------------------------------------------------------------------------------------------


#: Times of one batch lie within this span, so that each fits a delta of 64 bits.
_TIME_SPAN = 2**63


class PackedBatch(NamedTuple):
    """A full batch whose records are spaced differently on the source.

    ``runs``: (source offset, number of the batch's records before it) of each run of consecutive source offsets.
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
    """Pack the kept records of some batches, without the holes, into one full batch, or several if too large.

    Parameters and errors are those of :func:`~.records.rebuild`; batches packed before a record that is too large have
    already been yielded.

    :param batches: ascending batches with the same codec, none of them a control batch.
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
        """Yield these records as one batch; split them in halves if it is too large."""
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
            header.compress(self.codec, b"".join(parts)),
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
