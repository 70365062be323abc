"""Compression codecs of record batches, bounded: a few bytes that unpack to gigabytes end as a named error.

Formats are those of the Java client: gzip; snappy in xerial's frames (raw snappy is read too, librdkafka writes it);
LZ4 frames of independent blocks; zstd. In message formats 0 the checksum in the LZ4 frame header covers the wrong
bytes (KIP-57), so header checksums are not looked at: batches carry their own CRC.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam

from airflow_provider_kafka_migration.errors import BatchMalformed

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_MASK = 0x07
MAX_CODEC = ZSTD
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

#: The most that one batch may unpack to.
MAX_UNPACKED_BYTES = 512 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
#: Snappy's densest element copies 64 bytes with 3: a length beyond that is a lie.
_SNAPPY_MAX_RATIO = 22

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
#: version 1, independent blocks, no checksums; blocks of 64 KiB; checksum of these two bytes
_LZ4_HEAD = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_END = b"\x00\x00\x00\x00"
_LZ4_STORED = 0x80000000
_LZ4_BLOCK_SIZES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}

#: how cramjam says that the output buffer is too small
_BUFFER_FULL = "failed to write whole buffer"
_GZIP_WINDOW = 31
_ZSTD_LEVEL = 3


def compress(codec: int, data: bytes) -> bytes:
    """Pack the records of one batch. The same bytes in give the same bytes out."""
    if codec == NONE:
        return data
    if codec == GZIP:
        packer = zlib.compressobj(wbits=_GZIP_WINDOW)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _snappy_pack(data)
    if codec == LZ4:
        return _lz4_pack(data)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    raise _malformed(codec, "there is no such codec")


def decompress(codec: int, data: bytes | memoryview, max_bytes: int = MAX_UNPACKED_BYTES) -> bytes:
    """Unpack the records of one batch.

    :param max_bytes: the most that may come out.
    :raises BatchMalformed: damaged data, an unknown codec, or more than ``max_bytes``.
    """
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return _unpack_growing(GZIP, cramjam.gzip.decompress_into, data, max_bytes)
    if codec == SNAPPY:
        return _snappy_unpack(data, max_bytes)
    if codec == LZ4:
        return _lz4_unpack(data, max_bytes)
    if codec == ZSTD:
        return _unpack_growing(ZSTD, cramjam.zstd.decompress_into, data, max_bytes)
    raise _malformed(codec, "there is no such codec")


def _malformed(codec: int, why: object) -> BatchMalformed:
    name = CODEC_NAMES[codec] if 0 <= codec <= MAX_CODEC else str(codec)
    return BatchMalformed(
        f"cannot unpack records, codec {name}: {why}",
        next_step="look at the batch on the source with kafka-dump-log --deep-iteration",
    )


def _unpack_growing(
    codec: int, unpack_into: Callable[[bytes | memoryview, bytearray], int], data: bytes | memoryview, max_bytes: int
) -> bytes:
    """Unpack into a buffer that is grown until it fits, up to ``max_bytes`` (the formats don't tell the length)."""
    room = min(max_bytes, max(1 << 16, 4 * len(data)))
    while True:
        buffer = bytearray(room)
        try:
            written = unpack_into(data, buffer)
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL not in str(error):
                raise _malformed(codec, error) from None
            if room >= max_bytes:
                raise _malformed(codec, f"more than the limit of {max_bytes} bytes") from None
            room = min(max_bytes, 4 * room)
        else:
            return bytes(memoryview(buffer)[:written])


def _snappy_pack(data: bytes) -> bytes:
    parts = [_XERIAL_HEAD]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _snappy_unpack(data: bytes | memoryview, max_bytes: int) -> bytes:
    packed = bytes(data)
    if not packed.startswith(_XERIAL_MAGIC):
        return _snappy_block(packed, max_bytes)
    parts: list[bytes] = []
    position, room = 0, max_bytes
    while position < len(packed):
        if packed.startswith(_XERIAL_MAGIC, position):  # also between blocks: concatenated streams
            position += len(_XERIAL_HEAD)
            if position > len(packed):
                raise _malformed(SNAPPY, "a header is cut")
            continue
        length = int.from_bytes(packed[position : position + 4], "big")
        position += 4
        if length > len(packed) - position:
            raise _malformed(SNAPPY, "a block is cut")
        parts.append(_snappy_block(packed[position : position + length], room))
        room -= len(parts[-1])
        position += length
    return b"".join(parts)


def _snappy_block(block: bytes, max_bytes: int) -> bytes:
    try:
        length = cramjam.snappy.decompress_raw_len(block)
        if length > min(max_bytes, _SNAPPY_MAX_RATIO * len(block)):
            raise _malformed(SNAPPY, f"a block of {len(block)} bytes claims to hold {length}")
        if length == 0 and block != b"\x00":
            raise _malformed(SNAPPY, "a block is cut")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _malformed(SNAPPY, error) from None


def _lz4_pack(data: bytes) -> bytes:
    parts = [_LZ4_HEAD]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[start : start + _LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += (len(packed).to_bytes(4, "little"), packed)
        else:
            parts += ((len(block) | _LZ4_STORED).to_bytes(4, "little"), block)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _lz4_unpack(data: bytes | memoryview, max_bytes: int) -> bytes:
    """Walk the frame: several times faster than a stream decoder, and blind to the header's checksum (KIP-57)."""
    packed = bytes(data)
    try:
        position, block_bytes, trailer = _lz4_head(packed)
        return b"".join(_lz4_blocks(packed, position, block_bytes, trailer, max_bytes))
    except (IndexError, cramjam.DecompressionError) as error:
        raise _malformed(LZ4, error) from None


def _lz4_head(packed: bytes) -> tuple[int, int, int]:
    """Where the blocks begin, how large one may unpack, and how many bytes of checksum follow each."""
    if not packed.startswith(_LZ4_MAGIC):
        raise _malformed(LZ4, "not a frame")
    flags, sizes = packed[4], packed[5]
    if flags >> 6 != 1:
        raise _malformed(LZ4, f"frame version {flags >> 6}")
    if not flags & 0x20:
        # Neither the Java client nor the broker reads these, so no broker has them.
        raise _malformed(LZ4, "blocks depend on each other")
    block_bytes = _LZ4_BLOCK_SIZES.get(sizes >> 4 & 7)
    if block_bytes is None:
        raise _malformed(LZ4, f"block size code {sizes >> 4 & 7}")
    position = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    return position, block_bytes, 4 if flags & 0x10 else 0


def _lz4_blocks(packed: bytes, position: int, block_bytes: int, trailer: int, room: int) -> list[bytes]:
    parts: list[bytes] = []
    buffer = bytearray(block_bytes)
    while True:
        word = int.from_bytes(packed[position : position + 4], "little")
        position += 4
        if position > len(packed):
            raise _malformed(LZ4, "the frame is cut")
        if word == 0:
            return parts
        length = word & ~_LZ4_STORED
        block = packed[position : position + length]
        if len(block) < length:
            raise _malformed(LZ4, "a block is cut")
        parts.append(block if word & _LZ4_STORED else _lz4_block(block, buffer))
        room -= len(parts[-1])
        if room < 0:
            raise _malformed(LZ4, "more than the limit")
        position += length + trailer


def _lz4_block(block: bytes, buffer: bytearray) -> bytes:
    written = cramjam.lz4.decompress_block_into(block, buffer)
    return bytes(memoryview(buffer)[:written])
