"""The archive's documents: an entry beside each segment, and a manifest over all partitions.

A segment is a file of raw record batches in Kafka's own ``.log`` format with the source's offsets. Its entry is written
after it, so a segment without an entry was never finished and does not count.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part, canonical_digest


class SegmentEntry(Document):
    """What one segment holds. Key: that of the segment, with ``.json`` for ``.log``."""

    version: int = 1
    format: str = Field("apache-kafka-log", description="batches as the source's broker stores them")
    topic: str
    topic_id: str = Field("", description="source topic id (KIP-516); empty before 2.8")
    partition: int
    from_offset: int = Field(description="first offset that is covered; the first batch may begin below it")
    until_offset: int = Field(description="exclusive end of what is covered, trailing holes included")
    batch_count: int
    record_count: int = Field(description="records in data batches, aborted ones included")
    size_bytes: int
    sha256: str = Field(description="of the segment, 64 hex digits")
    crc32c: str = Field(description="of the segment, 8 hex digits")
    aborted: list[tuple[int, int]] = Field(
        default_factory=list, description="(producer id, first offset) of aborted transactions, ascending by offset"
    )
    last_stable_offset: int = Field(-1, description="of the source when the segment was read; -1 not known")
    log_start_offset: int = -1
    key: str = Field(description="of the segment, relative to the archive")
    entry_sha256: str = Field("", description="over the canonical form of all other fields, 64 hex digits")

    def sealed(self) -> SegmentEntry:
        """The entry with its own digest."""
        return self.model_copy(update={"entry_sha256": seal(self.model_dump(mode="json"))})


def seal(fields: dict[str, Any]) -> str:
    """What ``entry_sha256`` has to be, given all fields as they are written (also those of later versions)."""
    return canonical_digest({name: value for name, value in fields.items() if name != "entry_sha256"})


class ManifestPartition(Part):
    """The unbroken chain of segments of one partition."""

    topic: str
    topic_id: str = ""
    partition: int
    from_offset: int
    until_offset: int
    record_count: int
    size_bytes: int
    gaps: list[tuple[int, int]] = Field(default_factory=list, description="[from, until) ranges that no segment covers")
    superseded: int = Field(0, description="segments that are not needed: others cover the same offsets")
    segments: list[SegmentEntry]


class Manifest(Document):
    """All segments of an archive, ascending by topic, partition, offset; :meth:`digest` goes into the evidence."""

    version: int = 1
    migration_id: str
    partitions: list[ManifestPartition] = Field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments that count."""
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def record_count(self) -> int:
        """Records in all segments that count, aborted ones included."""
        return sum(partition.record_count for partition in self.partitions)
