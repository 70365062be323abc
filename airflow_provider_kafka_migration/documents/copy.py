"""The copy job: everything that a data plane process needs to know. Small and without secrets.

The phase that starts a copy writes it (``<migration_id>/jobs/<name>.json``); copiers on any machine read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, GrownPart, Part, canonical_digest
from airflow_provider_kafka_migration.documents.cutover import GroupResult
from airflow_provider_kafka_migration.documents.plan import ClusterFacts, PartitionPlan, TopicPlan, Verdict
from airflow_provider_kafka_migration.documents.proof import PartitionContent, TopicRules
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings
from airflow_provider_kafka_migration.errors import KEEP_MERGED, leave_out_of_way_back
from airflow_provider_kafka_migration.verbs import StopOrNote, recorded


class CopyPartition(GrownPart):
    """One partition to copy: a base run (source_start_offset -> target_start_offset) and where to stop."""

    LATER_FIELDS = ("adopted", "source_hole_end_offset", "caught_up_at")

    topic: str
    target_topic: str
    partition: int
    topic_id: str = Field("", description="source topic id; another one is a TopicRecreated error")
    source_start_offset: int
    target_start_offset: int
    verdict: Verdict
    until_offset: int | None = Field(None, description="exclusive source offset; None: until the stop document ends it")
    size_bytes: int = -1
    on_mismatch: Annotated[StopOrNote, recorded("offsets.on_mismatch")] | None = Field(
        None, description="None: the job's setting"
    )
    max_batch_bytes: int | None = Field(None, description="max.message.bytes of the target topic, if known")
    adopted: bool = Field(
        False, description="what is below target_start_offset is content of others, not fillers of the copy"
    )
    source_hole_end_offset: int = Field(
        -1, description="adopted: from source_start_offset up to here the source has no record; -1: none"
    )
    caught_up_at: float = Field(
        -1.0,
        description="adopted: everything that the source got before is below source_start_offset, in seconds since "
        "1970; -1: unknown",
    )

    @classmethod
    def of_plan(cls, topic: TopicPlan, item: PartitionPlan) -> CopyPartition:
        """Return what copiers need of a partition of the plan."""
        return cls(
            topic=topic.name,
            target_topic=topic.target_name,
            partition=item.partition,
            topic_id=topic.topic_id,
            source_start_offset=item.source_start_offset,
            target_start_offset=item.target_start_offset,
            verdict=item.verdict,
            size_bytes=item.size_bytes,
            adopted=item.adopted is not None,
            source_hole_end_offset=-1 if item.adopted is None else item.adopted.source_hole_end_offset,
            caught_up_at=_seconds(item.adopted.caught_up_at) if item.adopted is not None else -1.0,
        )

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp() if at else -1.0


#: The number of a backup half in a split job is that of its restore half plus this.
BACKUP_LANES = 1_000_000


class CopyLane(GrownPart):
    """The partitions that one copier handles at a time, and the lane's transactional id for marker fencing."""

    LATER_FIELDS = ("goes_first",)

    lane: int
    half: Literal["backup", "restore"] | None = Field(
        None, description="in a split job: this lane's copier opens the source or the target, never both"
    )
    transactional_id: str
    partitions: list[CopyPartition]
    goes_first: list[tuple[str, int]] = Field(
        default_factory=list,
        description="partitions of which earlier slices have copied nothing, longest wait first; never stored",
    )


class ProducerIds(Part):
    """Producer ids of the migration. topology_copy takes them once on the target and journals them.

    All copiers share the data id: the broker's sequence check is the compare-and-append. Its epoch is never
    bumped; a migration that adopts logs begins with the epoch above the one that it got. The filler id numbers fillers
    by target offset.
    """

    data_producer_id: int
    data_producer_epoch: int
    filler_producer_id: int
    filler_producer_epoch: int


class ProofSettings(Part):
    """How the tail compares copied records in the background."""

    max_bytes_per_second: int | None = Field(None, description="per lane, both sides together; None: no limit")
    archive_of_deleted: str | None = Field(
        None, description="records that the source has deleted are compared with the segments there; None: not at all"
    )
    topics: dict[str, TopicRules] = Field(default_factory=dict, description="by source topic; only compacted ones")

    def rules(self, topic: str) -> TopicRules:
        """Return the rules of a topic; an unlisted topic may lose no records."""
        return self.topics.get(topic, TopicRules(compacted=False, delete_retention_ms=None))


