"""The header of a record batch (magic 2): parse it, check it, patch it; CRC-32C and codecs. No I/O.

Layout: KIP-98 and ``DefaultRecordBatch`` of Apache Kafka. :func:`patched_header` writes what a broker accepts from a
client (base offset 0, our producer id, no LogAppendTime bit, ...).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import cramjam
from crc32c import crc32c

from airflow_provider_kafka_migration.errors import BatchMalformed, Where

# -- crc --------------------------------------------------------------------------------------------------------------
#
# CRC-32C arithmetic: change a header without reading the payload again.
#
# A CRC is linear: changing some bytes at the front changes the checksum by the CRC of the difference, shifted over the
# rest. Shifting does not need the payload, so the checksum that a producer put on its records travels with them: the
# target broker still refuses a batch in which a bit flipped anywhere on the way.


_MASK = 0xFFFFFFFF
#: Below this many bytes, hashing zeros is faster than using tables.
_CHUNK_BITS = 16
_CHUNK_BYTES = 1 << _CHUNK_BITS
_ZEROS = memoryview(bytes(_CHUNK_BYTES))

_Tables = tuple[list[int], list[int], list[int], list[int]]


def patched_crc(crc: int, old_head: bytes | memoryview, new_head: bytes | memoryview, rest_bytes: int) -> int:
    """Return the CRC-32C of ``new_head + rest``, given that of ``old_head + rest``.

    :param crc: CRC-32C of ``old_head + rest``.
    :param rest_bytes: length of ``rest``; both heads have the same length.
    """
    return crc ^ shift_crc(int(crc32c(old_head)) ^ int(crc32c(new_head)), rest_bytes)


def shift_crc(difference: int, zero_bytes: int) -> int:
    """Shift a difference of CRC registers over ``zero_bytes`` bytes. O(log n) above 64 KiB."""
    low = zero_bytes & (_CHUNK_BYTES - 1)
    if low:
        # crc32c() inverts before and after; this undoes both inversions.
        difference = int(crc32c(_ZEROS[:low], difference ^ _MASK)) ^ _MASK
    chunks = zero_bytes >> _CHUNK_BITS
    bit = 0
    while chunks:
        if chunks & 1:
            difference = _apply(_tables(bit), difference)
        chunks >>= 1
        bit += 1
    return difference


def _apply(tables: _Tables, value: int) -> int:
    first, second, third, fourth = tables
    return first[value & 255] ^ second[value >> 8 & 255] ^ third[value >> 16 & 255] ^ fourth[value >> 24]


@cache
def _tables(bit: int) -> _Tables:
    """Return lookup tables, one per register byte, for a shift over ``64 KiB << bit`` zero bytes."""
    if bit == 0:
        basis = [int(crc32c(_ZEROS, 1 << i ^ _MASK)) ^ _MASK for i in range(32)]
    else:
        half = _tables(bit - 1)
        basis = [_apply(half, _apply(half, 1 << i)) for i in range(32)]
    return _table(basis[:8]), _table(basis[8:16]), _table(basis[16:24]), _table(basis[24:])


def _table(basis: list[int]) -> list[int]:
    table = [0]
    for vector in basis:
        table += [entry ^ vector for entry in table]
    return table


# -- codecs -----------------------------------------------------------------------------------------------------------
#
# Compression codecs of record batches, with limits: a few bytes that unpack to gigabytes cause a named error.
#
# The formats are those of the Java client: gzip; snappy in xerial's frames (raw snappy is read too, because librdkafka
# writes it); LZ4 frames of independent blocks; zstd. In message format 0 the checksum in the LZ4 frame header covers
# the wrong bytes (KIP-57). Header checksums are therefore not checked; batches carry their own CRC.


NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_MASK = 0x07
MAX_CODEC = ZSTD
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

#: The most that one batch may unpack to.
MAX_UNPACKED_BYTES = 512 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
#: Snappy's densest element copies 64 bytes with 3: a length beyond that ratio is false.
_SNAPPY_MAX_RATIO = 22

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
#: version 1, independent blocks, no checksums; blocks of 64 KiB; checksum of these two bytes
_LZ4_HEAD = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_END = b"\x00\x00\x00\x00"
_LZ4_STORED = 0x80000000
_LZ4_BLOCK_SIZES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}

#: cramjam's error text when the output buffer is too small
_BUFFER_FULL = "failed to write whole buffer"
_GZIP_WINDOW = 31
_ZSTD_LEVEL = 3


def compress(codec: int, data: bytes) -> bytes:
    """Compress the records of one batch. The same input always gives the same output."""
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
    raise _malformed(codec, "no such codec exists")


def decompress(codec: int, data: bytes | memoryview, max_bytes: int = MAX_UNPACKED_BYTES) -> bytes:
    """Decompress the records of one batch.

    :param max_bytes: largest allowed result.
    :raises BatchMalformed: damaged data, an unknown codec, or a result of more than ``max_bytes``.
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
    raise _malformed(codec, "no such codec exists")


