"""How far the copiers of a lane have read the source, and when: what a log itself cannot tell the next slice."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part


class PartitionReading(Part):
    """One partition. Times are seconds since 1970, by the clock of the machine that has read; -1: not known.

    A position counts once it is safe: on the target, or in the archive. A mark is an end of the source's log that was
    seen at some time. When the copy has passed it, the copy has all that was written before that time.
    """

    topic: str
    partition: int
    caught_up_at: float = Field(-1.0, description="the copy has all that was written before; at first: when it began")
    caught_up_offset: int = Field(-1, description="the source's log end at that time")
    retention_ms: int = Field(-1, description="lowest delete.retention.ms seen since then; -1: not compacted")
    mark_at: float = Field(-1.0, description="when the mark was set; -1: there is none")
    mark_offset: int = -1
    mark_retention_ms: int = Field(-1, description="lowest delete.retention.ms seen since the mark was set")
    overtaken_until: int = Field(-1, description="end of the stretch that was named and is not passed yet; -1: none")
    overtaken_from: int = -1
    source_offset: int = Field(-1, description="the safe position of the last slice; -1: not known")
    source_epoch: int = Field(-1, description="leader epoch of the last source batch below it; -1: not known")

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)


class LaneReading(Document):
    """``<migration_id>/reading/lane-000003.json``, written at the end of each slice of the lane."""

    version: int = 1
    migration_id: str
    lane: int
    partitions: list[PartitionReading] = Field(default_factory=list)
