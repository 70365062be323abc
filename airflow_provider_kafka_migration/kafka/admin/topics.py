"""Topics, partitions and configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any
from uuid import UUID

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, NewPartitions, ResourceType
from confluent_kafka.admin import ConfigResource as ClientResource
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ListConfigResourcesRequest,
)
from kafka.protocol.metadata import MetadataRequest

from airflow_provider_kafka_migration.errors import Transient
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.base import (
    CLIENT_WAIT,
    REQUEST_TIMEOUT_MS,
    REQUEST_WAIT_SECONDS,
    TOPICS_WAIT,
    AdminBase,
)
from airflow_provider_kafka_migration.kafka.admin.cluster import operation_names
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError, batches, item_error

TOPIC_ALREADY_EXISTS = 36
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_PARTITIONS = 37
UNKNOWN_TOPIC_ID = 100

NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"
#: A KRaft controller refuses operations of more than 10,000 metadata records; partitions and configs are records.
MAX_RECORDS_PER_REQUEST = 2_000
#: A ZooKeeper controller processes each partition before it answers; with more it would not answer in time.
MAX_RECORDS_ZOOKEEPER = 300
API_DELETE_TOPICS = 20
API_DESCRIBE_QUORUM = 55
#: First version of DeleteTopics that names topics by id.
_DELETES_BY_ID = 6


@dataclass(frozen=True)
class PartitionFacts:
    """One partition, from the metadata; ``leader`` is -1 while there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: ItemError | None = None


@dataclass(frozen=True)
class TopicFacts:
    """One topic. If ``error`` is set, nothing else is known.

    :param topic_id: KIP-516 id as the text of a UUID; empty before 2.8 or where the broker does not report it.
    :param operations: what this principal may do on it (KIP-430); ``None`` if not requested or not reported.
    """

    name: str
    topic_id: str = ""
    internal: bool = False
    partitions: tuple[PartitionFacts, ...] = ()
    operations: frozenset[str] | None = None
    error: ItemError | None = None

    @property
    def replication_factor(self) -> int:
        """The largest number of replicas of a partition; 0 without partitions."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True)
class NewTopic:
    """A topic to create; ``replication_factor`` -1 means the brokers' default."""

    name: str
    partitions: int
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def records(self) -> int:
        """Number of metadata records that a controller writes for the topic."""
        return 1 + max(self.partitions, 1) + len(self.configs)


@dataclass(frozen=True)
class CreatedTopic:
    """The result for one topic to create: its id (empty before 2.8 and for ``validate_only``) or the error."""

    name: str
    topic_id: str = ""
    error: ItemError | None = None


def topic_id_text(value: Any) -> str:
    """Return a topic id as text, in the form of :class:`~.kafka.wire.TopicMetadata`; empty where there is none."""
    text = str(value or "")
    return "" if text == NO_TOPIC_ID else text


