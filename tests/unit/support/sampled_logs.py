"""Logs of a cluster for what samples records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider_kafka_migration.errors import Transient
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.kafka.fetch import FetchedPartition, FetchRange
from airflow_provider_kafka_migration.kafka.wire import TopicMetadata

Content = tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]


def framed(id_: int, payload: bytes = b"\2") -> bytes:
    """A payload with an id; the default one is a record with one int."""
    return b"\0" + id_.to_bytes(4, "big") + payload


class Logs:
    """A cluster of logs: one batch per record, so that a place in the middle begins with the right record."""

    def __init__(self, **topics: Sequence[Content]) -> None:
        self.logs: dict[tuple[str, int], list[bytes]] = {}
        self.fetches: list[list[FetchRange]] = []
        self.broken: dict[str, str] = {}
        self.broken_fetch: Exception | None = None
        self.aborted: list[tuple[int, int]] = []
        for name, contents in topics.items():
            self.put(name, 0, contents)

    def put(self, topic: str, partition: int, contents: Sequence[Content], **options: Any) -> None:
        self.logs[topic, partition] = [
            encode_batch([Record(offset, 1000, item[0], item[1], list(item[2]) if len(item) > 2 else [])], **options)
            for offset, item in enumerate(contents)
        ]

    def metadata(self, topics: Iterable[str]) -> dict[str, TopicMetadata]:
        found = {}
        for name in topics:
            if name in self.broken:
                raise Transient(self.broken[name])
            found[name] = TopicMetadata(name, "", 0, {key[1]: 1 for key in self.logs if key[0] == name}, {}, False)
        return found

    def list_offsets(self, keys: Iterable[tuple[str, int]], which: str) -> dict[tuple[str, int], int]:
        return {key: 0 if which == "earliest" else len(self.logs[key]) for key in keys}

    def fetch_once(self, ranges: Sequence[FetchRange], *, isolation: int) -> list[FetchedPartition]:
        if self.broken_fetch is not None:
            raise self.broken_fetch
        self.fetches.append(list(ranges))
        assert len({(item.topic, item.partition) for item in ranges}) == len(ranges)
        found = []
        for number, item in enumerate(ranges):
            batches = self.logs[item.topic, item.partition][item.offset :]
            data = b"".join(batches)[: item.max_bytes]
            if number == 0 and len(data) < len(batches[0]):
                data = batches[0]
            found.append(FetchedPartition(item.topic, item.partition, 0, 0, 0, 0, self.aborted, memoryview(data)))
        return found
