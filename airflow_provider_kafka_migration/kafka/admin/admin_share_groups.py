"""Start offsets of share groups (KIP-932): their counterpart of committed offsets.

A share group keeps a state per record from its *start offset* on; everything before it is finished. The brokers tell
and set the start offset only: DescribeShareGroupOffsets (Kafka 4.1) and AlterShareGroupOffsets (Kafka 4.2), with
feature ``share.version`` 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_kafka_migration.kafka.admin.base import ItemError, item_error
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset, GroupOffsets, GroupsAdmin, worst_error
from airflow_provider_kafka_migration.kafka.error_codes import UNSUPPORTED_VERSION
from airflow_provider_kafka_migration.kafka.group_messages import (
    AlterShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition

GROUP_ID_NOT_FOUND = 69
#: Kafka 4.1 drops the topics of AlterShareGroupOffsets and answers without an error. What tells it from 4.2 is that it
#: does not know this version of DescribeShareGroupOffsets (KIP-1226).
ALTERS_FROM = 1


class ShareGroupsAdmin(GroupsAdmin):
    """Read and set the start offsets of share groups."""

    def share_group_offsets(self, groups: Sequence[str]) -> dict[str, GroupOffsets]:
        """Start offsets of share groups; needs Describe on group and topics. Errors per group are data.

        Partitions that no member has read yet are left out, and a group that does not exist has none. Where the
        brokers have no share groups, or do not tell their offsets, each group's error is UNSUPPORTED_VERSION.
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
                    found[item.group_id] = _offsets(item)
            return {group: worst_error(found[group]) for group in batch if group in found}

        self.in_batches(names, send, size=100)
        return dict(sorted(found.items()))

    @property
    def alters_share_groups(self) -> bool:
        """The brokers' version can set start offsets. Whether share groups are switched on, the request tells."""
        return self.api_version(int(DescribeShareGroupOffsetsRequest.API_KEY)) >= ALTERS_FROM

    def alter_share_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, GroupOffset]
    ) -> dict[TopicPartition, ItemError | None]:
        """Set where a share group without members starts (``CommittedOffset.offset``); a new one is made.

        What it had acknowledged beyond that offset is forgotten. Needs Read on group and topics. Refused with
        NON_EMPTY_GROUP while it has members.
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
    """The brokers have no share groups, or do not tell their offsets."""
    return error is not None and error.code == UNSUPPORTED_VERSION


def _unsupported() -> ItemError:
    error = item_error(UNSUPPORTED_VERSION)
    assert error is not None
    return error


def _offsets(item: Any) -> GroupOffsets:
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
