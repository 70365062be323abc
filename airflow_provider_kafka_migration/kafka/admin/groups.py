"""Groups and their offsets. A commit has an error per partition: brokers refuse partitions, not requests."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from airflow_provider_kafka_migration.errors import BrokerBusy
from airflow_provider_kafka_migration.kafka.admin.base import CLIENT_WAIT, AdminBase
from airflow_provider_kafka_migration.kafka.admin.cluster import operation_names
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError, batches, item_error
from airflow_provider_kafka_migration.kafka.error_codes import UNSUPPORTED_VERSION
from airflow_provider_kafka_migration.kafka.messages import (
    AlterShareGroupOffsetsRequest,
    ConsumerGroupDescribeRequest,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
    StreamsGroupDescribeRequest,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, by_topic

#: Versions from 10 on name topics by id. A migration uses names, which are known on both sides.
MAX_OFFSETS_VERSION = 9
COORDINATOR_GROUP = 0
#: Holds all groups and their offsets; the leader of a partition coordinates the groups in it.
GROUPS_TOPIC = "__consumer_offsets"
NO_EPOCH = -1
GROUP_ID_NOT_FOUND = 69
EMPTY_STATES = frozenset({"Empty", "Dead"})


@dataclass(frozen=True)
class GroupListing:
    """A group as its coordinator lists it.

    :param type: ``classic``, ``consumer`` (KIP-848), ``share``, ``streams``; ``simple`` is a classic group that
        only stores offsets (no member ever joined); ``unknown`` for protocols other than ``consumer``.
    """

    group: str
    type: str
    state: str
    protocol_type: str
    broker: int


@dataclass(frozen=True)
class GroupMember:
    """A live member of a group and its assigned partitions (empty where the protocol does not report them)."""

    member_id: str
    client_id: str
    client_host: str
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class GroupDescription:
    """State and members of one group, or its error."""

    group: str
    type: str
    state: str
    members: tuple[GroupMember, ...] = ()
    error: ItemError | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members, so that offsets may be committed from outside."""
        return self.error is None and self.state in EMPTY_STATES and not self.members


