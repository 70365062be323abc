"""Records: encode, decode, rebuild, split; on all codecs, with holes, and damaged."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from batch_strategies import CODECS, batch_of, plain, records_of, view
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import BatchMalformed, RecordTooLarge
from airflow_provider_kafka_migration.kafka.batches import header
from airflow_provider_kafka_migration.kafka.batches.api import (
    RawBatch,
    Record,
    encode_batch,
    encode_body,
    index_records,
    inner_offsets_are_dense,
    rebuild,
    records,
)
from airflow_provider_kafka_migration.kafka.batches.header import build_batch
from airflow_provider_kafka_migration.kafka.batches.records import encode_varint, read_varint


def runs_of(found: list[Record]) -> list[list[Record]]:
    """Records cut where offsets jump."""
    runs: list[list[Record]] = []
    for record in found:
        if runs and runs[-1][-1].offset + 1 == record.offset:
            runs[-1].append(record)
        else:
            runs.append([record])
    return runs


def skewed(deltas: list[int], codec: int = 0, last_delta: int | None = None) -> RawBatch:
    """A batch whose inner offset deltas are given; its header says they are dense."""
    body = encode_body(b"k", b"v", [])
    parts = []
    for delta in deltas:
        tail = b"\0" + b"\0" + encode_varint(delta) + body
        parts.append(encode_varint(len(tail)) + tail)
    return view(
        build_batch(
            header.compress(codec, b"".join(parts)),
            base_offset=100,
            last_offset_delta=len(deltas) - 1 if last_delta is None else last_delta,
            record_count=len(deltas),
            attributes=codec,
            base_timestamp=1000,
            max_timestamp=1000,
        )
    )


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(value: int) -> None:
    encoded = encode_varint(value)
    assert read_varint(encoded, 0) == (value, len(encoded))


@given(records_of(), CODECS)
def test_round_trip(found: list[Record], codec: int) -> None:
    batch = batch_of(found, codec)
    batch.check_crc()
    assert list(records(batch)) == found
    assert batch.codec == codec
    assert (batch.base_offset, batch.last_offset) == (found[0].offset, found[-1].offset)
    assert batch.max_timestamp == max(record.timestamp for record in found)


@given(records_of(), CODECS, st.data())
@settings(max_examples=2 * settings.default.max_examples)
def test_rebuild_keeps_records_and_offsets(found: list[Record], codec: int, data: st.DataObject) -> None:
    keep_from = data.draw(st.integers(found[0].offset - 2, found[-1].offset + 2))
    batch = batch_of(
        found,
        codec,
        base_offset=max(0, found[0].offset - data.draw(st.integers(0, 300))),
        last_offset=found[-1].offset + data.draw(st.integers(0, 300)),
        producer_id=9,
        producer_epoch=0,
        base_sequence=3,
        transactional=True,
    )
    kept = [record for record in found if record.offset >= keep_from]
    rebuilt = rebuild(batch, keep_from)
    assert [list(records(run)) for run in rebuilt] == runs_of(kept)
    for run in rebuilt:
        run.check_crc()
        assert run.is_full
        assert (run.codec, run.producer_id, run.is_transactional) == (codec, -1, False)
        assert run.max_timestamp == max(record.timestamp for record in records(run))
        assert inner_offsets_are_dense(run)


@given(records_of(dense=True), CODECS, st.integers(150, 3000))
def test_split_fits_and_loses_nothing(found: list[Record], codec: int, limit: int) -> None:
    batch = batch_of(found, codec)
    # Deltas to the batch's base time may take some bytes more than alone.
    alone = [len(encode_batch([record], codec)) for record in found]
    if max(alone) > limit:
        with pytest.raises(RecordTooLarge) as caught:
            rebuild(batch, max_batch_bytes=limit)
        assert caught.value.where.offset == caught.value.details["offset"]
        assert alone[caught.value.details["offset"] - found[0].offset] > limit - 40
        return
    assume(max(alone) < limit - 40)
    pieces = rebuild(batch, max_batch_bytes=limit)
    assert [record for piece in pieces for record in records(piece)] == found
    for piece in pieces:
        assert piece.size_bytes <= limit
        assert piece.is_full
    for before, after in itertools.pairwise(pieces):
        assert before.next_offset == after.base_offset


def test_split_makes_few_pieces() -> None:
    found = [plain(offset, b"x" * 1000) for offset in range(1000)]
    pieces = rebuild(batch_of(found), max_batch_bytes=100_000)
    assert len(pieces) <= 12


def test_a_record_that_does_not_fit_is_named() -> None:
    found = [plain(5), plain(6, b"x" * 5000), plain(7)]
    with pytest.raises(RecordTooLarge) as caught:
        rebuild(batch_of(found), max_batch_bytes=1000)
    assert caught.value.where.offset == 6
    assert caught.value.details["max_batch_bytes"] == 1000
    assert "max.message.bytes" in caught.value.next_step


@given(records_of(), CODECS, st.integers(0, 2**41))
def test_visible_time_of_log_append_time(found: list[Record], codec: int, append_time: int) -> None:
    batch = batch_of(found, codec, log_append_time=append_time)
    visible = [record._replace(timestamp=append_time) for record in found]
    assert list(records(batch)) == visible
    assert list(records(batch, "raw")) == found
    rebuilt = rebuild(batch)
    assert [record for run in rebuilt for record in records(run)] == visible
    assert [record for run in rebuild(batch, timestamps="raw") for record in records(run)] == found
    for run in rebuilt:
        assert not run.is_log_append_time
        assert run.base_timestamp == run.max_timestamp == append_time


def test_a_batch_without_records() -> None:
    batch = batch_of([], 4, base_offset=7, last_offset=12)
    assert (batch.size_bytes, batch.next_offset) == (61, 13)
    assert list(records(batch)) == []
    assert rebuild(batch) == []


def test_millions_of_years_between_two_records() -> None:
    found = [plain(0, time=-1), plain(1, time=2**62), plain(2, time=0)]
    assert list(records(batch_of(found))) == found


@pytest.mark.parametrize("deltas", [[0, 5], [0, 0], [1, 2], [2, 1, 0], [0, 1, 300], [-1, 0]])
def test_skewed_offsets_are_noticed_and_numbered_anew(deltas: list[int]) -> None:
    batch = skewed(deltas)
    assert not inner_offsets_are_dense(batch)
    assert [record.offset for record in records(batch)] == list(range(100, 100 + len(deltas)))
    (run,) = rebuild(batch)
    assert inner_offsets_are_dense(run)
    assert [record.offset for record in records(run)] == list(range(100, 100 + len(deltas)))


def test_skewed_offsets_in_a_batch_with_holes_have_no_meaning() -> None:
    with pytest.raises(BatchMalformed, match="backwards"):
        rebuild(skewed([0, 5, 2], last_delta=9))


def test_compressed_batches_are_not_read_for_density() -> None:
    assert inner_offsets_are_dense(skewed([0, 5], codec=3))


@given(records_of(dense=True))
def test_good_batches_are_dense(found: list[Record]) -> None:
    assert inner_offsets_are_dense(batch_of(found))


def test_dense_over_all_lengths_of_numbers() -> None:
    found = [plain(offset, b"x" * (offset % 200), time=1000 + offset**2) for offset in range(9000)]
    assert inner_offsets_are_dense(batch_of(found))


def test_density_of_damaged_records_ends() -> None:
    good = batch_of([plain(offset) for offset in range(3)])
    for cut in range(1, len(good.payload)):
        broken = view(
            build_batch(
                bytes(good.payload[:-cut]),
                base_offset=0,
                last_offset_delta=2,
                record_count=3,
                attributes=0,
                base_timestamp=0,
                max_timestamp=0,
            )
        )
        with contextlib.suppress(BatchMalformed):
            assert not inner_offsets_are_dense(broken)
        with pytest.raises(BatchMalformed):
            index_records(broken)


@given(st.binary(max_size=120), st.integers(1, 6))
def test_any_bytes_as_records_end(payload: bytes, count: int) -> None:
    batch = view(
        build_batch(
            payload,
            base_offset=0,
            last_offset_delta=count - 1,
            record_count=count,
            attributes=0,
            base_timestamp=0,
            max_timestamp=0,
        )
    )
    for read in (lambda: list(records(batch)), lambda: rebuild(batch), lambda: inner_offsets_are_dense(batch)):
        with contextlib.suppress(BatchMalformed):
            read()


@pytest.mark.parametrize(
    "body",
    [
        encode_body(b"k", b"v", []) + b"\0",  # more than its fields
        b"\x02k\x7fv\0",  # value longer than the record
        b"\x01\x01\x7f",  # 64 headers, none there
        b"\x01\x01\x01",  # -1 headers
        b"\x01\x01\x02\x01\x01",  # a header without a name
        b"\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a number without an end
    ],
)
def test_damaged_bodies(body: bytes) -> None:
    tail = b"\0\0\0" + body
    batch = view(
        build_batch(
            encode_varint(len(tail)) + tail,
            base_offset=3,
            last_offset_delta=0,
            record_count=1,
            attributes=0,
            base_timestamp=0,
            max_timestamp=0,
        )
    )
    with pytest.raises(BatchMalformed) as caught:
        list(records(batch))
    assert caught.value.where.offset == 3


@pytest.mark.parametrize("codec", range(5))
def test_several_mebibytes(codec: int) -> None:
    found = [plain(0, bytes(range(256)) * 20_000), plain(2, b"", key=b""), plain(3, None)]
    batch = batch_of(found, codec)
    assert list(records(batch)) == found
    assert [record for run in rebuild(batch, 2) for record in records(run)] == found[1:]
