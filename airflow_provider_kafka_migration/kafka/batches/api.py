"""Record batches without I/O: bytes in, views out. The rest of the package imports batch functions from here.

``RawBatch`` never parses the records; :func:`records` and :func:`rebuild` do, at a cost. See ``header``, ``records``
and ``packing`` for the parts.
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
    """Yield the batches of a fetch response or segment, as views; omit a truncated last one.

    The generator returns how many bytes of ``data`` were whole batches; see also :func:`read_batches`.

    :raises BatchMalformed: some bytes cannot be a batch; the batches before them have already been yielded.
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
    """Yield the last batches: legacy messages can be shorter than the header of magic 2."""
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
        f"no record batch at byte {position} of the data that was read: magic {magic}, {size_bytes} bytes",
        next_step="read again; if the error persists, inspect the partition on the source with kafka-dump-log",
    )
