"""The raw protocol of one cluster: metadata, leaders, offsets, producer ids, record deletion, any other request.

Calls block, with bounded waits. Copiers use :meth:`Wire.open_connection` for their own non-blocking sockets.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest

from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    BrokerBusy,
    BrokerUnreachable,
    KerberosUnavailable,
    MigrationError,
    TokenUnavailable,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes, fetch
from airflow_provider_kafka_migration.kafka.clock import is_over
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection

TopicPartition = tuple[str, int]
Which = Literal["earliest", "latest", "stable", "log_end"]
_T = TypeVar("_T")

_TIMESTAMPS = {"earliest": -2, "latest": -1, "stable": -1, "log_end": -1}
#: Limit for one request.
REQUEST_SECONDS = 30.0
GROUP_COORDINATOR = 0
TRANSACTION_COORDINATOR = 1
_NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"


class Broker(NamedTuple):
    """A broker, from the metadata."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


class TopicMetadata(NamedTuple):
    """A topic, from the metadata; ``leaders`` maps partition to broker id, -1 without a leader.

    ``leader_epochs`` maps partition to the epoch of that leader, -1 where the broker does not report it.
    """

    name: str
    topic_id: str
    error_code: int
    leaders: dict[int, int]
    replicas: dict[int, list[int]]
    is_internal: bool
    leader_epochs: Mapping[int, int] = MappingProxyType({})