class TombstoneSettings(Part):
    """What to do where compaction may have removed tombstones before they were read."""

    on_overtaken: Annotated[StopOrNote, recorded("offsets.on_overtaken_tombstones")] = "stop"
    retention_ms: dict[str, int] = Field(
        default_factory=dict, description="delete.retention.ms in force, by source topic; only compacted ones"
    )


class MetricsSettings(Part):
    """Which metrics a job's long-running process offers, and how many series they may have."""

    max_topics: int = 50
    max_partitions: int = 100
    prometheus_host: str | None = Field(None, description="None: no Prometheus endpoint")
    prometheus_port: int = 9464
    flow: str = Field("", description="name of the flow, for jobs that belong to one of several; empty: no such tag")


class ProvenanceSettings(Part):
    """How a copy marks records with where they come from, and knows those that it must not copy back."""

    header: str
    source_cluster_id: str
    target_cluster_id: str
    max_hops: int | None = Field(None, description="records that would arrive after more hops stay; None: no limit")


class CopyJob(Document):
    """What to copy, from where, to where, and within which limits."""

    LATER_FIELDS = ("schema_ids", "metrics", "target_deletes", "target_compacts", "provenance", "way_back", "mirror")

    version: int = 1
    migration_id: str
    name: Literal["seed", "tail", "backup", "restore"]
    generation: int = Field(description="generation of the claim under which the job was written")
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
        0.0, description="how long a backup that follows the source gathers records before it writes a small segment"
    )
    max_concurrent_partitions: int = 4
    slice_seconds: int = 60
    timestamps: Literal["visible", "raw"] = "visible"
    on_mismatch: Annotated[StopOrNote, recorded("offsets.on_mismatch")] = "note"
    on_source_gap: Annotated[StopOrNote, recorded("offsets.on_source_gap")] = "stop"
    tombstones: TombstoneSettings | None = Field(None, description="None: no check for removed tombstones")
    max_markers_per_record: float = 10.0
    max_markers: int = 50_000_000
    max_fill_seconds: float = Field(3600.0, description="mapped if filling a partition's remaining holes takes longer")
    max_bytes_per_second: int | None = None
    proof: ProofSettings | None = Field(None, description="compare in the background; None: no comparison")
    schema_ids: SchemaIdSettings | None = Field(None, description="None: no record's schema ids matter to the copy")
    metrics: MetricsSettings | None = Field(None, description="None: as MetricsSettings() has it")
    target_deletes: bool = Field(False, description="records may be deleted on the target while it is copied (mirrors)")
    target_compacts: list[str] = Field(
        default_factory=list, description="source topics whose target topics are compacted while they are copied"
    )
    provenance: ProvenanceSettings | None = Field(
        None,
        description="the opposite flow copies the same topics under the same names; None: records stay as they are",
    )
    way_back: bool = Field(False, description="the target is the old cluster of a migration after its client switch")
    mirror: bool = Field(False, description="the copy goes on until a person ends it (kind: mirror)")
    stop_key: str | None = Field(
        None, description="object below journal_location with a tail's stop offsets; polled by copiers and driver"
    )

    @property
    def partitions(self) -> list[CopyPartition]:
        """All partitions, ascending, each once, although a split job has one lane per half."""
        return sorted((p for lane in self.lanes if lane.half != "backup" for p in lane.partitions), key=lambda p: p.key)

    def after_foreign_data(self, topic: str, otherwise: str) -> str:
        """Return the next step for a partition to which others have written on the target.

        Where the copy continues a log of others, the step never advises to delete that log.

        :param topic: name on the source.
        :param otherwise: the next step for topics that hold nothing but this migration's copy.
        """
        if self.way_back:
            return leave_out_of_way_back(topic)
        if self.provenance is not None:
            return KEEP_MERGED
        if any(item.adopted for item in self.partitions if item.topic == topic):
            again = (
                "end the mirror, and start a new one with another migration_id"
                if self.target_deletes
                else "roll back, and start a new migration"
            )
            return (
                f"find and stop the producer that writes to the target topic, but delete nothing there; then {again} "
                "that leaves this topic out (topics.exclude), or takes it over again"
            )
        return otherwise


