"""Takes over MirrorMaker 2: reads its state, and finds the end of its copy by content.

Its state is a lower bound only. It commits source offsets once a minute by default, so a MirrorMaker 2 that was killed
has written more than it has committed, and one that never lived for a minute has committed nothing at all.

Layouts (``connect-mirror`` of Kafka 2.4 to 4.3):

* source offsets, on the target, JSON: ``["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"orders"}]`` ->
  ``{"offset":4999}``: the last record that was copied. The connector's name is free in a Connect cluster. The last
  record of a key counts; a tombstone removes it.
* offset syncs, big endian: key ``{topic STRING, partition INT32}`` with the name on the source, value ``{upstreamOffset
  INT64, offset INT64}``: this record is at that offset of the target.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from airflow_provider_kafka_migration.adoption.alignment import OffsetSync
from airflow_provider_kafka_migration.adoption.by_content import PHASE, Recorded, find_by_content
from airflow_provider_kafka_migration.adoption.starts import Candidate, FoundStarts
from airflow_provider_kafka_migration.compare.logs import KafkaLog
from airflow_provider_kafka_migration.errors import MigrationError, SpecInvalid
from airflow_provider_kafka_migration.kafka.batches.api import LegacyBatch, Record, records
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.mirror_maker.source_offsets import OffsetsTopic, SourcePosition, parse_position
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.spec import AdoptSection, MirrorMaker2Section

_SYNC_VALUE = struct.Struct(">qq")


def find_starts(context: PhaseContext, candidates: Mapping[TopicPartition, Candidate]) -> FoundStarts:
    """See :class:`~.starts.FindStarts`: what MirrorMaker 2 has copied, checked by content.

    :raises SpecInvalid: its state is not where the spec says.
    """
    adopt = context.spec.adopt
    assert adopt is not None
    mirror = adopt.mirrormaker2
    named = {key: item for key, item in candidates.items() if item.target_topic == target_name(mirror, item.topic)}
    committed = read_positions(context, mirror)
    syncs = read_syncs(context, adopt)
    recorded = {key: Recorded(committed.get(key, -1), of_last_topic(syncs.get(key, ()))) for key in named}
    found = find_by_content(context, named, recorded, copies_aborted=mirror.isolation_level == "read_uncommitted")
    for key in candidates.keys() - named.keys():
        item = candidates[key]
        found.refused[key] = (
            f"MirrorMaker 2 copies it to the topic {target_name(mirror, item.topic)} "
            f"(replication_policy: {mirror.replication_policy}), but this migration to {item.target_topic}: set "
            "topics.rename accordingly, or adopt.mirrormaker2"
        )
    return found


# -- names ------------------------------------------------------------------------------------------------------------


def target_name(mirror: MirrorMaker2Section, topic: str) -> str:
    """Return the name that MirrorMaker 2 gives a topic on the target."""
    if mirror.replication_policy == "identity":
        return topic
    if mirror.replication_policy == "prefix":
        return f"{mirror.prefix}{topic}"
    return f"{mirror.source_alias}{mirror.separator}{topic}"


def offsets_topic(mirror: MirrorMaker2Section) -> str:
    """Return the topic with its source offsets, on the target."""
    return OffsetsTopic(mirror.source_alias, mirror.offsets_topic or "").topic


def offset_syncs_topics(mirror: MirrorMaker2Section) -> list[str]:
    """Return the possible names of the topic with its offset syncs.

    Its name carries the alias of the other cluster. The separator of a default policy counts, unless
    ``replication.policy.internal.topic.separator.enabled`` is false.
    """
    if mirror.offset_syncs_topic:
        return [mirror.offset_syncs_topic]
    alias = mirror.target_alias if mirror.offset_syncs_location == "source" else mirror.source_alias
    separators = dict.fromkeys([mirror.separator if mirror.replication_policy == "default" else ".", "."])
    return [f"mm2-offset-syncs{separator}{alias}{separator}internal" for separator in separators]


# -- state ------------------------------------------------------------------------------------------------------------


def read_positions(context: PhaseContext, mirror: MirrorMaker2Section) -> dict[TopicPartition, int]:
    """Return the last copied source offset by (source topic, partition), as it was committed.

    :raises SpecInvalid: there is no such topic on the target.
    """
    name = offsets_topic(mirror)
    if _partitions(context.target, name) is None:
        raise SpecInvalid(
            f"the target has no topic {name}, which would hold the source offsets of MirrorMaker 2",
            where=context.where(PHASE, cluster="target", topic=name, path="adopt.mirrormaker2.offsets_topic"),
            next_step="set adopt.mirrormaker2.source_alias as in its configuration, or offsets_topic to the "
            "offset.storage.topic of its Connect cluster; if the topic is lost, use adopt.from: comparison",
        )
    found = (parse_position(item, mirror.source_alias) for item in read_records(context.target, name))
    return last_positions(item for item in found if item is not None)


def read_syncs(context: PhaseContext, adopt: AdoptSection) -> dict[TopicPartition, list[OffsetSync]]:
    """Return all offset syncs by (source topic, partition); empty where they cannot be read: content decides.

    :raises MigrationError: they are needed for the map below the boundary, and cannot be read.
    """
    mirror = adopt.mirrormaker2
    cluster = context.source if mirror.offset_syncs_location == "source" else context.target
    names = [name for name in offset_syncs_topics(mirror) if _partitions(cluster, name) is not None]
    is_needed = adopt.map_below == "offset_syncs"
    if not names:
        if is_needed:
            raise SpecInvalid(
                f"the {cluster.role} has no topic {offset_syncs_topics(mirror)[0]} with offset syncs",
                where=context.where(PHASE, cluster=cluster.role, path="adopt.mirrormaker2.offset_syncs_topic"),
                next_step="set adopt.mirrormaker2.offset_syncs_location and target_alias as in the configuration of "
                "MirrorMaker 2, or adopt.map_below: exact",
            )
        return {}
    found: dict[TopicPartition, list[OffsetSync]] = {}
    try:
        for item in read_records(cluster, names[0]):
            parsed = parse_sync(item)
            if parsed is not None:
                found.setdefault(parsed[0], []).append(parsed[1])
    except MigrationError:
        if is_needed:
            raise
        return {}
    return found


def of_last_topic(syncs: Sequence[OffsetSync]) -> tuple[OffsetSync, ...]:
    """Return the offset syncs of the present target topic, ascending; those of a deleted one of that name come before.

    :param syncs: of one partition, in the order in which they were written. Target offsets only grow in a topic's life.
    """
    found: list[OffsetSync] = []
    for sync in reversed(syncs):
        if found and sync.target_offset >= found[-1].target_offset:
            break
        found.append(sync)
    return tuple(reversed(found))


def last_positions(positions: Iterable[SourcePosition]) -> dict[TopicPartition, int]:
    """Return the lowest of the connectors' last positions by partition: what is below it was copied by all of them."""
    last: dict[tuple[str, TopicPartition], int | None] = {}
    for item in positions:
        last[item.connector, item.key] = item.offset
    found: dict[TopicPartition, int] = {}
    for (_, key), offset in last.items():
        if offset is not None:
            found[key] = min(found.get(key, offset), offset)
    return found