class TopicsAdmin(AdminBase):
    """Describe, create, widen and delete topics."""

    def describe_topics(self, names: Sequence[str] | None = None, *, operations: bool = False) -> dict[str, TopicFacts]:
        """Describe topics by name, ascending; if ``names`` is None, all that the principal may describe.

        A name that does not exist (or may not be described) is in the result with its ``error``.
        A topic that the principal may not describe is *absent* from the list of all topics: brokers hide it.

        :param operations: also request what this principal may do on each topic.
        """
        if names is None:
            return self._describe_named(None, operations)
        found: dict[str, TopicFacts] = {}
        for batch in batches(sorted(set(names)), 500):
            found.update(self._describe_named(batch, operations))
        return found

    def describe_topics_by_broker(self, names: Sequence[str]) -> dict[int, dict[str, TopicFacts] | Transient]:
        """Ask each broker of the cluster to describe these topics, ascending by broker id.

        A broker that does not answer appears with its error; another broker's answer does not replace its answer.

        :raises Transient: no broker answers with the list of brokers.
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
        response = self.wire.metadata_request(request, broker_id)
        facts = (_topic(topic, operations) for topic in response.topics)
        return {topic.name: topic for topic in sorted(facts, key=lambda item: item.name)}

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> dict[str, CreatedTopic]:
        """Create topics; needs Create on the topic or the cluster.

        :param validate_only: let the broker check everything, including permission and policy, and create nothing.
        :returns: the id or the error by name. A topic that was created although the broker answered too late has
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
        """Widen topics to ``{name: total number of partitions}``; needs Alter on the topic."""

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            wanted = [NewPartitions(name, counts[name]) for name in batch]
            return self.by_client(
                lambda client: client.create_partitions(wanted, validate_only=validate_only, **TOPICS_WAIT)
            )

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
        """Delete topics; needs Delete on the topic. An absent topic counts as deleted."""

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            return self.by_client(
                lambda client: client.delete_topics(batch, **TOPICS_WAIT), done=UNKNOWN_TOPIC_OR_PARTITION
            )

        return self.in_batches(sorted(set(names)), send)

    def delete_topic_with_id(self, name: str, topic_id: str) -> ItemError | None:
        """Delete one topic, and never another of its name; needs Describe and Delete. An absent one counts as deleted.

        Brokers that do not know ids in this request (KIP-516: before 2.8) delete by name.
        """
        if self.api_version(API_DELETE_TOPICS) < _DELETES_BY_ID:
            return self.delete_topics([name])[name]

        def send(_: list[str]) -> dict[str, ItemError | None]:
            topic = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=UUID(topic_id))
            request = DeleteTopicsRequest(topics=[topic], timeout_ms=REQUEST_TIMEOUT_MS)
            response = self.wire.controller_request(
                request, version=_DELETES_BY_ID, timeout_seconds=REQUEST_WAIT_SECONDS
            )
            if not response.responses:
                return {}
            error = item_error(response.responses[0].error_code, response.responses[0].error_message)
            is_gone = error is not None and error.code in (UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID)
            return {name: None if is_gone else error}

        return self.in_batches([name], send)[name]


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


# -- admin configs ----------------------------------------------------------------------------------------------------
#
# Configs of topics, brokers and groups: the source of a value matters more than the value itself.


API_LIST_CONFIG_RESOURCES = 74


class ConfigResource(IntEnum):
    """Kinds of resources that have configs (``ConfigResource.Type``)."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32

    def of(self, name: str) -> ClientResource:
        """Return the AdminClient's resource of this kind."""
        return ClientResource(ResourceType[self.name], name)