def halves(lanes: Sequence[CopyLane]) -> list[CopyLane]:
    """Return the lanes of a split job: the backup lanes, then those that restore the same partitions."""
    whole = [lane for lane in lanes if lane.half != "backup"]
    backups = [lane.model_copy(update={"lane": lane.lane + BACKUP_LANES, "half": "backup"}) for lane in whole]
    return backups + [lane.model_copy(update={"half": "restore"}) for lane in whole]


class StopAt(Document):
    """Where a tail stops: exclusive source offsets per ``topic-partition``."""

    LATER_FIELDS = ("request",)

    version: int = 1
    migration_id: str
    offsets: dict[str, int] = Field(
        description='"topic-partition" to exclusive source offset; empty: withdrawn, nothing stops'
    )
    request: int = Field(0, description="number of the request to a mirror that the stop is for; 0: none, or unknown")

    @classmethod
    def in_force(cls, data: bytes | None) -> StopAt | None:
        """Parse the stop in stored bytes; ``None`` if there is none or it was withdrawn (the freeze was lifted)."""
        found = None if data is None else cls.parse(data)
        return found if found is not None and found.offsets else None

    def offset(self, topic: str, partition: int) -> int | None:
        """Return where this partition stops, or None if it is not listed."""
        return self.offsets.get(f"{topic}-{partition}")


class PartitionResult(Part):
    """What a copier reports about one partition at the end of a slice. Partial failure is data."""

    lane: int
    topic: str
    partition: int
    source_offset: int = Field(description="next source offset to copy")
    target_offset: int = Field(description="target log end offset")
    records: int = Field(0, description="records appended in this slice")
    copied_bytes: int = Field(0, description="batch bytes appended in this slice")
    source_bytes: int = Field(0, description="bytes read from the source cluster in this slice (0 from segments)")
    holes: int = Field(0, description="offsets filled by markers in this slice")
    transaction_holes: int = Field(0, description="of these: by empty transactions, because markers may not be written")
    skipped_records: int = Field(
        0, description="records read in this slice that are not to be copied: they came through the target"
    )
    done: bool = Field(False, description="the stop offset is reached and confirmed by the target's log end")
    verdict: Verdict
    gaps: list[tuple[int, int]] = Field(default_factory=list, description="source ranges lost to retention")
    overtaken: list[int] = Field(
        default_factory=list, description="source offsets where tombstones may be removed before they were read"
    )
    held_back: int = Field(
        0, description="source records above its last stable offset, held back by an open transaction"
    )
    is_held: bool = Field(
        False, description="at the end of the slice, only an open transaction kept it from reading on"
    )
    held_by: str = Field("", description="whose transaction that is; empty: the brokers do not say")
    held_since_ms: int = Field(-1, description="when it began, as its coordinator says; -1: unknown")
    resumed_offset: int = Field(-1, description="target log end when the slice took the partition over; -1: never")
    went_back: list[tuple[int, int]] = Field(
        default_factory=list,
        description="(from, to): the target's log end went back (unclean election, lost disk)",
    )
    error: dict[str, object] | None = Field(None, description="MigrationError.as_dict() of the error that stopped it")
    trouble: dict[str, object] | None = Field(
        None, description="the same, for an error that was still being retried when the slice ended; it stopped nothing"
    )
    trouble_seconds: float = Field(0.0, description="how long it had been retried by then, within the slice")
    lag: int = Field(-1, description="records to the source's last stable offset, as last seen")
    slice_number: int = Field(0, description="number of the slice's lease, ascending within the lane; 0: unknown")
    total_records: int = Field(
        -1,
        description="records that all runs of the copy have put on the target since it began; from the log's sequence "
        "numbers. -1: unknown (copied in transactions, or not taken over in this slice)",
    )
    total_holes: int = Field(-1, description="offsets filled by markers since the copy began, likewise")
    begin_seconds: float = Field(
        -1.0,
        description="the longest time until a partition with a backlog has copied some of it; -1: none had one. In the "
        "lane's first result only",
    )
    source_throttled_seconds: float = Field(
        0.0, description="how long the source's quotas have throttled the lane; in the lane's first result only"
    )
    target_throttled_seconds: float = Field(0.0, description="the same for the target's quotas")
    waiting_ms: int = Field(
        -1, description="timestamp (ms since 1970) of the oldest record that was read and not acknowledged; -1: unknown"
    )
    mirrored_ms: int = Field(
        -1, description="newest timestamp of the batch that the target acknowledged last in this slice; -1: none"
    )
    latency: list[int] = Field(
        default_factory=list, description="histogram of the slice's replication latency; its form: copy/latency.py"
    )