def _malformed(codec: int, why: object) -> BatchMalformed:
    name = CODEC_NAMES[codec] if 0 <= codec <= MAX_CODEC else str(codec)
    return BatchMalformed(
        f"cannot unpack records, codec {name}: {why}",
        next_step="inspect the batch on the source with kafka-dump-log --deep-iteration",
    )


def _unpack_growing(
    codec: int, unpack_into: Callable[[bytes | memoryview, bytearray], int], data: bytes | memoryview, max_bytes: int
) -> bytes:
    """Unpack into a buffer that grows until it fits, up to ``max_bytes`` (the formats do not store the length)."""
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
                raise _malformed(SNAPPY, "a header is truncated")
            continue
        length = int.from_bytes(packed[position : position + 4], "big")
        position += 4
        if length > len(packed) - position:
            raise _malformed(SNAPPY, "a block is truncated")
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
            raise _malformed(SNAPPY, "a block is truncated")
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
    """Walk the frame: several times faster than a stream decoder, and it ignores the header's checksum (KIP-57)."""
    packed = bytes(data)
    try:
        position, block_bytes, trailer = _lz4_head(packed)
        return b"".join(_lz4_blocks(packed, position, block_bytes, trailer, max_bytes))
    except (IndexError, cramjam.DecompressionError) as error:
        raise _malformed(LZ4, error) from None


def _lz4_head(packed: bytes) -> tuple[int, int, int]:
    """Return where the blocks begin, the largest unpacked block, and the bytes of checksum after each block."""
    if not packed.startswith(_LZ4_MAGIC):
        raise _malformed(LZ4, "not a frame")
    flags, sizes = packed[4], packed[5]
    if flags >> 6 != 1:
        raise _malformed(LZ4, f"unknown frame version {flags >> 6}")
    if not flags & 0x20:
        # Neither the Java client nor the broker reads such frames, so no broker stores them.
        raise _malformed(LZ4, "blocks depend on each other")
    block_bytes = _LZ4_BLOCK_SIZES.get(sizes >> 4 & 7)
    if block_bytes is None:
        raise _malformed(LZ4, f"unknown block size code {sizes >> 4 & 7}")
    position = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    return position, block_bytes, 4 if flags & 0x10 else 0


def _lz4_blocks(packed: bytes, position: int, block_bytes: int, trailer: int, room: int) -> list[bytes]:
    parts: list[bytes] = []
    buffer = bytearray(block_bytes)
    while True:
        word = int.from_bytes(packed[position : position + 4], "little")
        position += 4
        if position > len(packed):
            raise _malformed(LZ4, "the frame is truncated")
        if word == 0:
            return parts
        length = word & ~_LZ4_STORED
        block = packed[position : position + length]
        if len(block) < length:
            raise _malformed(LZ4, "a block is truncated")
        parts.append(block if word & _LZ4_STORED else _lz4_block(block, buffer))
        room -= len(parts[-1])
        if room < 0:
            raise _malformed(LZ4, "more than the limit")
        position += length + trailer


def _lz4_block(block: bytes, buffer: bytearray) -> bytes:
    # Without output_len, cramjam first tries whether the block begins with its own size. A small block in some
    # thousands happens to look like that, and comes out wrong.
    written = cramjam.lz4.decompress_block_into(block, buffer, output_len=len(buffer))
    return bytes(memoryview(buffer)[:written])


# -- header -----------------------------------------------------------------------------------------------------------


#: base offset, length after this field, partition leader epoch, magic, CRC-32C, attributes, last offset delta,
#: base timestamp, max timestamp, producer id, producer epoch, base sequence, record count
HEAD = struct.Struct(">qiibIhiqqqhii")
HEAD_BYTES = HEAD.size  # 61
#: base offset and length: bytes that the length field does not count
LOG_OVERHEAD = 12
#: the CRC covers everything from the attributes on
CRC_START = 21
#: the part of the header under the CRC
_CHECKED_HEAD = struct.Struct(">hiqqqhii")
_HEAD_START = struct.Struct(">qiibI")

TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
#: With one of them, ``base_timestamp`` is not the time of the first record.
_NOT_FIRST = TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT

NO_PRODUCER_ID = -1
MAX_OFFSET = 2**63 - 1


