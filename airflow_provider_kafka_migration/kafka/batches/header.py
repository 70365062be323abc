"""The header of a record batch (magic 2): parse it, check it, patch it. No I/O, no decompression.

Layout: KIP-98 and ``DefaultRecordBatch`` of Apache Kafka. What a broker accepts from a client (base offset 0, our
producer id, no LogAppendTime bit, ...) is what :func:`patched_header` writes.
"""

from __future__ import annotations

import struct
from typing import Any

from crc32c import crc32c

from airflow_provider_kafka_migration.errors import BatchMalformed, Where
from airflow_provider_kafka_migration.kafka.batches.codecs import CODEC_MASK, MAX_CODEC
from airflow_provider_kafka_migration.kafka.batches.crc import patched_crc

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

NO_PRODUCER_ID = -1
MAX_OFFSET = 2**63 - 1


class RawBatch:
    """A view of one batch of magic 2: its bytes, untouched, and the fields of its header.

    Times are in milliseconds since 1970, -1 for none. ``last_offset`` counts records that were compacted away.
    With the delete-horizon bit (KIP-534) ``base_timestamp`` is the horizon, and record times are relative to it.

    :param data: the whole batch, header included, nothing behind it.
    :param fields: what ``HEAD`` unpacks; taken from ``data`` if not given.
    :raises BatchMalformed: a header that no broker writes.
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
            f"{self.size_bytes} bytes by its header and {len(self.data)} given",
            where=Where(offset=self.base_offset),
            next_step="read the batch again; if it stays so, look at it on the source with kafka-dump-log",
        )

    @property
    def payload(self) -> memoryview:
        """The records behind the header, compressed as they are."""
        return self.data[HEAD_BYTES:]

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """True if readers see ``max_timestamp`` for each record, not the producer's times."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        """True for data (and markers) of a transaction, committed or not."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """True for markers: they take an offset, and no consumer sees them."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """True if the cleaner has put the time when tombstones go into ``base_timestamp``."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def is_full(self) -> bool:
        """True if no record was compacted away: a broker takes only such batches from a client."""
        return self.record_count == self.last_offset_delta + 1

    def check_crc(self) -> None:
        """Raise :class:`BatchMalformed` if the batch is not what its producer or broker has written."""
        actual = int(crc32c(self.data[CRC_START:]))
        if actual != self.crc:
            raise BatchMalformed(
                f"CRC-32C of the batch is {actual:#010x}, its header says {self.crc:#010x}",
                where=Where(offset=self.base_offset),
                next_step="read the batch again; if it stays so, it is damaged on the source's disk: "
                "copy it from another replica or accept its loss",
            )

    def __repr__(self) -> str:
        return f"RawBatch({self.base_offset}..{self.last_offset}, {self.record_count} records, {self.size_bytes} bytes)"


def unpack_head(data: bytes | memoryview, position: int = 0) -> tuple[Any, ...]:
    """The 13 fields of a header; raises :class:`BatchMalformed` if there are fewer than 61 bytes."""
    try:
        return HEAD.unpack_from(data, position)
    except struct.error:
        raise BatchMalformed(
            f"a batch header has {HEAD_BYTES} bytes, and only {len(data) - position} are there",
            next_step="read the batch again",
        ) from None


def patched_header(
    batch: RawBatch, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool = False
) -> bytes:
    """The 61 bytes to send before ``batch.payload``, which stays as it is.

    Base offset 0, leader epoch -1, our producer id, epoch and sequence; codec, count and timestamps are kept; the bits
    for LogAppendTime, transactions and the delete horizon are cleared. The new CRC is derived from the old one: it is
    right if and only if the old one was.

    :param transactional: sets the transactional bit, for appends inside of our own transaction (KIP-656).
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
    """Header and payload as one batch, with its CRC. The payload is compressed already, as ``attributes`` says."""
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
