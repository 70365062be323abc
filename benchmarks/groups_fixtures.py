"""Topics and consumer groups at every kind of place, and what a group's consumer gets after it has moved."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from harness.brokers import KafkaCluster
from harness.compare import Record, bounds, read_records
from harness.load import Kind, TopicLoad, load, write
from harness.processes import HarnessError

PREFIX = "bench."
OUTSIDE = "elsewhere"
_READ_SECONDS = 120.0
_JOIN_SECONDS = 60.0

#: Places of groups that lag, by how many offsets; only topics that have as many in each partition have such groups.
BEHIND = {"50_behind": 50, "5000_behind": 5_000}

Place = tuple[str, int]
#: (partition, key, value): no two records of a topic are the same; timestamps may be the broker's own.
Identity = tuple[int, bytes | None, bytes | None]


@dataclass(frozen=True)
class Fixture:
    """A topic of one kind; ``name`` is its row in the table."""

    name: str
    topic: str
    kind: Kind | None
    title: str


FIXTURES = (
    Fixture("plain", f"{PREFIX}plain", Kind.PLAIN, "plain records"),
    Fixture("compacted", f"{PREFIX}compacted", Kind.COMPACTED, "compacted, with holes of all lengths"),
    Fixture("transactional", f"{PREFIX}transactional", Kind.TRANSACTIONAL, "transactions: markers, aborted records"),
    Fixture("truncated", f"{PREFIX}truncated", Kind.HEAD_DELETED, "log start moved up by DeleteRecords"),
    Fixture("empty", f"{PREFIX}empty", Kind.EMPTY_PARTITION, "one partition is empty"),
    Fixture("log_append_time", f"{PREFIX}appended", Kind.LOG_APPEND_TIME, "LogAppendTime"),
    Fixture("one_millisecond", f"{PREFIX}instant", None, "1,000 records in each millisecond"),
    Fixture("unordered_times", f"{PREFIX}unordered", None, "timestamps in no order"),
)


@dataclass(frozen=True)
class Group:
    """A group of one fixture and what it has committed on the source."""

    name: str
    fixture: Fixture
    committed: Mapping[Place, int]
    topics: tuple[str, ...]


@dataclass
class Content:
    """What a topic's committed readers see: partition -> records; with log starts and ends."""

    records: dict[int, list[Record]]
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)


