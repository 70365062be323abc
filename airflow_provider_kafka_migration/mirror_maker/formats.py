"""Records of MirrorMaker 2's state topics: offset syncs, checkpoints, heartbeats.

The layouts are those of ``org.apache.kafka.connect.mirror`` (KIP-382): big endian, texts as an int16 length and UTF-8,
no version in an offset sync, version 0 in the values of the others.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

#: Of checkpoints and heartbeats. Kafka's classes read any version as 0, so another one is not what its writer meant.
VERSION = 0
LONGEST_TEXT_BYTES = 32_767


class KeyValue(NamedTuple):
    """A record's key and value. Neither is ever empty: a tombstone in these topics stops MirrorMaker 2's readers."""

    key: bytes
    value: bytes


class StateRecord(Protocol):
    """A record of a state topic."""

    def encode(self) -> KeyValue:
        """Return its key and value."""
        ...


class OffsetSync(NamedTuple):
    """A record of the source and the place of its copy. ``topic`` is its name on the source."""

    topic: str
    partition: int
    upstream_offset: int
    downstream_offset: int

    def encode(self) -> KeyValue:
        """Return its key and value."""
        return KeyValue(
            _text(self.topic) + struct.pack(">i", self.partition),
            struct.pack(">qq", self.upstream_offset, self.downstream_offset),
        )

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> OffsetSync:
        """Parse a record.

        :raises ValueError: it is not an offset sync.
        """
        topic, rest = _read_text(key)
        (partition,) = _unpack(">i", rest, "the key of an offset sync")
        upstream, downstream = _unpack(">qq", value, "an offset sync")
        return cls(topic, partition, upstream, downstream)


class Checkpoint(NamedTuple):
    """A group's offset on both sides. ``topic`` is its name on the target: clients use it as it is."""

    group: str
    topic: str
    partition: int
    upstream_offset: int
    downstream_offset: int
    metadata: str = ""

    def encode(self) -> KeyValue:
        """Return its key and value.

        :raises ValueError: an offset is negative, which fails Kafka's readers for the whole group.
        """
        if min(self.upstream_offset, self.downstream_offset) < 0:
            raise ValueError(f"a checkpoint has no negative offsets: {self}")
        return KeyValue(
            _text(self.group) + _text(self.topic) + struct.pack(">i", self.partition),
            struct.pack(">hqq", VERSION, self.upstream_offset, self.downstream_offset) + _text(self.metadata),
        )

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Checkpoint:
        """Parse a record.

        :raises ValueError: it is not a checkpoint of version 0.
        """
        group, rest = _read_text(key)
        topic, rest = _read_text(rest)
        (partition,) = _unpack(">i", rest, "the key of a checkpoint")
        version, upstream, downstream = _unpack(">hqq", value[:18], "a checkpoint")
        _check_version(version)
        metadata, _ = _read_text(value[18:])
        return cls(group, topic, partition, upstream, downstream, metadata)


class Heartbeat(NamedTuple):
    """A sign of life of a flow, in milliseconds since 1970."""

    source_alias: str
    target_alias: str
    timestamp_ms: int

    def encode(self) -> KeyValue:
        """Return its key and value."""
        return KeyValue(
            _text(self.source_alias) + _text(self.target_alias), struct.pack(">hq", VERSION, self.timestamp_ms)
        )

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Heartbeat:
        """Parse a record.

        :raises ValueError: it is not a heartbeat of version 0.
        """
        source, rest = _read_text(key)
        target, _ = _read_text(rest)
        version, timestamp_ms = _unpack(">hq", value, "a heartbeat")
        _check_version(version)
        return cls(source, target, timestamp_ms)


def fits(value: str) -> bool:
    """Return whether a text can be part of a record."""
    return len(value.encode()) <= LONGEST_TEXT_BYTES


def _text(value: str) -> bytes:
    data = value.encode()
    if len(data) > LONGEST_TEXT_BYTES:
        raise ValueError("a text in a state topic has at most 32,767 bytes")
    return struct.pack(">h", len(data)) + data


def _read_text(data: bytes) -> tuple[str, bytes]:
    if len(data) < 2:
        raise ValueError("a text ends before its length")
    (length,) = struct.unpack_from(">h", data)
    if not 0 <= length <= len(data) - 2:
        raise ValueError(f"a text of {length} bytes in {len(data) - 2} bytes")
    return data[2 : 2 + length].decode(), data[2 + length :]


def _unpack(layout: str, data: bytes, what: str) -> tuple[int, ...]:
    if len(data) != struct.calcsize(layout):
        raise ValueError(f"{what} has {struct.calcsize(layout)} bytes, not {len(data)}")
    return struct.unpack(layout, data)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise ValueError(f"version {version} is unknown")
