"""Several small batches as one: a broker, and we, pay for each batch more than for the records in it.

A topic whose producers don't wait has batches of one record. Sent as they are, each would cost a request's place among
the five that a broker keeps in order for a partition; joined, they cost what their records cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_kafka_migration.kafka.batches import codecs
from airflow_provider_kafka_migration.kafka.batches.header import RawBatch, build_batch
from airflow_provider_kafka_migration.kafka.batches.records import (
    append_record,
    encode_varint,
    index_records,
    stored_deltas,
)

_DELTAS = range(-(2**63), 2**63)
#: length, attributes, both deltas, key, value and number of headers
_LEAST_RECORD_BYTES = 7


def join_batches(batches: Sequence[RawBatch]) -> list[RawBatch]:
    """One batch with the records of several; key, value and headers are copied as they stand.

    Batches whose times are too far apart for one are given back as they are.

    :param batches: full ones of CreateTime with the same codec, each beginning where the one before it ends.
    :raises BatchMalformed: one of them is damaged: with a new CRC nobody would ever see it.
    """
    first = batches[0]
    base_offset, base_time = first.base_offset, first.base_timestamp
    parts: list[bytes] = []
    latest = first.max_timestamp
    for batch in batches:
        batch.check_crc()
        latest = max(latest, batch.max_timestamp)
        add = _add_stored if batch.codec == codecs.NONE and batch.record_count == 1 else _add_all
        if not add(parts, batch, batch.base_offset - base_offset, batch.base_timestamp - base_time):
            return list(batches)
    last_offset_delta = batches[-1].last_offset - base_offset
    joined = build_batch(
        codecs.compress(first.codec, b"".join(parts)),
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
    """The same for the one record of an uncompressed batch, the most frequent kind: at half of the price.

    Its time delta and its offset delta are 0, if its producer did as all do; else it goes the other way.
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
    """Where the first record ends by its own length of one or two bytes."""
    encoded = buffer[0] if body == 4 else buffer[0] & 127 | buffer[1] << 7
    return body - 3 + (encoded >> 1)
