"""Where adopted partitions begin: behind content that is already on both clusters, with the proof of the boundary."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part


class EarlierFindings(Part):
    """What another copier did to the content below the boundary; each is -1 where it was not compared."""

    duplicates: int = Field(-1, description="records that are on the target more than once")
    aborted_records: int = Field(-1, description="records of aborted transactions that are on the target")
    missing: int = Field(-1, description="records that the source still has and the target lacks")


class AdoptedStart(Part):
    """Where the copy of one adopted partition begins: the first source offset to copy, and where it goes."""

    source_offset: int = Field(description="first source offset that is not on the target yet")
    target_offset: int = Field(description="log end of the target: source_offset goes there")
    source_topic_id: str = Field("", description="topic id when the boundary was found; empty before 2.8")
    target_topic_id: str = Field("", description="topic id on the target")
    proof: Literal["boundary", "content", "offset_sync"] = Field(
        description="boundary: the end of a finished migration; content: records compared on both sides; offset_sync: "
        "counted from a position that another tool recorded"
    )
    source_hole_end_offset: int = Field(
        -1,
        description="from source_offset up to here the source has no record (the fence of the copy before), so that "
        "deleting it there loses nothing; -1: none",
    )
    caught_up_at: str = Field(
        "", description="everything that the source got before this time is below the boundary; empty: unknown"
    )
    compared_records: int = Field(0, description="records before the boundary that were compared on both sides")
    earlier: EarlierFindings = Field(default_factory=EarlierFindings)
    below_digest: str = Field(
        "", description="digest of the map below the boundary, for groups that lag behind it; empty: there is none"
    )
    note: str = Field("", description="for people: what differs from the expectation, and why it does no harm")


class BelowMap(Document):
    """Positions below the boundary of one partition: ``adoption/below/<topic>/<partition>-<digest>.json``.

    Exact: every record below the boundary that is on both clusters is in a range, several times if it was copied
    several times. Otherwise the ranges are the few positions that are known.
    """

    LATER_FIELDS = ("exact_from_offset",)

    version: int = 1
    migration_id: str
    topic: str = Field(description="source topic")
    partition: int
    source_offset: int = Field(description="the boundary on the source")
    target_offset: int = Field(description="the boundary on the target")
    is_exact: bool
    exact_from_offset: int = Field(
        0,
        description="nothing is known about source offsets below this one: the target does not have them, and may have "
        "deleted them",
    )
    ranges: list[int] = Field(
        default_factory=list,
        description="flat, three numbers per range: first source offset, first target offset, count; ascending by "
        "target offset",
    )


class AdoptedPartition(Part):
    """The start of one partition."""

    topic: str = Field(description="source topic")
    partition: int
    target_topic: str
    start: AdoptedStart

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)


class RefusedPartition(Part):
    """A partition that cannot be adopted, and why."""

    topic: str = Field(description="source topic")
    partition: int
    reason: str


class Adoption(Document):
    """``plan/adoption.json``: all adopted partitions of a migration, and those that cannot be adopted."""

    LATER_FIELDS = ("left_out",)

    version: int = 1
    migration_id: str
    adopted_from: str = Field(description="adopt.from of the spec")
    boundary_of: str = Field("", description="migration whose end is the boundary; empty: none")
    boundary_digest: str = Field(
        "", description="hash of its journal entry ready_for_client_switch, or promoted of a mirror"
    )
    partitions: list[AdoptedPartition] = Field(default_factory=list, description="ascending by topic and partition")
    refused: list[RefusedPartition] = Field(default_factory=list, description="ascending by topic and partition")
    left_out: list[RefusedPartition] = Field(
        default_factory=list,
        description="partitions with records that only the target has: nothing is copied to them "
        "(adopt.on_diverged: note)",
    )

    def start(self, topic: str, partition: int) -> AdoptedStart | None:
        """Return where a source partition begins; None: it is not adopted."""
        return self.starts().get((topic, partition))

    def starts(self) -> dict[tuple[str, int], AdoptedStart]:
        """Return all starts by (source topic, partition)."""
        return {item.key: item.start for item in self.partitions}
