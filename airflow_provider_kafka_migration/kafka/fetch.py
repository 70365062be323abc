"""Hand-written Fetch (api 1, versions 4-11): the answer's record bytes stay where the socket put them.

Every broker from 0.11 to 4.x supports one of these versions. Version 10 is deliberately the highest that we use. A
version 11 request carries a rack (KIP-392), which lets a follower answer it, and lets a leader answer with no records
and the name of another replica. Only the leader answers a version 10 request, from what it has. The codec knows the
layout of version 11 anyway: an answer that names a replica must never be mistaken for "nothing is there".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

API_KEY = 1
MIN_VERSION = 4
MAX_VERSION = 10

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

_PARTITION_HEAD = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")


class FetchRange(NamedTuple):
    """One partition of a fetch request.

    :param leader_epoch: expected epoch of the leader; a leader of another epoch refuses. -1: not compared.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1


class FetchedPartition(NamedTuple):
    """One partition of a fetch answer. ``records`` may end with a truncated batch.

    An answer without records proves nothing by itself; see ``kafka.logs``.
    """

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    records: memoryview
    #: broker to read from instead of the one that answers; -1: none
    preferred_read_replica: int = -1


class FetchAnswer(NamedTuple):
    """A fetch answer: throttle time, session and partitions."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _by_topic(ranges: Iterable[FetchRange]) -> list[tuple[str, list[FetchRange]]]:
    topics: dict[str, list[FetchRange]] = {}
    for item in ranges:
        topics.setdefault(item.topic, []).append(item)
    return list(topics.items())


def encode(
    ranges: Sequence[FetchRange],
    version: int,
    *,
    max_wait_ms: int,
    min_bytes: int = 1,
    max_bytes: int,
    isolation: int = READ_COMMITTED,
) -> bytes:
    """Encode the body of a fetch request without a session."""
    parts = [struct.pack(">iiiib", -1, max_wait_ms, min_bytes, max_bytes, isolation)]
    if version >= 7:
        parts.append(struct.pack(">ii", 0, -1))
    topics = _by_topic(ranges)
    parts.append(struct.pack(">i", len(topics)))
    for topic, items in topics:
        parts.append(_text(topic))
        parts.append(struct.pack(">i", len(items)))
        parts.extend(_encode_range(item, version) for item in items)
    if version >= 7:
        parts.append(struct.pack(">i", 0))
    if version >= 11:
        parts.append(_text(""))
    return b"".join(parts)


def _encode_range(item: FetchRange, version: int) -> bytes:
    if version >= 9:
        return struct.pack(">iiqqi", item.partition, item.leader_epoch, item.offset, -1, item.max_bytes)
    if version >= 5:
        return struct.pack(">iqqi", item.partition, item.offset, -1, item.max_bytes)
    return struct.pack(">iqi", item.partition, item.offset, item.max_bytes)


def decode(body: memoryview, version: int) -> FetchAnswer:
    """Parse the body of a fetch answer; record bytes are views into it."""
    (throttle_time_ms,) = struct.unpack_from(">i", body)
    position, error_code, session_id = 4, 0, 0
    if version >= 7:
        error_code, session_id = struct.unpack_from(">hi", body, position)
        position += 6
    (topic_count,) = struct.unpack_from(">i", body, position)
    position += 4
    partitions: list[FetchedPartition] = []
    for _ in range(topic_count):
        (length,) = struct.unpack_from(">h", body, position)
        topic = bytes(body[position + 2 : position + 2 + length]).decode()
        position += 2 + length
        (partition_count,) = struct.unpack_from(">i", body, position)
        position += 4
        for _ in range(partition_count):
            item, position = _decode_partition(body, position, version, topic)
            partitions.append(item)
    return FetchAnswer(throttle_time_ms, error_code, session_id, partitions)


def _decode_partition(body: memoryview, position: int, version: int, topic: str) -> tuple[FetchedPartition, int]:
    partition, error_code, high_watermark, last_stable_offset = _PARTITION_HEAD.unpack_from(body, position)
    position += _PARTITION_HEAD.size
    log_start_offset = -1
    if version >= 5:
        (log_start_offset,) = struct.unpack_from(">q", body, position)
        position += 8
    (aborted_count,) = struct.unpack_from(">i", body, position)
    position += 4
    aborted = []
    for _ in range(max(aborted_count, 0)):
        aborted.append(_ABORTED.unpack_from(body, position))
        position += _ABORTED.size
    preferred_read_replica = -1
    if version >= 11:
        (preferred_read_replica,) = struct.unpack_from(">i", body, position)
        position += 4
    (size,) = struct.unpack_from(">i", body, position)
    position += 4
    size = max(size, 0)
    records = body[position : position + size]
    item = FetchedPartition(
        topic,
        partition,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        records,
        preferred_read_replica,
    )
    return item, position + size


#: (producer id, first offset) of an aborted transaction, as a broker lists it in answers to read_committed fetches
Aborted = tuple[int, int]
