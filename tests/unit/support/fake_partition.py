"""One partition of a cluster, and clients that know one on each side: for tests of what is proven."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from content_support import log_of

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, records
from airflow_provider_kafka_migration.kafka.fetch import FetchedPartition, FetchRange
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.storage.base import ObjectStore

KEY = ("orders", 0)


class FakePartition:
    """A log of batches of one record, each with the epoch of the leader that took it.

    :param record: makes the record at an offset.
    """

    def __init__(
        self,
        epochs: list[int],
        *,
        start_offset: int = 0,
        topic_id: str = "id 1",
        record: Callable[[int], Record] | None = None,
    ) -> None:
        self.record = record
        self.config = SimpleNamespace(name="target")
        self.start_offset = start_offset
        self.epochs = epochs
        self.topic_id = topic_id
        #: offsets that were asked for
        self.fetched: list[int] = []

    def close(self) -> None:
        """Nothing is open."""

    def metadata(self, topics: list[str]) -> dict[str, Any]:
        return {topic: SimpleNamespace(topic_id=self.topic_id, error_code=0) for topic in topics}

    def retrying(self, attempt: Callable[[], Any]) -> Any:
        return attempt()

    def list_offsets(self, keys: list[TopicPartition], which: str) -> dict[TopicPartition, int]:
        return {key: self.start_offset if which == "earliest" else len(self.epochs) for key in keys}

    def fetch_once(self, ranges: list[FetchRange], **_: Any) -> list[FetchedPartition]:
        offset, end = ranges[0].offset, len(self.epochs)
        self.fetched.append(offset)
        if not self.start_offset <= offset <= end:
            code = error_codes.OFFSET_OUT_OF_RANGE
            return [FetchedPartition(*KEY, code, end, end, self.start_offset, [], memoryview(b""), -1)]
        data = self._batch(offset) if offset < end else b""
        return [FetchedPartition(*KEY, 0, end, end, self.start_offset, [], memoryview(data), -1)]

    def _batch(self, offset: int) -> bytes:
        if self.record is not None:
            made = [self.record(offset)]
        else:
            source = log_of(1, 1, first=offset).stored[0]
            assert isinstance(source, RawBatch)
            made = list(records(source))
        data = bytearray(encode_batch(made, 0))
        data[12:16] = self.epochs[offset].to_bytes(4, "big")
        return bytes(data)


class FakeClients(Clients):
    """A source, a target and a store."""

    def __init__(self, source: FakePartition, target: FakePartition, store: ObjectStore) -> None:
        super().__init__({})
        self.sides = {"source": source, "target": target}
        self.only_store = store

    def wire(self, name: str, **_: Any) -> Any:
        return self.sides[name]

    def store(self, location: str) -> ObjectStore:
        return self.only_store