class ConfigSource(IntEnum):
    """Where a value comes from (``DescribeConfigsResponse.ConfigSource``)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


#: Sources of values that are set on the resource itself; all others are defaults of broker, cluster or release.
OWN_SOURCES = frozenset({ConfigSource.DYNAMIC_TOPIC, ConfigSource.CLIENT_METRICS, ConfigSource.GROUP})


@dataclass(frozen=True)
class ConfigValue:
    """One config. ``value`` is None for a sensitive config."""

    name: str
    value: str | None
    source: int
    read_only: bool = False
    sensitive: bool = False

    @property
    def is_override(self) -> bool:
        """Whether the value is set on the resource itself (not a default of any kind)."""
        return self.source in OWN_SOURCES


@dataclass(frozen=True)
class Configs:
    """All configs of one resource by name, ascending, or its error."""

    name: str
    values: dict[str, ConfigValue] = field(default_factory=dict, hash=False)
    error: ItemError | None = None

    @property
    def overrides(self) -> dict[str, str]:
        """Name -> value of the configs set on the resource itself; never broker defaults, never secrets."""
        return {
            name: item.value
            for name, item in self.values.items()
            if item.is_override and item.value is not None and not item.sensitive
        }

    def get(self, name: str, default: str = "") -> str:
        """Return the effective value, whatever its source."""
        item = self.values.get(name)
        return default if item is None or item.value is None else item.value


#: A change of configs: name -> new value, or None to delete the override (back to the default).
ConfigChange = Mapping[str, str | None]


class ConfigsAdmin(AdminBase):
    """Describe and change configs."""

    def topic_configs(self, names: Sequence[str]) -> dict[str, Configs]:
        """Read all configs of topics with defaults; needs DescribeConfigs on each. Errors per topic are data."""
        return self._describe_configs(ConfigResource.TOPIC, sorted(set(names)))

    def new_topic_configs(self, name: str) -> Configs:
        """Read the configs that a new topic of this name would have, including defaults; nothing is created.

        The result also shows which topic configs this cluster knows at all. Needs Create and DescribeConfigs on the
        topic (or Create on the cluster); the error is data. Brokers before 2.4 do not report the configs (error
        ``UNSUPPORTED_VERSION``).
        """
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=REQUEST_TIMEOUT_MS, validate_only=True)
        answer = self.wire.controller_request(request).topics[0]
        error = item_error(answer.error_code, answer.error_message) or item_error(answer.topic_config_error_code or 0)
        if error is None and not answer.configs:
            error = item_error(error_codes.UNSUPPORTED_VERSION, "the broker does not report configs of new topics")
        values = {
            item.name: ConfigValue(item.name, item.value, item.config_source, bool(item.read_only), item.is_sensitive)
            for item in sorted(answer.configs or (), key=lambda item: str(item.name))
        }
        return Configs(name, {} if error else values, error)

    def broker_configs(self, broker_id: int) -> Configs:
        """Read all configs of a broker; needs DescribeConfigs on the cluster. The error is data."""
        return self._describe_configs(ConfigResource.BROKER, [str(broker_id)])[str(broker_id)]

    def group_configs(self, groups: Sequence[str]) -> dict[str, Configs]:
        """Read the configs of groups (KIP-848, 4.0+); needs DescribeConfigs on each group."""
        return self._describe_configs(ConfigResource.GROUP, sorted(set(groups)))

    def groups_with_configs(self) -> list[str] | None:
        """List the groups that have group configs (KIP-1142, 4.1+); ``None`` where brokers cannot list them."""
        if self.api_version(API_LIST_CONFIG_RESOURCES) < 1:
            return None
        response = self.wire.request(ListConfigResourcesRequest(resource_types=[int(ConfigResource.GROUP)]))
        self.check(
            response.error_code, None, "config resources cannot be listed", operation="DescribeConfigs on the cluster"
        )
        return sorted(item.resource_name for item in response.config_resources)

    def _describe_configs(self, kind: ConfigResource, names: Sequence[str]) -> dict[str, Configs]:
        found: dict[str, Configs] = {}

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            resources = [kind.of(name) for name in batch]
            answers = self.by_client(lambda client: client.describe_configs(resources, **CLIENT_WAIT))
            found.update({resource.name: _configs(resource.name, answer) for resource, answer in answers.items()})
            return {resource.name: found[resource.name].error for resource in answers}

        errors = self.in_batches(list(names), send)
        return {name: found.get(name) or Configs(name, error=errors[name]) for name in names}

    def alter_topic_configs(
        self, changes: Mapping[str, ConfigChange], *, validate_only: bool = False
    ) -> dict[str, ItemError | None]:
        """Set or delete single configs of topics (IncrementalAlterConfigs, 2.3+); needs AlterConfigs on each."""
        return self.alter_configs(ConfigResource.TOPIC, changes, validate_only=validate_only)

    def alter_configs(
        self, kind: ConfigResource, changes: Mapping[str, ConfigChange], *, validate_only: bool = False
    ) -> dict[str, ItemError | None]:
        """Set or delete single configs of resources of one kind; per resource, all changes apply or none."""

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            resources = [_altered(kind.of(name), changes[name]) for name in batch]
            answers = self.by_client(
                lambda client: client.incremental_alter_configs(resources, validate_only=validate_only, **CLIENT_WAIT)
            )
            return {resource.name: error for resource, error in answers.items()}

        wanted = [name for name in sorted(changes) if changes[name]]
        done: dict[str, ItemError | None] = {name: None for name in sorted(changes) if not changes[name]}
        for part in batches(wanted, 1000):
            done.update(self.in_batches(part, send))
        return done


def _configs(name: str, answer: dict[str, ConfigEntry] | ItemError) -> Configs:
    if isinstance(answer, ItemError):
        return Configs(name, error=answer)
    values = {
        key: ConfigValue(key, item.value, int(item.source), item.is_read_only, item.is_sensitive)
        for key, item in sorted(answer.items())
    }
    return Configs(name, values)


def _altered(resource: ClientResource, change: ConfigChange) -> ClientResource:
    for key, value in sorted(change.items()):
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        resource.add_incremental_config(ConfigEntry(key, value, incremental_operation=operation))
    return resource
