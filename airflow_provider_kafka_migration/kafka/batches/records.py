"""Records inside batches: read them, write them, and rebuild batches at the byte level.

A batch must be rebuilt when it cannot be forwarded unchanged: records were compacted away, it begins before the wanted
offset, its visible timestamp is the broker's, or it is too large. Keys, values and headers are copied as one slice per
record; only length, timestamp delta and offset delta are rewritten.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from airflow_provider_kafka_migration.errors import BatchMalformed, RecordTooLarge, Where
from airflow_provider_kafka_migration.kafka.batches import header
from airflow_provider_kafka_migration.kafka.batches.header import (
    CONTROL_BIT,
    LOG_OVERHEAD,
    NO_PRODUCER_ID,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    RawBatch,
    build_batch,
)

#: visible: what consumers see (the append time in LogAppendTime topics); raw: what producers wrote.
Timestamps = Literal["visible", "raw"]

NO_TIMESTAMP = -1
Headers = list[tuple[bytes, bytes | None]]
_CUT = "a record extends beyond its batch"


class Record(NamedTuple):
    """One record. Header names are bytes: Kafka does not check that they are UTF-8."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class RecordIndex:
    """The positions of one batch's records, without decoding their content.

    Record ``i`` is ``buffer[starts[i]:ends[i]]``; its key, value and headers are ``buffer[bodies[i]:ends[i]]``.
    """

    __slots__ = ("bodies", "buffer", "ends", "offset_deltas", "starts", "time_deltas")

    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self.starts: list[int] = []
        self.bodies: list[int] = []
        self.ends: list[int] = []
        self.offset_deltas: list[int] = []
        self.time_deltas: list[int] = []


# --- variable length integers ---------------------------------------------------------------------------------------


def encode_varint(value: int) -> bytes:
    """Encode a signed 64-bit number as a zigzag varint in its shortest form."""
    value = value << 1 ^ value >> 63
    if value < 128:
        return _SINGLE[value]
    if value < 16384:
        return bytes((value & 127 | 128, value >> 7))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_SINGLE = [bytes([value]) for value in range(128)]
#: encode_varint() of 0 .. 8191: nearly all lengths and offset deltas
_VARINTS = [encode_varint(value) for value in range(8192)]


def read_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """(value, position after it) of a zigzag varint of up to ten bytes."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise BatchMalformed("a number in a record has more than ten bytes")
    return value >> 1 ^ -(value & 1), position


# --- reading --------------------------------------------------------------------------------------------------------


def index_records(
    batch: RawBatch, max_bytes: int = header.MAX_UNPACKED_BYTES, *, unpacked: bytes | None = None
) -> RecordIndex:
    """Unpack a batch and find its records.

    :param unpacked: the payload, if it has been unpacked already.
    :raises BatchMalformed: damaged data, or more or fewer records than the header states.
    """
    if batch.record_count == 0:
        return RecordIndex(b"")
    try:
        index = RecordIndex(header.decompress(batch.codec, batch.payload, max_bytes) if unpacked is None else unpacked)
        _fill(index, batch.record_count)
    except (IndexError, BatchMalformed) as error:
        what = error.what if isinstance(error, BatchMalformed) else _CUT
        raise _malformed(batch, what) from None
    return index


def _malformed(batch: RawBatch, what: str) -> BatchMalformed:
    return BatchMalformed(
        what,
        where=Where(offset=batch.base_offset),
        next_step="inspect the batch on the source with kafka-dump-log --deep-iteration",
    )


def _fill(index: RecordIndex, count: int) -> None:
    """Fill the index. This is the hot loop of all slow paths: single-byte numbers are read in place."""
    buffer = index.buffer
    size = len(buffer)
    position = 0
    for _ in range(count):
        index.starts.append(position)
        length, position = read_varint(buffer, position)
        end = position + length
        position += 1  # attributes, always 0
        byte = buffer[position]
        if byte < 128:
            index.time_deltas.append(byte >> 1 ^ -(byte & 1))
            position += 1
        else:
            delta, position = read_varint(buffer, position)
            index.time_deltas.append(delta)
        byte = buffer[position]
        if byte < 128:
            index.offset_deltas.append(byte >> 1 ^ -(byte & 1))
            position += 1
        else:
            delta, position = read_varint(buffer, position)
            index.offset_deltas.append(delta)
        if not position < end <= size:
            raise BatchMalformed(_CUT)
        index.bodies.append(position)
        index.ends.append(end)
        position = end
    if position != size:
        raise BatchMalformed(f"{size - position} bytes follow the last record of a batch")


def records(batch: RawBatch, timestamps: Timestamps = "visible") -> Iterator[Record]:
    """Yield the records of a batch, including control batches, as a consumer would see them.

    :raises BatchMalformed: damaged data.
    """
    index = index_records(batch)
    offsets = record_offsets(batch, index)
    times = record_times(batch, index, timestamps)
    for offset, time, body, end in zip(offsets, times, index.bodies, index.ends, strict=True):
        try:
            key, value, headers = decode_body(index.buffer, body, end)
        except (IndexError, BatchMalformed) as error:
            what = error.what if isinstance(error, BatchMalformed) else _CUT
            raise _malformed(batch, what) from None
        yield Record(offset, time, key, value, headers)


def record_offsets(batch: RawBatch, index: RecordIndex) -> list[int]:
    """Return the records' offsets, ascending, as :func:`records` yields them; raises :class:`BatchMalformed`."""
    base = batch.base_offset
    return [base + delta for delta in stored_deltas(batch, index)]


