"""Topics, partitions and record deletion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from kafka.protocol.metadata import MetadataRequest

from airflow_provider_kafka_migration.errors import Transient
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.base import (
    BATCH_ITEMS,
    REQUEST_TIMEOUT_MS,
    REQUEST_WAIT_SECONDS,
    AdminBase,
    ItemError,
    batches,
    item_error,
)
from airflow_provider_kafka_migration.kafka.admin.cluster import operation_names

TOPIC_ALREADY_EXISTS = 36
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_PARTITIONS = 37

NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"
#: A KRaft controller refuses operations of more than 10,000 metadata records; partitions and configs are records.
MAX_RECORDS_PER_REQUEST = 2_000
#: A ZooKeeper controller works for each partition before it answers: fewer, or it does not answer in time.
MAX_RECORDS_ZOOKEEPER = 300
API_DESCRIBE_QUORUM = 55
#: DeleteRecords: up to the high watermark.
HIGH_WATERMARK = -1


@dataclass(frozen=True)
class PartitionFacts:
    """One partition as the metadata tells it; ``leader`` is -1 while there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: ItemError | None = None


@dataclass(frozen=True)
class TopicFacts:
    """One topic. With ``error`` nothing else is known.

    :param topic_id: KIP-516 id as a uuid's text; empty before 2.8 or where the broker does not tell.
    :param operations: what this principal may do on it (KIP-430); ``None`` if not asked or not told.
    """

    name: str
    topic_id: str = ""
    internal: bool = False
    partitions: tuple[PartitionFacts, ...] = ()
    operations: frozenset[str] | None = None
    error: ItemError | None = None

    @property
    def replication_factor(self) -> int:
        """Replicas of the widest partition; 0 without partitions."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True)
class NewTopic:
    """A topic to create; ``replication_factor`` -1 is the brokers' default."""

    name: str
    partitions: int
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def records(self) -> int:
        """Metadata records that a controller writes for it."""
        return 1 + max(self.partitions, 1) + len(self.configs)


@dataclass(frozen=True)
class CreatedTopic:
    """Answer for one topic to create: its id (empty before 2.8 and for ``validate_only``) or the error."""

    name: str
    topic_id: str = ""
    error: ItemError | None = None


@dataclass(frozen=True)
class DeletedRecords:
    """Answer for one partition: its log start now, or the error."""

    low_watermark: int
    error: ItemError | None = None


def topic_id_text(value: Any) -> str:
    """A topic id as text, the form that :class:`~.wire.TopicMetadata` has; empty where there is none."""
    text = str(value or "")
    return "" if text == NO_TOPIC_ID else text


