"""Codecs: round trips, formats of other writers, damaged and hostile input."""

from __future__ import annotations

import contextlib
import gzip
import random
import zlib

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches import header
from airflow_provider_kafka_migration.kafka.batches.header import GZIP, LZ4, SNAPPY, ZSTD, compress, decompress

ALL = [header.NONE, GZIP, SNAPPY, LZ4, ZSTD]
SAMPLES = [
    b"",
    b"a",
    b"kafka" * 30_000,
    random.Random(1).randbytes(200_000),
    b"x" * 65_536,
    b"x" * 65_537,
]


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: str(len(data)))
def test_round_trip(codec: int, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, data))) == data


@given(st.sampled_from(ALL), st.binary(max_size=2000))
def test_round_trip_of_anything(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed) == data
    assert packed == compress(codec, data), "the same bytes in give the same bytes out"


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_the_limit_holds(codec: int) -> None:
    packed = compress(codec, b"\0" * 3_000_000)
    assert len(decompress(codec, packed, 3_000_000)) == 3_000_000
    with pytest.raises(BatchMalformed):
        decompress(codec, packed, 2_999_999)


def test_a_bomb_is_refused_without_unpacking_it_whole() -> None:
    bomb = bytes(cramjam.zstd.compress(b"\0" * (700 * 1024 * 1024), level=1))
    assert len(bomb) < 100_000
    with pytest.raises(BatchMalformed, match="limit"):
        decompress(ZSTD, bomb, 8 * 1024 * 1024)


def test_snappy_that_lies_about_its_length() -> None:
    with pytest.raises(BatchMalformed, match="claims"):
        decompress(SNAPPY, b"\xff\xff\xff\xff\x0f" + b"a" * 20)


def test_raw_snappy_as_librdkafka_writes_it() -> None:
    data = b"librdkafka" * 100
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_concatenated_xerial_streams() -> None:
    assert decompress(SNAPPY, compress(SNAPPY, b"one") + compress(SNAPPY, b"two")) == b"onetwo"


@pytest.mark.parametrize(
    "options",
    [
        {"content_checksum": True},
        {"block_checksum": True},
        {"store_size": True, "block_size": lz4.frame.BLOCKSIZE_MAX4MB},
        {"store_size": False, "block_size": lz4.frame.BLOCKSIZE_MAX256KB, "content_checksum": True},
    ],
)
def test_lz4_frames_of_other_writers(options: dict[str, object]) -> None:
    data = b"frames" * 100_000
    assert decompress(LZ4, lz4.frame.compress(data, block_linked=False, **options)) == data


def test_our_lz4_frames_are_what_others_read() -> None:
    for data in SAMPLES:
        frame = compress(LZ4, data)
        assert lz4.frame.decompress(frame) == data
        assert lz4.frame.get_frame_info(frame)["block_linked"] is False, "the Java client refuses linked blocks"


@pytest.mark.parametrize("seed", [11566, 15286, 15300, 17335, 22771, 24067])
def test_lz4_blocks_that_seem_to_begin_with_their_size(seed: int) -> None:
    """A decoder that accepts both forms takes the first bytes of these blocks for a size, and returns other bytes."""
    rng = random.Random(seed)
    data = bytes(rng.choice((0, 1)) for _ in range(rng.randrange(20, 300)))
    assert decompress(LZ4, compress(LZ4, data)) == data
    assert decompress(LZ4, lz4.frame.compress(data, block_linked=False)) == data


def test_lz4_with_the_broken_header_checksum_of_format_0() -> None:
    frame = bytearray(compress(LZ4, b"KIP-57" * 10))
    frame[6] ^= 0xFF
    assert decompress(LZ4, bytes(frame)) == b"KIP-57" * 10


def test_lz4_linked_blocks_are_named() -> None:
    with pytest.raises(BatchMalformed, match="depend on each other"):
        decompress(LZ4, lz4.frame.compress(b"a" * 200_000, block_linked=True))


def test_gzip_of_other_writers() -> None:
    assert decompress(GZIP, gzip.compress(b"one", 9) + gzip.compress(b"two", 1)) == b"onetwo"
    assert zlib.decompress(compress(GZIP, b"three"), 31) == b"three"


def test_zstd_in_several_frames() -> None:
    frames = bytes(cramjam.zstd.compress(b"one")) + bytes(cramjam.zstd.compress(b"two" * 100_000))
    assert decompress(ZSTD, frames) == b"one" + b"two" * 100_000


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(BatchMalformed, match="no such codec"):
        decompress(codec, b"x")
    with pytest.raises(BatchMalformed, match="no such codec"):
        compress(codec, b"x")


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_cut_data_is_malformed(codec: int) -> None:
    packed = compress(codec, random.Random(2).randbytes(5000))
    for length in (0, 1, 5, 7, 11, len(packed) // 2, len(packed) - 1):
        if codec in (GZIP, ZSTD) and length == 0:
            continue  # an empty stream
        with pytest.raises(BatchMalformed):
            decompress(codec, packed[:length])


@given(st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), st.binary(max_size=200), st.data())
def test_damaged_data_never_crashes(codec: int, noise: bytes, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, b"some records " * 20 + noise))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(packed), noise):
        with contextlib.suppress(BatchMalformed):
            assert len(decompress(codec, damaged, 1 << 20)) <= 1 << 20
