"""Independent comparison of two clusters: plain read_committed consumers, no product code.

Every record of every partition counts: offset, timestamp, key, value (null and empty differ), headers in their order.
Records are kept as 24 bytes each (offset and digest), so that some millions fit; those that differ are read again and
shown.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from harness.processes import HarnessError

Kind = Literal["missing", "extra", "changed", "moved", "log_start", "end", "partitions"]
#: (topic name on the source, partition)
TopicPartitionKey = tuple[str, int]

_DIGEST_BYTES = 16
_STALL_SECONDS = 60.0


def timestamp_of(message: Any) -> int:
    """Time of a confluent-kafka message in ms; -1 for none, which librdkafka calls 0 in message format 0."""
    kind, value = message.timestamp()
    return -1 if kind == TIMESTAMP_NOT_AVAILABLE else int(value)


@dataclass(frozen=True)
class Record:
    """A record as a consumer sees it; timestamp in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @classmethod
    def of(cls, message: Any) -> Record:
        """From a confluent-kafka message."""
        headers = tuple((name, value) for name, value in message.headers() or ())
        return cls(message.offset(), timestamp_of(message), message.key(), message.value(), headers)

    def short(self) -> str:
        """Readable text; long keys and values are cut."""
        parts = [_cut(self.key), _cut(self.value)]
        return f"timestamp {self.timestamp} key {parts[0]} value {parts[1]} headers {list(self.headers)}"


@dataclass
class PartitionContent:
    """The content of one partition for a read_committed consumer.

    ``end`` is the last stable offset when reading began; ``size_bytes`` counts keys and values.
    """

    log_start: int
    end: int
    offsets: array[int] = field(default_factory=lambda: array("q"))
    digests: bytearray = field(default_factory=bytearray)
    #: Digest of each record's key, only for topics whose keys were requested; null keys have zeroes.
    keys: bytearray = field(default_factory=bytearray)
    size_bytes: int = 0

    def digest(self, index: int) -> bytes:
        return bytes(self.digests[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES])

    def key_digest(self, index: int) -> bytes:
        return bytes(self.keys[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES])


@dataclass(frozen=True)
class Difference:
    """One difference. Offsets are those of the respective side."""

    topic: str
    partition: int
    kind: Kind
    source_offset: int | None = None
    target_offset: int | None = None
    source: Record | None = None
    target: Record | None = None

    def __str__(self) -> str:
        offsets = f"source offset {self.source_offset}, target offset {self.target_offset}"
        place = f"{self.topic}-{self.partition}: {self.kind}, {offsets}"
        shown = [
            f"{side}: {record.short()}" for side, record in (("source", self.source), ("target", self.target)) if record
        ]
        return "; ".join([place, *shown])


@dataclass
class TopicResult:
    """Sums of one topic. ``tolerated`` records are on one side only, and are allowed to be."""

    name: str
    source_records: int = 0
    target_records: int = 0
    source_bytes: int = 0
    target_bytes: int = 0
    content_equal: bool = True
    offsets_equal: bool = True
    tolerated: int = 0


@dataclass
class Comparison:
    """Result of :func:`compare`. ``differences`` has the first ones per partition, ``difference_count`` counts all."""

    topics: dict[str, TopicResult] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    difference_count: int = 0

    @property
    def equal(self) -> bool:
        """Whether records, offsets (minus the shift), log starts and log ends are equal."""
        return self.difference_count == 0

    def check(self) -> None:
        """:raises AssertionError: the clusters are not equal; shows the first differences."""
        shown = "\n".join(f"  {difference}" for difference in self.differences[:20])
        assert self.equal, f"{self.difference_count} differences:\n{shown}"


