"""The offset maps of all partitions, as phases need them: for lag, for groups, and as ``offset-map.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.documents.copy_job import CopyPartition
from airflow_provider_kafka_migration.documents.offset_map import OffsetMapDocument
from airflow_provider_kafka_migration.errors import DocumentUnreadable
from airflow_provider_kafka_migration.kafka.batches import read_batches
from airflow_provider_kafka_migration.phases.context import PhaseContext
from airflow_provider_kafka_migration.phases.migrated import TopicPartition, migrated_partitions
from airflow_provider_kafka_migration.replication.decide import Append, Decider
from airflow_provider_kafka_migration.replication.offset_map import (
    MapEntry,
    PartitionMap,
    Run,
    build_offset_map_document,
    read_partition_map,
)
from airflow_provider_kafka_migration.replication.reading import fetch_span
from airflow_provider_kafka_migration.replication.run_log import RunLog
from airflow_provider_kafka_migration.replication.topic_key import topic_of_key

OFFSET_MAP = "offset-map.json"


def partitions_with_runs(context: PhaseContext) -> set[TopicPartition]:
    """Partitions that have more than their base run: one listing, since almost all have none."""
    prefix = context.key("offset-map/")
    found: set[TopicPartition] = set()
    for info in context.journal_store.list(prefix):
        topic, partition, *rest = info.key.removeprefix(prefix).split("/")
        if len(rest) == 1 and partition.isdigit():
            found.add((topic_of_key(topic), int(partition)))
    return found


def load_maps(
    context: PhaseContext, partitions: Mapping[TopicPartition, CopyPartition] | None = None
) -> dict[TopicPartition, PartitionMap]:
    """The map of every partition, open at its end."""
    partitions = migrated_partitions(context) if partitions is None else partitions
    with_runs = partitions_with_runs(context)
    maps = {}
    for key, item in partitions.items():
        base = Run(item.source_start_offset, item.target_start_offset)
        if key in with_runs:
            log = RunLog(context.journal_store, context.migration_id, *key, base, topic_id=item.topic_id)
            maps[key] = log.load()
        else:
            maps[key] = PartitionMap([base])
    return maps


@dataclass(frozen=True)
class SourcePositions:
    """Source offset that a target's log end stands for."""

    maps: dict[TopicPartition, PartitionMap] = field(default_factory=dict)

    @classmethod
    def load(cls, context: PhaseContext) -> SourcePositions:
        """From the journal's bases and the run log."""
        return cls(load_maps(context))

    def of(self, partition: CopyPartition, target_end: int) -> int:
        """Next source offset to copy when the target's log ends there."""
        return self.maps[partition.key].source_position(target_end)

    def is_mapped(self, key: TopicPartition) -> bool:
        """Whether the holes of a partition are not filled, so that its end says less."""
        return len(self.maps[key]) > 1


def only_holes(context: PhaseContext, key: TopicPartition, from_offset: int, until_offset: int) -> bool:
    """Whether the source has no committed record in ``[from_offset, until_offset)``: markers, aborted data, nothing.

    For ``mapped`` partitions: holes at the end leave no trace on the target.
    """
    decider = Decider(from_offset, check_inner_offsets=False)
    position = from_offset
    while position < until_offset:
        fetched = fetch_span(context.source.wire, key, position)
        batches, _ = read_batches(fetched.records)
        if not batches:
            return True
        for step in decider.decide(batches, fetched.aborted):
            if isinstance(step, Append) and step.source_offset < until_offset:
                return False
        position = max(batch.next_offset for batch in batches)
    return True


def build_document(
    context: PhaseContext,
    source_ends: Mapping[TopicPartition, int],
    target_ends: Mapping[TopicPartition, int],
) -> OffsetMapDocument:
    """``offset-map.json`` of the finished copy.

    :param source_ends: exclusive end of the source, by (source topic, partition).
    :param target_ends: log end of the target, by (source topic, partition).
    """
    partitions = migrated_partitions(context)
    maps = load_maps(context, partitions)
    entries: Iterable[MapEntry] = (
        MapEntry(
            item.topic,
            item.partition,
            maps[key].closed(source_ends[key], target_ends[key]),
            target_topic=item.target_topic,
            topic_id=item.topic_id,
        )
        for key, item in partitions.items()
    )
    return build_offset_map_document(context.migration_id, entries)


def load_document(context: PhaseContext) -> OffsetMapDocument | None:
    """``offset-map.json`` from the evidence store, or ``None`` before the final drain."""
    data = context.evidence_store.get(context.key(OFFSET_MAP))
    if data is None:
        return None
    try:
        return OffsetMapDocument.parse(data)
    except ValueError as error:
        raise DocumentUnreadable(
            "offset-map.json cannot be read",
            where=context.where("cutover", path=f"{context.evidence_store.uri}/{context.key(OFFSET_MAP)}"),
            next_step="clear cutover.final_drain: it is made again from the run log",
        ) from error


def closed_maps(document: OffsetMapDocument) -> dict[TopicPartition, PartitionMap]:
    """The maps of a document by (source topic, partition)."""
    return {(item.topic, item.partition): read_partition_map(item) for item in document.partitions}