class Wire:
    """Raw access to one cluster. Not thread-safe: one owner.

    :param timeout_seconds: limit for one request.
    :param patience_seconds: how long retriable answers and lost connections are retried.
    :param first_contact_seconds: the same for a cluster that has never answered; None: ``patience_seconds``.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        timeout_seconds: float = REQUEST_SECONDS,
        patience_seconds: float = 20.0,
        first_contact_seconds: float | None = None,
    ) -> None:
        self.config = config
        self.timeout_seconds = timeout_seconds
        self.patience_seconds = patience_seconds
        self.first_contact_seconds = patience_seconds if first_contact_seconds is None else first_contact_seconds
        #: Moment of the monotonic clock after which :meth:`request` sends nothing.
        self.send_until = math.inf
        self.cluster_id = ""
        self.controller_id = -1
        self._brokers: dict[int, Broker] = {}
        self._connections: dict[int, BrokerConnection] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._leader_epochs: dict[TopicPartition, int] = {}
        self._has_answered = False
        #: the bootstrap server that is tried first
        self._first_server = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- connections -------------------------------------------------------------------------------------------------

    def _bootstrap(self) -> BrokerConnection:
        """Return any open connection, or a new one to the first server that answers."""
        for broker_id in sorted(self._connections):
            if not self._connections[broker_id].closed:
                return self._connections[broker_id]
        known = [(broker.host, broker.port) for broker in self._brokers.values()]
        failures: list[MigrationError] = []
        servers = self.config.bootstrap
        first = self._first_server % max(len(servers), 1)
        for host, port in dict.fromkeys([*servers[first:], *servers[:first], *known]):
            try:
                connection = BrokerConnection(self.config, host, port, timeout_seconds=self.timeout_seconds)
            except (TokenUnavailable, KerberosUnavailable):
                # No broker can be logged in to; other addresses would only repeat the wait.
                raise
            except BrokerUnreachable as error:
                failures.append(error)
                continue
            self._connections[-1] = connection
            return connection
        raise BrokerUnreachable(
            f"no broker of the {self.config.name} cluster answers: " + "; ".join(sorted({f.what for f in failures})),
            where=Where(cluster=self.config.name, broker=self.config.bootstrap_servers),
            next_step="check bootstrap.servers, the network and that the brokers run; then clear the task",
        )

    def broker(self, broker_id: int) -> Broker:
        """Return the address of a broker; request metadata if it is unknown."""
        if broker_id not in self._brokers:
            self.metadata([])
        if broker_id not in self._brokers:
            raise BrokerBusy(
                f"broker {broker_id} is not in the cluster's metadata",
                where=Where(cluster=self.config.name, broker=str(broker_id)),
                next_step="wait until the broker is back; then clear the task",
            )
        return self._brokers[broker_id]

    def open_connection(self, broker_id: int) -> BrokerConnection:
        """Open a new connection that the caller owns."""
        broker = self.broker(broker_id)
        return BrokerConnection(
            self.config, broker.host, broker.port, broker_id=broker_id, timeout_seconds=self.timeout_seconds
        )

    def connection(self, broker_id: int | None = None) -> BrokerConnection:
        """Return the shared connection to a broker (None: any broker)."""
        if broker_id is None:
            return self._bootstrap()
        connection = self._connections.get(broker_id)
        if connection is None or connection.closed:
            connection = self.open_connection(broker_id)
            self._connections[broker_id] = connection
        return connection

    # -- requests ----------------------------------------------------------------------------------------------------

    def request(
        self,
        request: Any,
        broker_id: int | None = None,
        *,
        version: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Send a kafka-python message; retry lost connections for ``patience_seconds``.

        :param broker_id: None: any broker.
        :raises BrokerUnreachable: no answer within ``patience_seconds``, or :attr:`send_until` has passed.
        """

        def attempt() -> Any:
            connection = self.connection(broker_id)
            self.check_may_send()
            return connection.call(request, version=version, timeout_seconds=timeout_seconds)

        return self.retrying(attempt)

    def retrying(self, attempt: Callable[[], _T]) -> _T:
        """Call until it succeeds; retry transient errors with jitter for ``patience_seconds``."""
        began = time.monotonic()
        pause = 0.05
        while True:
            try:
                found = attempt()
                self._has_answered = True
                return found
            except AuthenticationFailed:
                raise
            except Transient:
                patience = self.patience_seconds if self._has_answered else self.first_contact_seconds
                if time.monotonic() + pause >= min(began + patience, self.send_until):
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            pause = min(pause * 2, 1.0)

    def check_may_send(self) -> None:
        """Call it right before a request is sent that must not take effect too late.

        :raises BrokerUnreachable: :attr:`send_until` has passed.
        """
        if is_over(self.send_until):
            raise BrokerUnreachable(
                f"the {self.config.name} cluster was not asked any more: the time for the change has passed",
                where=Where(cluster=self.config.name),
                next_step="check that its brokers answer quickly enough; then try again",
            )

    def controller_request(self, request: Any, **options: Any) -> Any:
        """Send to the controller (in KRaft any broker forwards the request, and the metadata names one)."""
        if self.controller_id < 0 or self.controller_id not in self._brokers:
            self.metadata([])
        try:
            return self.request(request, self.controller_id if self.controller_id >= 0 else None, **options)
        except BrokerUnreachable:
            # Another broker may be the controller by now: the next call asks.
            self.controller_id = -1
            raise

    def coordinator(self, key: str, kind: int = GROUP_COORDINATOR) -> int:
        """Return the broker id of the coordinator of a group (0) or transactional id (1)."""

        def attempt() -> int:
            # Version 3: one key per request, supported by brokers from 2.4 to 4.x.
            answer = self.connection().call(FindCoordinatorRequest(key=key, key_type=kind), version=3)
            if answer.error_code:
                raise error_codes.error_of_read(
                    answer.error_code,
                    f"the coordinator of {key!r} is unknown",
                    where=Where(cluster=self.config.name),
                    needs=f"Describe on {'Group' if kind == GROUP_COORDINATOR else 'TransactionalId'} {key}",
                )
            self._brokers[answer.node_id] = Broker(answer.node_id, answer.host, answer.port)
            return int(answer.node_id)

        return self.retrying(attempt)

    # -- metadata ----------------------------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None) -> dict[str, TopicMetadata]:
        """Return topics by name (None: all topics); also refresh brokers, controller and leaders."""
        wanted = (
            None
            if topics is None
            else [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(set(topics))]
        )
        answer = self.metadata_request(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), version=12)
        self._brokers = {item.node_id: Broker(item.node_id, item.host, item.port, item.rack) for item in answer.brokers}
        self.cluster_id = getattr(answer, "cluster_id", "") or ""
        self.controller_id = answer.controller_id
        found = {}
        for topic in answer.topics:
            item = _topic_metadata(topic)
            found[item.name] = item
            for partition, leader in item.leaders.items():
                self._leaders[(item.name, partition)] = leader
                self._leader_epochs[(item.name, partition)] = item.leader_epochs.get(partition, -1)
        return found

    def metadata_request(self, request: Any, broker_id: int | None = None, *, version: int | None = None) -> Any:
        """Send a MetadataRequest, and return the answer of a broker that knows its cluster.

        A broker in ZooKeeper mode that has just started serves clients before its controller has told it anything: for
        seconds it knows no broker, not even itself, and says of every topic that it does not exist.

        :raises BrokerBusy: the broker has answered so for ``patience_seconds``.
        """

        def attempt() -> Any:
            connection = self.connection(broker_id)
            answer = connection.call(request, version=version)
            if not answer.brokers:
                # Another one may know it: the next attempt asks the next server.
                connection.close()
                self._first_server += 1
                raise BrokerBusy(
                    "the broker has just started and does not know its cluster yet: it names no broker and no topic",
                    where=Where(cluster=self.config.name),
                    next_step="wait until the controller of the cluster runs; then clear the task",
                )
            return answer

        return self.retrying(attempt)

    def brokers(self) -> list[Broker]:
        """Return all brokers, ascending by id."""
        if not self._brokers:
            self.metadata([])
        return [self._brokers[key] for key in sorted(self._brokers)]

    def leaders(self, partitions: Iterable[TopicPartition], *, refresh: bool = False) -> dict[TopicPartition, int]:
        """Return the leader of each partition.

        :raises BrokerBusy: a partition has no leader, or its topic is missing, for longer than ``patience_seconds``.
        """
        wanted = sorted(set(partitions))

        def attempt() -> dict[TopicPartition, int]:
            found = self.present_leaders(wanted)
            without = [key for key in wanted if key not in found]
            if without:
                raise BrokerBusy(
                    f"{len(without)} partitions have no leader; the first is {without[0][0]}-{without[0][1]}",
                    where=Where(cluster=self.config.name, topic=without[0][0], partition=without[0][1]),
                    next_step="check that the topic exists and its brokers run; then clear the task",
                )
            return found

        if refresh:
            self.forget_leaders(wanted)
        return self.retrying(attempt)

    def present_leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the leader of each partition that has one at present, without waiting for the others.

        The metadata is requested only for partitions whose leader is not known.
        """
        wanted = sorted(set(partitions))
        missing = {topic for topic, partition in wanted if self._leaders.get((topic, partition), -1) < 0}
        if missing:
            self._check_described(self.metadata(missing))
        return {key: self._leaders[key] for key in wanted if self._leaders.get(key, -1) >= 0}

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the epochs of the leaders that :meth:`leaders` or :meth:`metadata` last returned; -1: unknown."""
        return {key: self._leader_epochs.get(key, -1) for key in partitions}

    def _check_described(self, topics: Mapping[str, TopicMetadata]) -> None:
        """Raise for a topic that may not be described: it has no leaders either, and waiting would not help."""
        for name, topic in sorted(topics.items()):
            if topic.error_code == error_codes.TOPIC_AUTHORIZATION_FAILED:
                raise error_codes.error_for(
                    topic.error_code,
                    "the principal may not describe the topic",
                    where=Where(cluster=self.config.name, topic=name),
                    needs="Describe",
                )

    def forget_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the leaders of partitions after a NOT_LEADER answer or a lost connection."""
        for key in partitions:
            self._leaders.pop(key, None)

    # -- offsets -----------------------------------------------------------------------------------------------------

    def list_offsets(self, partitions: Iterable[TopicPartition], which: Which) -> dict[TopicPartition, int]:
        """Return an offset of each partition.

        :param which: ``earliest``: log start; ``latest``: high watermark; ``stable``: last stable offset; ``log_end``:
            the leader's log end, replicated or not (ListOffsets with replica_id -2, the "debugging" replica).
        """
        return self.offsets_for(partitions, _TIMESTAMPS[which], which)

    def offsets_for(
        self, partitions: Iterable[TopicPartition], timestamp: int, which: Which = "latest"
    ) -> dict[TopicPartition, int]:
        """ListOffsets for a timestamp in ms (the first record at or after it, else -1) or for a special timestamp."""
        left = sorted(set(partitions))
        found: dict[TopicPartition, int] = {}

        def attempt() -> None:
            leaders = self.leaders([key for key in left if key not in found])
            problems: list[tuple[TopicPartition, int]] = []
            for broker_id, keys in _by_value(leaders).items():
                answer = self._list_offsets(broker_id, keys, timestamp, which)
                for topic in answer.topics:
                    for item in topic.partitions:
                        key = (topic.name, item.partition_index)
                        if item.error_code:
                            problems.append((key, item.error_code))
                        else:
                            found[key] = item.offset
            if problems:
                self._raise_for(problems, "offsets cannot be listed", needs="Describe", reads=True)

        self.retrying(attempt)
        return found

    def _list_offsets(self, broker_id: int, keys: Sequence[TopicPartition], timestamp: int, which: Which) -> Any:
        # Replica id -2 is answered by any replica, with an end of its own. Only the epoch makes it refuse where another
        # leader was elected since the metadata was read.
        epochs = self._leader_epochs if which == "log_end" else {}
        topics = [
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                        partition_index=partition,
                        current_leader_epoch=epochs.get((topic, partition), -1),
                        timestamp=timestamp,
                    )
                    for partition in numbers
                ],
            )
            for topic, numbers in by_topic(keys)
        ]
        request = ListOffsetsRequest(
            replica_id=-2 if which == "log_end" else -1,
            isolation_level=1 if which == "stable" else 0,
            topics=topics,
        )
        try:
            return self.connection(broker_id).call(request, version=5)
        except Transient:
            self.forget_leaders(keys)
            raise

    def _raise_for(
        self, problems: Sequence[tuple[TopicPartition, int]], what: str, *, needs: str, reads: bool = False
    ) -> None:
        """Raise for the worst of several per-partition errors; forget stale leaders."""
        self.forget_leaders([key for key, code in problems if code in error_codes.STALE_METADATA])
        others = f" (and {len(problems) - 1} more partitions)" if len(problems) > 1 else ""
        classify = error_codes.error_of_read if reads else error_codes.error_for
        errors = [
            classify(
                code,
                what + others,
                where=Where(cluster=self.config.name, topic=topic, partition=partition),
                needs=needs,
            )
            for (topic, partition), code in problems
        ]
        raise next((error for error in errors if not isinstance(error, Transient)), errors[0])

    # -- producer ids, records ---------------------------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str | None = None, *, transaction_timeout_ms: int = 60_000
    ) -> tuple[int, int]:
        """InitProducerId: (producer id, epoch). A transactional id's epoch goes up, which fences older owners."""

        def attempt() -> tuple[int, int]:
            broker_id = None
            if transactional_id is not None:
                broker_id = self.coordinator(transactional_id, TRANSACTION_COORDINATOR)
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms
            )
            answer = self.connection(broker_id).call(request, version=2)
            if answer.error_code:
                what = "no producer id was assigned" + (f" for {transactional_id}" if transactional_id else "")
                needs = f"Write on TransactionalId {transactional_id}" if transactional_id else "Write on Topic (any)"
                raise error_codes.error_for(answer.error_code, what, where=Where(cluster=self.config.name), needs=needs)
            return int(answer.producer_id), int(answer.producer_epoch)

        return self.retrying(attempt)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """DeleteRecords: return the new log start by partition. Errors of partitions raise, naming the first."""
        low: dict[TopicPartition, int] = {}

        def attempt() -> None:
            leaders = self.leaders([key for key in offsets if key not in low])
            problems: list[tuple[TopicPartition, int]] = []
            for broker_id, keys in _by_value(leaders).items():
                topics = [
                    DeleteRecordsRequest.DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(
                                partition_index=number, offset=offsets[(topic, number)]
                            )
                            for number in numbers
                        ],
                    )
                    for topic, numbers in by_topic(keys)
                ]
                answer = self.connection(broker_id).call(DeleteRecordsRequest(topics=topics, timeout_ms=30_000))
                for topic in answer.topics:
                    for item in topic.partitions:
                        if item.error_code:
                            problems.append(((topic.name, item.partition_index), item.error_code))
                        else:
                            low[(topic.name, item.partition_index)] = item.low_watermark
            if problems:
                self._raise_for(problems, "records cannot be deleted", needs="Delete")

        self.retrying(attempt)
        return low

    def fetch_once(
        self,
        ranges: Sequence[fetch.FetchRange],
        *,
        isolation: int = fetch.READ_COMMITTED,
        max_wait_ms: int = 0,
        max_bytes: int = 32 * 1024 * 1024,
    ) -> list[fetch.FetchedPartition]:
        """Fetch once from each leader involved; errors stay in the answers, and stale leaders are forgotten.

        :raises BrokerBusy: a quota delays fetches for longer than ``patience_seconds``.
        """
        leaders = self.leaders([(item.topic, item.partition) for item in ranges])
        found: list[fetch.FetchedPartition] = []
        for broker_id in sorted(set(leaders.values())):
            mine = [item for item in ranges if leaders[(item.topic, item.partition)] == broker_id]
            connection = self.connection(broker_id)
            version = api_version(connection, fetch.API_KEY, fetch.MAX_VERSION)
            body = fetch.encode(mine, version, max_wait_ms=max_wait_ms, max_bytes=max_bytes, isolation=isolation)
            found.extend(self._fetch_at(connection, version, body))
        self.forget_leaders(
            (item.topic, item.partition) for item in found if item.error_code in error_codes.STALE_METADATA
        )
        return found

    def _fetch_at(self, connection: BrokerConnection, version: int, body: bytes) -> list[fetch.FetchedPartition]:
        """Fetch; retry when a broker whose quota is used up answers immediately, without any partition."""
        began = time.monotonic()
        while True:
            answer = fetch.decode(connection.call_raw(fetch.API_KEY, version, [body]), version)
            if answer.partitions or answer.throttle_time_ms <= 0:
                return answer.partitions
            pause = min(answer.throttle_time_ms / 1000, 1.0)
            if time.monotonic() + pause >= began + self.patience_seconds:
                raise BrokerBusy(
                    "the broker's quota delays fetches",
                    where=Where(cluster=self.config.name),
                    next_step="raise consumer_byte_rate of the migration's principal, or wait",
                )
            time.sleep(pause)


