"""The wire client of a simulated cluster: the methods that phases and what they use call."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from kafka.protocol.consumer import ListOffsetsRequest

from airflow_provider_kafka_migration.errors import BrokerBusy, Where
from airflow_provider_kafka_migration.kafka import error_codes, fetch, produce
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Broker, TopicMetadata, TopicPartition
from phase_world.outside import Outside

if TYPE_CHECKING:
    from phase_world.cluster import ClusterState
    from phase_world.logs import Log

_T = TypeVar("_T")
_API_VERSIONS = {0: (3, 8), 1: (4, 10), 2: (1, 8), 27: (1, 1)}


class SimWire:
    """Raw access to one simulated cluster with one broker."""

    def __init__(self, role: str, config: ClientConfig, state: ClusterState, outside: Outside) -> None:
        self.config = config
        self.patience_seconds = 0.0
        self._name, self._state, self._outside = f"{role}.wire", state, outside

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self._state.cluster_id

    def _call(self, method: str, act: Callable[[], _T], *, changes: str = "") -> _T:
        return self._outside.call(f"{self._name}.{method}", act, changes=changes)

    def _log(self, key: TopicPartition) -> Log:
        topic = self._state.topics.get(key[0])
        if topic is None or key[1] >= len(topic.logs):
            raise BrokerBusy("the topic is unknown", where=Where(topic=key[0], partition=key[1]), next_step="wait")
        if key in self._state.leaderless:
            raise BrokerBusy("there is no leader", where=Where(topic=key[0], partition=key[1]), next_step="wait")
        return topic.logs[key[1]]

    def close(self) -> None:
        """Nothing is open."""

    def retrying(self, attempt: Callable[[], _T]) -> _T:
        """Call once: simulated clusters do not become well while a caller waits."""
        return attempt()

    def list_offsets(self, partitions: Iterable[TopicPartition], which: str) -> dict[TopicPartition, int]:
        """See ``Wire.list_offsets``."""
        keys = sorted(set(partitions))
        return self._call(f"list_offsets.{which}", lambda: {key: self._log(key).offset(which) for key in keys})

    def offsets_for(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        """See ``Wire.offsets_for``; to the batch."""
        keys = sorted(set(partitions))
        return self._call("offsets_for", lambda: {key: self._log(key).first_since(timestamp) for key in keys})

    def metadata(self, topics: Iterable[str] | None) -> dict[str, TopicMetadata]:
        """See ``Wire.metadata``."""
        names = sorted(self._state.topics if topics is None else set(topics))
        return self._call("metadata", lambda: {name: self._metadata(name) for name in names})

    def brokers(self) -> list[Broker]:
        """See ``Wire.brokers``."""
        return self._call("brokers", lambda: [Broker(1, f"{self._state.cluster_id}.example", 9092)])

    def _metadata(self, name: str) -> TopicMetadata:
        topic = self._state.topics.get(name)
        if topic is None:
            return TopicMetadata(name, "", error_codes.UNKNOWN_TOPIC_OR_PARTITION, {}, {}, is_internal=False)
        numbers = range(len(topic.logs))
        leaders = {number: -1 if (name, number) in self._state.leaderless else 1 for number in numbers}
        replicas = {number: [1] for number in numbers}
        return TopicMetadata(name, topic.topic_id, 0, leaders, replicas, is_internal=False)

    def leaders(self, partitions: Iterable[TopicPartition], *, refresh: bool = False) -> dict[TopicPartition, int]:
        """See ``Wire.leaders``."""
        keys = sorted(set(partitions))

        def act() -> dict[TopicPartition, int]:
            for key in keys:
                self._log(key)
            return dict.fromkeys(keys, 1)

        return self._call("leaders", act)

    def forget_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing is remembered."""

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """No leader epochs are known."""
        return dict.fromkeys(partitions, -1)

    def init_producer_id(self, transactional_id: str | None = None, **_: Any) -> tuple[int, int]:
        """See ``Wire.init_producer_id``."""

        def act() -> tuple[int, int]:
            self._state.next_producer_id += 1
            return self._state.next_producer_id, 0

        return self._call("init_producer_id", act, changes="a producer id")

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """See ``Wire.delete_records``."""

        def act() -> dict[TopicPartition, int]:
            for key, offset in offsets.items():
                self._log(key).cut(offset)
            return dict(offsets)

        return self._call("delete_records", act, changes=str(sorted(offsets)))

    def fetch_once(
        self, ranges: Sequence[fetch.FetchRange], *, isolation: int = fetch.READ_COMMITTED, **_: Any
    ) -> list[fetch.FetchedPartition]:
        """See ``Wire.fetch_once``."""
        return self._call("fetch_once", lambda: [self._fetched(item, isolation) for item in ranges])

    def _fetched(self, item: fetch.FetchRange, isolation: int) -> fetch.FetchedPartition:
        log = self._log((item.topic, item.partition))
        high, stable = log.offset("latest"), log.offset("stable")
        code = 0 if log.start <= item.offset <= high else error_codes.OFFSET_OUT_OF_RANGE
        visible = item.offset < (stable if isolation == fetch.READ_COMMITTED else high)
        data = log.read(item.offset) if visible and not code else b""
        return fetch.FetchedPartition(
            item.topic, item.partition, code, high, stable, log.start, [], memoryview(data)
        )  # fmt: skip

    def connection(self, _broker_id: int | None = None) -> SimConnection:
        """See ``Wire.connection``."""
        return SimConnection(self)

    def request(self, request: Any, _broker_id: int | None = None, *, version: int | None = None, **_: Any) -> Any:
        """See ``Wire.request``."""
        return self.connection().call(request, version=version)

    # -- what a connection needs --------------------------------------------------------------------------------------

    def produce(self, batches: list[tuple[TopicPartition, bytes]]) -> list[tuple[TopicPartition, int, int]]:
        """Append batches; return (partition, error code, base offset)."""

        def act() -> list[tuple[TopicPartition, int, int]]:
            return [(key, *self._log(key).append(data)) for key, data in batches]

        return self._call("produce", act, changes=str([key for key, _ in batches]))

    def write_markers(self, request: Any) -> Any:
        """Append the markers of a WriteTxnMarkers request."""

        def one(marker: Any, name: str, number: int) -> Any:
            topic = self._state.topics.get(name)
            if topic is None:
                return SimpleNamespace(partition_index=number, error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)
            record = Record(0, 1, struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 0), [])
            epoch = marker.producer_epoch
            data = encode_batch(
                [record], producer_id=marker.producer_id, producer_epoch=epoch, transactional=True, control=True
            )
            log = topic.logs[number]
            code = log.append(data)[0]
            if code == error_codes.NONE:
                log.remember(marker.producer_id, epoch)
            return SimpleNamespace(partition_index=number, error_code=code)

        def act() -> Any:
            markers = [
                SimpleNamespace(
                    topics=[
                        SimpleNamespace(
                            name=topic.name, partitions=[one(marker, topic.name, n) for n in topic.partition_indexes]
                        )
                        for topic in marker.topics
                    ]
                )
                for marker in request.markers
            ]
            return SimpleNamespace(markers=markers)

        return self._call("write_markers", act, changes="markers")

    def offsets_at(self, request: Any) -> Any:
        """Answer a ListOffsets request."""
        which = {-2: "earliest"}

        def one(topic: str, item: Any) -> Any:
            kind = which.get(item.timestamp, "log_end" if request.replica_id == -2 else "latest")
            offset = self._log((topic, item.partition_index)).offset(kind)
            return SimpleNamespace(partition_index=item.partition_index, error_code=0, offset=offset)

        def act() -> Any:
            topics = [
                SimpleNamespace(name=topic.name, partitions=[one(topic.name, item) for item in topic.partitions])
                for topic in request.topics
            ]
            return SimpleNamespace(topics=topics)

        return self._call("list_offsets.at", act)