def compare(
    source: Mapping[str, Any],
    target: Mapping[str, Any],
    topics: Iterable[str] | Mapping[str, str],
    *,
    shifts: Mapping[TopicPartitionKey, int] | None = None,
    until: Mapping[TopicPartitionKey, int] | None = None,
    compacted: Collection[str] = (),
    source_may_delete: bool = False,
    fenced: bool = False,
    limit: int = 20,
) -> Comparison:
    """Compare topics of two clusters record by record and offset by offset.

    :param source: librdkafka keys of the source; ``target`` likewise.
    :param topics: names, or source name -> target name.
    :param shifts: (source topic, partition) -> shift; target offset = source offset - shift. Default 0.
    :param until: (source topic, partition) -> source offset: compare only below it, and ignore the log ends.
    :param compacted: source names of topics where a record may be on one side only if the other side has a later one
        with its key: both clusters keep compacting.
    :param source_may_delete: the source's retention is active: records below its present log start may be extra.
    :param fenced: the cutover is over: on the target one more control marker may follow the last record.
    :param limit: differences to show (and to read again) per partition.
    """
    names = dict(topics) if isinstance(topics, Mapping) else {name: name for name in topics}
    shifts = shifts or {}
    back = {name: own for own, name in names.items()}
    target_until = {
        (names[topic], number): end - shifts.get((topic, number), 0) for (topic, number), end in (until or {}).items()
    }
    on_source = read(source, names, until=until, with_keys=compacted)
    on_target = read(target, back, until=target_until, with_keys=[names[name] for name in compacted])
    result = Comparison()
    for name, target_name in sorted(names.items()):
        result.topics[name] = topic = TopicResult(name)
        partitions = sorted(on_source[name].keys() | on_target[target_name].keys())
        for number in partitions:
            pair = _Pair(
                name,
                number,
                on_source[name].get(number),
                on_target[target_name].get(number),
                shift=shifts.get((name, number), 0),
                whole=(name, number) not in (until or {}),
                compacted=name in compacted,
                source_may_delete=source_may_delete,
                fenced=fenced,
            )
            found = pair.differences(topic)
            result.difference_count += len(found)
            result.differences += [_with_records(d, source, target, target_name) for d in found[:limit]]
    return result


def read(
    config: Mapping[str, Any],
    topics: Iterable[str],
    *,
    until: Mapping[TopicPartitionKey, int] | None = None,
    with_keys: Collection[str] = (),
) -> dict[str, dict[int, PartitionContent]]:
    """Read topics from log start to last stable offset (or ``until``): topic -> partition -> content.

    :raises HarnessError: unknown topic, or no progress for a minute.
    :raises KafkaException: the consumer reports an error.
    """
    contents = bounds(config, topics)
    for (topic, number), end in (until or {}).items():
        contents[topic][number].end = min(end, contents[topic][number].end)

    def add(message: Any) -> None:
        topic = message.topic()
        content = contents[topic][message.partition()]
        key, value = message.key(), message.value()
        content.offsets.append(message.offset())
        content.digests += _digest(timestamp_of(message), key, value, message.headers())
        content.size_bytes += len(key or b"") + len(value or b"")
        if topic in with_keys:
            content.keys += bytes(_DIGEST_BYTES) if key is None else blake2b(key, digest_size=_DIGEST_BYTES).digest()

    _consume(config, contents, add)
    return contents


def read_records(config: Mapping[str, Any], topic: str) -> dict[int, list[Record]]:
    """All records of a topic, whole: partition -> records. For small topics."""
    contents = bounds(config, [topic])
    records: dict[int, list[Record]] = {number: [] for number in contents[topic]}
    _consume(config, contents, lambda message: records[message.partition()].append(Record.of(message)))
    return records


def bounds(config: Mapping[str, Any], topics: Iterable[str]) -> dict[str, dict[int, PartitionContent]]:
    """Log starts and last stable offsets of all partitions, as contents without records.

    :raises HarnessError: a topic does not exist.
    """
    admin = AdminClient(_client(config))
    known = admin.list_topics(timeout=10).topics
    wanted = sorted(topics)
    if unknown := [name for name in wanted if name not in known]:
        raise HarnessError(f"no such topics: {', '.join(unknown)}")
    partitions = [TopicPartition(name, number) for name in wanted for number in sorted(known[name].partitions)]
    starts = _offsets(admin, partitions, OffsetSpec.earliest())
    ends = _offsets(admin, partitions, OffsetSpec.latest())
    contents: dict[str, dict[int, PartitionContent]] = {name: {} for name in wanted}
    for topic, number in starts:
        contents[topic][number] = PartitionContent(starts[topic, number], ends[topic, number])
    return contents


