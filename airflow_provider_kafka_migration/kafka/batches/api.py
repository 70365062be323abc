"""Record batches without I/O: bytes in, views out. What the rest of the package uses of batches comes from here.

``RawBatch`` never looks into the records; :func:`records` and :func:`rebuild` do, at a price. See ``batch_header``,
``batch_records``, ``legacy_batches``, ``codecs`` and ``crc`` for the parts.
"""

from __future__ import annotations

from collections.abc import Generator

from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches.header import (
    HEAD,
    HEAD_BYTES,
    LOG_OVERHEAD,
    RawBatch,
    build_batch,
    patched_header,
)
from airflow_provider_kafka_migration.kafka.batches.packing import PackedBatch, join_batches, pack_batches
from airflow_provider_kafka_migration.kafka.batches.records import (
    MIN_MESSAGE_BYTES,
    LegacyBatch,
    Record,
    RecordIndex,
    Timestamps,
    decode_body,
    encode_batch,
    encode_body,
    index_records,
    inner_offsets_are_dense,
    least_limit,
    rebuild,
    record_offsets,
    record_times,
    records,
)

__all__ = [
    "HEAD_BYTES",
    "AnyBatch",
    "LegacyBatch",
    "PackedBatch",
    "RawBatch",
    "Record",
    "RecordIndex",
    "Timestamps",
    "build_batch",
    "decode_body",
    "encode_batch",
    "encode_body",
    "index_records",
    "inner_offsets_are_dense",
    "iter_batches",
    "join_batches",
    "least_limit",
    "pack_batches",
    "patched_header",
    "read_batches",
    "rebuild",
    "record_offsets",
    "record_times",
    "records",
]

AnyBatch = RawBatch | LegacyBatch

_MAGIC_AT = 16
_MIN_BYTES = (*MIN_MESSAGE_BYTES, HEAD_BYTES)


def iter_batches(data: bytes | memoryview) -> Generator[AnyBatch, None, int]:
    """The batches of a fetch response or segment, as views; a truncated last one is left out.

    The generator's return value is how many bytes of ``data`` were whole batches; see also :func:`read_batches`.

    :raises BatchMalformed: bytes that cannot be a batch; batches before it were given already.
    """
    view = memoryview(data)
    end = len(view)
    unpack = HEAD.unpack_from
    position = 0
    while end - position >= HEAD_BYTES:
        fields = unpack(view, position)
        magic = fields[3]
        size_bytes = fields[1] + LOG_OVERHEAD
        if magic not in (0, 1, 2) or size_bytes < _MIN_BYTES[magic]:
            raise _not_a_batch(magic, size_bytes, position)
        stop = position + size_bytes
        if stop > end:
            return position
        if magic == 2:
            yield RawBatch(view[position:stop], fields)
        else:
            yield LegacyBatch(view[position:stop])
        position = stop
    return (yield from _short_rest(view, position))


def _short_rest(view: memoryview, position: int) -> Generator[AnyBatch, None, int]:
    """Legacy messages can be shorter than the header of magic 2."""
    while len(view) - position > _MAGIC_AT:
        magic = view[position + _MAGIC_AT]
        size_bytes = int.from_bytes(view[position + 8 : position + LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD
        if magic > 2 or size_bytes < _MIN_BYTES[magic]:
            raise _not_a_batch(magic, size_bytes, position)
        stop = position + size_bytes
        if stop > len(view):
            break
        yield LegacyBatch(view[position:stop])
        position = stop
    return position


def read_batches(data: bytes | memoryview) -> tuple[list[AnyBatch], int]:
    """(batches, bytes that were whole batches); see :func:`iter_batches`."""
    found: list[AnyBatch] = []
    batches = iter_batches(data)
    while True:
        try:
            found.append(next(batches))
        except StopIteration as stop:
            return found, stop.value


def _not_a_batch(magic: int, size_bytes: int, position: int) -> BatchMalformed:
    return BatchMalformed(
        f"no record batch at byte {position} of what was read: magic {magic}, {size_bytes} bytes",
        next_step="read again; if it stays so, look at the partition on the source with kafka-dump-log",
    )