class RawBatch:
    """A view of one batch of magic 2: its bytes, untouched, and the fields of its header.

    Times are in milliseconds since 1970, -1 for none. ``last_offset`` counts records that were compacted away.
    With the delete-horizon bit (KIP-534) ``base_timestamp`` is the horizon, and record times are relative to it.

    :param data: the whole batch including its header, and nothing after it.
    :param fields: what ``HEAD`` unpacks; unpacked from ``data`` if not given.
    :raises BatchMalformed: the header is one that no broker writes.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "data",
        "last_offset",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "next_offset",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, data: memoryview, fields: tuple[Any, ...] | None = None) -> None:
        if fields is None:
            fields = unpack_head(data)
        (
            self.base_offset,
            length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = fields
        self.data = data
        self.size_bytes: int = length + LOG_OVERHEAD
        self.last_offset: int = self.base_offset + self.last_offset_delta
        self.next_offset: int = self.last_offset + 1
        if not (
            0 <= self.record_count <= self.last_offset_delta + 1
            and 0 <= self.base_offset <= self.last_offset < MAX_OFFSET
            and self.attributes & CODEC_MASK <= MAX_CODEC
            and self.size_bytes == len(data)
            and self.magic == 2
        ):
            raise self._malformed()

    def _malformed(self) -> BatchMalformed:
        return BatchMalformed(
            f"impossible batch header: magic {self.magic}, {self.record_count} records, "
            f"last offset delta {self.last_offset_delta}, attributes {self.attributes:#x}, "
            f"{self.size_bytes} bytes according to its header but {len(self.data)} bytes of data",
            where=Where(offset=self.base_offset),
            next_step="read the batch again; if the error persists, inspect it on the source with kafka-dump-log",
        )

    @property
    def payload(self) -> memoryview:
        """The records after the header, still compressed."""
        return self.data[HEAD_BYTES:]

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def first_timestamp(self) -> int:
        """The time of the first record (ms since 1970), as far as the header has it; -1: the format has no times.

        ``max_timestamp`` if readers see that for each record, or if ``base_timestamp`` is a delete horizon (KIP-534).
        """
        return self.max_timestamp if self.attributes & _NOT_FIRST else self.base_timestamp

    @property
    def is_log_append_time(self) -> bool:
        """True if readers see ``max_timestamp`` for each record instead of the producer's times."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        """True for data (and markers) of a transaction, committed or not."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """True for control markers: they use an offset, and no consumer sees them."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """True if the cleaner has stored in ``base_timestamp`` the time at which it deletes the tombstones."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def is_full(self) -> bool:
        """True if no record was compacted away: a broker accepts only such batches from a client."""
        return self.record_count == self.last_offset_delta + 1

    def check_crc(self) -> None:
        """Raise :class:`BatchMalformed` if the batch is not what its producer or broker wrote."""
        actual = int(crc32c(self.data[CRC_START:]))
        if actual != self.crc:
            raise BatchMalformed(
                f"CRC-32C of the batch is {actual:#010x}, but its header says {self.crc:#010x}",
                where=Where(offset=self.base_offset),
                next_step="read the batch again; if the error persists, it is damaged on the source's disk: "
                "copy it from another replica or accept its loss",
            )

    def __repr__(self) -> str:
        return f"RawBatch({self.base_offset}..{self.last_offset}, {self.record_count} records, {self.size_bytes} bytes)"


def unpack_head(data: bytes | memoryview, position: int = 0) -> tuple[Any, ...]:
    """Unpack the 13 fields of a header; raises :class:`BatchMalformed` if there are fewer than 61 bytes."""
    try:
        return HEAD.unpack_from(data, position)
    except struct.error:
        raise BatchMalformed(
            f"a batch header has {HEAD_BYTES} bytes, but only {len(data) - position} were read",
            next_step="read the batch again",
        ) from None


def patched_header(
    batch: RawBatch, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool = False
) -> bytes:
    """Build the 61 bytes to send before ``batch.payload``, which does not change.

    They have base offset 0, leader epoch -1 and our producer id, epoch and sequence; codec, count and timestamps are
    kept; the bits for LogAppendTime, transactions and the delete horizon are cleared. The new CRC is derived from the
    old one: it is right if and only if the old one was.

    :param transactional: set the transactional bit, for appends inside our own transaction (KIP-656).
    """
    attributes = batch.attributes & CODEC_MASK
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    checked = _CHECKED_HEAD.pack(
        attributes,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        batch.record_count,
    )
    size_bytes = batch.size_bytes
    crc = patched_crc(batch.crc, batch.data[CRC_START:HEAD_BYTES], checked, size_bytes - HEAD_BYTES)
    return _HEAD_START.pack(0, size_bytes - LOG_OVERHEAD, -1, 2, crc) + checked


def build_batch(
    payload: bytes,
    *,
    base_offset: int,
    last_offset_delta: int,
    record_count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
) -> bytes:
    """Build a batch of header and payload, with its CRC. The payload is already compressed as in ``attributes``."""
    checked = _CHECKED_HEAD.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    crc = int(crc32c(payload, int(crc32c(checked))))
    length = HEAD_BYTES + len(payload) - LOG_OVERHEAD
    return b"".join((_HEAD_START.pack(base_offset, length, leader_epoch, 2, crc), checked, payload))