def fill(source: KafkaCluster, records: int) -> None:
    """All fixtures, and the topic outside of the migration."""
    loads = [TopicLoad(item.topic, item.kind, 2, records, 120, "lz4") for item in FIXTURES if item.kind is not None]
    load(source, [*loads, TopicLoad(OUTSIDE, Kind.PLAIN, 1, 100, 120)])
    start = int(time.time() * 1000) - 3_600_000
    rng = random.Random(5)
    times = {
        "one_millisecond": [start + number // 1000 for number in range(records)],
        "unordered_times": [start + rng.randrange(3_000_000) for _ in range(records)],
    }
    for item in FIXTURES:
        if item.kind is None:
            source.create_topic(item.topic, 2)
            write(source.client_config(), item.topic, _records(times[item.name]), codec="lz4")


def _records(times: Sequence[int]) -> Iterator[tuple[int, Record]]:
    for number, timestamp in enumerate(times):
        yield number // 1000 % 2, Record(-1, timestamp, b"%d" % (number % 97), b"record %d" % number)


def content_of(cluster: KafkaCluster, topic: str) -> Content:
    """What there is to read now."""
    edges = bounds(cluster.client_config(), [topic])[topic]
    return Content(
        read_records(cluster.client_config(), topic),
        {number: edge.log_start for number, edge in edges.items()},
        {number: edge.end for number, edge in edges.items()},
    )


def places(content: Content) -> dict[str, dict[int, int]]:
    """Where groups stand: name -> partition -> committed offset. Only places that the content has."""
    found = {
        "start": dict(content.starts),
        "middle": {n: content.starts[n] + (content.ends[n] - content.starts[n]) // 2 for n in content.starts},
        "third": {n: content.starts[n] + (content.ends[n] - content.starts[n]) // 3 for n in content.starts},
        "end": dict(content.ends),
        "beyond_end": {n: end + 10 for n, end in content.ends.items()},
    }
    for name, count in BEHIND.items():
        if all(content.ends[number] - count > start for number, start in content.starts.items()):
            found[name] = {number: end - count for number, end in content.ends.items()}
    behind = {number: offset for number, records in content.records.items() if (offset := _behind_hole(records))}
    if behind:
        found["behind_hole"] = behind
        found["in_hole"] = {number: offset - 1 for number, offset in behind.items()}
    if any(start > 1 for start in content.starts.values()):
        found["truncated"] = {number: min(1, start) for number, start in content.starts.items()}
    return found


def _behind_hole(records: Sequence[Record]) -> int | None:
    """The offset of a record near the middle whose predecessor's offset holds no record."""
    for index in range(max(1, len(records) // 2), len(records)):
        if records[index].offset > records[index - 1].offset + 1:
            return records[index].offset
    return None


def settle(source: KafkaCluster) -> list[Group]:
    """Groups of all fixtures, each made by a real member that has committed and left."""
    groups = []
    for item in FIXTURES:
        for where, offsets in places(content_of(source, item.topic)).items():
            committed = {(item.topic, number): offset for number, offset in offsets.items()}
            groups.append(Group(f"{PREFIX}{item.name}.{where}", item, committed, (item.topic,)))
    plain = next(group for group in groups if group.name == f"{PREFIX}plain.middle")
    mixed = {**plain.committed, (OUTSIDE, 0): 50}
    groups.append(Group(f"{PREFIX}plain.mixed", plain.fixture, mixed, (plain.fixture.topic, OUTSIDE)))
    for group in groups:
        _commit_as_member(source, group)
    return groups


def _commit_as_member(source: KafkaCluster, group: Group) -> None:
    """Join, commit, leave: MirrorMaker 2 passes groups over that never had a member."""
    consumer = Consumer(
        {
            **source.client_config(),
            "group.id": group.name,
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "session.timeout.ms": 6000,
            "log_level": 2,
        }
    )
    try:
        consumer.subscribe(list(group.topics))
        deadline = time.monotonic() + _JOIN_SECONDS
        while not consumer.assignment():
            consumer.poll(0.1)
            if time.monotonic() > deadline:
                raise HarnessError(f"{group.name}: no assignment within {_JOIN_SECONDS:.0f} s")
        offsets = [TopicPartition(*place, offset) for place, offset in sorted(group.committed.items())]
        for place in consumer.commit(offsets=offsets, asynchronous=False):
            if place.error is not None:
                raise KafkaException(place.error)
    finally:
        consumer.close()


def read_on(cluster: KafkaCluster, group: str, topic: str) -> list[Identity]:
    """What a consumer of the group gets from where the group stands on a cluster to the end.

    Where nothing is committed, or what is committed is not there, it begins at the log start (``earliest``).
    """
    consumer = Consumer(
        {
            **cluster.client_config(),
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "session.timeout.ms": 6000,
            "log_level": 2,
        }
    )
    found: list[Identity] = []
    deadline = time.monotonic() + _READ_SECONDS
    left = set(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
    consumer.subscribe([topic])
    try:
        while left:
            message = consumer.poll(0.2)
            if time.monotonic() > deadline:
                raise HarnessError(f"{group} has not read {topic} within {_READ_SECONDS:.0f} s")
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append((message.partition(), message.key(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            elif not error.retriable():
                raise KafkaException(error)
    finally:
        consumer.close()
    return found


def unread(content: Content, committed: Mapping[int, int]) -> list[Identity]:
    """What a group has not read yet, by what it has committed; without a commit, everything."""
    return [
        (number, record.key, record.value)
        for number, records in content.records.items()
        for record in records
        if record.offset >= committed.get(number, 0)
    ]


def judge(expected: Iterable[Identity], got: Iterable[Identity]) -> tuple[int, int]:
    """(re-read, skipped): records that the consumer got and should not, or twice; records that it never got."""
    wanted, found = Counter(expected), Counter(got)
    return (found - wanted).total(), (wanted - found).total()
