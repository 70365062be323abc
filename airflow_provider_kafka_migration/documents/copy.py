"""The copy job: all that a data plane process needs to know. Small, and without secrets.

Written by the phase that starts a copy (``<migration_id>/jobs/<name>.json``), read by copiers on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.content import TopicRules
from airflow_provider_kafka_migration.documents.plan import Verdict


class CopyPartition(Part):
    """One partition to copy: a base run (source_start_offset -> target_start_offset) and where to stop."""

    topic: str
    target_topic: str
    partition: int
    topic_id: str = Field("", description="source topic id; another one is a TopicRecreated error")
    source_start_offset: int
    target_start_offset: int
    verdict: Verdict
    until_offset: int | None = Field(None, description="exclusive source offset; None: until told to stop")
    size_bytes: int = -1
    on_mismatch: Literal["mapped", "fail"] | None = Field(None, description="None: as the job says")
    max_batch_bytes: int | None = Field(None, description="max.message.bytes of the target topic, if known")

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)


#: Backup halves of a split job have the number of their restore half and this.
BACKUP_LANES = 1_000_000


class CopyLane(Part):
    """Partitions that one copier drives at a time, and the lane's transactional id for marker fencing."""

    lane: int
    half: Literal["backup", "restore"] | None = Field(
        None, description="of a split job: this lane's copier opens the source or the target, never both"
    )
    transactional_id: str
    partitions: list[CopyPartition]


class ProducerIds(Part):
    """Producer ids of the migration, taken once on the target and journaled by topology_copy.

    The data id is shared by all copiers: the broker's sequence check is the compare-and-append. Its epoch is never
    bumped. The filler id numbers fillers by target offset.
    """

    data_producer_id: int
    data_producer_epoch: int
    filler_producer_id: int
    filler_producer_epoch: int


class ProofSettings(Part):
    """How the tail compares in the background what it has copied."""

    max_bytes_per_second: int | None = Field(None, description="per lane, both sides together; None: no limit")
    archive_of_deleted: str | None = Field(
        None, description="what the source has deleted is compared with the segments there; None: with nothing"
    )
    topics: dict[str, TopicRules] = Field(default_factory=dict, description="by source topic; only compacted ones")

    def rules(self, topic: str) -> TopicRules:
        """The rules of a topic; for one that is not listed: nothing may go."""
        return self.topics.get(topic, TopicRules(compacted=False, delete_retention_ms=None))


class TombstoneSettings(Part):
    """What is done where compaction may have removed tombstones before they were read."""

    on_overtaken: Literal["fail", "warn"] = "fail"
    retention_ms: dict[str, int] = Field(
        default_factory=dict, description="delete.retention.ms in force, by source topic; only compacted ones"
    )


class CopyJob(Document):
    """What to copy, from where, to where, and under which limits."""

    version: int = 1
    migration_id: str
    name: Literal["seed", "tail", "backup", "restore"]
    generation: int = Field(description="claim generation under which the job was written")
    source_reference: str = Field("", description="reference to librdkafka keys of the source (file:, env:, airflow:)")
    target_reference: str = ""
    storage_reference: str | None = Field(None, description="reference to S3 settings; None: the machine's identity")
    journal_location: str
    archive_location: str
    via: Literal["s3", "direct"]
    producers: ProducerIds
    lanes: list[CopyLane]
    segment_max_bytes: int = 32 * 1024 * 1024
    segment_linger_seconds: float = Field(
        0.0, description="a backup that follows the source gathers for so long before it writes a smaller segment"
    )
    max_concurrent_partitions: int = 4
    slice_seconds: int = 60
    timestamps: Literal["visible", "raw"] = "visible"
    on_mismatch: Literal["mapped", "fail"] = "mapped"
    on_source_gap: Literal["fail", "record"] = "fail"
    tombstones: TombstoneSettings | None = Field(None, description="None: nobody looks for tombstones that have gone")
    max_markers_per_record: float = 10.0
    max_markers: int = 50_000_000
    max_fill_seconds: float = Field(3600.0, description="mapped if the rest of a partition's holes takes longer")
    max_bytes_per_second: int | None = None
    proof: ProofSettings | None = Field(None, description="compare in the background; None: do not")
    stop_key: str | None = Field(
        None, description="object below journal_location that says where a tail stops; polled by copiers and driver"
    )

    @property
    def partitions(self) -> list[CopyPartition]:
        """All partitions, ascending. Each once, though a split job has a lane for each of their halves."""
        return sorted((p for lane in self.lanes if lane.half != "backup" for p in lane.partitions), key=lambda p: p.key)


