"""CRC-32C arithmetic against plain CRC-32C."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.kafka.batches.header import patched_crc, shift_crc


@given(st.binary(min_size=40, max_size=40), st.binary(min_size=40, max_size=40), st.binary(max_size=300))
def test_patched_crc_is_that_of_the_new_bytes(old: bytes, new: bytes, rest: bytes) -> None:
    assert patched_crc(crc32c(old + rest), old, new, len(rest)) == crc32c(new + rest)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072, 1_000_003, 5_242_881])
def test_large_payloads_go_through_tables(size: int) -> None:
    rest = bytes(range(256)) * (size // 256) + bytes(size % 256)
    old, new = b"o" * 40, b"n" * 40
    assert patched_crc(crc32c(old + rest), old, new, len(rest)) == crc32c(new + rest)


def test_a_wrong_crc_stays_wrong() -> None:
    rest = b"payload" * 100
    wrong = crc32c(b"o" * 40 + rest) ^ 1
    assert patched_crc(wrong, b"o" * 40, b"n" * 40, len(rest)) != crc32c(b"n" * 40 + rest)


@given(st.integers(0, 2**32 - 1), st.integers(0, 200_000), st.integers(0, 200_000))
def test_shifts_add_up(difference: int, first: int, second: int) -> None:
    assert shift_crc(shift_crc(difference, first), second) == shift_crc(difference, first + second)