def parse_sync(record: Record) -> tuple[TopicPartition, OffsetSync] | None:
    """Parse an offset sync; None for a tombstone and for what is too short."""
    key, value = record.key or b"", record.value or b""
    if len(key) < 2 or len(value) < _SYNC_VALUE.size:
        return None
    (length,) = struct.unpack_from(">h", key)
    if length < 0 or len(key) < 2 + length + 4:
        return None
    try:
        topic = key[2 : 2 + length].decode()
    except UnicodeDecodeError:
        return None
    (partition,) = struct.unpack_from(">i", key, 2 + length)
    return (topic, partition), OffsetSync(*_SYNC_VALUE.unpack_from(value))


# -- reading ----------------------------------------------------------------------------------------------------------


def read_records(cluster: Cluster, topic: str) -> Iterator[Record]:
    """Yield all committed records of a topic, partition by partition."""
    keys = [(topic, partition) for partition in _partitions(cluster, topic) or ()]
    ends = cluster.wire.list_offsets(keys, "stable")
    for key in keys:
        for batch in KafkaLog(cluster.wire, *key).batches(0, ends[key]):
            yield from batch.records() if isinstance(batch, LegacyBatch) else records(batch)


def _partitions(cluster: Cluster, topic: str) -> list[int] | None:
    """Return the partitions of a topic; None if it does not exist, or may not be described."""
    facts = cluster.admin.describe_topics([topic])[topic]
    return None if facts.error is not None else [item.partition for item in facts.partitions]