@dataclass
class _Pair:
    """One partition on both sides."""

    topic: str
    number: int
    source: PartitionContent | None
    target: PartitionContent | None
    shift: int
    whole: bool
    compacted: bool
    source_may_delete: bool
    fenced: bool

    def differences(self, result: TopicResult) -> list[Difference]:
        """All differences of this partition; also adds to the sums of its topic."""
        result.source_records += len(self.source.offsets) if self.source else 0
        result.target_records += len(self.target.offsets) if self.target else 0
        result.source_bytes += self.source.size_bytes if self.source else 0
        result.target_bytes += self.target.size_bytes if self.target else 0
        if self.source is None or self.target is None:
            result.content_equal = result.offsets_equal = False
            return [Difference(self.topic, self.number, "partitions")]
        found = self._bounds(self.source, self.target)
        only_source, only_target = self._one_sided(self.source, self.target)
        tolerated_source, tolerated_target = self._tolerated(self.source, self.target, only_source, only_target)
        result.tolerated += len(tolerated_source) + len(tolerated_target)
        only_source = [index for index in only_source if index not in tolerated_source]
        only_target = [index for index in only_target if index not in tolerated_target]
        found += self._named(self.source, self.target, only_source, only_target)
        if found:
            result.offsets_equal = False
        if only_source or only_target:
            left = _digests_without(self.source, tolerated_source)
            result.content_equal &= left == _digests_without(self.target, tolerated_target)
        return found

    def _bounds(self, source: PartitionContent, target: PartitionContent) -> list[Difference]:
        found = []
        starts = (source.log_start, target.log_start + self.shift)
        if starts[0] != starts[1] and not (self.source_may_delete and starts[1] < starts[0]):
            found.append(Difference(self.topic, self.number, "log_start", source.log_start, target.log_start))
        if self.whole and target.end + self.shift - source.end not in ((0, 1) if self.fenced else (0,)):
            found.append(Difference(self.topic, self.number, "end", source.end, target.end))
        return found

    def _one_sided(self, source: PartitionContent, target: PartitionContent) -> tuple[list[int], list[int]]:
        """Indexes of the records that have no equal one at the same offset on the other side."""
        if len(source.offsets) == len(target.offsets) and source.digests == target.digests:
            moved = source.offsets if self.shift == 0 else array("q", (o - self.shift for o in source.offsets))
            if moved == target.offsets:
                return [], []
        only_source, only_target = [], []
        i = j = 0
        while i < len(source.offsets) or j < len(target.offsets):
            left = source.offsets[i] if i < len(source.offsets) else None
            right = target.offsets[j] + self.shift if j < len(target.offsets) else None
            if left is not None and (right is None or left < right):
                only_source.append(i)
                i += 1
            elif right is not None and (left is None or right < left):
                only_target.append(j)
                j += 1
            else:
                if source.digest(i) != target.digest(j):
                    only_source.append(i)
                    only_target.append(j)
                i += 1
                j += 1
        return only_source, only_target

    def _tolerated(
        self, source: PartitionContent, target: PartitionContent, only_source: list[int], only_target: list[int]
    ) -> tuple[set[int], set[int]]:
        kept_source: set[int] = set()
        kept_target: set[int] = set()
        if self.source_may_delete:
            kept_target |= {j for j in only_target if target.offsets[j] + self.shift < source.log_start}
        if self.compacted and (only_source or only_target):
            taken = {source.offsets[i] for i in only_source} & {target.offsets[j] + self.shift for j in only_target}
            kept_source |= _superseded(source, only_source, 0, target, self.shift, taken)
            kept_target |= _superseded(target, only_target, self.shift, source, 0, taken)
        return kept_source, kept_target

    def _named(
        self, source: PartitionContent, target: PartitionContent, only_source: list[int], only_target: list[int]
    ) -> list[Difference]:
        """Classify differences: the same record elsewhere is `moved`, two records at one offset are `changed`."""
        elsewhere: dict[bytes, list[int]] = defaultdict(list)
        for j in reversed(only_target):
            elsewhere[target.digest(j)].append(j)
        pairs: list[tuple[Kind, int | None, int | None]] = []
        left: dict[int, int] = {}
        gone: set[int] = set()
        for i in only_source:
            if candidates := elsewhere.get(source.digest(i)):
                j = candidates.pop()
                gone.add(j)
                pairs.append(("moved", i, j))
            else:
                left[source.offsets[i]] = i
        for j in only_target:
            if j in gone:
                continue
            i_or_none = left.pop(target.offsets[j] + self.shift, None)
            pairs.append(("extra", None, j) if i_or_none is None else ("changed", i_or_none, j))
        pairs += [("missing", i, None) for i in left.values()]
        found = [
            Difference(
                self.topic,
                self.number,
                kind,
                None if i is None else source.offsets[i],
                None if j is None else target.offsets[j],
            )
            for kind, i, j in pairs
        ]
        return sorted(found, key=lambda d: _first(d.source_offset, d.target_offset, self.shift))


