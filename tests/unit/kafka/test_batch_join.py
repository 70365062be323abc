"""Several small batches as one."""

from __future__ import annotations

import itertools

import pytest
from batch_strategies import CODECS, records_of, view
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches.api import (
    RawBatch,
    Record,
    build_batch,
    encode_batch,
    index_records,
    join_batches,
    records,
)


def batches_of(found: list[Record], cuts: list[int], codec: int) -> list[RawBatch]:
    """The records, numbered from 7 on, as batches that end at the cuts."""
    numbered = [record._replace(offset=7 + number) for number, record in enumerate(found)]
    borders = sorted({0, len(found), *(cut % len(found) for cut in cuts)})
    return [view(encode_batch(numbered[first:stop], codec)) for first, stop in itertools.pairwise(borders)]


@given(records_of(dense=True), st.lists(st.integers(0, 1000), max_size=6), CODECS)
def test_records_offsets_and_times_stay(found: list[Record], cuts: list[int], codec: int) -> None:
    batches = batches_of(found, cuts, codec)
    joined = join_batches(batches)
    assert [one for batch in joined for one in records(batch)] == [one for batch in batches for one in records(batch)]
    if len(joined) == 1:
        batch = joined[0]
        batch.check_crc()
        assert batch.is_full
        assert (batch.codec, batch.base_offset, batch.next_offset) == (codec, 7, 7 + len(found))
        assert batch.max_timestamp == max(record.timestamp for record in found)


@pytest.mark.parametrize(
    "size", [0, 1, 50, 56, 57, 58, 59, 60, 8180, 8181, 8182, 8183, 8184, 8185, 8186, 8187, 8190, 70_000]
)
def test_single_records_of_every_length_of_numbers(size: int) -> None:
    found = [Record(number, 1_700_000_000_000 - 5000 * number, None, b"x" * size, []) for number in range(3)]
    joined = join_batches([view(encode_batch([record])) for record in found])
    assert [list(records(batch)) for batch in joined] == [found]


@given(st.lists(st.tuples(st.binary(max_size=12), st.integers(1, 2)), min_size=2, max_size=3))
@settings(max_examples=2 * settings.default.max_examples)
def test_any_bytes_as_records_are_joined_or_named(payloads: list[tuple[bytes, int]]) -> None:
    batches, base = [], 0
    for payload, count in payloads:
        batches.append(
            view(
                build_batch(
                    payload,
                    base_offset=base,
                    last_offset_delta=count - 1,
                    record_count=count,
                    attributes=0,
                    base_timestamp=1000,
                    max_timestamp=1000,
                )
            )
        )
        base += count
    try:
        expected = [index_records(batch).buffer for batch in batches]
    except BatchMalformed:
        with pytest.raises(BatchMalformed):
            join_batches(batches)
    else:
        assert sum(batch.record_count for batch in join_batches(batches)) == base
        assert len(expected) == len(batches)


def test_times_too_far_apart() -> None:
    batches = [
        view(encode_batch([Record(number, time, None, b"v", [])])) for number, time in enumerate((-(2**63), 2**63 - 1))
    ]
    assert join_batches(batches) == batches


def test_a_damaged_batch_is_named() -> None:
    good = encode_batch([Record(0, 1, b"k", b"v", [])])
    bad = bytearray(encode_batch([Record(1, 1, b"k", b"v", [])]))
    bad[-2] ^= 1
    with pytest.raises(BatchMalformed, match="CRC"):
        join_batches([view(good), view(bytes(bad))])