def api_version(connection: BrokerConnection, api_key: int, highest: int) -> int:
    """Return the highest version of an api that the broker and our hand-written codec know."""
    low, high = connection.api_versions.get(api_key, (0, highest))
    if low > highest:
        raise BrokerBusy(
            f"the broker requires version {low} of api {api_key}, but this package only knows up to {highest}",
            where=Where(cluster=connection.config.name),
            next_step="use a newer version of this package",
        )
    return min(high, highest)


def _topic_metadata(topic: Any) -> TopicMetadata:
    topic_id = str(getattr(topic, "topic_id", "") or "")
    return TopicMetadata(
        name=topic.name,
        topic_id="" if topic_id == _NO_TOPIC_ID else topic_id,
        error_code=topic.error_code,
        leaders={item.partition_index: item.leader_id for item in topic.partitions},
        replicas={item.partition_index: list(item.replica_nodes) for item in topic.partitions},
        is_internal=bool(topic.is_internal),
        leader_epochs={item.partition_index: int(getattr(item, "leader_epoch", -1)) for item in topic.partitions},
    )


def by_topic(keys: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Group partitions by topic, both ascending."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(keys):
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())


def _by_value(leaders: Mapping[TopicPartition, int]) -> dict[int, list[TopicPartition]]:
    grouped: dict[int, list[TopicPartition]] = {}
    for key, broker_id in sorted(leaders.items()):
        grouped.setdefault(broker_id, []).append(key)
    return dict(sorted(grouped.items()))
