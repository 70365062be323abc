"""A source reader on a log in memory."""

from __future__ import annotations

import math
import threading
from typing import Any

from copy_specs import orders
from job_documents import job as job_document
from source_logs import record

from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy, Trouble
from airflow_provider_kafka_migration.copy.read_ahead import SourceReader
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.errors import MigrationError, StorageUnavailable
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.storage.base import ObjectStore


class Gated:
    """A store whose puts of segments wait until they are let through, or fail."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.gates: dict[int, threading.Event] = {}
        self.failing: set[int] = set()

    def gate(self, from_offset: int) -> threading.Event:
        return self.gates.setdefault(from_offset, threading.Event())

    def put_new(self, key: str, data: bytes, *, sha256: str | None = None) -> None:
        if key.endswith(".log"):
            offset = int(key.rpartition("/")[2].split(".")[0])
            assert self.gate(offset).wait(20)
            if offset in self.failing:
                raise StorageUnavailable("503 SlowDown")
        self.store.put_new(key, data, sha256=sha256)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class World:
    """A feed without a source: chunks are handed to it as the source side does."""

    def __init__(self, store: ObjectStore, *, segment_max_bytes: int) -> None:
        self.store = Gated(store)
        self.given: list[tuple[int, int]] = []
        self.durable: list[bool] = []
        self.troubles: list[MigrationError] = []
        job = job_document([], "seed", segment_max_bytes=segment_max_bytes)
        spec = orders(topic_id="id-1", until_offset=1_000_000)
        self.copy = PartitionCopy(spec, 0)
        self.copy.state = CopyState.RUNNING
        self.copy.read.last_stable_offset = 1_000_000
        self.feed = SourceReader(
            job,
            None,
            self.store,  # type: ignore[arg-type]
            copies=[self.copy],
            limits=SliceLimits(math.inf, lambda _: 1_000_000),
            wake=lambda: None,
        )
        self.feed._choose_active()

    def _on_chunk(self, _copy: PartitionCopy, chunk: Chunk) -> None:
        self.given.append((chunk.from_offset, chunk.until_offset))
        entry = SegmentIndex(self.store.store, "m1", "orders", 0, "id-1").find(chunk.from_offset)
        self.durable.append(entry is not None)

    def read(self, first: int, count: int = 10) -> int:
        """A chunk comes from the source; its size."""
        data = memoryview(encode_batch([record(first + delta) for delta in range(count)], 0))
        chunk = Chunk("orders", 0, first, first + count, data, last_stable_offset=1_000_000, source_bytes=len(data))
        self.feed.take(self.copy, chunk)
        self.poll()
        return len(data)

    def poll(self) -> None:
        """Take what has become durable, and errors."""
        for item in self.feed.poll():
            if isinstance(item, Trouble):
                self.troubles.append(item.error)
            else:
                self._on_chunk(item.copy, item.chunk)

    def fetch_more(self, now: float) -> None:
        self.feed.fetch_more(now, lambda _: True)

    def settle(self, count: int) -> None:
        """Wait until all puts have ended, then collect; ``count`` chunks must have been given on by then."""
        for waiting in list(self.feed._working.values()):
            for _, future in waiting:
                future.exception(20)
        self.poll()
        assert len(self.given) == count

    def open(self, *offsets: int) -> None:
        for offset in offsets:
            self.store.gate(offset).set()
