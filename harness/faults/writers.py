"""Live writers of a source during faults: plain, transactional and compacted topics, records of any age.

They continue when brokers are killed; the log may or may not contain records that were not acknowledged. Each record
has a unique number, so that no two records of a partition are the same.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from harness.brokers import KafkaCluster
from harness.processes import HarnessError

THREE_YEARS_SECONDS = 3 * 365 * 86_400.0
PARTITIONS = 2
_PATIENCE_SECONDS = 20.0
#: The compacted topic's segments roll by record time, so that its cleaner always has work.
_SEGMENT_MS = 60_000
_STEP_MS = 100


class Writers:
    """Writes to three topics (``plain``, ``txn``, ``compact``, each behind a prefix) until it is stopped.

    :param age_seconds: how far before now the records' timestamps are.
    :param pause_seconds: between two batches of each writer.
    """

    def __init__(
        self, source: KafkaCluster, prefix: str, seed: int, *, age_seconds: float = 0, pause_seconds: float = 0.02
    ) -> None:
        self.names = {kind: f"{prefix}{kind}" for kind in ("plain", "txn", "compact")}
        self._source = source
        self._age_ms = int(age_seconds * 1000)
        self._pause_seconds = pause_seconds
        self._seed = seed
        self._stop = threading.Event()
        self._counts = dict.fromkeys(self.names, 0)
        self._steps = 0
        self._threads = [
            threading.Thread(target=self._forever, args=(kind, work), name=f"writer-{kind}", daemon=True)
            for kind, work in (("plain", self._plain), ("txn", self._transactions), ("compact", self._compacted))
        ]

    def create_topics(self) -> None:
        """Create the topics, without retention by age."""
        keep = {"retention.ms": "-1"}
        cleaned = {
            "cleanup.policy": "compact",
            "segment.ms": str(_SEGMENT_MS),
            "min.cleanable.dirty.ratio": "0.001",
            "min.compaction.lag.ms": "0",
        }
        configs: dict[str, Mapping[str, str]] = {"plain": keep, "txn": keep, "compact": cleaned}
        self._source.create_topics({name: (PARTITIONS, configs[kind]) for kind, name in self.names.items()})

    def start(self) -> None:
        """Write."""
        for thread in self._threads:
            thread.start()

    def wait_for_records(self, count: int, seconds: float = 30) -> None:
        """Wait until each writer has written this many records.

        :raises HarnessError: the writers were too slow.
        """
        deadline = time.monotonic() + seconds
        while min(self._counts.values()) < count:
            if time.monotonic() > deadline:
                raise HarnessError(f"the writers are slow: {self._counts}")
            time.sleep(0.02)

    def stop(self) -> dict[str, int]:
        """End all writers and open transactions; return the number of written records by kind.

        :raises HarnessError: a writer does not end.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                raise HarnessError(f"{thread.name} does not end")
        return dict(self._counts)

    # -- each of them --------------------------------------------------------------------------------------------------

    def _forever(self, kind: str, work: Callable[[random.Random], None]) -> None:
        rng = random.Random(f"{self._seed}/{kind}")
        while not self._stop.is_set():
            # Brokers are killed: a transaction may be lost, a producer fenced. Begin again.
            with contextlib.suppress(KafkaException, BufferError):
                work(rng)

    def _producer(self, **settings: Any) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._source.bootstrap,
                "log_level": 0,
                "linger.ms": 1,
                "message.timeout.ms": int(_PATIENCE_SECONDS * 1000),
                "enable.idempotence": True,
                **settings,
            }
        )

    def _timestamp(self) -> int:
        return int(time.time() * 1000) - self._age_ms

    def _send(self, producer: Producer, kind: str, key: bytes | None = None, timestamp: int | None = None) -> None:
        number = self._counts[kind]
        self._counts[kind] += 1
        producer.produce(
            self.names[kind],
            b"%s-%d-%s" % (kind.encode(), number, b"x" * (number % 50)),
            key,
            # Runs of records in one partition, so that batches have more than one.
            number // 7 % PARTITIONS,
            timestamp=self._timestamp() if timestamp is None else timestamp,
        )

    def _plain(self, rng: random.Random) -> None:
        producer = self._producer(**{"compression.type": rng.choice(["none", "lz4", "zstd"])})
        while not self._stop.is_set():
            for _ in range(rng.randrange(1, 40)):
                self._send(producer, "plain")
            producer.flush(_PATIENCE_SECONDS)
            time.sleep(self._pause_seconds)

    def _transactions(self, rng: random.Random) -> None:
        producer = self._producer(
            **{"transactional.id": f"writer-{self.names['txn']}", "transaction.timeout.ms": 20_000}
        )
        producer.init_transactions(_PATIENCE_SECONDS)
        while not self._stop.is_set():
            producer.begin_transaction()
            for _ in range(rng.choice([1, 1, 2, 5, 60])):
                self._send(producer, "txn")
            producer.flush(_PATIENCE_SECONDS)
            if rng.random() < 0.3:
                producer.abort_transaction(_PATIENCE_SECONDS)
            else:
                producer.commit_transaction(_PATIENCE_SECONDS)
            time.sleep(self._pause_seconds)

    def _compacted(self, rng: random.Random) -> None:
        producer = self._producer()
        # Times count up from before that age, so that segments roll by record time without future timestamps.
        base = self._timestamp() - 86_400_000
        while not self._stop.is_set():
            for _ in range(rng.randrange(1, 30)):
                self._steps += 1
                self._send(producer, "compact", b"key-%d" % rng.randrange(60), base + self._steps * _STEP_MS)
            producer.flush(_PATIENCE_SECONDS)
            time.sleep(self._pause_seconds)
