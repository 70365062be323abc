"""Headers: limits of what is taken as a batch, truncation, views."""

from __future__ import annotations

import struct

import pytest
from batch_strategies import batch_of, plain, records_of, view
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches.api import (
    HEAD_BYTES,
    RawBatch,
    Record,
    encode_batch,
    iter_batches,
    patched_header,
    read_batches,
    records,
)
from airflow_provider_kafka_migration.kafka.batches.header import HEAD

SAMPLE = encode_batch([plain(10), plain(11), plain(13)], 3, producer_id=5, producer_epoch=1, base_sequence=9)


def with_field(index: int, value: int) -> bytes:
    """SAMPLE with one header field changed, CRC made right again."""
    fields = list(HEAD.unpack_from(SAMPLE))
    fields[index] = value
    head = HEAD.pack(*fields)
    fields[4] = crc32c(head[21:] + SAMPLE[HEAD_BYTES:])
    return HEAD.pack(*fields) + SAMPLE[HEAD_BYTES:]


def test_a_batch_is_a_view() -> None:
    buffer = memoryview(SAMPLE + SAMPLE)
    first, second = iter_batches(buffer)
    assert first.data.obj is buffer.obj
    assert bytes(second.data) == SAMPLE
    assert isinstance(first, RawBatch)
    assert first.payload.obj is buffer.obj
    assert bytes(first.payload) == SAMPLE[HEAD_BYTES:]
    assert (first.base_offset, first.last_offset, first.next_offset, first.record_count) == (10, 13, 14, 3)
    assert not first.is_full


@pytest.mark.parametrize("cut", range(0, 2 * len(SAMPLE) + 1, 3))
def test_a_truncated_last_batch_is_left_out(cut: int) -> None:
    batches, consumed = read_batches((SAMPLE + SAMPLE)[:cut])
    assert len(batches) == cut // len(SAMPLE)
    assert consumed == len(batches) * len(SAMPLE)


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, -1),  # base offset
        (0, 2**63 - 2),  # last offset beyond what fits
        (1, 40),  # shorter than a header
        (1, -1),
        (1, -(2**31)),
        (3, 3),  # magic
        (3, -1),
        (5, 5),  # codec
        (6, -1),  # last offset delta
        (6, 1),  # more records than offsets
        (12, -1),  # record count
        (12, 5),
    ],
)
def test_impossible_headers(index: int, value: int) -> None:
    with pytest.raises(BatchMalformed) as caught:
        read_batches(with_field(index, value))
    assert caught.value.next_step


def test_unknown_attribute_bits_are_not_forwarded() -> None:
    batch = view(with_field(5, 0x7F00 | 0x08 | 0x10 | 0x40 | 3))
    batch.check_crc()
    assert batch.is_log_append_time
    assert batch.is_transactional
    assert batch.has_delete_horizon
    assert view(patched_header(batch, 1, 0, 0) + bytes(batch.payload)).attributes == 3
    assert view(patched_header(batch, 1, 0, 0, transactional=True) + bytes(batch.payload)).attributes == 3 | 0x10


def test_batches_before_nonsense_are_given_first() -> None:
    batches = iter_batches(SAMPLE + b"\xff" * 100)
    assert next(batches).next_offset == 14
    with pytest.raises(BatchMalformed):
        next(batches)


@pytest.mark.parametrize("data", [b"", b"\0" * 16, SAMPLE[:17], SAMPLE[:60]])
def test_nothing_whole(data: bytes) -> None:
    assert read_batches(data) == ([], 0)


@pytest.mark.parametrize("data", [b"\0" * 17, b"\xff" * 17, b"\0" * 61, b"\xff" * 1000])
def test_nonsense_is_malformed(data: bytes) -> None:
    with pytest.raises(BatchMalformed):
        read_batches(data)


def test_a_wrong_crc_survives_the_patch() -> None:
    damaged = bytearray(SAMPLE)
    damaged[-1] ^= 1
    batch = view(bytes(damaged))
    with pytest.raises(BatchMalformed, match="CRC"):
        batch.check_crc()
    with pytest.raises(BatchMalformed, match="CRC"):
        view(patched_header(batch, 1, 0, 0) + bytes(batch.payload)).check_crc()


@given(
    records_of(dense=True),
    st.integers(0, 4),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.booleans(),
)
def test_patched_header(
    found: list[Record], codec: int, producer: int, epoch: int, sequence: int, transactional: bool
) -> None:
    batch = batch_of(found, codec, leader_epoch=12)
    sent = view(patched_header(batch, producer, epoch, sequence, transactional=transactional) + bytes(batch.payload))
    sent.check_crc()
    assert (sent.base_offset, sent.leader_epoch) == (0, -1)
    assert (sent.producer_id, sent.producer_epoch, sent.base_sequence) == (producer, epoch, sequence)
    assert sent.is_transactional is transactional
    first = found[0].offset
    assert list(records(sent)) == [record._replace(offset=record.offset - first) for record in found]


@given(st.binary(max_size=400))
def test_any_bytes_end(data: bytes) -> None:
    try:
        batches, consumed = read_batches(data)
    except BatchMalformed:
        return
    assert consumed == sum(batch.size_bytes for batch in batches) <= len(data)


@given(st.data())
def test_damaged_batches_end_in_a_named_error_or_are_read(data: st.DataObject) -> None:
    codec = data.draw(st.integers(0, 4))
    good = encode_batch([plain(offset, b"value" * 5) for offset in range(5)], codec)
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        for batch in iter_batches(bytes(damaged)):
            if isinstance(batch, RawBatch):
                list(records(batch))
            else:
                list(batch.records())
    except BatchMalformed:
        pass


def test_record_counts_that_lie_do_not_take_long() -> None:
    fields = list(HEAD.unpack_from(SAMPLE))
    fields[6], fields[12] = 2**31 - 1, 2**31 - 1
    with pytest.raises(BatchMalformed):
        list(records(view(HEAD.pack(*fields) + SAMPLE[HEAD_BYTES:])))


def test_the_header_is_what_struct_says() -> None:
    assert HEAD_BYTES == 61
    assert struct.calcsize(">qiibIhiqqqhii") == HEAD_BYTES
