"""Copies in transactions for tests: who wrote what, and what the map must answer, both by brute force."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

from confluent_kafka import Producer

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import MigrationError, Transient
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.transactional import (
    MapPages,
    Position,
    TransactionalMap,
    group_name,
    read_positions,
)
from harness.brokers import KafkaCluster
from harness.compare import Record, read
from harness.copiers.copying import Copying

FOREIGN_KEY = b"written-by-somebody-else"
_FOREIGN_DIGEST = blake2b(FOREIGN_KEY, digest_size=16).digest()


def in_transactions(cluster: KafkaCluster, topics: list[str]) -> dict[TopicPartition, Verdict]:
    """The verdict for all partitions of these topics."""
    found = cluster.admin().list_topics(timeout=60).topics
    return {(name, number): Verdict.TRANSACTIONAL for name in topics for number in found[name].partitions}


def content(record: Record) -> tuple[object, ...]:
    """What has to be equal: all but the offset."""
    return (record.timestamp, record.key, record.value, record.headers)


def split(records: list[Record]) -> tuple[list[Record], list[Record]]:
    """(ours, those of the foreign writers of these tests)."""
    ours = [record for record in records if record.key != FOREIGN_KEY]
    return ours, [record for record in records if record.key == FOREIGN_KEY]


def position_of(copy: Copying, key: TopicPartition) -> Position:
    """What the target itself says of a partition."""
    found = read_positions(copy.clients.wire("target"), group_name(copy.migration_id), [key])[key]
    assert isinstance(found, Position), found if isinstance(found, MigrationError) else "no position"
    return found


def committed_positions(copy: Copying) -> dict[TopicPartition, int]:
    """Source offsets of the positions on the target, without those whose transaction is not ended yet.

    None at all while the group's coordinator is on its way from one broker to another.
    """
    try:
        found = read_positions(copy.clients.wire("target"), group_name(copy.migration_id), copy.partitions)
    except Transient:
        return {}
    return {key: position.source_offset for key, position in found.items() if isinstance(position, Position)}


def have_moved(copy: Copying, before: dict[TopicPartition, int]) -> bool:
    """Whether somebody has committed since then."""
    return any(offset != before.get(key) for key, offset in committed_positions(copy).items())


def map_of(copy: Copying, key: TopicPartition) -> TransactionalMap:
    """The map as the target and the pages tell it."""
    return MapPages(copy.clients.store(copy.journal), copy.migration_id, *key).load(position_of(copy, key))


def rival_job(copy: Copying, lane: int) -> str:
    """A job for the same partitions under another lane, so with another lease: nobody waits for anybody. Its name."""
    job = copy.write_job("seed")
    lanes = [item.model_copy(update={"lane": lane}) for item in job.lanes]
    name = f"rival-{lane}"
    copy.clients.store(copy.journal).put(copy.job_key(name), job.model_copy(update={"lanes": lanes}).canonical())
    return name


def check_copy(copy: Copying) -> int:
    """Our records are the source's, in order; the map answers for every source offset. Number of foreign records."""
    foreign_records = 0
    ends = copy.stable_ends()
    _wait_for_markers(copy)
    source = read({"bootstrap.servers": copy.source.bootstrap}, copy.topics)
    target = read({"bootstrap.servers": copy.target.bootstrap}, copy.topics, with_keys=copy.topics)
    for key in sorted(copy.partitions):
        wanted, found = source[key[0]][key[1]], target[key[0]][key[1]]
        ours = [index for index in range(len(found.offsets)) if found.key_digest(index) != _FOREIGN_DIGEST]
        foreign_records += len(found.offsets) - len(ours)
        for index, own in enumerate(ours[: len(wanted.offsets)]):
            assert found.digest(own) == wanted.digest(index), (
                f"{key}: what is at {found.offsets[own]} is not the source's record of {wanted.offsets[index]}"
            )
        assert len(ours) == len(wanted.offsets), f"{key}: {len(ours)} of ours, the source has {len(wanted.offsets)}"
        check_map(copy, key, list(wanted.offsets), [found.offsets[index] for index in ours], ends[key])
    return foreign_records


def _wait_for_markers(copy: Copying) -> None:
    """Wait until consumers see what is committed: brokers write the markers behind the answer to a commit.

    Not for ever: some tests leave a transaction open, and what is missing then is for the comparison to say.
    """
    wire, deadline = copy.clients.wire("target"), time.monotonic() + 60
    while time.monotonic() < deadline:
        if wire.list_offsets(copy.partitions, "stable") == wire.list_offsets(copy.partitions, "log_end"):
            return
        time.sleep(0.2)


def check_map(copy: Copying, key: TopicPartition, source: list[int], target: list[int], end: int) -> None:
    """Every source offset from log start to end + 1: the answer is where the next record of ours is."""
    start = copy.partitions[key].source_start_offset
    if not source and start == end:
        return
    assert position_of(copy, key).source_offset == end
    found = map_of(copy, key)
    closed = found.closed(end, found.target_start_offset if not target else target[-1] + 1)
    behind = target[-1] + 1 if target else closed.target_start_offset
    for offset in range(start, end + 2):
        index = bisect_left(source, offset)
        wanted = target[index] if index < len(target) else behind
        answer = closed.translate(offset)
        assert answer.target_offset == wanted, f"{key}: source offset {offset} -> {answer}, should be {wanted}"
        if not (offset > end and not target):
            assert found.translate(offset).target_offset == wanted
    assert [closed.source_of(offset) for offset in target] == source
    assert all(closed.covers(offset) for offset in target)


@contextmanager
def foreign_writers(cluster: KafkaCluster, topic: str, partitions: int) -> Iterator[None]:
    """Somebody else writes to the same partitions of the target: plain records and transactions, some aborted."""
    stop = threading.Event()

    def plain() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1})
        number = 0
        while not stop.wait(0.003):
            producer.produce(topic, b"plain-%d" % number, key=FOREIGN_KEY, partition=number % partitions)
            producer.flush()
            number += 1

    def transactions() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"foreign-{topic}"})
        producer.init_transactions()
        number = 0
        while not stop.wait(0.01):
            producer.begin_transaction()
            producer.produce(topic, b"tx-%d" % number, key=FOREIGN_KEY, partition=number % partitions)
            producer.flush()
            if number % 3 == 0:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
            number += 1

    threads = [threading.Thread(target=plain), threading.Thread(target=transactions)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
