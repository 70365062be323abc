"""Message formats 0 and 1, as 3.9 brokers and older still keep them on disk (KIP-31, KIP-32; written no more, KIP-724).

A message is a record, or a wrapper with a compressed message set as its value. Offsets inside of a wrapper are absolute
in format 0 and relative in format 1, where the wrapper has the offset of its last record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from airflow_provider_kafka_migration.errors import BatchMalformed, Where
from airflow_provider_kafka_migration.kafka.batches import codecs
from airflow_provider_kafka_migration.kafka.batches.header import LOG_OVERHEAD, TIMESTAMP_TYPE_BIT
from airflow_provider_kafka_migration.kafka.batches.records import NO_TIMESTAMP, Record, Timestamps

#: offset, size behind it, CRC-32 over all that follows, magic, attributes
_MESSAGE = struct.Struct(">qiIbb")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_MAGIC_AT = 16
_CRC_END = 16
#: smallest whole messages: null key, null value
MIN_MESSAGE_BYTES = (26, 34)


class LegacyBatch:
    """A view of one message of magic 0 or 1: a record or a compressed wrapper of records.

    Only what its header tells without unpacking; ``next_offset`` counts what was compacted away below it.

    :raises BatchMalformed: bytes that no broker writes.
    """

    __slots__ = ("attributes", "crc", "data", "last_offset", "magic", "next_offset", "size_bytes", "timestamp")

    last_offset: int
    next_offset: int
    crc: int
    magic: int
    attributes: int
    timestamp: int

    #: Legacy messages know no transactions.
    producer_id = -1
    is_control = False
    is_transactional = False

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.size_bytes = len(data)
        try:
            self.last_offset, size, self.crc, self.magic, self.attributes = _MESSAGE.unpack_from(data)
            self.timestamp = _INT64.unpack_from(data, _MESSAGE.size)[0] if self.magic else NO_TIMESTAMP
        except struct.error:
            raise self._malformed("a message is cut") from None
        self.next_offset = self.last_offset + 1
        if self.magic not in (0, 1) or size + LOG_OVERHEAD != len(data) or self.last_offset < 0:
            raise self._malformed(f"impossible message header: magic {self.magic}, {size} bytes")
        if self.codec > codecs.LZ4:
            raise self._malformed(f"codec {self.codec} in message format {self.magic}")

    def _malformed(self, what: str) -> BatchMalformed:
        return BatchMalformed(
            what,
            where=Where(offset=getattr(self, "last_offset", None)),
            next_step="look at the batch on the source with kafka-dump-log --deep-iteration",
        )

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4."""
        return self.attributes & codecs.CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """True if readers see the wrapper's time for each record."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT) and self.magic == 1

    def check_crc(self) -> None:
        """Raise :class:`BatchMalformed` if the message is not what was written."""
        actual = zlib.crc32(self.data[_CRC_END:])
        if actual != self.crc:
            raise self._malformed(f"CRC-32 of the message is {actual:#010x}, its header says {self.crc:#010x}")

    def records(self, timestamps: Timestamps = "visible") -> Iterator[Record]:
        """The record, or those inside of the wrapper, ascending; raises :class:`BatchMalformed`."""
        try:
            yield from self._records(timestamps)
        except (struct.error, IndexError):
            raise self._malformed("a message is cut") from None
        except BatchMalformed as error:
            raise self._malformed(error.what) from None

    def _records(self, timestamps: Timestamps) -> list[Record]:
        key, value = _key_and_value(bytes(self.data), 0, self.magic)
        if self.codec == codecs.NONE:
            return [Record(self.last_offset, self.timestamp, key, value, [])]
        if value is None:
            raise self._malformed("a compressed message without content")
        inner = self._inner(codecs.decompress(self.codec, value))
        if not inner:
            raise self._malformed("a compressed message without records")
        shift = 0
        if self.magic == 1:
            # Some librdkafka sent wrappers with offset 0 and absolute offsets inside; brokers know them too.
            shift = 0 if self.last_offset == 0 else self.last_offset - inner[-1].offset
        visible = timestamps == "visible" and self.is_log_append_time
        return [
            record._replace(offset=record.offset + shift, timestamp=self.timestamp if visible else record.timestamp)
            for record in inner
        ]

    def _inner(self, buffer: bytes) -> list[Record]:
        found: list[Record] = []
        position = 0
        while position < len(buffer):
            offset, size, _, magic, attributes = _MESSAGE.unpack_from(buffer, position)
            end = position + LOG_OVERHEAD + size
            if magic != self.magic or attributes & codecs.CODEC_MASK or end > len(buffer) or end <= position:
                raise self._malformed("a message inside of a compressed message is malformed")
            if found and offset <= found[-1].offset:
                raise self._malformed("offsets inside of a compressed message go backwards")
            time = _INT64.unpack_from(buffer, position + _MESSAGE.size)[0] if magic else NO_TIMESTAMP
            key, value = _key_and_value(buffer[:end] if end < len(buffer) else buffer, position, magic)
            found.append(Record(offset, time, key, value, []))
            position = end
        return found

    def __repr__(self) -> str:
        return f"LegacyBatch(..{self.last_offset}, magic {self.magic}, {self.size_bytes} bytes)"


def _key_and_value(buffer: bytes, position: int, magic: int) -> tuple[bytes | None, bytes | None]:
    position += _MESSAGE.size + (8 if magic else 0)
    key, position = _sized(buffer, position)
    value, position = _sized(buffer, position)
    if position != len(buffer):
        raise BatchMalformed("a message's length is not that of its fields")
    return key, value


def _sized(buffer: bytes, position: int) -> tuple[bytes | None, int]:
    length: int = _INT32.unpack_from(buffer, position)[0]
    position += 4
    if length < 0:
        return None, position
    end = position + length
    if end > len(buffer):
        raise BatchMalformed("a message ends behind its set")
    return buffer[position:end], end