# -- source gap -------------------------------------------------------------------------------------------------------
#
# A range of source offsets that retention deleted before it was read (``on_source_gap: note``).


class SourceGapRecord(Document):
    """``source-gaps/<topic>/<partition>/<from>-<until>.json``, written before the copy continues after the gap."""

    version: int = 1
    migration_id: str
    topic: str = Field(description="on the source")
    topic_id: str = Field(default="", description="hex; empty where the source has none")
    partition: int
    from_offset: int = Field(description="first source offset that was not read")
    until_offset: int = Field(description="the first offset that could be read: the log start at that time")


# -- target loss ------------------------------------------------------------------------------------------------------
#
# The target's log end went back: what had been copied behind it was lost there.


class TargetLossRecord(Document):
    """``target-losses/<topic>/<partition>/<until>-<from>.json``, written before the copy continues at the lower end."""

    version: int = 1
    migration_id: str
    topic: str = Field(description="on the source")
    topic_id: str = Field(default="", description="of the source topic, hex; empty where the source has none")
    target_topic: str
    partition: int
    from_target_offset: int = Field(description="the target's log end that copiers have seen before")
    to_target_offset: int = Field(description="the log end that is there now")
    source_offset: int = Field(-1, description="everything below it had been copied; -1: unknown")
    seen_at: str


# -- offset map -------------------------------------------------------------------------------------------------------
#
# Documents of the offset map: the runs that are written ahead, and ``offset-map.json``, which is built from them.


RunsKind = Literal["takeover", "checkpoint", "runs"]


class RunsObject(Document):
    """One step in the life of a partition's map; ``runs`` are written before the first append that they describe.

    It voids all runs of earlier objects at or above ``from_target_offset``. Objects are read by attempt, take-overs and
    checkpoints first, then by offset.
    """

    version: int = 1
    migration_id: str
    topic: str
    topic_id: str = ""
    partition: int
    attempt: int = Field(description="the incarnation of the copier that wrote it, ascending")
    kind: RunsKind
    from_target_offset: int
    runs: list[tuple[int, int]] = Field(
        default_factory=list, description="(source start, target start); a run extends to the next one"
    )


class MappedPartition(Part):
    """The map of one partition. Ends are exclusive, and null while the partition is being copied.

    ``runs`` is flat, three numbers per run: source offsets skipped since the end of the previous run, target offsets
    skipped likewise, length. The first run starts at the two start offsets; length -1 means that the run is still open.
    """

    topic: str
    target_topic: str
    topic_id: str = ""
    partition: int
    verdict: str = Field(description="equal, shifted, mapped, transactional, or empty: the target lacks the partition")
    source_start_offset: int | None = None
    source_end_offset: int | None = None
    target_start_offset: int | None = None
    target_end_offset: int | None = None
    runs: list[int] = Field(default_factory=list)


class OffsetMapDocument(Document):
    """``<evidence>/<migration_id>/offset-map.json``: the position of each source offset on the target."""

    version: int = 1
    migration_id: str
    complete: bool = Field(
        True, description="False: written at the end of the seed or by the tail; the copy continues, and ends are null"
    )
    partitions: list[MappedPartition] = Field(description="ascending by topic and partition")

    def partition(self, topic: str, partition: int) -> MappedPartition:
        """Return the map of a source partition; raise ``KeyError`` if there is none."""
        for entry in self.partitions:
            if (entry.topic, entry.partition) == (topic, partition):
                return entry
        raise KeyError(f"{topic}-{partition}")


# -- transactional ----------------------------------------------------------------------------------------------------
#
# Documents of the transactional mode: pages of a partition's offset map that no longer fit into the commit's metadata.
#
# The metadata of a committed group offset on the target names the newest page, and each page names its predecessor. A
# page that no commit names does not count: its writer died before the commit.


