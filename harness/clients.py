"""Clients of a cluster that is being migrated: a live producer, consumer groups, and a live consumer.

They remember acknowledged offsets and consumed records, so that lost, re-read and skipped records can be counted
afterwards.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from harness.compare import PartitionContent, Record, TopicPartitionKey, bounds, read, record_digest
from harness.processes import HarnessError

_JOIN_SECONDS = 120.0
#: Maximum number of records in flight of a producer; librdkafka's own queue is larger.
_MAX_WAITING = 10_000
_TRANSACTION_RECORDS = 20
_TRANSACTION_MS = 60_000

#: (topic, number) -> key and value (None: a tombstone).
Content = Callable[[str, int], tuple[bytes, bytes | None]]

_T = TypeVar("_T")


class _Worker:
    """A thread with an orderly end; :meth:`stop` raises the thread's error."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._name = name

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Start, or continue after :meth:`stop`."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._guarded, name=self._name, daemon=True)
        self._thread.start()
        return self

    @property
    def running(self) -> bool:
        """Whether the thread goes on; it ends by :meth:`stop`, or by an error that :meth:`stop` raises."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """End the thread and wait for it; do nothing if it does not run.

        :raises HarnessError: the thread does not end.
        :raises BaseException: the error that ended the thread.
        """
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
            if self._thread.is_alive():
                raise HarnessError(f"{self._name} does not end")
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error

    def _run(self) -> None:
        raise NotImplementedError


class LiveProducer(_Worker):
    """Writes keyed records with headers to the topics in turn, at a steady rate, until it is frozen or stopped.

    :param topics: topic -> partitions to write to.
    :param records_per_second: over all topics.
    :param content: makes key and value of the n-th record, which goes to a topic; default: text of ``record_bytes``.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Mapping[str, Sequence[int]],
        *,
        records_per_second: float = 200,
        record_bytes: int = 200,
        codec: str = "lz4",
        seed: int = 1,
        content: Content | None = None,
    ) -> None:
        super().__init__("live-producer")
        #: Acknowledged records, in order: (topic, partition) -> records with their offsets.
        self.acknowledged: dict[TopicPartitionKey, list[Record]] = defaultdict(list)
        #: Records that were sent but not acknowledged: (topic, partition, error).
        self.failed: list[tuple[str, int, KafkaError]] = []
        self._places = [(topic, partition) for topic, partitions in sorted(topics.items()) for partition in partitions]
        self._config = dict(config)
        self._rate = records_per_second
        self._codec = codec
        self._random = random.Random(seed)
        self._filler = bytes(self._random.choices(b"abcdefghij ", k=max(1, record_bytes - 40)))
        self._content = content or self._text
        self._number = 0
        self._frozen = threading.Event()
        self._turn = threading.Lock()
        self._producer: Producer | None = None

    @property
    def frozen(self) -> bool:
        return self._frozen.is_set()

    def freeze(self) -> None:
        """Stop writing. On return, every record sent is acknowledged or failed.

        :raises HarnessError: records are still waiting for an answer after 30 s.
        """
        self._frozen.set()
        with self._turn:
            if self._producer is not None and self._producer.flush(_JOIN_SECONDS):
                raise HarnessError("the live producer cannot get rid of its records")

    def unfreeze(self) -> None:
        """Write on."""
        self._frozen.clear()

    def count(self) -> int:
        """Records acknowledged so far."""
        return sum(len(records) for records in list(self.acknowledged.values()))

    def _run(self) -> None:
        self._producer = producer = Producer(
            {
                "log_level": 2,
                "enable.idempotence": True,
                "linger.ms": 5,
                "compression.codec": self._codec,
                **self._config,
            }
        )
        begun, sent = time.monotonic(), 0
        while not self._stopping.is_set():
            with self._turn:
                if self._frozen.is_set():
                    begun, sent = time.monotonic(), 0
                else:
                    due = int((time.monotonic() - begun) * self._rate) - sent
                    for _ in range(min(due, _MAX_WAITING - len(producer))):
                        if not self._sends(producer):
                            break
                        sent += 1
                producer.poll(0)
            self._stopping.wait(0.01)
        with self._turn:
            producer.flush(_JOIN_SECONDS)
            self._producer = None

    def _sends(self, producer: Producer) -> bool:
        """Send the next record, unless a broker has just started and does not know its topics yet."""
        number = self._number
        try:
            self._send(producer, self.acknowledged)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_TOPIC:
                raise
            self._number = number
            # librdkafka would ask again in minutes only.
            with contextlib.suppress(KafkaException):
                producer.list_topics(timeout=1)
            return False
        return True

    def _send(self, producer: Producer, acknowledged: dict[TopicPartitionKey, list[Record]]) -> None:
        topic, partition = self._places[self._number % len(self._places)]
        number = self._number
        self._number += 1
        key, value = self._content(topic, number)
        headers: list[tuple[str, bytes | None]] = [("n", b"live-%d" % number)]
        record = Record(-1, int(time.time() * 1000), key, value, tuple(headers))

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.failed.append((topic, partition, error))
            else:
                acknowledged[topic, partition].append(
                    Record(message.offset(), record.timestamp, key, value, record.headers)
                )

        producer.produce(
            topic, value, key, partition, on_delivery=delivered, timestamp=record.timestamp, headers=headers
        )

    def _text(self, _: str, number: int) -> tuple[bytes, bytes]:
        value = b'{"live":%d,"text":"%s"}' % (number, self._filler)
        return b"live-%d" % self._random.randrange(1000), value