@dataclass(frozen=True)
class GroupOffset:
    """A committed position: the next offset to read, its leader epoch (-1: none) and the metadata text."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


@dataclass(frozen=True)
class GroupOffsets:
    """Committed offsets of one group, without the partitions that have no commit.

    :param errors: errors of single partitions.
    :param error: the error of the whole group; ``offsets`` means nothing then.
    """

    group: str
    offsets: dict[TopicPartition, GroupOffset] = field(default_factory=dict, hash=False)
    errors: dict[TopicPartition, ItemError] = field(default_factory=dict, hash=False)
    error: ItemError | None = None


class GroupsAdmin(AdminBase):
    """List, describe and delete groups, read and write their offsets."""

    def list_groups(self) -> dict[str, GroupListing]:
        """List all groups that this principal may describe, ascending; brokers hide the others.

        Asks the brokers that the cluster has now, each time: groups move to brokers that join.

        :raises BrokerBusy, PermissionMissing: a coordinator did not answer; a partial list is never returned instead.
        """
        return self.wire.retrying(self._list_groups)

    def _list_groups(self) -> dict[str, GroupListing]:
        coordinators = self._present_coordinators()
        found: dict[str, GroupListing] = {}
        for broker in self.wire.brokers():
            for item in self._list_groups_on(broker.broker_id).groups:
                found[item.group_id] = _listing(item, broker.broker_id)
        if self._present_coordinators() != coordinators:
            # A group may have moved from a broker that was not yet asked to one that was.
            raise BrokerBusy(
                "groups have moved to other brokers while they were listed, so the list may lack some",
                where=self.where(),
                next_step="wait until the brokers have settled; then clear the task",
            )
        return dict(sorted(found.items()))

    def _present_coordinators(self) -> tuple[set[int], dict[int, int]]:
        """Refresh the metadata: (ids of all brokers, leaders of the topic that holds the groups, if it is visible).

        :raises BrokerBusy: a part of that topic has no leader, so no broker lists the groups in it.
        """
        found = self.wire.metadata([GROUPS_TOPIC]).get(GROUPS_TOPIC)
        leaders = {} if found is None or found.error_code else found.leaders
        offline = sorted(number for number, leader in leaders.items() if leader < 0)
        if offline:
            raise BrokerBusy(
                f"no broker lists the groups in partition {offline[0]} of {GROUPS_TOPIC}: it has no leader",
                where=self.where(topic=GROUPS_TOPIC, partition=offline[0]),
                next_step="wait until the brokers that hold it are back; then clear the task",
            )
        return {broker.broker_id for broker in self.wire.brokers()}, dict(leaders)

    def _list_groups_on(self, broker_id: int) -> Any:
        def attempt() -> Any:
            request = ListGroupsRequest(states_filter=[], types_filter=[])
            response = self.wire.request(request, broker_id=broker_id)
            self.check(response.error_code, None, "groups cannot be listed", broker=str(broker_id))
            return response

        return self.wire.retrying(attempt)

    def coordinators(self, groups: Sequence[str]) -> dict[str, int | ItemError]:
        """Find the broker that coordinates each group, or the group's error."""
        found: dict[str, int | ItemError] = {}
        if self.api_version(FindCoordinatorRequest.API_KEY) < 4:
            return {group: self.wire.coordinator(group, COORDINATOR_GROUP) for group in sorted(set(groups))}

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            request = FindCoordinatorRequest(key_type=COORDINATOR_GROUP, coordinator_keys=batch)
            answers: dict[str, ItemError | None] = {}
            for item in self.wire.request(request).coordinators:
                error = item_error(item.error_code, item.error_message)
                found[item.key] = error or item.node_id
                answers[item.key] = error
            return answers

        self.in_batches(sorted(set(groups)), send)
        return found

    def by_coordinator(self, groups: Sequence[str]) -> tuple[dict[int, list[str]], dict[str, ItemError]]:
        """(groups by coordinating broker, errors by group without a coordinator)."""
        grouped: dict[int, list[str]] = defaultdict(list)
        failed: dict[str, ItemError] = {}
        for group, answer in sorted(self.coordinators(groups).items()):
            if isinstance(answer, ItemError):
                failed[group] = answer
            else:
                grouped[answer].append(group)
        return grouped, failed

    def describe_groups(
        self, groups: Sequence[str], *, listings: Mapping[str, GroupListing] | None = None
    ) -> dict[str, GroupDescription]:
        """Describe state and members of groups; a group that does not exist is ``Dead``. Needs Describe on each.

        :param listings: an answer of :meth:`list_groups`, if available; it has the groups' types.
        """
        known = self.list_groups() if listings is None else listings
        grouped, failed = self.by_coordinator(groups)
        found = {group: GroupDescription(group, "unknown", "", error=error) for group, error in failed.items()}
        for broker, members in sorted(grouped.items()):
            by_type: dict[str, list[str]] = defaultdict(list)
            for group in members:
                kind = known[group].type if group in known else "classic"
                by_type[kind if kind in _DESCRIBERS else "classic"].append(group)
            for kind, names in sorted(by_type.items()):
                for batch in batches(names):
                    found.update(self._describe_typed(kind, batch, broker, known))
        return dict(sorted(found.items()))

    def _describe_typed(
        self, kind: str, groups: list[str], broker: int, known: Mapping[str, GroupListing]
    ) -> dict[str, GroupDescription]:
        if kind in _DESCRIBERS:
            request = _DESCRIBERS[kind](group_ids=groups, include_authorized_operations=False)
            response = self.wire.request(request, broker_id=broker)
            return {item.group_id: _described_by_assignment(item, kind) for item in response.groups}
        response = self.wire.request(
            DescribeGroupsRequest(groups=groups, include_authorized_operations=False), broker_id=broker
        )
        return {
            item.group_id: _described(item, known[item.group_id].type if item.group_id in known else "classic")
            for item in response.groups
        }

    def group_operations(self, groups: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """Return what this principal may do on each group, existing or not (KIP-430); ``None`` where not reported.

        Version 5 of DescribeGroups also answers for groups that do not exist; later versions do not.
        """
        grouped, failed = self.by_coordinator(groups)
        found: dict[str, frozenset[str] | None] = {
            group: frozenset() if error.unauthorized else None for group, error in failed.items()
        }
        for broker, names in sorted(grouped.items()):
            for batch in batches(names):
                request = DescribeGroupsRequest(groups=batch, include_authorized_operations=True)
                for item in self.wire.request(request, broker_id=broker, version=5).groups:
                    error = item_error(item.error_code)
                    if error is None:
                        found[item.group_id] = operation_names(item.authorized_operations)
                    else:
                        found[item.group_id] = frozenset() if error.unauthorized else None
        return dict(sorted(found.items()))

    def group_offsets(self, group: str) -> GroupOffsets:
        """Read the committed offsets of one group; see :meth:`groups_offsets`."""
        return self.groups_offsets([group])[group]

    def groups_offsets(self, groups: Sequence[str], *, require_stable: bool = True) -> dict[str, GroupOffsets]:
        """Read the committed offsets of groups; needs Describe on group and topics. Errors per group are data.

        :param require_stable: wait for open transactions that hold offsets (UNSTABLE_OFFSET_COMMIT is retried).
        """
        found: dict[str, GroupOffsets] = {}

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            grouped, failed = self.by_coordinator(batch)
            found.update({group: GroupOffsets(group, error=error) for group, error in failed.items()})
            for broker, members in sorted(grouped.items()):
                found.update(self._fetch_offsets(members, broker, require_stable))
            return {group: worst_error(found[group]) for group in batch if group in found}

        self.in_batches(sorted(set(groups)), send, size=100)
        return dict(sorted(found.items()))

    def _fetch_offsets(self, groups: list[str], broker: int, require_stable: bool) -> dict[str, GroupOffsets]:
        if self.api_version(OffsetFetchRequest.API_KEY) >= 8:
            items = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
            request = OffsetFetchRequest(groups=items, require_stable=require_stable)
            response = self.wire.request(request, broker_id=broker, version=MAX_OFFSETS_VERSION)
            return {item.group_id: _offsets(item.group_id, item) for item in response.groups}
        answers = {}
        for group in groups:
            request = OffsetFetchRequest(group_id=group, topics=None, require_stable=require_stable)
            answers[group] = _offsets(group, self.wire.request(request, broker_id=broker))
        return answers

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, GroupOffset]
    ) -> dict[TopicPartition, ItemError | None]:
        """Commit offsets for a group without being a member (generation -1); needs Read on group and topics.

        Brokers accept this only while the group has no members (UNKNOWN_MEMBER_ID otherwise, per partition).
        An unknown group becomes a simple one. Pass -1 as leader epoch: the source's epoch must not be written.
        """
        topic_type = OffsetCommitRequest.OffsetCommitRequestTopic

        def send(batch: list[TopicPartition]) -> dict[TopicPartition, ItemError | None]:
            by_topic: dict[str, list[int]] = defaultdict(list)
            for topic, partition in batch:
                by_topic[topic].append(partition)
            topics = [
                topic_type(name=topic, partitions=[_commit(number, offsets[topic, number]) for number in numbers])
                for topic, numbers in sorted(by_topic.items())
            ]
            request = OffsetCommitRequest(
                group_id=group, generation_id_or_member_epoch=-1, member_id="", retention_time_ms=-1, topics=topics
            )
            broker = self.coordinators([group])[group]
            if isinstance(broker, ItemError):
                return dict.fromkeys(batch, broker)
            response = self.wire.request(request, broker_id=broker, version=MAX_OFFSETS_VERSION)
            return {
                (topic.name, item.partition_index): item_error(item.error_code)
                for topic in response.topics
                for item in topic.partitions
            }

        return self.in_batches(sorted(offsets), send, size=1000)

    def delete_group_offsets(
        self, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ItemError | None]:
        """Delete committed offsets of a group; needs Delete on the group and Read on the topics.

        An offset that is absent counts as deleted, as does one of a group that does not exist. Brokers refuse an offset
        in a topic that a member of the group subscribes to (GROUP_SUBSCRIBED_TO_TOPIC).
        """
        topic_type = OffsetDeleteRequest.OffsetDeleteRequestTopic
        partition_type = topic_type.OffsetDeleteRequestPartition

        def send(batch: list[TopicPartition]) -> dict[TopicPartition, ItemError | None]:
            topics = [
                topic_type(name=topic, partitions=[partition_type(partition_index=number) for number in numbers])
                for topic, numbers in by_topic(batch)
            ]
            broker = self.coordinators([group])[group]
            if isinstance(broker, ItemError):
                return dict.fromkeys(batch, broker)
            response = self.wire.request(OffsetDeleteRequest(group_id=group, topics=topics), broker_id=broker)
            if response.error_code:
                error = None if response.error_code == GROUP_ID_NOT_FOUND else item_error(response.error_code)
                return dict.fromkeys(batch, error)
            return {
                (topic.name, item.partition_index): item_error(item.error_code)
                for topic in response.topics
                for item in topic.partitions
            }

        return self.in_batches(sorted(set(places)), send, size=1000)

    def delete_groups(self, groups: Sequence[str]) -> dict[str, ItemError | None]:
        """Delete groups with their offsets; needs Delete on each. An absent one counts as deleted.

        Brokers refuse with NON_EMPTY_GROUP while a group has members. They delete groups of all kinds.
        """

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            return self.by_client(
                lambda client: client.delete_consumer_groups(batch, **CLIENT_WAIT), done=GROUP_ID_NOT_FOUND
            )

        return self.in_batches(sorted(set(groups)), send)


