"""Documents of the offset map: the runs that were written ahead, and ``offset-map.json`` made from them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part

RunsKind = Literal["takeover", "checkpoint", "runs"]


class RunsObject(Document):
    """One step in the life of a partition's map; ``runs`` are written before the first append they speak of.

    It voids all runs at or above ``from_target_offset`` that objects before it have named. Objects are read by attempt,
    take-overs and checkpoints first, then by offset.
    """

    version: int = 1
    migration_id: str
    topic: str
    topic_id: str = ""
    partition: int
    attempt: int = Field(description="which incarnation of the copier wrote it, ascending")
    kind: RunsKind
    from_target_offset: int
    runs: list[tuple[int, int]] = Field(
        default_factory=list, description="(source start, target start); a run reaches to the next one"
    )


class MappedPartition(Part):
    """The map of one partition. Ends are exclusive, and null while the partition is being copied.

    ``runs`` is flat, three numbers per run: source offsets skipped since the end of the run before, target offsets
    skipped likewise, length. The first run starts at the two start offsets; length -1 is a run that is still open.
    """

    topic: str
    target_topic: str
    topic_id: str = ""
    partition: int
    verdict: str = Field(description="equal, shifted, mapped, transactional, or empty: no such partition on the target")
    source_start_offset: int | None = None
    source_end_offset: int | None = None
    target_start_offset: int | None = None
    target_end_offset: int | None = None
    runs: list[int] = Field(default_factory=list)


class OffsetMapDocument(Document):
    """``<evidence>/<migration_id>/offset-map.json``: where each source offset is found on the target."""

    version: int = 1
    migration_id: str
    complete: bool = Field(
        True, description="False: written at the end of the seed or by the tail; the copy goes on, and ends are null"
    )
    partitions: list[MappedPartition] = Field(description="ascending by topic and partition")

    def partition(self, topic: str, partition: int) -> MappedPartition:
        """The map of a source partition; raises ``KeyError``."""
        for entry in self.partitions:
            if (entry.topic, entry.partition) == (topic, partition):
                return entry
        raise KeyError(f"{topic}-{partition}")
