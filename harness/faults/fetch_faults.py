"""Faults of single fetch responses, as brokers with remote storage, quotas and replica selectors send them.

A broker may answer NONE with no bytes and a high last stable offset: a read of remote storage timed out, the quota of
such reads is used up, or it names another replica to read from. This module makes such responses in front of a real
broker, for as long as a test needs them, independently of the product's codec.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

FETCH = 1
LIST_OFFSETS = 2
API_VERSIONS = 18
_EARLIEST_LOCAL = -4
_BATCH_OVERHEAD = 12
#: First fetch version whose response can name another replica.
REDIRECTS_FROM = 11
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class Asked(NamedTuple):
    """One partition of a fetch request."""

    topic: str
    partition: int
    offset: int
    isolation: int
    #: how many partitions the request names
    together: int


class Answered(NamedTuple):
    """One partition of a fetch response, as far as faults need it."""

    error_code: int
    last_stable_offset: int
    records: bytes
    preferred_read_replica: int = -1


#: (requested partition, the broker's response) -> the response that the client gets
Fault = Callable[[Asked, Answered], Answered]


def empty(_asked: Asked, answered: Answered) -> Answered:
    """No bytes, but the true ends."""
    return answered._replace(records=b"")


def cut_short(_asked: Asked, answered: Answered) -> Answered:
    """Half of the first batch, and no more."""
    if len(answered.records) < _BATCH_OVERHEAD:
        return answered
    (length,) = struct.unpack_from(">i", answered.records, 8)
    return answered._replace(records=answered.records[: (_BATCH_OVERHEAD + length) // 2])


def torn(_asked: Asked, answered: Answered) -> Answered:
    """The last batch is cut, the others are whole; a single batch is not cut."""
    ends, position = [], 0
    while position + _BATCH_OVERHEAD <= len(answered.records):
        position += _BATCH_OVERHEAD + struct.unpack_from(">i", answered.records, position + 8)[0]
        ends.append(position)
    if len(ends) < 2:
        return answered
    return answered._replace(records=answered.records[: ends[len(ends) // 2 - 1] + 30])


def redirected(_asked: Asked, answered: Answered) -> Answered:
    """No bytes, and another broker to read from."""
    return answered._replace(records=b"", preferred_read_replica=4711)


@dataclass
class FetchFaults:
    """Changes fetch responses of one topic in a range of offsets, until it is lifted.

    :param fault: the change of a response.
    :param above: fetches from here on are changed.
    :param below: offsets from here on are read normally. They are the brokers' local offsets, also by ListOffsets.
    :param isolation: only fetches of this isolation level; None: all.
    :param tells_local: whether brokers support the version of ListOffsets that returns the local log start.
    :param times: number of responses to change; None: no limit.
    """

    topic: str
    fault: Fault
    above: int = 0
    below: int = 2**62
    isolation: int | None = None
    tells_local: bool = True
    times: int | None = None
    #: changed responses, and how many of them had records before
    changed: int = 0
    #: versions of the fetch requests of this topic
    versions: frozenset[int] = frozenset()

    def __call__(self, api_key: int, request: bytes, answer: bytes) -> bytes:
        """For :attr:`ClusterProxy.rewrite_answer`."""
        (version,) = struct.unpack_from(">h", request, 2)
        if api_key == FETCH:
            return self._fetch(version, request, answer)
        if api_key == LIST_OFFSETS and version >= 8:
            return self._list_offsets(version, request, answer)
        if api_key == API_VERSIONS and not self.tells_local:
            return _without_local_offsets(version, answer)
        return answer

    def _fetch(self, version: int, request: bytes, answer: bytes) -> bytes:
        asked = read_request(version, request)
        mine = {key: item for key, item in asked.items() if item.topic == self.topic}
        if not mine:
            return answer
        self.versions |= {version}
        return rewrite_answer(version, answer, lambda key, found: self._change(mine.get(key), found))

    def _change(self, asked: Asked | None, answered: Answered) -> Answered:
        if (
            asked is None
            or not self.above <= asked.offset < self.below
            or answered.error_code
            or self.isolation not in (None, asked.isolation)
            or (self.times is not None and self.changed >= self.times)
        ):
            return answered
        changed = self.fault(asked, answered)
        self.changed += bool(answered.records) and changed != answered
        return changed

    def _list_offsets(self, version: int, request: bytes, answer: bytes) -> bytes:
        asked = ListOffsetsRequest.decode(request, version=version, header=True)
        local = {
            (topic.name, item.partition_index)
            for topic in asked.topics
            for item in topic.partitions
            if item.timestamp == _EARLIEST_LOCAL and topic.name == self.topic
        }
        if not local:
            return answer
        found = ListOffsetsResponse.decode(answer, version=version, header=True)
        for topic in found.topics:
            for item in topic.partitions:
                if (topic.name, item.partition_index) in local and not item.error_code:
                    item.offset = max(item.offset, self.below)
        return answer[:4] + _offsets_body(found)


def _offsets_body(found: ListOffsetsResponse) -> bytes:
    """A ListOffsets response of version 8 after its correlation id; the lists are short."""
    parts = [struct.pack(">biB", 0, found.throttle_time_ms, len(found.topics) + 1)]
    for topic in found.topics:
        name = topic.name.encode()
        parts.append(struct.pack(">B", len(name) + 1) + name + struct.pack(">B", len(topic.partitions) + 1))
        parts.extend(
            struct.pack(
                ">ihqqib", item.partition_index, item.error_code, item.timestamp, item.offset, item.leader_epoch, 0
            )
            for item in topic.partitions
        )
        parts.append(b"\0")
    return b"".join(parts) + b"\0"


def _without_local_offsets(version: int, answer: bytes) -> bytes:
    """An ApiVersions response that limits ListOffsets to version 7."""
    flexible = version >= 3
    position = 6  # correlation id, error code
    count = answer[position] - 1 if flexible else struct.unpack_from(">i", answer, position)[0]
    assert count < 126, "the length of the list is one byte"
    position += 1 if flexible else 4
    changed = bytearray(answer)
    for _ in range(count):
        api_key, low, high = struct.unpack_from(">hhh", answer, position)
        if api_key == LIST_OFFSETS:
            struct.pack_into(">hhh", changed, position, api_key, low, min(high, 7))
        position += 7 if flexible else 6
    return bytes(changed)


def read_request(version: int, frame: bytes) -> dict[tuple[str, int], Asked]:
    """The partitions in a fetch request of versions 4-11."""
    (length,) = struct.unpack_from(">h", frame, 8)
    position = 10 + max(length, 0)
    (isolation,) = struct.unpack_from(">b", frame, position + 16)
    position += 17 + (8 if version >= 7 else 0)
    (topics,) = struct.unpack_from(">i", frame, position)
    position += 4
    found: list[tuple[str, int, int]] = []
    for _ in range(topics):
        topic, position = _text(frame, position)
        (partitions,) = struct.unpack_from(">i", frame, position)
        position += 4
        for _ in range(partitions):
            (partition,) = struct.unpack_from(">i", frame, position)
            position += 8 if version >= 9 else 4
            found.append((topic, partition, struct.unpack_from(">q", frame, position)[0]))
            position += 20 if version >= 5 else 12
    return {(topic, number): Asked(topic, number, offset, isolation, len(found)) for topic, number, offset in found}


def rewrite_answer(version: int, frame: bytes, change: Callable[[tuple[str, int], Answered], Answered]) -> bytes:
    """A fetch response of versions 4-11 with other contents."""
    position = 8 + (6 if version >= 7 else 0)
    (topics,) = struct.unpack_from(">i", frame, position)
    position += 4
    parts = [frame[:position]]
    for _ in range(topics):
        start = position
        topic, position = _text(frame, position)
        (partitions,) = struct.unpack_from(">i", frame, position)
        position += 4
        parts.append(frame[start:position])
        for _ in range(partitions):
            piece, position = _rewrite_partition(version, frame, position, topic, change)
            parts.append(piece)
    return b"".join(parts) + frame[position:]


def _rewrite_partition(
    version: int,
    frame: bytes,
    position: int,
    topic: str,
    change: Callable[[tuple[str, int], Answered], Answered],
) -> tuple[bytes, int]:
    start = position
    partition, error_code, _high_watermark, stable = struct.unpack_from(">ihqq", frame, position)
    position += 22 + (8 if version >= 5 else 0)
    (aborted,) = struct.unpack_from(">i", frame, position)
    position += 4 + 16 * max(aborted, 0)
    head = frame[start:position]
    preferred = -1
    if version >= REDIRECTS_FROM:
        (preferred,) = struct.unpack_from(">i", frame, position)
        position += 4
    (size,) = struct.unpack_from(">i", frame, position)
    position += 4
    records = frame[position : position + max(size, 0)]
    changed = change((topic, partition), Answered(error_code, stable, records, preferred))
    piece = head
    if version >= REDIRECTS_FROM:
        piece += struct.pack(">i", changed.preferred_read_replica)
    return piece + struct.pack(">i", len(changed.records)) + changed.records, position + max(size, 0)


def _text(frame: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", frame, position)
    return frame[position + 2 : position + 2 + length].decode(), position + 2 + length