def _superseded(
    own: PartitionContent,
    indexes: list[int],
    own_shift: int,
    other: PartitionContent,
    other_shift: int,
    taken: set[int],
) -> set[int]:
    """Those of ``indexes`` whose key the other side has at a later offset. Two records at one offset always differ."""
    last = {other.key_digest(j): offset + other_shift for j, offset in enumerate(other.offsets)}
    null_key = bytes(_DIGEST_BYTES)
    return {
        i
        for i in indexes
        if own.offsets[i] + own_shift not in taken
        and own.key_digest(i) != null_key
        and last.get(own.key_digest(i), -1) > own.offsets[i] + own_shift
    }


def _digests_without(content: PartitionContent, left_out: set[int]) -> bytes:
    if not left_out:
        return bytes(content.digests)
    return b"".join(content.digest(i) for i in range(len(content.offsets)) if i not in left_out)


def _first(source_offset: int | None, target_offset: int | None, shift: int) -> int:
    if source_offset is not None:
        return source_offset
    return -1 if target_offset is None else target_offset + shift


def _with_records(
    difference: Difference, source: Mapping[str, Any], target: Mapping[str, Any], target_name: str
) -> Difference:
    """The same difference with its records, read again."""
    if difference.kind in ("log_start", "end", "partitions"):
        return difference
    return Difference(
        difference.topic,
        difference.partition,
        difference.kind,
        difference.source_offset,
        difference.target_offset,
        _read_one(source, difference.topic, difference.partition, difference.source_offset),
        _read_one(target, target_name, difference.partition, difference.target_offset),
    )


def _read_one(config: Mapping[str, Any], topic: str, partition: int, offset: int | None) -> Record | None:
    if offset is None:
        return None
    with _consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, partition, offset)])
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                return Record.of(message) if message.offset() == offset else None
    return None


def _client(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"log_level": 2, **config}


@contextmanager
def _consumer(config: Mapping[str, Any]) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            **_client(config),
            "group.id": "harness-compare",  # librdkafka requires a group; it is never joined, and nothing is committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 65536,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _consume(
    config: Mapping[str, Any],
    contents: Mapping[str, Mapping[int, PartitionContent]],
    add: Callable[[Any], None],
) -> None:
    """Hand every message below each partition's end to ``add``, in order within a partition."""
    ends = {(topic, number): c.end for topic, numbers in contents.items() for number, c in numbers.items()}
    open_ones = {
        (topic, number)
        for topic, numbers in contents.items()
        for number, content in numbers.items()
        if content.log_start < content.end
    }
    if not open_ones:
        return
    with _consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in sorted(open_ones)])
        last_progress = time.monotonic()
        while open_ones:
            messages = consumer.consume(10_000, 0.2)
            if messages:
                last_progress = time.monotonic()
            elif time.monotonic() - last_progress > _STALL_SECONDS:
                raise HarnessError(f"nothing more to read from {sorted(open_ones)}, short of their ends")
            for message in messages:
                place = (message.topic(), message.partition())
                error = message.error()
                if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # librdkafka looks for the coordinator of the unused group
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if place in open_ones and error is None and message.offset() < ends[place]:
                    add(message)
                # Trailing markers and aborted records are not messages: only the end-of-partition event reports them.
                if message.offset() >= ends[place] - (error is None):
                    open_ones.discard(place)


#: A broker that has just started, or a client whose metadata is older than the leader.
_NOT_NOW = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)


def _offsets(admin: AdminClient, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartitionKey, int]:
    deadline = time.monotonic() + 60
    while True:
        futures = admin.list_offsets(
            dict.fromkeys(partitions, spec), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=20
        )
        try:
            return {(p.topic, p.partition): future.result().offset for p, future in futures.items()}
        except KafkaException as error:
            if error.args[0].code() not in _NOT_NOW or time.monotonic() > deadline:
                raise
            admin.list_topics(timeout=20)
            time.sleep(0.5)


def record_digest(record: Record) -> bytes:
    """Digest of a record without its offset, as :meth:`PartitionContent.digest` has it."""
    return _digest(record.timestamp, record.key, record.value, record.headers)


def _digest(timestamp: int, key: bytes | None, value: bytes | None, headers: Any) -> bytes:
    parts = [struct.pack("<q", timestamp), *_field(key), *_field(value)]
    for name, content in headers or ():
        parts += [*_field(name.encode()), *_field(content)]
    return blake2b(b"".join(parts), digest_size=_DIGEST_BYTES).digest()


def _field(value: bytes | None) -> tuple[bytes, bytes]:
    return (b"\xff\xff\xff\xff", b"") if value is None else (struct.pack("<i", len(value)), value)


def _cut(value: bytes | None) -> str:
    return repr(value if value is None or len(value) <= 40 else value[:40] + b"...")
