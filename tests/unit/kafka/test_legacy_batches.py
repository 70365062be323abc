"""Message formats 0 and 1 against kafka-python's encoder, and damaged."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches.api import LegacyBatch, Record, read_batches
from airflow_provider_kafka_migration.kafka.batches.header import compress

GZIP, LZ4 = 1, 3


def built(magic: int, codec: int, found: list[Record]) -> bytes:
    """kafka-python's message set; its wrapper gets offset 0, as a producer's does."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for position, record in enumerate(found):
        builder.append(position, record.timestamp, record.key, record.value)
    return bytes(builder.build())


def message(offset: int, magic: int, attributes: int, key: bytes | None, value: bytes | None, time: int = 5) -> bytes:
    """One message, made by hand."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", time) if magic else b"")
    for content in (key, value):
        body += struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def read(data: bytes) -> list[Record]:
    batches, consumed = read_batches(data)
    assert consumed == len(data)
    for batch in batches:
        batch.check_crc()
    return [record for batch in batches for record in batch.records()]  # type: ignore[union-attr]


CONTENT = st.one_of(st.none(), st.binary(max_size=50))


@given(
    st.lists(st.tuples(st.integers(0, 2**41), CONTENT, CONTENT), min_size=1, max_size=10),
    # kafka-python needs one package more for the LZ4 of format 0; the golden batches have it.
    st.sampled_from([(0, 0), (0, GZIP), (1, 0), (1, GZIP), (1, LZ4)]),
)
def test_reads_kafka_python(content: list[tuple[int, bytes | None, bytes | None]], form: tuple[int, int]) -> None:
    magic, codec = form
    found = [
        Record(position, time if magic else -1, key, value, []) for position, (time, key, value) in enumerate(content)
    ]
    assert read(built(magic, codec, found)) == found


def test_relative_offsets_of_format_1() -> None:
    inner = b"".join(message(relative, 1, 0, b"k", b"v") for relative in (0, 1, 4))
    data = message(1004, 1, GZIP, None, compress(GZIP, inner))
    assert [record.offset for record in read(data)] == [1000, 1001, 1004]


def test_absolute_offsets_of_format_0() -> None:
    inner = b"".join(message(offset, 0, 0, b"k", b"v") for offset in (1000, 1002))
    assert [record.offset for record in read(message(1002, 0, GZIP, None, compress(GZIP, inner)))] == [1000, 1002]


def test_log_append_time_of_a_wrapper() -> None:
    inner = b"".join(message(offset, 1, 0, b"k", b"v", time=offset) for offset in range(3))
    data = message(2, 1, GZIP | 0x08, None, compress(GZIP, inner), time=777)
    (batch,), _ = read_batches(data)
    assert isinstance(batch, LegacyBatch)
    assert [record.timestamp for record in batch.records()] == [777] * 3
    assert [record.timestamp for record in batch.records("raw")] == [0, 1, 2]


def test_small_messages_at_the_very_end() -> None:
    data = message(0, 0, 0, None, None) + message(1, 0, 0, b"", None)
    assert len(data) < 61
    assert [(record.key, record.value) for record in read(data)] == [(None, None), (b"", None)]
    for cut in range(1, 26):
        batches, consumed = read_batches(data[:-cut])
        assert (len(batches), consumed) == (1, 26)


@pytest.mark.parametrize(
    "data",
    [
        message(0, 1, 4, b"k", b"v"),  # zstd does not exist here
        message(-1, 1, 0, b"k", b"v"),
        message(0, 1, GZIP, None, None),
        message(0, 1, GZIP, None, compress(GZIP, b"")),
        message(0, 1, GZIP, None, b"not gzip"),
        message(0, 1, GZIP, None, compress(GZIP, message(0, 0, 0, b"k", b"v"))),  # another format inside
        message(0, 1, GZIP, None, compress(GZIP, message(0, 1, GZIP, None, b""))),  # packed twice
        message(0, 1, GZIP, None, compress(GZIP, message(0, 1, 0, b"k", b"v")[:-1])),
        message(0, 1, GZIP, None, compress(GZIP, message(1, 1, 0, b"k", b"v") + message(1, 1, 0, b"k", b"v"))),
        message(0, 1, GZIP, None, compress(GZIP, b"\0" * 5)),
    ],
)
def test_malformed(data: bytes) -> None:
    with pytest.raises(BatchMalformed) as caught:
        read(data)
    assert caught.value.next_step


def test_lengths_inside_of_a_message() -> None:
    good = bytearray(message(0, 1, 0, b"key", b"value"))
    for position in range(26, 30):  # the key's length
        damaged = bytearray(good)
        damaged[position] ^= 0x11
        (batch,), _ = read_batches(bytes(damaged))
        with pytest.raises(BatchMalformed):
            list(batch.records())  # type: ignore[union-attr]


@given(st.data())
def test_damaged_sets_end(data: st.DataObject) -> None:
    inner = b"".join(message(offset, 1, 0, b"k", b"v" * 9) for offset in range(4))
    damaged = bytearray(message(3, 1, GZIP, None, compress(GZIP, inner)) + message(4, 0, 0, b"a", b"b"))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        for batch in read_batches(bytes(damaged))[0]:
            if isinstance(batch, LegacyBatch):
                list(batch.records())
    except BatchMalformed:
        pass