def record_times(batch: RawBatch, index: RecordIndex, timestamps: Timestamps = "visible") -> list[int]:
    """Return the timestamps of the records as :func:`records` yields them."""
    if timestamps == "visible" and batch.is_log_append_time:
        return [batch.max_timestamp] * batch.record_count
    base = batch.base_timestamp
    return [base + delta for delta in index.time_deltas]


def stored_deltas(batch: RawBatch, index: RecordIndex) -> list[int]:
    """Return the offset deltas of the records, ascending.

    Invalid deltas of a full batch are renumbered, as brokers do where they check.
    """
    deltas = index.offset_deltas
    ascending = all(a < b for a, b in itertools.pairwise(deltas))
    if ascending and (not deltas or (deltas[0] >= 0 and deltas[-1] <= batch.last_offset_delta)):
        return deltas
    if batch.is_full:
        return list(range(batch.record_count))
    raise _malformed(batch, "offsets inside a batch go backwards")


def decode_body(buffer: bytes, position: int, end: int) -> tuple[bytes | None, bytes | None, Headers]:
    """(key, value, headers) of a record; raises :class:`BatchMalformed` or ``IndexError`` on damaged data."""
    key, position = _field(buffer, position, end)
    value, position = _field(buffer, position, end)
    count, position = read_varint(buffer, position)
    if not 0 <= count <= end - position:
        raise BatchMalformed(f"a record claims to have {count} headers")
    headers: Headers = []
    for _ in range(count):
        name, position = _field(buffer, position, end)
        content, position = _field(buffer, position, end)
        if name is None:
            raise BatchMalformed("a record has a header without a name")
        headers.append((name, content))
    if position != end:
        raise BatchMalformed("a record's length differs from that of its fields")
    return key, value, headers