_DESCRIBERS: dict[str, Any] = {
    "consumer": ConsumerGroupDescribeRequest,
    "share": ShareGroupDescribeRequest,
    "streams": StreamsGroupDescribeRequest,
}


def _listing(item: Any, broker: int) -> GroupListing:
    kind = str(item.group_type or "classic").lower()
    if kind == "classic":
        if not item.protocol_type:
            kind = "simple"
        elif item.protocol_type != "consumer":
            kind = "unknown"
    elif kind not in ("consumer", "share", "streams"):
        kind = "unknown"
    return GroupListing(item.group_id, kind, item.group_state or "", item.protocol_type or "", broker)


def _described(item: Any, kind: str) -> GroupDescription:
    error = item_error(item.error_code, item.error_message)
    if error is not None and error.code == GROUP_ID_NOT_FOUND:  # from v6 on; before: state Dead
        return GroupDescription(item.group_id, kind, "Dead")
    is_consumer = item.protocol_type == "consumer"
    members = (
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host,
            _assigned(member.member_assignment) if is_consumer else (),
        )
        for member in item.members
    )
    return GroupDescription(
        item.group_id,
        kind,
        item.group_state,
        tuple(sorted(members, key=lambda member: member.member_id)),
        error,
    )


def _assigned(data: bytes | None) -> tuple[TopicPartition, ...]:
    """Read the partitions of ConsumerProtocolAssignment; none where a client has written something else."""
    found: list[TopicPartition] = []
    try:
        view, at = memoryview(data or b""), 2
        (topics,) = struct.unpack_from(">i", view, at)
        at += 4
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", view, at)
            topic = bytes(view[at + 2 : at + 2 + length]).decode()
            at += 2 + length
            (count,) = struct.unpack_from(">i", view, at)
            numbers = struct.unpack_from(f">{count}i", view, at + 4)
            at += 4 + 4 * count
            found += [(topic, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(found))


def _described_by_assignment(item: Any, kind: str) -> GroupDescription:
    error = item_error(item.error_code, item.error_message)
    members = []
    for member in item.members:
        assignment = getattr(member, "assignment", None)
        assigned = tuple(
            sorted(
                (topic.topic_name, partition)
                for topic in getattr(assignment, "topic_partitions", None) or ()
                for partition in topic.partitions
            )
        )
        members.append(GroupMember(member.member_id, member.client_id, member.client_host, assigned))
    ordered = tuple(sorted(members, key=lambda member: member.member_id))
    return GroupDescription(item.group_id, kind, item.group_state, ordered, error)


def _offsets(group: str, item: Any) -> GroupOffsets:
    error = item_error(item.error_code)
    if error is not None:
        return GroupOffsets(group, error=error)
    offsets: dict[TopicPartition, GroupOffset] = {}
    errors: dict[TopicPartition, ItemError] = {}
    for topic in item.topics:
        for part in topic.partitions:
            failure = item_error(part.error_code)
            if failure is not None:
                errors[topic.name, part.partition_index] = failure
            elif part.committed_offset >= 0:
                offsets[topic.name, part.partition_index] = GroupOffset(
                    part.committed_offset, part.committed_leader_epoch, part.metadata or ""
                )
    return GroupOffsets(group, dict(sorted(offsets.items())), dict(sorted(errors.items())))


def worst_error(offsets: GroupOffsets) -> ItemError | None:
    """Return the group's error, or a retriable error of one of its partitions, so that the group is retried."""
    if offsets.error is not None:
        return offsets.error
    return next((error for error in offsets.errors.values() if error.retriable), None)


def _commit(partition: int, value: GroupOffset) -> Any:
    return OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        committed_metadata=value.metadata,
    )