class MapPage(Document):
    """Runs of one partition that were committed on the target, or are about to be."""

    version: int = 1
    migration_id: str
    topic: str
    partition: int
    number: int = Field(description="ascending from 1")
    previous: str = Field("", description="name of the previous page; empty: this is the first")
    producer_ids: list[int] = Field(default_factory=list, description="producer ids that wrote the runs, ascending")
    runs: list[int] = Field(
        default_factory=list,
        description="flat, three numbers per run: source offsets skipped since the end of the previous run (the first: "
        "since 0), target offsets skipped likewise, length",
    )


class CopyBegun(Document):
    """Records that a position of this partition was committed on the target: if it is now missing, it was lost."""

    version: int = 1
    migration_id: str
    topic: str
    partition: int
    group: str


class FinalMap(Document):
    """The map of one partition as the final drain found it, for the content comparison."""

    version: int = 1
    migration_id: str
    producer_ids: list[int] = Field(default_factory=list, description="of all runs, ascending: they mark our batches")
    map: MappedPartition


# -- manifest ---------------------------------------------------------------------------------------------------------
#
# The archive's documents: an entry next to each segment, and a manifest of all partitions.
#
# A segment is a file of raw record batches in Kafka's own ``.log`` format with the source's offsets. Its entry is
# written after it, so a segment without an entry is unfinished and does not count.


class SegmentEntry(Document):
    """The content of one segment. Its key is the segment's, with ``.json`` instead of ``.log``."""

    version: int = 1
    format: str = Field("apache-kafka-log", description="batches as the source's broker stores them")
    topic: str
    topic_id: str = Field("", description="source topic id (KIP-516); empty before 2.8")
    partition: int
    from_offset: int = Field(description="first covered offset; the first batch may begin below it")
    until_offset: int = Field(description="exclusive end of the covered range, trailing holes included")
    batch_count: int
    record_count: int = Field(description="records in data batches, aborted ones included")
    size_bytes: int
    sha256: str = Field(description="of the segment, 64 hex digits")
    crc32c: str = Field(description="of the segment, 8 hex digits")
    aborted: list[tuple[int, int]] = Field(
        default_factory=list, description="(producer id, first offset) of aborted transactions, ascending by offset"
    )
    last_stable_offset: int = Field(-1, description="of the source when the segment was read; -1: unknown")
    log_start_offset: int = -1
    key: str = Field(description="of the segment, relative to the archive")
    entry_sha256: str = Field("", description="over the canonical form of all other fields, 64 hex digits")

    def sealed(self) -> SegmentEntry:
        """Return the entry with its own digest filled in."""
        return self.model_copy(update={"entry_sha256": seal(self.model_dump(mode="json"))})


def seal(fields: dict[str, Any]) -> str:
    """Return the expected ``entry_sha256`` for all fields as written, including those of later versions."""
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
    gaps: list[tuple[int, int]] = Field(default_factory=list, description="ranges [from, until) that no segment covers")
    superseded: int = Field(0, description="segments made redundant by others that cover the same offsets")
    segments: list[SegmentEntry]


class Manifest(Document):
    """All segments of an archive, ascending by topic, partition, offset; :meth:`digest` goes into the evidence."""

    version: int = 1
    migration_id: str
    partitions: list[ManifestPartition] = Field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments in use."""
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def record_count(self) -> int:
        """Records in all segments in use, aborted ones included."""
        return sum(partition.record_count for partition in self.partitions)


# -- backup -----------------------------------------------------------------------------------------------------------
#
# What a backup records about its source in addition to the segments, and the result of a restore.
#
# They are stored in the archive (``<migration_id>/backup/``), so a restore needs nothing from the source cluster.


class BackupConfig(Part):
    """One config in force; values of sensitive configs are unknown."""

    name: str
    value: str | None
    source: int = Field(description="Kafka's code for where it is set (DescribeConfigs)")
    sensitive: bool = False


class BackupPartition(Part):
    """One partition at the start of the backup."""

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
    """One topic, with everything needed to recreate it."""

    name: str
    topic_id: str = ""
    replication_factor: int
    configs: list[BackupConfig]
    partitions: list[BackupPartition]


class BackupSource(Document):
    """``backup/source.json``: the source at the start of the backup. Written once."""

    version: int = 1
    migration_id: str
    source: ClusterFacts
    topics: list[BackupTopic]
    excluded_topics: dict[str, str] = Field(default_factory=dict)
    missing_topics: list[str] = Field(default_factory=list)
    unknown: dict[str, str] = Field(default_factory=dict)


class BackupRange(Part):
    """The range of one partition that the archive covers; the end is exclusive."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    gaps: list[tuple[int, int]] = Field(
        default_factory=list, description="deleted on the source before they were read (on_source_gap: note)"
    )


