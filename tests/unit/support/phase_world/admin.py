"""The admin client of a simulated cluster: the public methods that phases and what they use call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_kafka_migration.errors import Transient
from airflow_provider_kafka_migration.kafka.admin.access import (
    Acl,
    AclListing,
    NewScramCredential,
    Quota,
    QuotaEntity,
    ScramUser,
)
from airflow_provider_kafka_migration.kafka.admin.cluster import ClusterDescription, LogDir
from airflow_provider_kafka_migration.kafka.admin.groups import (
    GroupDescription,
    GroupListing,
    GroupMember,
    GroupOffset,
    GroupOffsets,
)
from airflow_provider_kafka_migration.kafka.admin.producers import PartitionProducers, TransactionFacts
from airflow_provider_kafka_migration.kafka.admin.topics import (
    Configs,
    ConfigSource,
    ConfigValue,
    CreatedTopic,
    NewTopic,
    PartitionFacts,
    TopicFacts,
)
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from phase_world.outside import Outside

if TYPE_CHECKING:
    from phase_world.cluster import ClusterState, Group

_T = TypeVar("_T")

UNKNOWN_TOPIC = ItemError(3, "UNKNOWN_TOPIC_OR_PARTITION", retriable=True)
TOPIC_EXISTS = ItemError(36, "TOPIC_ALREADY_EXISTS")
NOT_PERMITTED = ItemError(29, "TOPIC_AUTHORIZATION_FAILED")
GROUP_NOT_PERMITTED = ItemError(30, "GROUP_AUTHORIZATION_FAILED")
CLUSTER_NOT_PERMITTED = ItemError(31, "CLUSTER_AUTHORIZATION_FAILED")
REFUSED = ItemError(42, "INVALID_REQUEST", "not like this")
BUSY = ItemError(14, "COORDINATOR_LOAD_IN_PROGRESS", retriable=True)
#: configs that each new topic has by default
DEFAULTS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
}


class SimAdmin:
    """Admin access to one simulated cluster."""

    alters_share_groups = False

    def __init__(self, role: str, state: ClusterState, outside: Outside) -> None:
        self._name, self._state, self._outside = f"{role}.admin", state, outside
        self.send_until = math.inf

    def _call(self, method: str, act: Callable[[], _T], *, changes: str = "") -> _T:
        return self._outside.call(f"{self._name}.{method}", act, changes=changes)

    # -- cluster ------------------------------------------------------------------------------------------------------

    def facts(self) -> ClusterDescription:
        """See ``Admin.facts``."""
        state = self._state
        description = ClusterDescription(state.cluster_id, "4.1", "kraft", [1], {}, authorizer=state.acls is not None)
        return self._call("facts", lambda: description)

    def log_dirs(self) -> list[LogDir]:
        """See ``ClusterAdmin.log_dirs``."""
        sizes = {
            (name, number): sum(map(len, log.batches))
            for name, topic in self._state.topics.items()
            for number, log in enumerate(topic.logs)
        }
        return self._call("log_dirs", lambda: [LogDir(1, "/data", 10**12, 10**12, sizes)])

    def broker_configs(self, _broker_id: int) -> Configs:
        """See ``ConfigsAdmin.broker_configs``."""
        return self._call("broker_configs", lambda: _configs("1", self._state.broker_configs))

    # -- topics -------------------------------------------------------------------------------------------------------

    def describe_topics(self, names: Sequence[str] | None = None, *, operations: bool = False) -> dict[str, TopicFacts]:
        """See ``TopicsAdmin.describe_topics``."""

        def act() -> dict[str, TopicFacts]:
            return {name: self._facts(name) for name in sorted(self._state.topics if names is None else names)}

        return self._call("describe_topics", act)

    def describe_topics_by_broker(self, names: Sequence[str]) -> dict[int, dict[str, TopicFacts] | Transient]:
        """See ``TopicsAdmin.describe_topics_by_broker``."""
        return self._call("describe_topics_by_broker", lambda: {1: {name: self._facts(name) for name in names}})

    def _facts(self, name: str) -> TopicFacts:
        topic = self._state.topics.get(name)
        if topic is None:
            return TopicFacts(name, error=UNKNOWN_TOPIC)
        partitions = tuple(PartitionFacts(number, 1, (1,), (1,)) for number in range(len(topic.logs)))
        return TopicFacts(name, topic.topic_id, partitions=partitions)

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> dict[str, CreatedTopic]:
        """See ``TopicsAdmin.create_topics``."""

        def one(item: NewTopic) -> CreatedTopic:
            if item.name in self._state.topics:
                return CreatedTopic(item.name, error=TOPIC_EXISTS)
            topic = self._state.create(item.name, item.partitions)
            topic.configs.update(item.configs)
            return CreatedTopic(item.name, topic.topic_id)

        names = [item.name for item in topics]
        return self._call("create_topics", lambda: {item.name: one(item) for item in topics}, changes=str(names))

    def create_partitions(self, totals: Mapping[str, int], **_: Any) -> dict[str, ItemError | None]:
        """See ``TopicsAdmin.create_partitions``."""
        from phase_world.logs import Log

        def one(name: str, total: int) -> None:
            logs = self._state.topics[name].logs
            logs.extend(Log() for _ in range(total - len(logs)))

        def act() -> dict[str, ItemError | None]:
            for name, total in totals.items():
                one(name, total)
            return dict.fromkeys(totals)

        return self._call("create_partitions", act, changes=str(dict(totals)))

    def delete_topics(self, names: Sequence[str]) -> dict[str, ItemError | None]:
        """See ``TopicsAdmin.delete_topics``."""

        def act() -> dict[str, ItemError | None]:
            return {name: None if self._state.topics.pop(name, None) else UNKNOWN_TOPIC for name in names}

        return self._call("delete_topics", act, changes=str(list(names)))

    def delete_topic_with_id(self, name: str, topic_id: str) -> ItemError | None:
        """See ``TopicsAdmin.delete_topic_with_id``."""

        def act() -> None:
            topic = self._state.topics.get(name)
            if topic is not None and topic.topic_id == topic_id:
                del self._state.topics[name]

        self._call("delete_topic_with_id", act, changes=name)
        return None

    def topic_configs(self, names: Sequence[str]) -> dict[str, Configs]:
        """See ``ConfigsAdmin.topic_configs``."""

        def one(name: str) -> Configs:
            topic = self._state.topics.get(name)
            return Configs(name, error=UNKNOWN_TOPIC) if topic is None else self._configs(name, topic.configs)

        return self._call("topic_configs", lambda: {name: one(name) for name in sorted(set(names))})

    def _configs(self, name: str, overrides: Mapping[str, str | None]) -> Configs:
        return _configs(name, overrides, self._state.topic_defaults)

    def new_topic_configs(self, name: str) -> Configs:
        """See ``ConfigsAdmin.new_topic_configs``."""
        return self._call("new_topic_configs", lambda: self._configs(name, {}))

    def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> dict[str, ItemError | None]:
        """See ``ConfigsAdmin.alter_topic_configs``."""

        def act() -> dict[str, ItemError | None]:
            for name, values in changes.items() if not validate_only else ():
                configs = self._state.topics[name].configs
                for key, value in values.items():
                    configs.pop(key, None)
                    if value is not None:
                        configs[key] = value
            return dict.fromkeys(changes)

        changed = str(sorted(changes)) if changes and not validate_only else ""
        return self._call("alter_topic_configs", act, changes=changed)

    # -- groups -------------------------------------------------------------------------------------------------------

    def list_groups(self) -> dict[str, GroupListing]:
        """See ``GroupsAdmin.list_groups``."""

        def act() -> dict[str, GroupListing]:
            groups = sorted(self._state.groups.items())
            return {name: GroupListing(name, item.type, item.state, "consumer", 1) for name, item in groups}

        return self._call("list_groups", act)

    def describe_groups(self, names: Sequence[str], **_: Any) -> dict[str, GroupDescription]:
        """See ``GroupsAdmin.describe_groups``."""

        def one(name: str, group: Group) -> GroupDescription:
            members = tuple(GroupMember(client, client, "/10.0.0.1", group.assigned) for client in group.members)
            return GroupDescription(name, group.type, group.state, members)

        def act() -> dict[str, GroupDescription]:
            groups = self._state.groups
            missing = {name: GroupDescription(name, "classic", "Dead") for name in names if name not in groups}
            return {**missing, **{name: one(name, groups[name]) for name in names if name in groups}}

        return self._call("describe_groups", act)

    def groups_offsets(self, names: Sequence[str], *, require_stable: bool = True) -> dict[str, GroupOffsets]:
        """See ``GroupsAdmin.groups_offsets``."""

        def act() -> dict[str, GroupOffsets]:
            groups = self._state.groups
            there = {name: dict(groups[name].offsets) if name in groups else {} for name in names}
            return {name: GroupOffsets(name, offsets) for name, offsets in there.items()}

        return self._call("groups_offsets", act)

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, GroupOffset]
    ) -> dict[TopicPartition, ItemError | None]:
        """See ``GroupsAdmin.alter_group_offsets``."""

        def act() -> dict[TopicPartition, ItemError | None]:
            if group not in self._state.groups:
                self._state.group(group).type = "simple"
            found = self._state.groups[group]
            found.offsets.update(offsets)
            self._state.commits.append((group, {key: item.offset for key, item in offsets.items()}))
            return dict.fromkeys(offsets)

        return self._call("alter_group_offsets", act, changes=group)

    def delete_group_offsets(
        self, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ItemError | None]:
        """See ``GroupsAdmin.delete_group_offsets``. A simple group without offsets disappears, on brokers later."""
        wanted = sorted(set(places))

        def act() -> dict[TopicPartition, ItemError | None]:
            found = self._state.groups.get(group)
            if found is None:
                return dict.fromkeys(wanted)
            if found.members:
                return dict.fromkeys(wanted, ItemError(86, "GROUP_SUBSCRIBED_TO_TOPIC"))
            for place in wanted:
                found.offsets.pop(place, None)
            if found.type == "simple" and not found.offsets:
                del self._state.groups[group]
            return dict.fromkeys(wanted)

        return self._call("delete_group_offsets", act, changes=group)

    def delete_groups(self, names: Sequence[str]) -> dict[str, ItemError | None]:
        """See ``GroupsAdmin.delete_groups``."""

        def one(name: str) -> ItemError | None:
            group = self._state.groups.get(name)
            if group is not None and group.members:
                return ItemError(68, "NON_EMPTY_GROUP")
            self._state.groups.pop(name, None)
            return None

        return self._call("delete_groups", lambda: {name: one(name) for name in names}, changes=str(sorted(names)))

    def groups_with_configs(self) -> list[str] | None:
        """No group has configs of its own."""
        return self._call("groups_with_configs", lambda: None)

    # -- access -------------------------------------------------------------------------------------------------------

    def describe_acls(self, *, broker_id: int | None = None) -> AclListing:
        """See ``AclsAdmin.describe_acls``."""

        def act() -> AclListing:
            acls = self._state.acls
            return AclListing(authorizer=False) if acls is None else AclListing(True, tuple(sorted(acls)))

        return self._call("describe_acls", act)

    def create_acls(self, acls: Sequence[Acl]) -> dict[Acl, ItemError | None]:
        """See ``AclsAdmin.create_acls``."""

        def act() -> dict[Acl, ItemError | None]:
            assert self._state.acls is not None
            self._state.acls.update(acls)
            return dict.fromkeys(acls)

        return self._call("create_acls", act, changes=f"{len(acls)} ACLs" if acls else "")

    def delete_acls(self, acls: Sequence[Acl]) -> dict[Acl, ItemError | None]:
        """See ``AclsAdmin.delete_acls``."""

        def act() -> dict[Acl, ItemError | None]:
            assert self._state.acls is not None
            self._state.acls.difference_update(acls)
            return dict.fromkeys(acls)

        return self._call("delete_acls", act, changes=f"{len(acls)} ACLs" if acls else "")

    def scram_users(self, *, broker_id: int | None = None) -> list[ScramUser] | None:
        """See ``UsersAdmin.scram_users``."""
        users = self._state.users
        return self._call("scram_users", lambda: [ScramUser(name, users[name]) for name in sorted(users)])

    def create_scram_credentials(self, wanted: Sequence[NewScramCredential]) -> dict[str, ItemError | None]:
        """See ``UsersAdmin.create_scram_credentials``."""

        def act() -> dict[str, ItemError | None]:
            for item in wanted:
                present = dict(self._state.users.get(item.name, ()))
                present[item.mechanism] = item.iterations
                self._state.users[item.name] = tuple(sorted(present.items()))
            return {item.name: None for item in wanted}

        return self._call("create_scram_credentials", act, changes=f"{len(wanted)} users" if wanted else "")

    def delete_scram_credentials(self, wanted: Sequence[tuple[str, str]]) -> dict[str, ItemError | None]:
        """See ``UsersAdmin.delete_scram_credentials``."""

        def act() -> dict[str, ItemError | None]:
            for name, mechanism in wanted:
                left = tuple(item for item in self._state.users.pop(name, ()) if item[0] != mechanism)
                if left:
                    self._state.users[name] = left
            return {name: None for name, _ in wanted}

        return self._call("delete_scram_credentials", act, changes=f"{len(wanted)} users" if wanted else "")

    def quotas(self, *, broker_id: int | None = None) -> list[Quota] | None:
        """See ``QuotasAdmin.quotas``."""
        quotas = self._state.quotas
        return self._call("quotas", lambda: [Quota(entity, dict(values)) for entity, values in quotas.items()])

    def alter_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]
    ) -> dict[QuotaEntity, ItemError | None]:
        """See ``QuotasAdmin.alter_quotas``."""

        def act() -> dict[QuotaEntity, ItemError | None]:
            for entity, values in changes.items():
                present = {**self._state.quotas.pop(entity, {}), **values}
                left = {key: value for key, value in present.items() if value is not None}
                if left:
                    self._state.quotas[entity] = left
            return dict.fromkeys(changes)

        return self._call("alter_quotas", act, changes=str(sorted(changes)) if changes else "")

    # -- producers ----------------------------------------------------------------------------------------------------

    def producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionProducers]:
        """See ``TransactionsAdmin.producers``."""
        keys = sorted(set(partitions))
        state = self._state
        return self._call(
            "producers", lambda: {key: PartitionProducers(state.log(*key).producers) for key in keys}
        )  # fmt: skip

    def list_transactions(self, states: Sequence[str] = ()) -> list[TransactionFacts] | None:
        """There are no transactions with a coordinator."""
        return self._call("list_transactions", list)

    def open_transactions(self) -> list[TransactionFacts] | None:
        """There are no transactions with a coordinator."""
        return self._call("open_transactions", list)


def _configs(
    name: str, overrides: Mapping[str, str | None], defaults: Mapping[str, str] = MappingProxyType({})
) -> Configs:
    defaults = {**DEFAULTS, **defaults}
    values = {key: ConfigValue(key, value, ConfigSource.DEFAULT) for key, value in defaults.items()}
    source = ConfigSource.DYNAMIC_TOPIC
    values |= {key: ConfigValue(key, value, source, sensitive=value is None) for key, value in overrides.items()}
    return Configs(name, dict(sorted(values.items())))