# -- admin share groups -----------------------------------------------------------------------------------------------
#
# Start offsets of share groups (KIP-932), the counterpart of committed offsets.
#
# A share group keeps a state per record from its *start offset* on; everything before it is finished. Brokers report
# and set only the start offset: DescribeShareGroupOffsets (Kafka 4.1) and AlterShareGroupOffsets (Kafka 4.2), with
# feature ``share.version`` 1.


#: Kafka 4.1 ignores the topics of AlterShareGroupOffsets and answers without an error. Unlike 4.2, it does not know
#: this version of DescribeShareGroupOffsets (KIP-1226).
ALTERS_FROM = 1


class ShareGroupsAdmin(GroupsAdmin):
    """Read and set the start offsets of share groups."""

    def share_group_offsets(self, groups: Sequence[str]) -> dict[str, GroupOffsets]:
        """Read the start offsets of share groups; needs Describe on group and topics. Errors per group are data.

        The result omits partitions that no member has read yet; a group that does not exist has none. Where the
        brokers have no share groups, or do not report their offsets, each group's error is UNSUPPORTED_VERSION.
        """
        names = sorted(set(groups))
        if self.api_version(int(DescribeShareGroupOffsetsRequest.API_KEY)) < 0:
            return {name: GroupOffsets(name, error=_unsupported()) for name in names}
        found: dict[str, GroupOffsets] = {}

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            grouped, failed = self.by_coordinator(batch)
            found.update({group: GroupOffsets(group, error=error) for group, error in failed.items()})
            kind = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
            for broker, members in sorted(grouped.items()):
                request = DescribeShareGroupOffsetsRequest(
                    groups=[kind(group_id=group, topics=None) for group in members]
                )
                for item in self.wire.request(request, broker_id=broker, version=0).groups:
                    found[item.group_id] = _share_offsets(item)
            return {group: worst_error(found[group]) for group in batch if group in found}

        self.in_batches(names, send, size=100)
        return dict(sorted(found.items()))

    @property
    def alters_share_groups(self) -> bool:
        """Whether the brokers' version can set start offsets; only the request shows if share groups are enabled."""
        return self.api_version(int(DescribeShareGroupOffsetsRequest.API_KEY)) >= ALTERS_FROM

    def alter_share_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, GroupOffset]
    ) -> dict[TopicPartition, ItemError | None]:
        """Set where a share group without members starts (``CommittedOffset.offset``); create it if it is new.

        The brokers forget what the group acknowledged beyond that offset. Needs Read on group and topics. Brokers
        refuse with NON_EMPTY_GROUP while the group has members.
        """
        if not self.alters_share_groups:
            return dict.fromkeys(sorted(offsets), _unsupported())

        def send(batch: list[TopicPartition]) -> dict[TopicPartition, ItemError | None]:
            broker = self.coordinators([group])[group]
            if isinstance(broker, ItemError):
                return dict.fromkeys(batch, broker)
            return self._alter(group, {key: offsets[key] for key in batch}, broker)

        return self.in_batches(sorted(offsets), send, size=1000)

    def _alter(
        self, group: str, offsets: Mapping[TopicPartition, GroupOffset], broker: int
    ) -> dict[TopicPartition, ItemError | None]:
        topic_type = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
        partition_type = topic_type.AlterShareGroupOffsetsRequestPartition
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for (topic, partition), value in sorted(offsets.items()):
            by_topic[topic].append(partition_type(partition_index=partition, start_offset=value.offset))
        topics = [topic_type(topic_name=topic, partitions=items) for topic, items in by_topic.items()]
        request = AlterShareGroupOffsetsRequest(group_id=group, topics=topics)
        response = self.wire.request(request, broker_id=broker, version=0)
        whole = item_error(response.error_code, response.error_message)
        if whole is not None:
            return dict.fromkeys(offsets, whole)
        return {
            (topic.topic_name, item.partition_index): item_error(item.error_code, item.error_message)
            for topic in response.responses
            for item in topic.partitions
        }


def is_unsupported(error: ItemError | None) -> bool:
    """Return whether the brokers have no share groups, or do not report their offsets."""
    return error is not None and error.code == UNSUPPORTED_VERSION


def _unsupported() -> ItemError:
    error = item_error(UNSUPPORTED_VERSION)
    assert error is not None
    return error


def _share_offsets(item: Any) -> GroupOffsets:
    error = item_error(item.error_code, item.error_message)
    if error is not None:
        return GroupOffsets(item.group_id, error=None if error.code == GROUP_ID_NOT_FOUND else error)
    offsets: dict[TopicPartition, GroupOffset] = {}
    errors: dict[TopicPartition, ItemError] = {}
    for topic in item.topics:
        for part in topic.partitions:
            failure = item_error(part.error_code, part.error_message)
            if failure is not None:
                errors[topic.topic_name, part.partition_index] = failure
            elif part.start_offset >= 0:
                offsets[topic.topic_name, part.partition_index] = GroupOffset(part.start_offset)
    return GroupOffsets(item.group_id, dict(sorted(offsets.items())), dict(sorted(errors.items())))
