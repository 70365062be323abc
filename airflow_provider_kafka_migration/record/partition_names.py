"""How documents name partitions, and where a partition is on the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_kafka_migration.documents.copy import CopyPartition

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.kafka.wire import TopicPartition


def partition_name(key: TopicPartition) -> str:
    """Return ``topic-partition``, the name of a partition in documents."""
    return f"{key[0]}-{key[1]}"


def by_name(offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
    """Return offsets for a document, ascending by topic and partition."""
    return {partition_name(key): offsets[key] for key in sorted(offsets)}


def target_key(partition: CopyPartition) -> TopicPartition:
    """(target topic, partition)."""
    return (partition.target_topic, partition.partition)