class SimConnection:
    """A connection to the only broker of a simulated cluster."""

    api_versions = _API_VERSIONS

    def __init__(self, wire: SimWire) -> None:
        self._wire = wire
        self.config = wire.config

    def call(self, request: Any, *, version: int | None = None, **_: Any) -> Any:
        """Answer one of the messages that phases send directly."""
        if isinstance(request, ListOffsetsRequest):
            return self._wire.offsets_at(request)
        return self._wire.write_markers(request)

    def call_raw(self, api_key: int, _version: int, parts: Iterable[Any]) -> memoryview:
        """Answer a produce request."""
        assert api_key == produce.API_KEY, "only produce requests are simulated here"
        answers = self._wire.produce(list(_batches(b"".join(bytes(part) for part in parts))))
        body = struct.pack(">i", len(answers))
        for (topic, partition), code, base in answers:
            name = topic.encode()
            body += struct.pack(">h", len(name)) + name + struct.pack(">iihqqq", 1, partition, code, base, -1, 0)
            body += struct.pack(">ih", 0, -1)
        return memoryview(body + struct.pack(">i", 0))


def _batches(body: bytes) -> Iterable[tuple[TopicPartition, bytes]]:
    position = 2 + 2 + 4  # no transactional id, acks, timeout
    (topics,) = struct.unpack_from(">i", body, position)
    position += 4
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", body, position)
        name = body[position + 2 : position + 2 + length].decode()
        position += 2 + length
        (count,) = struct.unpack_from(">i", body, position)
        position += 4
        for _ in range(count):
            partition, size = struct.unpack_from(">ii", body, position)
            position += 8
            yield (name, partition), body[position : position + size]
            position += size
