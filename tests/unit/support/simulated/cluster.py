"""The simulated cluster: topics, leaders, coordinators, faults, and what a test does to it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from simulated.coordinators import Coordinators
from simulated.faults import Fault, Kind
from simulated.handlers import API_VERSIONS
from simulated.partition_log import PartitionLog, Refused
from simulated.server import Server


@dataclass
class Topic:
    """A topic: the logs and the leaders of its partitions."""

    topic_id: uuid.UUID
    logs: list[PartitionLog]
    leaders: list[int]


@dataclass
class SimulatedCluster:
    """Brokers on loopback that share one model. A context manager; one lock protects everything in it.

    :param transaction_version: 2: KIP-890, as with Kafka 4; 1: as with Kafka 3.
    :param writes_markers: whether clients may send WriteTxnMarkers.
    """

    name: str = "cluster"
    brokers: int = 1
    transaction_version: int = 2
    writes_markers: bool = True
    topics: dict[str, Topic] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    #: principals may not use these transactional ids
    forbidden_ids: tuple[str, ...] = ()
    #: api keys that the brokers offer
    api_keys: frozenset[int] = frozenset(API_VERSIONS)

    def __post_init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.coordinators = Coordinators(self.log)
        self.servers: list[Server] = []
        #: requests that were handled; ApiVersions is not counted
        self.handled = 0
        #: api keys of all handled requests, in order
        self.requests: list[int] = []
        #: errors of the model itself
        self.failures: list[Exception] = []
        #: long polls end without waiting
        self.in_hurry = False

    def __enter__(self) -> SimulatedCluster:
        self.servers = [Server(self, number) for number in range(self.brokers)]
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()
        if self.failures:
            raise self.failures[0]

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a client."""
        return {"bootstrap.servers": self.bootstrap}

    # -- topics ------------------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, **log: int) -> PartitionLog:
        """Create a topic and return the log of its first partition."""
        with self.changed:
            leaders = [number % self.brokers for number in range(partitions)]
            self.topics[name] = Topic(uuid.uuid4(), [PartitionLog(**log) for _ in range(partitions)], leaders)
            return self.topics[name].logs[0]

    def delete(self, name: str) -> None:
        """Delete a topic."""
        with self.changed:
            del self.topics[name]

    def log(self, key: TopicPartition) -> PartitionLog:
        """Return the log of a partition.

        :raises Refused: there is none.
        """
        topic = self.topics.get(key[0])
        if topic is None or not 0 <= key[1] < len(topic.logs):
            raise Refused(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        return topic.logs[key[1]]

    def led_log(self, key: TopicPartition, broker_id: int) -> PartitionLog:
        """Return the log of a partition that this broker leads.

        :raises Refused: there is none, or another broker leads it.
        """
        log = self.log(key)
        if self.topics[key[0]].leaders[key[1]] != broker_id:
            raise Refused(error_codes.NOT_LEADER_OR_FOLLOWER)
        return log

    def move_leader(self, key: TopicPartition, broker_id: int) -> None:
        """Let another broker lead a partition, with a new leader epoch."""
        with self.changed:
            self.topics[key[0]].leaders[key[1]] = broker_id
            self.log(key).leader_epoch += 1

    # -- content -----------------------------------------------------------------------------------------------------

    def produce(self, topic: str, values: Iterable[bytes | None], partition: int = 0, *, batch: int = 5) -> None:
        """Append records without a producer id, so many a batch."""
        log = self.log((topic, partition))
        with self.changed:
            found = list(values)
            for start in range(0, len(found), batch):
                log.append(data_batch(found[start : start + batch], log.log_end))
            self.changed.notify_all()

    def transaction(
        self, topic: str, values: Iterable[bytes | None], *, commit: bool | None, producer_id: int = 77
    ) -> None:
        """Append a transaction of an application; ``commit`` None leaves it open."""
        log = self.log((topic, 0))
        with self.changed:
            found = list(values)
            state = log.producers.get(producer_id)
            sequence = 0 if state is None or not state.batches else state.last_sequence + 1
            if found:
                log.append(
                    data_batch(found, log.log_end, producer_id=producer_id, sequence=sequence), transactional=True
                )
            if commit is not None:
                log.write_marker(producer_id, 0, commit=commit)
            self.changed.notify_all()

    # -- faults ------------------------------------------------------------------------------------------------------

    def fault(self, kind: Kind, api: int, **fields: Any) -> Fault:
        """Let a fault happen from now on; see :class:`Fault`."""
        found = Fault(kind, api, **fields)
        with self.changed:
            self.faults.append(found)
        return found

    def fault_of(self, api: int) -> Fault | None:
        """Count a request; return the fault that happens to it."""
        return next((fault for fault in self.faults if fault.hits_now(api)), None)

    def hurry(self, is_in_hurry: bool) -> None:
        """Let long polls end without waiting, or wait again."""
        with self.changed:
            self.in_hurry = is_in_hurry
            self.changed.notify_all()


def data_batch(
    values: list[bytes | None], first: int, *, producer_id: int = -1, sequence: int = -1, epoch: int = 0
) -> bytes:
    """A client's batch with these values; keys and times derive from the offsets that they will get."""
    found = [
        Record(
            number,
            1_700_000_000_000 + first + number,
            b"key-%d" % ((first + number) % 7),
            value,
            [(b"h", b"%d" % number)],
        )
        for number, value in enumerate(values)
    ]
    return encode_batch(
        found,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence,
        transactional=producer_id >= 0,
    )
