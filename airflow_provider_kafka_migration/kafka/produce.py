"""Hand-written Produce (api 0, versions 3-8): we write the headers; payloads are sent from the buffers they came in.

Version 8 is the last non-flexible version and names topics; Kafka 4.x accepts 3-13.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

API_KEY = 0
MIN_VERSION = 3
MAX_VERSION = 8

ACKS_ALL = -1

Buffer = bytes | bytearray | memoryview


class ProduceBatch(NamedTuple):
    """One batch for one partition: the rewritten 61-byte header and the payload that follows it."""

    topic: str
    partition: int
    header: bytes
    payload: Buffer


class ProducedPartition(NamedTuple):
    """One partition of a produce answer."""

    topic: str
    partition: int
    error_code: int
    base_offset: int
    log_append_time: int
    log_start_offset: int
    error_message: str


class ProduceAnswer(NamedTuple):
    """A produce answer."""

    throttle_time_ms: int
    partitions: list[ProducedPartition]


def encode(
    batches: Sequence[ProduceBatch], *, timeout_ms: int, acks: int = ACKS_ALL, transactional_id: str | None = None
) -> list[Buffer]:
    """Encode the body of a produce request as buffers; at most one batch per partition."""
    identity = struct.pack(">h", -1) if transactional_id is None else _text(transactional_id)
    topics: dict[str, list[ProduceBatch]] = {}
    for batch in batches:
        topics.setdefault(batch.topic, []).append(batch)
    head = identity + struct.pack(">hii", acks, timeout_ms, len(topics))
    parts: list[Buffer] = []
    for topic, items in topics.items():
        head += _text(topic) + struct.pack(">i", len(items))
        for item in items:
            size = len(item.header) + len(item.payload)
            parts.append(head + struct.pack(">ii", item.partition, size) + item.header)
            parts.append(item.payload)
            head = b""
    return parts


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def decode(body: memoryview, version: int) -> ProduceAnswer:
    """Parse the body of a produce answer."""
    (topic_count,) = struct.unpack_from(">i", body)
    position = 4
    partitions: list[ProducedPartition] = []
    for _ in range(topic_count):
        topic, position = _read_text(body, position)
        (partition_count,) = struct.unpack_from(">i", body, position)
        position += 4
        for _ in range(partition_count):
            item, position = _decode_partition(body, position, version, topic or "")
            partitions.append(item)
    (throttle_time_ms,) = struct.unpack_from(">i", body, position)
    return ProduceAnswer(throttle_time_ms, partitions)


def _decode_partition(body: memoryview, position: int, version: int, topic: str) -> tuple[ProducedPartition, int]:
    partition, error_code, base_offset, append_time = struct.unpack_from(">ihqq", body, position)
    position += 22
    log_start_offset, message = -1, ""
    if version >= 5:
        (log_start_offset,) = struct.unpack_from(">q", body, position)
        position += 8
    if version >= 8:
        (count,) = struct.unpack_from(">i", body, position)
        position += 4
        for _ in range(max(count, 0)):
            text, position = _read_text(body, position + 4)
            message = message or (text or "")
        text, position = _read_text(body, position)
        message = text or message
    return ProducedPartition(
        topic, partition, error_code, base_offset, append_time, log_start_offset, message
    ), position


def _read_text(body: memoryview, position: int) -> tuple[str | None, int]:
    (length,) = struct.unpack_from(">h", body, position)
    position += 2
    if length < 0:
        return None, position
    return bytes(body[position : position + length]).decode(), position + length
