"""Realistic source topics: every kind of log that a copier has to handle.

The records are the same for the same seed and start time. Each one has a unique number in its value or in its
header ``n``, so that no two records of a partition are the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, groupby
from pathlib import Path
from typing import Any
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from harness.brokers import KafkaCluster
from harness.compare import Record, bounds
from harness.processes import wait_for

_DEFAULT_AGE_MS = 6 * 3600 * 1000
_CLEANED_SECONDS = 90.0
_TRANSACTION_RECORDS = 40
#: Every n-th transaction is aborted, and so is the last one of each topic.
_ABORT_EVERY = 5


class Kind(StrEnum):
    """Special properties of a topic's log."""

    #: No keys, no headers.
    PLAIN = "plain"
    #: Keys, headers (also empty, null and repeated ones), some tombstones.
    KEYED = "keyed"
    #: cleanup.policy=compact, after the cleaner's pass: batches with holes, removed batches.
    COMPACTED = "compacted"
    #: Written in transactions, some aborted; ends with an aborted one.
    TRANSACTIONAL = "transactional"
    #: DeleteRecords has moved the log starts, into the middle of batches.
    HEAD_DELETED = "head_deleted"
    #: The last partition is empty.
    EMPTY_PARTITION = "empty_partition"
    #: message.timestamp.type=LogAppendTime.
    LOG_APPEND_TIME = "log_append_time"


@dataclass(frozen=True)
class TopicLoad:
    """One topic to create. ``records`` are those written, including aborted and later cleaned ones."""

    name: str
    kind: Kind
    partitions: int
    records: int
    record_bytes: int = 400
    codec: str = "none"
    config: Mapping[str, str] = field(default_factory=dict)


