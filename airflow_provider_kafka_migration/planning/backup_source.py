"""The look at the source, archived and read again: what plan sees of a live source, a restore sees in the archive."""

from __future__ import annotations

from typing import Final

from airflow_provider_kafka_migration.documents.backup import (
    BackupConfig,
    BackupEnd,
    BackupPartition,
    BackupSource,
    BackupTopic,
)
from airflow_provider_kafka_migration.documents.groups import GroupsSnapshot
from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.kafka.admin.admin_configs import Configs, ConfigValue
from airflow_provider_kafka_migration.kafka.admin.topics import PartitionFacts, TopicFacts
from airflow_provider_kafka_migration.planning.source_snapshot import Sample, SourceLook
from airflow_provider_kafka_migration.record.context import PhaseContext

PHASE: Final = "backup"


def archived(migration_id: str, found: SourceLook) -> BackupSource:
    """The document of a look."""
    return BackupSource(
        migration_id=migration_id,
        source=found.facts,
        topics=[_topic(found, found.topics[name]) for name in sorted(found.topics)],
        excluded_topics=found.excluded,
        missing_topics=found.missing,
        unknown=dict(sorted(found.unknown.items())),
    )


def _topic(found: SourceLook, facts: TopicFacts) -> BackupTopic:
    values = found.configs[facts.name].values
    return BackupTopic(
        name=facts.name,
        topic_id=facts.topic_id,
        replication_factor=facts.replication_factor,
        configs=[
            BackupConfig(name=name, value=item.value, source=item.source, sensitive=item.sensitive)
            for name, item in sorted(values.items())
        ],
        partitions=[_partition(found, facts.name, item.partition) for item in facts.partitions],
    )


def _partition(found: SourceLook, topic: str, partition: int) -> BackupPartition:
    key = (topic, partition)
    sample = found.samples.get(key, Sample())
    return BackupPartition(
        partition=partition,
        log_start_offset=found.starts[key],
        last_stable_offset=found.stable[key],
        high_watermark=found.high_watermarks[key],
        size_bytes=found.sizes.get(key, -1),
        codecs=sorted(sample.codecs),
        transactional=sample.transactional,
        log_append_time=sample.log_append_time,
        old_format=sample.old_format,
        sampled_offsets=sample.offsets,
        sampled_records=sample.records,
    )


def look_of(document: BackupSource) -> SourceLook:
    """The look behind a document."""
    found = SourceLook(
        facts=document.source,
        topics={topic.name: _facts(topic) for topic in document.topics},
        excluded=dict(document.excluded_topics),
        missing=list(document.missing_topics),
        configs={topic.name: _configs(topic) for topic in document.topics},
        unknown=dict(document.unknown),
    )
    for topic in document.topics:
        for item in topic.partitions:
            key = (topic.name, item.partition)
            found.starts[key] = item.log_start_offset
            found.stable[key] = item.last_stable_offset
            found.high_watermarks[key] = item.high_watermark
            if item.size_bytes >= 0:
                found.sizes[key] = item.size_bytes
            found.samples[key] = Sample(
                codecs=set(item.codecs),
                transactional=item.transactional,
                log_append_time=item.log_append_time,
                old_format=item.old_format,
                offsets=item.sampled_offsets,
                records=item.sampled_records,
            )
    return found


def _facts(topic: BackupTopic) -> TopicFacts:
    # Brokers of the source mean nothing on the target; only how many replicas there were.
    replicas = tuple(range(topic.replication_factor))
    return TopicFacts(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(PartitionFacts(item.partition, -1, replicas, replicas) for item in topic.partitions),
    )


def _configs(topic: BackupTopic) -> Configs:
    values = {
        item.name: ConfigValue(item.name, item.value, item.source, False, item.sensitive) for item in topic.configs
    }
    return Configs(topic.name, values)


BACKUP_SOURCE = "backup/source.json"
BACKUP_END = "backup/end.json"
BACKUP_GROUPS = "backup/groups.json"


def load_source(context: PhaseContext) -> BackupSource | None:
    """``backup/source.json``, or None before a backup began."""
    data = context.archive_store.get(context.key(BACKUP_SOURCE))
    return None if data is None else BackupSource.parse(data)


def load_end(context: PhaseContext) -> BackupEnd | None:
    """``backup/end.json``, or None while no backup is complete."""
    data = context.archive_store.get(context.key(BACKUP_END))
    return None if data is None else BackupEnd.parse(data)


def load_groups(context: PhaseContext, end: BackupEnd) -> GroupsSnapshot:
    """The groups of a complete backup.

    :raises Terminal: they are gone, or are not those of this backup.
    """
    data = context.archive_store.get(end.groups)
    found = None if data is None else GroupsSnapshot.parse(data)
    if found is None or found.digest() != end.groups_digest:
        raise Terminal(
            "the archived offsets of consumer groups are not those of the backup",
            where=context.where(PHASE, path=f"{context.archive_store.uri}/{end.groups}"),
            next_step="run the backup again",
        )
    return found