def _field(buffer: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(buffer, position)
    if length < 0:
        return None, position
    stop = position + length
    if stop > end:
        raise BatchMalformed(_CUT)
    return buffer[position:stop], stop


def inner_offsets_are_dense(batch: RawBatch) -> bool:
    """Return False if an uncompressed batch has offset deltas other than 0, 1, 2, ...

    A broker accepts such a batch from a client, and readers then see offsets that jump or go back. The broker itself
    checks compressed batches, so for them this returns True without reading them.

    :raises BatchMalformed: damaged data.
    """
    if batch.codec != header.NONE:
        return True
    try:
        return _is_dense(bytes(batch.payload), batch.record_count)
    except IndexError:
        raise _malformed(batch, _CUT) from None


def _is_dense(buffer: bytes, count: int) -> bool:
    position = 0
    for number in itertools.chain(_VARINTS[:count], map(encode_varint, range(len(_VARINTS), count))):
        # length (a varint), attributes (one byte), timestamp delta (a varint), offset delta
        low = buffer[position]
        high = buffer[position + 1]
        if low >= 128 > high:
            position += 3
            end = position - 1 + ((high << 7 | low & 127) >> 1)
        else:
            length, position = read_varint(buffer, position)
            end = position + length
            position += 1
        while buffer[position] >= 128:
            position += 1
        position += 1
        if not buffer.startswith(number, position):
            return False
        if end <= position:
            raise IndexError
        position = end
    return position == len(buffer)


# --- writing --------------------------------------------------------------------------------------------------------


def encode_body(key: bytes | None, value: bytes | None, headers: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """Encode key, value and headers as in a record, with shortest numbers: also the canonical form for digests."""
    parts: list[bytes] = []
    for content in (key, value):
        parts += (b"\x01",) if content is None else (encode_varint(len(content)), content)
    parts.append(encode_varint(len(headers)))
    for name, content in headers:
        parts += (encode_varint(len(name)), name)
        parts += (b"\x01",) if content is None else (encode_varint(len(content)), content)
    return b"".join(parts)


def encode_batch(
    batch_records: Sequence[Record],
    codec: int = header.NONE,
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
) -> bytes:
    """Encode a batch of magic 2 with these records; gaps between their offsets become holes inside it.

    :param base_offset: of the batch; default: the first record's offset. Required for a batch without records.
    :param last_offset: of the batch; default: the last record's offset.
    :param log_append_time: set the LogAppendTime bit and make this the time that readers see.
    """
    base = batch_records[0].offset if base_offset is None else base_offset
    last = (batch_records[-1].offset if batch_records else base) if last_offset is None else last_offset
    base_time = batch_records[0].timestamp if batch_records else NO_TIMESTAMP
    parts: list[bytes] = []
    for record in batch_records:
        body = encode_body(record.key, record.value, record.headers)
        append_record(parts, encode_varint(record.timestamp - base_time), record.offset - base, body)
    attributes = codec | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    max_time = max((record.timestamp for record in batch_records), default=NO_TIMESTAMP)
    if log_append_time is not None:
        attributes |= TIMESTAMP_TYPE_BIT
        max_time = log_append_time
    return build_batch(
        # Brokers write no payload for a batch without records, whatever its codec.
        header.compress(codec, b"".join(parts)) if parts else b"",
        base_offset=base,
        last_offset_delta=last - base,
        record_count=len(batch_records),
        attributes=attributes,
        base_timestamp=base_time,
        max_timestamp=max_time,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
    )


def append_record(parts: list[bytes], time_delta: bytes, offset_delta: int, body: bytes) -> None:
    """Add a record to the parts of a payload.

    :param time_delta: encoded as a varint.
    :param body: encoded key, value and headers.
    """
    offset = _VARINTS[offset_delta] if offset_delta < 8192 else encode_varint(offset_delta)
    length = 1 + len(time_delta) + len(offset) + len(body)
    size = _VARINTS[length] if length < 8192 else encode_varint(length)
    parts += (size, b"\x00", time_delta, offset, body)


# --- rebuilding -----------------------------------------------------------------------------------------------------


def rebuild(
    batch: RawBatch,
    keep_from_offset: int = 0,
    *,
    timestamps: Timestamps = "visible",
    max_batch_bytes: int | None = None,
    split_bytes: int | None = None,
) -> list[RawBatch]:
    """Rebuild the kept records as batches that a broker accepts: one per run of consecutive offsets, more if too large.

    Base offsets are those of the source; between the runs are holes. The codec stays the same; bits and producer
    fields that :func:`~.header.patched_header` replaces are cleared.

    :param keep_from_offset: omit records below this offset.
    :param timestamps: ``visible`` gives each record of a LogAppendTime batch the time that readers see.
    :param max_batch_bytes: largest batch, including the header.
    :param split_bytes: also limits batches of several records; a single record may be larger.
    :raises RecordTooLarge: a single record does not fit ``max_batch_bytes``; the error names its offset.
    :raises BatchMalformed: damaged data.
    """
    return _Rebuild(batch, timestamps, max_batch_bytes, split_bytes).runs(keep_from_offset)


def least_limit(*limits: int | None) -> int | None:
    """Return the smallest of some limits in bytes; None: no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


def record_too_large(offset: int, batch_bytes: int, limit: int | None) -> RecordTooLarge:
    """Return the error of a single record that does not fit the target."""
    return RecordTooLarge(
        f"a single record needs a batch of {batch_bytes} bytes, but the target topic accepts at most {limit}",
        where=Where(offset=offset),
        next_step="clear the task: it raises max.message.bytes of the target topic for the copy. If the record is "
        "named again, no request to the target's brokers can hold it: raise their socket.request.max.bytes",
        details={"offset": offset, "batch_bytes": batch_bytes, "max_batch_bytes": limit},
    )


class _Rebuild:
    def __init__(
        self, batch: RawBatch, timestamps: Timestamps, max_batch_bytes: int | None, split_bytes: int | None
    ) -> None:
        self.batch = batch
        self.max_batch_bytes = max_batch_bytes
        self.split_bytes = least_limit(max_batch_bytes, split_bytes)
        self.index = index_records(batch)
        self.deltas = stored_deltas(batch, self.index)
        self.base_time = batch.base_timestamp
        self.times = self.index.time_deltas
        self.as_stored = self.deltas is self.index.offset_deltas
        if timestamps == "visible" and batch.is_log_append_time:
            self.as_stored = False
            self.base_time = batch.max_timestamp
            self.times = [0] * len(self.deltas)

    def runs(self, keep_from_offset: int) -> list[RawBatch]:
        deltas = self.deltas
        built: list[RawBatch] = []
        first = 0
        wanted = keep_from_offset - self.batch.base_offset
        for position, delta in enumerate(deltas):
            if delta < wanted:
                first = position + 1
            elif position > first and delta != deltas[position - 1] + 1:
                built += self._fitting(first, position)
                first = position
        if first < len(deltas):
            built += self._fitting(first, len(deltas))
        return built

    def _fitting(self, first: int, stop: int) -> list[RawBatch]:
        """Build records ``first`` to ``stop - 1`` as one batch, or as several if it is too large."""
        encoded = self._encode(first, stop)
        size, limit = self.split_bytes, self.max_batch_bytes
        single = stop - first == 1
        if size is None or len(encoded) <= size or (single and (limit is None or len(encoded) <= limit)):
            return [RawBatch(memoryview(encoded))]
        if single:
            raise record_too_large(self.batch.base_offset + self.deltas[first], len(encoded), limit)
        built: list[RawBatch] = []
        for piece_first, piece_stop in self._pieces(first, stop, -(-len(encoded) // size)):
            built += self._fitting(piece_first, piece_stop)
        return built

    def _pieces(self, first: int, stop: int, count: int) -> Iterator[tuple[int, int]]:
        """Cut records into at least two pieces of about equal unpacked size."""
        ends = self.index.ends
        begin = self.index.starts[first]
        step = (ends[stop - 1] - begin) // count + 1
        piece_first, border = first, begin + step
        for position in range(first + 1, stop):
            if ends[position] > border or (position == stop - 1 and piece_first == first):
                yield piece_first, position
                piece_first, border = position, self.index.starts[position] + step
        yield piece_first, stop

    def _encode(self, first: int, stop: int) -> bytes:
        batch, index = self.batch, self.index
        base_delta = self.deltas[first]
        times = self.times[first:stop]
        if base_delta == 0 and self.as_stored:
            payload = index.buffer[index.starts[first] : index.ends[stop - 1]]
        else:
            payload = self._payload(first, stop, base_delta)
        return build_batch(
            header.compress(batch.codec, payload),
            base_offset=batch.base_offset + base_delta,
            last_offset_delta=stop - first - 1,
            record_count=stop - first,
            attributes=batch.codec,
            base_timestamp=self.base_time,
            max_timestamp=self.base_time + max(times),
        )

    def _payload(self, first: int, stop: int, base_delta: int) -> bytes:
        buffer, bodies, ends = self.index.buffer, self.index.bodies, self.index.ends
        parts: list[bytes] = []
        for position in range(first, stop):
            body = buffer[bodies[position] : ends[position]]
            append_record(parts, encode_varint(self.times[position]), self.deltas[position] - base_delta, body)
        return b"".join(parts)


# -- batch columns ----------------------------------------------------------------------------------------------------
#
# The records of a batch as columns: one list per field, for code that does not read keys and values.


class Columns(NamedTuple):
    """Records as lists of equal length, which compare at the speed of C.

    A body is key, value and headers as encoded in a batch.
    """

    offsets: list[int]
    times: list[int]
    bodies: list[bytes]

    def slice(self, first: int, stop: int) -> Columns:
        """Return records ``first`` to ``stop - 1``."""
        return Columns(self.offsets[first:stop], self.times[first:stop], self.bodies[first:stop])


def read_columns(batch: RawBatch, timestamps: Timestamps) -> Columns:
    """Read all records of a batch.

    :raises BatchMalformed: damaged data, including a wrong CRC.
    """
    batch.check_crc()
    index = index_records(batch)
    buffer = index.buffer
    bodies = [buffer[first:stop] for first, stop in zip(index.bodies, index.ends, strict=True)]
    return Columns(record_offsets(batch, index), record_times(batch, index, timestamps), bodies)


# -- legacy batches ---------------------------------------------------------------------------------------------------
#
# Message formats 0 and 1, which brokers up to 3.9 may still have on disk (KIP-31, KIP-32; no longer written, KIP-724).
#
# A message is a record, or a wrapper with a compressed message set as its value. Offsets inside a wrapper are
# absolute in format 0 and relative in format 1, where the wrapper has the offset of its last record.


#: offset, size after this field, CRC-32 over everything that follows, magic, attributes
_MESSAGE = struct.Struct(">qiIbb")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_MAGIC_AT = 16
_CRC_END = 16
#: sizes of the smallest whole messages: null key, null value
MIN_MESSAGE_BYTES = (26, 34)


class LegacyBatch:
    """A view of one message of magic 0 or 1: a record or a compressed wrapper of records.

    It has only what the header shows without unpacking; ``next_offset`` counts records compacted away below it.

    :raises BatchMalformed: the bytes are not what any broker writes.
    """

    __slots__ = ("attributes", "crc", "data", "last_offset", "magic", "next_offset", "size_bytes", "timestamp")

    last_offset: int
    next_offset: int
    crc: int
    magic: int
    attributes: int
    timestamp: int

    #: Legacy messages have no transactions.
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
            raise self._malformed("a message is truncated") from None
        self.next_offset = self.last_offset + 1
        if self.magic not in (0, 1) or size + LOG_OVERHEAD != len(data) or self.last_offset < 0:
            raise self._malformed(f"impossible message header: magic {self.magic}, size {size} bytes")
        if self.codec > header.LZ4:
            raise self._malformed(f"codec {self.codec} in message format {self.magic}")

    def _malformed(self, what: str) -> BatchMalformed:
        return BatchMalformed(
            what,
            where=Where(offset=getattr(self, "last_offset", None)),
            next_step="inspect the batch on the source with kafka-dump-log --deep-iteration",
        )

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4."""
        return self.attributes & header.CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """True if readers see the wrapper's time for each record."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT) and self.magic == 1

    def check_crc(self) -> None:
        """Raise :class:`BatchMalformed` if the message is not what was written."""
        actual = zlib.crc32(self.data[_CRC_END:])
        if actual != self.crc:
            raise self._malformed(f"CRC-32 of the message is {actual:#010x}, but its header says {self.crc:#010x}")

    def records(self, timestamps: Timestamps = "visible") -> Iterator[Record]:
        """Yield the record, or those inside the wrapper, ascending; raises :class:`BatchMalformed`."""
        try:
            yield from self._records(timestamps)
        except (struct.error, IndexError):
            raise self._malformed("a message is truncated") from None
        except BatchMalformed as error:
            raise self._malformed(error.what) from None

    def _records(self, timestamps: Timestamps) -> list[Record]:
        key, value = _key_and_value(bytes(self.data), 0, self.magic)
        if self.codec == header.NONE:
            return [Record(self.last_offset, self.timestamp, key, value, [])]
        if value is None:
            raise self._malformed("a compressed message without content")
        inner = self._inner(header.decompress(self.codec, value))
        if not inner:
            raise self._malformed("a compressed message without records")
        shift = 0
        if self.magic == 1:
            # Some librdkafka versions sent wrappers with offset 0 and absolute offsets inside; brokers handle them too.
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
            if magic != self.magic or attributes & header.CODEC_MASK or end > len(buffer) or end <= position:
                raise self._malformed("a message inside a compressed message is malformed")
            if found and offset <= found[-1].offset:
                raise self._malformed("offsets inside a compressed message go backwards")
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
        raise BatchMalformed("a message's length differs from that of its fields")
    return key, value


def _sized(buffer: bytes, position: int) -> tuple[bytes | None, int]:
    length: int = _INT32.unpack_from(buffer, position)[0]
    position += 4
    if length < 0:
        return None, position
    end = position + length
    if end > len(buffer):
        raise BatchMalformed("a message extends beyond its set")
    return buffer[position:end], end
