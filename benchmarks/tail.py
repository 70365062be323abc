"""Tail latency: from produce() on the source to the record in a consumer's hands on the target.

The producer is a process of its own; it writes its clock into each record (the machine's monotonic clock, the same for
all processes). The consumer polls one record at a time: one that asks for many measures its own waiting.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.peers.base import ROOT, Peer, Task
from harness.brokers import KafkaCluster
from harness.processes import HarnessError, Process, start

PARTITIONS = 8
RECORD_BYTES = 200
RATES = (1_000, 10_000)
_CLOCK = struct.Struct(">q")
_FIRST_RECORD_SECONDS = 120.0


@dataclass(frozen=True)
class TailResult:
    """One row: a peer at one rate. Times in milliseconds."""

    peer: str
    title: str
    records_per_second: int
    linger_ms: int | None
    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    def as_dict(self) -> dict[str, Any]:
        return {key: round(value, 2) if isinstance(value, float) else value for key, value in asdict(self).items()}


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least ``share`` of all are not above. ``values`` are sorted."""
    if not values:
        raise ValueError("no values")
    return values[min(len(values) - 1, max(0, -(-int(share * 1_000_000) * len(values) // 1_000_000) - 1))]


def judge(peer: str, title: str, rate: int, linger_ms: int | None, latencies_ms: list[float]) -> TailResult:
    """A row from single latencies."""
    ordered = sorted(latencies_ms)
    return TailResult(
        peer, title, rate, linger_ms, len(ordered), percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1]
    )


@dataclass
class Tail:
    """Measures tails between two clusters.

    :param seconds: how long is measured, after ``warm_up_seconds``.
    """

    source: KafkaCluster
    target: KafkaCluster
    folder: Path
    seconds: float
    warm_up_seconds: float
    say: Callable[[str], None]

    def direct_read(self, rate: int) -> TailResult:
        """A consumer on the source itself: what no copier can beat."""
        topic = f"tail_direct_{rate}"
        self.source.create_topic(topic, PARTITIONS)
        latencies = self.measured(topic, self.source.bootstrap, topic, rate, lambda: None)
        return judge("direct_read", "consumer on the source", rate, None, latencies)

    def peer(self, make: Callable[[], Peer], rate: int, linger_ms: int | None = None) -> TailResult:
        """A copier at one rate.

        :param linger_ms: of its producer, where it has one.
        :raises HarnessError: it has failed.
        """
        peer = make()
        topic = f"tail_{peer.name}_{rate}_{linger_ms or 0}"
        target_topic = f"{peer.name}.{topic}"
        self.source.create_topic(topic, PARTITIONS)
        self.target.create_topic(target_topic, PARTITIONS)
        task = Task(
            source=self.source.bootstrap,
            target=self.target.bootstrap,
            topic=topic,
            target_topic=target_topic,
            partitions=PARTITIONS,
            folder=self.folder / topic,
            linger_ms=linger_ms or 0,
        )
        try:
            peer.start(task)
            latencies = self.measured(topic, self.target.bootstrap, target_topic, rate, peer.measure)
        finally:
            peer.stop()
        return judge(peer.name, peer.title, rate, linger_ms, latencies)

    def measured(
        self, topic: str, bootstrap: str, read_topic: str, rate: int, check: Callable[[], object]
    ) -> list[float]:
        """Latencies in milliseconds of the records that a producer writes to ``topic``.

        :param check: raises when the copier has ended.
        """
        producer = start_producer(self.source.bootstrap, topic, rate, self.folder / f"{topic}.log")
        try:
            return self._read(bootstrap, read_topic, check, producer)
        finally:
            producer.kill()

    def _read(self, bootstrap: str, topic: str, check: Callable[[], object], producer: Process) -> list[float]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "socket.nagle.disable": True,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        latencies: list[float] = []
        begun, first = time.monotonic(), 0.0
        try:
            while not first or time.monotonic() < first + self.warm_up_seconds + self.seconds:
                message = consumer.poll(0.5)
                now = time.monotonic_ns()
                if message is None:
                    self._check(begun, first, check, producer)
                    continue
                error = message.error()
                if error is not None:
                    if error.retriable():
                        continue
                    raise KafkaException(error)
                sent = _CLOCK.unpack_from(message.value() or b"")[0]
                first = first or now / 1e9
                # By the time of sending, so that a backlog of the start is left out.
                if sent / 1e9 >= first + self.warm_up_seconds:
                    latencies.append((now - sent) / 1e6)
        finally:
            consumer.close()
        return latencies

    def _check(self, begun: float, first: float, check: Callable[[], object], producer: Process) -> None:
        producer.check_running()
        check()
        if not first and time.monotonic() - begun > _FIRST_RECORD_SECONDS:
            raise HarnessError(f"no record within {_FIRST_RECORD_SECONDS:.0f} s")


def start_producer(bootstrap: str, topic: str, rate: int, log: Path) -> Process:
    """A producer process that writes until it is killed."""
    command = [sys.executable, "-m", "benchmarks.tail", bootstrap, topic, str(rate)]
    return start(f"producer of {topic}", command, log, cwd=ROOT)


def _produce(bootstrap: str, topic: str, rate: int) -> None:
    """Write at a steady rate, each record with the time of its produce().

    At thousands of records a second a request for each would keep the broker busy, and a queue would be measured:
    such a producer lingers for a millisecond, which counts as latency.
    """
    linger_ms = 0 if rate < 5_000 else 1
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": linger_ms, "socket.nagle.disable": True})
    padding = bytes(RECORD_BYTES - _CLOCK.size)
    begun, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - begun) * rate)
        while sent < due:
            value = _CLOCK.pack(time.monotonic_ns()) + padding
            try:
                producer.produce(topic, value, partition=sent % PARTITIONS)
            except BufferError:
                producer.poll(0.01)
                continue
            sent += 1
        producer.poll(0)
        time.sleep(0.0005)


if __name__ == "__main__":
    _produce(sys.argv[1], sys.argv[2], int(sys.argv[3]))