class LiveTransactions(LiveProducer):
    """Writes transactions over all its partitions until it is frozen or stopped; every fourth one is aborted.

    ``acknowledged`` has the records of transactions whose commit has succeeded. What becomes of a transaction during
    which a broker dies is for the broker to say: it is counted in :attr:`undecided`, and its records may be there.

    :param transactional_id: of no other producer.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Mapping[str, Sequence[int]],
        transactional_id: str,
        **options: Any,
    ) -> None:
        settings = {"transactional.id": transactional_id, "transaction.timeout.ms": _TRANSACTION_MS}
        super().__init__({**config, **settings}, topics, **options)
        #: Numbers of transactions.
        self.committed = self.aborted = self.undecided = 0

    def _run(self) -> None:
        producer: Producer | None = None
        while not self._stopping.is_set():
            with self._turn:
                if not self._frozen.is_set():
                    producer = self._transaction(producer)
            self._stopping.wait(_TRANSACTION_RECORDS / self._rate)

    def _transaction(self, producer: Producer | None) -> Producer | None:
        """Write one; return the producer, or None if the next transaction needs another one."""
        written: dict[TopicPartitionKey, list[Record]] = defaultdict(list)
        is_aborted = (self.committed + self.aborted) % 4 == 3
        try:
            if producer is None:
                producer = Producer({"log_level": 2, "linger.ms": 5, "compression.codec": self._codec, **self._config})
                # Ends what a former one has left open.
                producer.init_transactions(_JOIN_SECONDS)
            producer.begin_transaction()
            for _ in range(_TRANSACTION_RECORDS):
                self._send(producer, written)
            if is_aborted:
                producer.flush(_JOIN_SECONDS)  # otherwise librdkafka drops unsent records, and the log has none
                producer.abort_transaction(_JOIN_SECONDS)
                self.aborted += 1
                return producer
            producer.commit_transaction(_JOIN_SECONDS)
        except KafkaException:
            self.undecided += 1
            return None
        self.committed += 1
        for place, records in written.items():
            self.acknowledged[place] += records
        return producer


def lost_records(
    config: Mapping[str, Any],
    acknowledged: Mapping[TopicPartitionKey, Sequence[Record]],
    shifts: Mapping[TopicPartitionKey, int] | None = None,
) -> list[tuple[str, int, Record]]:
    """Acknowledged records that a cluster does not have, with equal content, at their offset (minus the shift)."""
    contents = read(config, {topic for topic, _ in acknowledged})
    lost = []
    for (topic, partition), records in sorted(acknowledged.items()):
        content = contents[topic][partition]
        shift = (shifts or {}).get((topic, partition), 0)
        present = {offset: index for index, offset in enumerate(content.offsets)}
        for record in records:
            index = present.get(record.offset - shift)
            if index is None or content.digest(index) != record_digest(record):
                lost.append((topic, partition, record))
    return lost


#: What a group's request gets while its coordinator starts or moves; librdkafka does not call it retriable.
_COORDINATOR_MOVES = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)


# -- groups -----------------------------------------------------------------------------------------------------------


def commit_offsets(config: Mapping[str, Any], group: str, offsets: Mapping[TopicPartitionKey, int]) -> None:
    """Commit offsets for a group without members.

    :raises KafkaException: the commit is refused.
    """
    consumer = _group_consumer(config, group)
    places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())]

    def commit() -> None:
        for place in consumer.commit(offsets=places, asynchronous=False):
            if place.error is not None:
                raise KafkaException(place.error)

    try:
        _with_coordinator(commit)
    finally:
        consumer.close()


def _with_coordinator(request: Callable[[], _T]) -> _T:
    """Send a group's request; again for a while where a young cluster is still choosing the group's coordinator."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return request()
        except KafkaException as error:
            if not _passes(error.args[0]) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _passes(error: KafkaError) -> bool:
    """Whether a group request may succeed later: librdkafka does not call a moving coordinator retriable."""
    return error.retriable() or error.code() in _COORDINATOR_MOVES