def standard_topics(
    prefix: str = "", records: int = 200_000, total_bytes: int = 100_000_000, *, log_append_time: bool = False
) -> list[TopicLoad]:
    """The demo's topics: all kinds, all codecs; ``records`` and ``total_bytes`` are divided among them."""
    size = max(40, total_bytes // records)
    share = records // 20
    topics = [
        TopicLoad(f"{prefix}orders", Kind.PLAIN, 4, 6 * share, size, "lz4"),
        TopicLoad(f"{prefix}customers", Kind.KEYED, 3, 4 * share, size, "snappy"),
        TopicLoad(f"{prefix}balances", Kind.COMPACTED, 2, 2 * share, size, "zstd"),
        TopicLoad(f"{prefix}payments", Kind.TRANSACTIONAL, 3, 3 * share, size, "none"),
        TopicLoad(f"{prefix}clicks", Kind.HEAD_DELETED, 2, 4 * share, size, "gzip"),
        TopicLoad(f"{prefix}alerts", Kind.EMPTY_PARTITION, 3, share, size, "none"),
    ]
    if log_append_time:
        topics.append(TopicLoad(f"{prefix}metrics", Kind.LOG_APPEND_TIME, 1, share, size, "lz4"))
    return topics


def tiny_topics(prefix: str = "") -> list[TopicLoad]:
    """All kinds with some hundred records each, for tests."""
    return standard_topics(prefix, records=4_000, total_bytes=400_000, log_append_time=True)


def load(
    cluster: KafkaCluster, topics: Sequence[TopicLoad], *, seed: int = 1, start_timestamp: int | None = None
) -> None:
    """Create the topics and fill them; on return, heads are deleted and compacted topics are cleaned.

    :param start_timestamp: ms of the first record of each topic; default: six hours ago.
    :raises KafkaException: the cluster refused a request.
    :raises HarnessError: the log cleaner did not finish in time.
    """
    start = start_timestamp or int(time.time() * 1000) - _DEFAULT_AGE_MS
    cluster.create_topics({topic.name: (topic.partitions, _configs(topic)) for topic in topics})
    for topic in topics:
        _WRITERS[topic.kind](cluster, topic, records_of(topic, seed, start))
    for topic in topics:
        if topic.kind is Kind.HEAD_DELETED:
            delete_heads(cluster, topic.name)
    cleaned = [topic.name for topic in topics if topic.kind is Kind.COMPACTED]
    if cleaned:
        wait_cleaned(cluster, cleaned)
        cluster.alter_topic_configs(dict.fromkeys(cleaned, _CALM_CLEANER))


def records_of(topic: TopicLoad, seed: int, start_timestamp: int) -> Iterator[tuple[int, Record]]:
    """The records of a topic, as (partition, record) in the order of writing; their ``offset`` has no meaning."""
    rng = random.Random(f"{seed}/{topic.name}")
    pool = [_words(rng, topic.record_bytes) for _ in range(64)]
    hot_keys, cold_keys = max(10, topic.records // 200), max(50, topic.records)
    step_ms = _step_ms(topic)
    for number in range(topic.records):
        timestamp = start_timestamp + number * step_ms
        value: bytes | None = b'{"n":%d,"text":"%s"}' % (number, rng.choice(pool))
        if topic.kind in (Kind.KEYED, Kind.COMPACTED):
            # About half of the records are superseded, so that cleaning leaves holes of all lengths.
            key = b"key-%d" % rng.randrange(hot_keys if rng.random() < 0.5 else cold_keys)
            headers: tuple[tuple[str, bytes | None], ...] = (("n", b"%d" % number), *_headers(rng))
            if rng.random() < 0.05:
                value = None
            yield crc32(key) % topic.partitions, Record(-1, timestamp, key, value, headers)
        else:
            yield rng.randrange(_used_partitions(topic)), Record(-1, timestamp, None, value)
    if topic.kind is Kind.COMPACTED:
        # Late enough to begin a new segment in each partition: the cleaner leaves the active one alone.
        for partition in range(topic.partitions):
            timestamp = start_timestamp + topic.records * step_ms + 2 * _SEGMENT_MS
            yield partition, Record(-1, timestamp, b"last", b"of partition %d" % partition, (("n", b"last"),))


def write(config: Mapping[str, Any], topic: str, records: Iterable[tuple[int, Record]], *, codec: str = "none") -> int:
    """Write all (partition, record) pairs; return their number.

    :raises KafkaException: a record was refused.
    """
    producer = _Producer(config, codec)
    written = sum(producer.send(topic, partition, record) for partition, record in records)
    producer.flush()
    return written


def delete_heads(cluster: KafkaCluster, topic: str, fraction: float = 0.4) -> dict[int, int]:
    """Move each log start up by DeleteRecords; return partition -> new log start."""
    contents = bounds(cluster.client_config(), [topic])[topic]
    wanted = [
        TopicPartition(topic, number, content.log_start + int((content.end - content.log_start) * fraction) + 1)
        for number, content in contents.items()
        if content.log_start + 1 < content.end
    ]
    admin = cluster.admin()
    for future in admin.delete_records(wanted, request_timeout=120).values():
        future.result()
    return {partition.partition: partition.offset for partition in wanted}


def wait_cleaned(cluster: KafkaCluster, topics: Sequence[str]) -> None:
    """Wait until the log cleaner has cleaned all but the active segment of each replica.

    This reads the brokers' folders, the only place that shows it.

    :raises HarnessError: the cleaner did not finish in time.
    """
    folders = [
        folder
        for index in range(cluster.brokers)
        for topic in topics
        for folder in sorted(cluster.data_folder(index).glob(f"{topic}-*"))
        if folder.name.removeprefix(f"{topic}-").isdigit()
    ]
    wait_for(
        f"log cleaner on {', '.join(topics)}",
        lambda: all(map(_is_cleaned, folders)),
        _CLEANED_SECONDS,
        every_seconds=0.2,
    )


# Short segments by time, so that the cleaner has work; reset to `_CALM_CLEANER` afterwards.
_SEGMENT_MS = 60_000
_BUSY_CLEANER = {
    "cleanup.policy": "compact",
    "segment.ms": str(_SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
}
_CALM_CLEANER = {"segment.ms": "604800000", "min.cleanable.dirty.ratio": "0.5"}


def _configs(topic: TopicLoad) -> dict[str, str]:
    own = {
        Kind.COMPACTED: _BUSY_CLEANER,
        Kind.LOG_APPEND_TIME: {"message.timestamp.type": "LogAppendTime"},
    }
    return {**own.get(topic.kind, {}), **topic.config}


def _step_ms(topic: TopicLoad) -> int:
    """Time between two records: 2 hours for a topic; the compacted one fills about 8 segments."""
    span = 8 * _SEGMENT_MS if topic.kind is Kind.COMPACTED else 2 * 3600 * 1000
    return max(1, span // max(1, topic.records))


def _used_partitions(topic: TopicLoad) -> int:
    return topic.partitions - 1 if topic.kind is Kind.EMPTY_PARTITION else topic.partitions


def _words(rng: random.Random, size: int) -> bytes:
    """Text that compresses about as well as JSON."""
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(40)]
    text = ""
    while len(text) < size - 24:
        text += f"{rng.choice(words)}{rng.randrange(100)} "
    return text[: max(1, size - 24)].encode()


def _headers(rng: random.Random) -> Iterator[tuple[str, bytes | None]]:
    for _ in range(rng.randrange(3)):
        yield rng.choice(["trace", "tenant", "trace"]), rng.choice([b"", None, b"%d" % rng.randrange(10**6)])


class _Producer:
    """Idempotent producer that remembers the first refusal."""

    def __init__(self, config: Mapping[str, Any], codec: str, **more: Any) -> None:
        self.refused: KafkaError | None = None
        self.raw = Producer(
            {
                "log_level": 2,
                "enable.idempotence": True,
                "linger.ms": 20,
                "compression.codec": codec,
                "queue.buffering.max.kbytes": 65536,
                **config,
                **more,
            }
        )

    def send(self, topic: str, partition: int, record: Record) -> int:
        while True:
            try:
                self.raw.produce(
                    topic,
                    record.value,
                    record.key,
                    partition,
                    on_delivery=self._delivered,
                    timestamp=record.timestamp,
                    headers=list(record.headers),
                )
            except BufferError:
                self.raw.poll(0.1)
            else:
                self.raw.poll(0)
                return 1

    def flush(self) -> None:
        if self.raw.flush(60):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "records are still waiting after 60 s"))
        if self.refused is not None:
            raise KafkaException(self.refused)

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        self.refused = self.refused or error


def _write_plain(cluster: KafkaCluster, topic: TopicLoad, records: Iterator[tuple[int, Record]]) -> None:
    write(cluster.client_config(), topic.name, records, codec=topic.codec)


def _write_in_segments(cluster: KafkaCluster, topic: TopicLoad, records: Iterator[tuple[int, Record]]) -> None:
    """A segment rolls only between batches, so no batch may cross the borders."""
    for _, part in groupby(records, lambda pair: pair[1].timestamp // _SEGMENT_MS):
        write(cluster.client_config(), topic.name, part, codec=topic.codec)


def _write_transactions(cluster: KafkaCluster, topic: TopicLoad, records: Iterator[tuple[int, Record]]) -> None:
    """Transactions of some ten records over all partitions."""
    producer = _Producer(cluster.client_config(), topic.codec, **{"transactional.id": f"load-{topic.name}"})
    producer.raw.init_transactions(30)
    left = topic.records
    for number in count():
        producer.raw.begin_transaction()
        for _ in range(min(left, _TRANSACTION_RECORDS)):
            producer.send(topic.name, *next(records))
        left = max(0, left - _TRANSACTION_RECORDS)
        if left == 0 or number % _ABORT_EVERY == _ABORT_EVERY - 1:
            producer.flush()  # otherwise librdkafka drops unsent records, and the log has no aborted ones
            producer.raw.abort_transaction(30)
        else:
            producer.raw.commit_transaction(30)
        if left == 0:
            return


_WRITERS: dict[Kind, Callable[[KafkaCluster, TopicLoad, Iterator[tuple[int, Record]]], None]] = {
    **dict.fromkeys(Kind, _write_plain),
    Kind.COMPACTED: _write_in_segments,
    Kind.TRANSACTIONAL: _write_transactions,
}


def _is_cleaned(folder: Path) -> bool:
    """Whether the cleaner's checkpoint has reached the active segment of a partition's folder."""
    topic, _, partition = folder.name.rpartition("-")
    try:
        lines = (folder.parent / "cleaner-offset-checkpoint").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    # Format: version, number of entries, then `topic partition offset`.
    offsets = {(name, number): int(offset) for name, number, offset in (line.split() for line in lines[2:])}
    active = max(int(path.stem) for path in folder.glob("*.log"))
    return active > 0 and offsets.get((topic, partition), 0) >= active