class TopicsAdmin(AdminBase):
    """Describe, create, widen and delete topics; delete records."""

    def describe_topics(self, names: Sequence[str] | None = None, *, operations: bool = False) -> dict[str, TopicFacts]:
        """Topics by name, ascending; all that the principal may describe when ``names`` is None.

        A name that does not exist (or may not be described) is in the answer with its ``error``.
        A topic that the principal may not describe is *absent* from the list of all: brokers hide it.

        :param operations: ask also what this principal may do on each topic.
        """
        if names is None:
            return self._describe_named(None, operations)
        found: dict[str, TopicFacts] = {}
        for batch in batches(sorted(set(names)), 500):
            found.update(self._describe_named(batch, operations))
        return found

    def describe_topics_by_broker(self, names: Sequence[str]) -> dict[int, dict[str, TopicFacts] | Transient]:
        """What each broker of the cluster says of these topics, ascending by broker id.

        A broker that does not answer is there with its error; what another one says does not stand for it.

        :raises Transient: nobody answers who the brokers are.
        """
        self.wire.metadata([])
        found: dict[int, dict[str, TopicFacts] | Transient] = {}
        for broker in self.wire.brokers():
            told: dict[str, TopicFacts] = {}
            try:
                for batch in batches(sorted(set(names)), 500):
                    told.update(self._describe_named(batch, operations=False, broker_id=broker.broker_id))
            except Transient as error:
                found[broker.broker_id] = error
            else:
                found[broker.broker_id] = told
        return found

    def _describe_named(
        self, names: list[str] | None, operations: bool, *, broker_id: int | None = None
    ) -> dict[str, TopicFacts]:
        topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(
            topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=operations
        )
        response = self.wire.request(request, broker_id)
        facts = (_topic(topic, operations) for topic in response.topics)
        return {topic.name: topic for topic in sorted(facts, key=lambda item: item.name)}

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> dict[str, CreatedTopic]:
        """Create topics; needs Create on the topic or the cluster.

        :param validate_only: let the broker check all, permission and policy included, and create nothing.
        :returns: per name the id or the error. A topic that was created although the broker answered too late has
            no error and no id: describe it.
        """
        wanted = {topic.name: topic for topic in topics}
        ids: dict[str, str] = {}

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            request = CreateTopicsRequest(
                topics=[_creatable(wanted[name]) for name in batch],
                timeout_ms=REQUEST_TIMEOUT_MS,
                validate_only=validate_only,
            )
            response = self.wire.controller_request(request, timeout_seconds=REQUEST_WAIT_SECONDS)
            ids.update({item.name: topic_id_text(item.topic_id) for item in response.topics})
            return {item.name: item_error(item.error_code, item.error_message) for item in response.topics}

        done = frozenset({TOPIC_ALREADY_EXISTS})
        errors = self.in_batches(
            sorted(wanted),
            send,
            size=100,
            weight=lambda name: wanted[name].records,
            max_weight=self._max_records(),
            done_codes=done,
        )
        return {name: CreatedTopic(name, "" if error else ids.get(name, ""), error) for name, error in errors.items()}

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> dict[str, ItemError | None]:
        """Widen topics to ``{name: partitions in total}``; needs Alter on the topic."""

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            topics = [
                CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=counts[name], assignments=None)
                for name in batch
            ]
            request = CreatePartitionsRequest(topics=topics, timeout_ms=REQUEST_TIMEOUT_MS, validate_only=validate_only)
            response = self.wire.controller_request(request, timeout_seconds=REQUEST_WAIT_SECONDS)
            return {item.name: item_error(item.error_code, item.error_message) for item in response.results}

        return self.in_batches(
            sorted(counts),
            send,
            weight=counts.__getitem__,
            max_weight=self._max_records(),
            done_codes=frozenset({INVALID_PARTITIONS}),
        )

    def _max_records(self) -> int:
        return MAX_RECORDS_PER_REQUEST if self.api_version(API_DESCRIBE_QUORUM) >= 0 else MAX_RECORDS_ZOOKEEPER

    def delete_topics(self, names: Sequence[str]) -> dict[str, ItemError | None]:
        """Delete topics; needs Delete on the topic. An absent one counts as deleted."""

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in batch],
                topic_names=batch,
                timeout_ms=REQUEST_TIMEOUT_MS,
            )
            response = self.wire.controller_request(request, timeout_seconds=REQUEST_WAIT_SECONDS)
            return {
                item.name: None
                if item.error_code == UNKNOWN_TOPIC_OR_PARTITION
                else item_error(item.error_code, item.error_message)
                for item in response.responses
            }

        return self.in_batches(sorted(set(names)), send)

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], DeletedRecords]:
        """Delete records below an offset per (topic, partition); needs Delete on the topic.

        :param before: exclusive offset, or :data:`HIGH_WATERMARK`.
        """
        lows: dict[tuple[str, int], int] = {}

        def send(batch: list[tuple[str, int]]) -> dict[tuple[str, int], ItemError | None]:
            answers: dict[tuple[str, int], ItemError | None] = {}
            for broker, parts in sorted(self._by_leader(batch).items()):
                if broker < 0:
                    answers.update(dict.fromkeys(parts, item_error(error_codes.LEADER_NOT_AVAILABLE)))
                    continue
                response = self.wire.request(
                    _delete_request(parts, before), broker_id=broker, timeout_seconds=REQUEST_WAIT_SECONDS
                )
                for topic in response.topics:
                    for item in topic.partitions:
                        key = (topic.name, item.partition_index)
                        lows[key] = item.low_watermark
                        answers[key] = item_error(item.error_code)
            return answers

        errors = self.in_batches(sorted(before), send, size=BATCH_ITEMS)
        return {key: DeletedRecords(lows.get(key, -1), error) for key, error in errors.items()}

    def _by_leader(self, keys: Sequence[tuple[str, int]]) -> dict[int, list[tuple[str, int]]]:
        topics = self.wire.metadata({topic for topic, _ in keys})
        grouped: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for topic, partition in keys:
            leader = topics[topic].leaders.get(partition, -1) if topic in topics else -1
            grouped[leader].append((topic, partition))
        return grouped


def _topic(topic: Any, operations: bool) -> TopicFacts:
    error = item_error(topic.error_code)
    if error is not None:
        return TopicFacts(topic.name or "", error=error)
    partitions = (
        PartitionFacts(
            item.partition_index,
            item.leader_id,
            tuple(item.replica_nodes),
            tuple(item.isr_nodes),
            item_error(item.error_code),
        )
        for item in topic.partitions
    )
    return TopicFacts(
        name=topic.name,
        topic_id=topic_id_text(topic.topic_id),
        internal=bool(topic.is_internal),
        partitions=tuple(sorted(partitions, key=lambda item: item.partition)),
        operations=operation_names(topic.authorized_operations) if operations else None,
    )


def _creatable(topic: NewTopic) -> Any:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=name, value=value)
            for name, value in sorted(topic.configs.items())
        ],
    )


def _delete_request(keys: Sequence[tuple[str, int]], before: Mapping[tuple[str, int], int]) -> Any:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in keys:
        by_topic[topic].append(partition)
    topic_type = DeleteRecordsRequest.DeleteRecordsTopic
    return DeleteRecordsRequest(
        topics=[
            topic_type(
                name=topic,
                partitions=[
                    topic_type.DeleteRecordsPartition(partition_index=number, offset=before[topic, number])
                    for number in numbers
                ],
            )
            for topic, numbers in sorted(by_topic.items())
        ],
        timeout_ms=REQUEST_TIMEOUT_MS,
    )