def committed_offsets(config: Mapping[str, Any], group: str, topics: Iterable[str]) -> dict[TopicPartitionKey, int]:
    """A group's committed offsets, without partitions that have none."""
    known = AdminClient({"log_level": 2, **config}).list_topics(timeout=10).topics
    places = [TopicPartition(topic, number) for topic in sorted(topics) for number in sorted(known[topic].partitions)]
    consumer = _group_consumer(config, group)
    try:
        answers = _with_coordinator(lambda: consumer.committed(places, timeout=20))
    finally:
        consumer.close()
    return {(place.topic, place.partition): place.offset for place in answers if place.offset >= 0}


def positions(config: Mapping[str, Any], topics: Iterable[str], fraction: float) -> dict[TopicPartitionKey, int]:
    """Offsets at a fraction of each partition: 0 the log start, 1 the end."""
    return {
        (topic, number): content.log_start + int((content.end - content.log_start) * fraction)
        for topic, numbers in bounds(config, topics).items()
        for number, content in numbers.items()
    }


class GroupReader(_Worker):
    """A member of a consumer group; commits after each batch it has handled, and when it stops.

    :param records_per_second: approximate limit of its reading rate.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        group: str,
        topics: Sequence[str],
        *,
        records_per_second: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(f"group-reader-{group}")
        #: Consumed records, in order: (topic, partition) -> (offset, digest).
        self.seen: dict[TopicPartitionKey, list[tuple[int, bytes]]] = defaultdict(list)
        self.group = group
        self.topics = list(topics)
        self._config = dict(config)
        self._rate = records_per_second
        self._settings = settings

    def count(self) -> int:
        """Records consumed so far."""
        return sum(len(records) for records in list(self.seen.values()))

    def caught_up(self) -> bool:
        """Whether the group's committed offsets have reached the current ends of its topics."""
        committed = committed_offsets(self._config, self.group, self.topics)
        return all(
            content.log_start == content.end or committed.get((topic, number), -1) >= content.end
            for topic, numbers in bounds(self._config, self.topics).items()
            for number, content in numbers.items()
        )

    def _run(self) -> None:
        consumer = _group_consumer(self._config, self.group, **self._settings)
        consumer.subscribe(self.topics)
        size = 1000 if self._rate is None else max(1, int(self._rate / 10))
        try:
            while not self._stopping.is_set():
                messages = consumer.consume(size, 0.1)
                reached: dict[TopicPartitionKey, int] = {}
                for message in messages:
                    place = (message.topic(), message.partition())
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        if error.retriable() or error.code() in _PASSING:
                            continue
                        raise KafkaException(error)
                    if error is None:
                        self.seen[place].append((message.offset(), record_digest(Record.of(message))))
                    # The end-of-partition event also says how far trailing markers reach.
                    reached[place] = message.offset() + (error is None)
                if reached:
                    places = [TopicPartition(topic, number, offset) for (topic, number), offset in reached.items()]
                    consumer.commit(offsets=places, asynchronous=False)
                if self._rate is not None and messages:
                    self._stopping.wait(len(messages) / self._rate)
        finally:
            consumer.close()


_PASSING = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}


@dataclass(frozen=True)
class GroupResult:
    """Effects of the switch on a group: records it got twice, records it never got."""

    group: str
    seen: int
    reread: int
    skipped: int


def judge_group(
    readers: Sequence[GroupReader],
    started_at: Mapping[TopicPartitionKey, int],
    content: Mapping[str, Mapping[int, PartitionContent]],
) -> GroupResult:
    """Count re-read and skipped records of one group that has read to the end.

    :param readers: its readers in order, first those on the source.
    :param started_at: the group's former position, in offsets of ``content``; partitions without an entry count from
        their log start.
    :param content: all that can be read at the end: ``read(target, topics)``.
    """
    seen: Counter[tuple[TopicPartitionKey, bytes]] = Counter()
    for reader in readers:
        for place, records in reader.seen.items():
            seen.update((place, digest) for _, digest in records)
    skipped = sum(
        ((topic, number), part.digest(index)) not in seen
        for topic, numbers in content.items()
        for number, part in numbers.items()
        for index, offset in enumerate(part.offsets)
        if offset >= started_at.get((topic, number), 0)
    )
    reread = sum(times - 1 for times in seen.values())
    return GroupResult(readers[0].group, seen.total(), reread, skipped)


def _group_consumer(config: Mapping[str, Any], group: str, **settings: Any) -> Consumer:
    classic = settings.get("group.protocol", "classic") == "classic"
    return Consumer(
        {
            "log_level": 2,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            **({"session.timeout.ms": 6000} if classic else {}),  # otherwise the brokers decide
            **config,
            **settings,
        }
    )