def halves(lanes: Sequence[CopyLane]) -> list[CopyLane]:
    """The lanes of a split job: those that back up, then those that restore the same partitions."""
    whole = [lane for lane in lanes if lane.half != "backup"]
    backups = [lane.model_copy(update={"lane": lane.lane + BACKUP_LANES, "half": "backup"}) for lane in whole]
    return backups + [lane.model_copy(update={"half": "restore"}) for lane in whole]


class StopAt(Document):
    """Tells a tail where to stop: exclusive source offsets per ``topic-partition``."""

    version: int = 1
    migration_id: str
    offsets: dict[str, int] = Field(
        description='"topic-partition" to exclusive source offset; empty: taken back, nothing stops'
    )

    @classmethod
    def in_force(cls, data: bytes | None) -> StopAt | None:
        """The stop in stored bytes; ``None`` if there is none, or it was taken back (a freeze that was lifted)."""
        found = None if data is None else cls.parse(data)
        return found if found is not None and found.offsets else None

    def offset(self, topic: str, partition: int) -> int | None:
        """Where this partition stops, or None if it is not listed."""
        return self.offsets.get(f"{topic}-{partition}")


class PartitionResult(Part):
    """What a copier says of one partition at the end of a slice. Partial failure is data."""

    lane: int
    topic: str
    partition: int
    source_offset: int = Field(description="next source offset to copy")
    target_offset: int = Field(description="target log end offset")
    records: int = Field(0, description="records appended in this slice")
    copied_bytes: int = Field(0, description="batch bytes appended in this slice")
    source_bytes: int = Field(0, description="bytes read from the source cluster in this slice (0 from segments)")
    holes: int = Field(0, description="offsets filled by markers in this slice")
    transaction_holes: int = Field(0, description="of these: by empty transactions, since markers may not be written")
    done: bool = Field(False, description="the stop offset is reached and confirmed by the target's log end")
    verdict: Verdict
    gaps: list[tuple[int, int]] = Field(default_factory=list, description="source ranges lost to retention")
    overtaken: list[int] = Field(
        default_factory=list, description="source offsets where tombstones may have gone before they were read"
    )
    held_back: int = Field(
        0, description="records of the source above its last stable offset: an open transaction holds them back"
    )
    resumed_offset: int = Field(-1, description="target log end when the slice took it over; -1: it never did")
    went_back: list[tuple[int, int]] = Field(
        default_factory=list,
        description="(from, to): the target's log end went back (unclean election); what was lost was copied again",
    )
    error: dict[str, object] | None = Field(None, description="MigrationError.as_dict() of what stopped it")
    trouble: dict[str, object] | None = Field(
        None, description="the same of what was still being tried again when the slice ended; nothing has stopped it"
    )
    trouble_seconds: float = Field(0.0, description="for how long it had been tried again by then, within the slice")
    lag: int = Field(-1, description="records to the source's last stable offset, as last seen")
    slice_number: int = Field(0, description="number of the lease of the slice, ascending by lane; 0: not known")
    total_records: int = Field(
        -1,
        description="records that the copy has put on the target since it began, by all runs; from the log's sequence "
        "numbers. -1: not known (copied in transactions, or not taken over in this slice)",
    )
    total_holes: int = Field(-1, description="offsets filled by markers since the copy began, likewise")
    source_throttled_seconds: float = Field(
        0.0, description="for so long the source's quotas have held the lane back; in the lane's first result only"
    )
    target_throttled_seconds: float = Field(0.0, description="the same by the target's quotas")