class BackupEnd(Document):
    """``backup/end.json``: the backup is complete up to these ends. A later, longer backup replaces it."""

    version: int = 1
    migration_id: str
    job_digest: str = Field(description="of the backup's job document")
    follows: bool = Field(description="the ends are the stop offsets of a continuous backup")
    ranges: list[BackupRange]
    manifest: str = Field(description="key of the manifest")
    manifest_digest: str
    groups: str = Field(description="key of the groups' committed offsets, read after the ends were known")
    groups_digest: str

    def until(self, topic: str, partition: int) -> int | None:
        """Return the exclusive end of a partition, None for one that the backup does not have."""
        for item in self.ranges:
            if (item.topic, item.partition) == (topic, partition):
                return item.until_offset
        return None


class RestoreResult(Document):
    """``results/restore.json``: what a restore proved on the target."""

    version: int = 1
    migration_id: str
    finished_at: str
    backup_end_digest: str = Field("", description="of backup/end.json; empty: the backup was not complete")
    manifest_digest: str = ""
    contents: list[PartitionContent] = Field(description="target against archive, with a digest of each side")
    groups: list[GroupResult] = Field(default_factory=list)


# -- copied records ---------------------------------------------------------------------------------------------------
#
# How many records a copy job had put on the target when it ended: the next job's figures start from there.


class CopiedRecords(Document):
    """``results/<job>-records.json``: totals since the copy began, by ``topic-partition`` of the source."""

    version: int = 1
    migration_id: str
    job: str
    records: dict[str, int] = Field(description="records on the target that the migration has copied")
    holes: dict[str, int] = Field(
        default_factory=dict, description="offsets filled by markers; not for partitions copied in transactions"
    )


# -- lane reading -----------------------------------------------------------------------------------------------------
#
# How far the copiers of a lane have read the source, and when: the next slice cannot learn this from a log.


class PartitionReading(GrownPart):
    """One partition. Times are seconds since 1970, by the clock of the reading machine; -1: unknown.

    A position counts once it is safe: on the target, or in the archive. A mark is an end of the source's log, seen at
    some time. Once the copy has passed it, the copy has everything that was written before that time.
    """

    LATER_FIELDS = (
        "noted_source_offset",
        "noted_target_offset",
        "noted_sequence",
        "first_end_offset",
        "topic_id",
        "target_topic_id",
    )

    topic: str
    partition: int
    caught_up_at: float = Field(-1.0, description="the copy has everything written before; at first: its start time")
    caught_up_offset: int = Field(-1, description="the source's log end at that time")
    retention_ms: int = Field(-1, description="lowest delete.retention.ms since then; -1: not compacted")
    mark_at: float = Field(-1.0, description="when the mark was set; -1: no mark")
    mark_offset: int = -1
    mark_retention_ms: int = Field(-1, description="lowest delete.retention.ms since the mark was set")
    overtaken_until: int = Field(-1, description="end of the reported stretch that is not passed yet; -1: none")
    overtaken_from: int = -1
    source_offset: int = Field(-1, description="the safe position of the last slice; -1: unknown")
    source_epoch: int = Field(-1, description="leader epoch of the last source batch below it; -1: unknown")
    noted_source_offset: int = Field(-1, description="position at the end of a slice, with nothing under way")
    noted_target_offset: int = Field(-1, description="the target's log end there; -1: not noted")
    noted_sequence: int = Field(
        0, description="the next sequence of the copy there; where it is copied in transactions, always 0"
    )
    first_end_offset: int = Field(
        -1, description="the source's log end when the copy first read the partition; -1: not noted"
    )
    topic_id: str = Field("", description="of the source topic that all of this is about; empty: unknown")
    target_topic_id: str = Field("", description="of the target topic that the noted position is about; empty: unknown")

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
