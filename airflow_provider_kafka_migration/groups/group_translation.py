"""Committed offsets of the source become offsets of the target. Pure: maps in, translations out.

The formula of seed 001, ``target_first + (committed - source_first)``, is right where a partition is one run. The runs
of the offset map make it right everywhere: a consumer that starts at the answer reads next the first record that it
had not read on the source.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.groups import (
    CommittedOffset,
    GroupSnapshot,
    TranslatedOffset,
    Translation,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap


def translate_offset(
    committed: CommittedOffset,
    partitions: Mapping[TopicPartition, CopyPartition],
    maps: Mapping[TopicPartition, PartitionMap],
) -> TranslatedOffset:
    """One offset; skipped with a reason where there is nothing to translate to."""
    key = (committed.topic, committed.partition)
    item, offset_map = partitions.get(key), maps.get(key)
    if item is None or offset_map is None:
        return TranslatedOffset(
            topic=committed.topic,
            target_topic="",
            partition=committed.partition,
            source_offset=committed.offset,
            target_offset=None,
            translation=Translation.SKIPPED,
            metadata=committed.metadata,
            reason="the source has no such partition any more",
        )
    if committed.offset < 0:
        found_offset, how, reason = None, Translation.SKIPPED, "the committed offset is negative"
    else:
        found = offset_map.translate(committed.offset)
        found_offset, how = found.target_offset, Translation(found.how.value)
        reason = "" if found_offset is not None else "the partition has no data on the target"
    return TranslatedOffset(
        topic=committed.topic,
        target_topic=item.target_topic,
        partition=committed.partition,
        source_offset=committed.offset,
        target_offset=found_offset,
        translation=how,
        verdict=offset_map.verdict or item.verdict,
        metadata=committed.metadata,
        reason=reason,
    )


def translate_group(
    group: GroupSnapshot,
    partitions: Mapping[TopicPartition, CopyPartition],
    maps: Mapping[TopicPartition, PartitionMap],
) -> list[TranslatedOffset]:
    """All offsets of a group, ascending by topic and partition."""
    return [
        translate_offset(item, partitions, maps)
        for item in sorted(group.offsets, key=lambda item: (item.topic, item.partition))
    ]


def count_translations(offsets: list[TranslatedOffset]) -> dict[str, int]:
    """Translation to how often, for summaries; in the order of :class:`Translation`."""
    counts = {kind.value: 0 for kind in Translation}
    for item in offsets:
        counts[item.translation.value] += 1
    return {kind: count for kind, count in counts.items() if count}
