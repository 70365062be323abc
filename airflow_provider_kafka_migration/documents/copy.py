"""The copy job: all that a data plane process needs to know. Small, and without secrets.

Written by the phase that starts a copy (``<migration_id>/jobs/<name>.json``), read by copiers on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part, canonical_digest
from airflow_provider_kafka_migration.documents.cutover import GroupResult
from airflow_provider_kafka_migration.documents.plan import ClusterFacts, Verdict
from airflow_provider_kafka_migration.documents.proof import PartitionContent, TopicRules


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


# -- source gap -------------------------------------------------------------------------------------------------------
#
# A range of source offsets that retention deleted before anybody had read it (``on_source_gap: record``).


class SourceGapRecord(Document):
    """``source-gaps/<topic>/<partition>/<from>-<until>.json``, written before the copy goes on behind the gap."""

    version: int = 1
    migration_id: str
    topic: str = Field(description="on the source")
    topic_id: str = Field(default="", description="hex; empty where the source has none")
    partition: int
    from_offset: int = Field(description="first source offset that was not read")
    until_offset: int = Field(description="the first offset that could be read: the log start by then")


# -- offset map -------------------------------------------------------------------------------------------------------
#
# Documents of the offset map: the runs that were written ahead, and ``offset-map.json`` made from them.


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


# -- transactional ----------------------------------------------------------------------------------------------------
#
# Documents of the transactional mode: pages of a partition's offset map that no longer fit into the commit's metadata.
#
# What the target itself holds (the metadata of a committed group offset) names the newest page, and each page the one
# before it: a page that no commit names was written by somebody who died before the commit, and does not count.


class MapPage(Document):
    """Runs of one partition that were committed on the target, or are about to be."""

    version: int = 1
    migration_id: str
    topic: str
    partition: int
    number: int = Field(description="ascending from 1")
    previous: str = Field("", description="name of the page before this one; empty: this is the first")
    producer_ids: list[int] = Field(default_factory=list, description="under which the runs were written, ascending")
    runs: list[int] = Field(
        default_factory=list,
        description="flat, three numbers a run: source offsets skipped since the end of the run before (the first: "
        "since 0), target offsets skipped likewise, length",
    )


class CopyBegun(Document):
    """A position of this partition was committed on the target: if it is not there any more, it was lost."""

    version: int = 1
    migration_id: str
    topic: str
    partition: int
    group: str


class FinalMap(Document):
    """The map of one partition as the final drain has found it, for the comparison of contents."""

    version: int = 1
    migration_id: str
    producer_ids: list[int] = Field(default_factory=list, description="of all runs, ascending: whose batches are ours")
    map: MappedPartition


# -- manifest ---------------------------------------------------------------------------------------------------------
#
# The archive's documents: an entry beside each segment, and a manifest over all partitions.
#
# A segment is a file of raw record batches in Kafka's own ``.log`` format with the source's offsets. Its entry is
# written after it, so a segment without an entry was never finished and does not count.


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


# -- backup -----------------------------------------------------------------------------------------------------------
#
# What a backup says of its source beside the segments, and what a restore made of it.
#
# They lie in the archive (``<migration_id>/backup/``), so a restore needs nothing of the source cluster.


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


# -- copied records ---------------------------------------------------------------------------------------------------
#
# How many records a copy job had put on the target when it ended: what the next job's figures are counted from.


class CopiedRecords(Document):
    """``results/<job>-records.json``: totals since the copy began, by ``topic-partition`` of the source."""

    version: int = 1
    migration_id: str
    job: str
    records: dict[str, int] = Field(description="records on the target that the migration has copied")
    holes: dict[str, int] = Field(
        default_factory=dict, description="offsets filled by markers; not of partitions that are copied in transactions"
    )


# -- lane reading -----------------------------------------------------------------------------------------------------
#
# How far the copiers of a lane have read the source, and when: what a log itself cannot tell the next slice.


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
