"""What a backup says of its source beside the segments, and what a restore made of it.

They lie in the archive (``<migration_id>/backup/``), so a restore needs nothing of the source cluster.
"""

from __future__ import annotations

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.groups import GroupResult
from airflow_provider_kafka_migration.documents.plan import ClusterFacts
from airflow_provider_kafka_migration.documents.proof import PartitionContent


class BackupConfig(Part):
    """One config in force; the values of sensitive ones are not known."""

    name: str
    value: str | None
    source: int = Field(description="Kafka's number of where it is set (DescribeConfigs)")
    sensitive: bool = False


class BackupPartition(Part):
    """One partition when the backup began."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    size_bytes: int = -1
    codecs: list[str] = Field(default_factory=list, description="of the batches sampled")
    transactional: bool = False
    log_append_time: bool = False
    old_format: bool = False
    sampled_offsets: int = 0
    sampled_records: int = 0


class BackupTopic(Part):
    """One topic: what is needed to make it again."""

    name: str
    topic_id: str = ""
    replication_factor: int
    configs: list[BackupConfig]
    partitions: list[BackupPartition]


class BackupSource(Document):
    """``backup/source.json``: the source as it was when the backup began. Written once."""

    version: int = 1
    migration_id: str
    source: ClusterFacts
    topics: list[BackupTopic]
    excluded_topics: dict[str, str] = Field(default_factory=dict)
    missing_topics: list[str] = Field(default_factory=list)
    unknown: dict[str, str] = Field(default_factory=dict)


class BackupRange(Part):
    """What the archive covers of one partition; the end is exclusive."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    gaps: list[tuple[int, int]] = Field(
        default_factory=list, description="deleted on the source before they were read (on_source_gap: record)"
    )


class BackupEnd(Document):
    """``backup/end.json``: a backup that is complete up to these ends. A later backup of more replaces it."""

    version: int = 1
    migration_id: str
    job_digest: str = Field(description="of the backup's job document")
    follows: bool = Field(description="the ends are where a continuous backup was told to stop")
    ranges: list[BackupRange]
    manifest: str = Field(description="key of the manifest")
    manifest_digest: str
    groups: str = Field(description="key of the groups' committed offsets, read after the ends were known")
    groups_digest: str

    def until(self, topic: str, partition: int) -> int | None:
        """Exclusive end of a partition, None for one that the backup does not have."""
        for item in self.ranges:
            if (item.topic, item.partition) == (topic, partition):
                return item.until_offset
        return None


class RestoreResult(Document):
    """``results/restore.json``: what a restore has proven on the target."""

    version: int = 1
    migration_id: str
    finished_at: str
    backup_end_digest: str = Field("", description="of backup/end.json; empty: the backup was not complete")
    manifest_digest: str = ""
    contents: list[PartitionContent] = Field(description="target against archive, with a digest of each side")
    groups: list[GroupResult] = Field(default_factory=list)
