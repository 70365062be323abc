"""Documents of a mirror: requests, remote topics to delete, its promotion, and the comparison of its contents."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, GrownPart, Part
from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.documents.proof import ContentDifference, ContentRange, TopicRules
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings

Want = Literal["run", "paused", "promoted", "ended"]


class MirrorRequest(Document):
    """What a person wants of a mirror. Whoever holds the mirror does it and journals it.

    ``control/mirror-requests/<number>.json``; a copy in ``control/mirror.json`` says where to begin to look.

    A request needs no claim, so that it reaches a mirror that runs elsewhere, for instance in Airflow.
    """

    LATER_FIELDS = ("valid_until",)

    version: int = 1
    migration_id: str
    number: int = Field(description="ascending; the last request counts")
    want: Want
    source_gone: bool = Field(False, description="promoted: without the source, which may never come back")
    reason: str = ""
    requested_by: str = ""
    requested_at: str = ""
    refused: str = Field("", description="why the holder has turned a request down; it goes on mirroring")
    valid_until: str = Field(
        "",
        description="promoted, ended: when it is too late to begin with it, and the holder turns it down; empty: never",
    )


class RetentionProblems(Document):
    """``results/target-retention.json``: what the last pass over the target's retention could not do."""

    version: int = 1
    migration_id: str
    at: str
    count: int = Field(description="partitions and steps with a problem")
    problems: dict[str, str] = Field(description="by source partition (orders-1) or step; of many, the first")


class StateTopicsReport(Document):
    """``results/mirror-maker-checkpoints.json`` and ``results/mirror-maker-heartbeats.json``: the last passes."""

    LATER_FIELDS = ("never_since",)

    version: int = 1
    migration_id: str
    at: str
    written_at: str = Field(
        "",
        description="checkpoints: the last pass that wrote everything; heartbeats: the newest one of the source that "
        "the target has; empty: none",
    )
    problem: str = Field("", description="what the last pass could not do; empty: nothing")
    never_since: str = Field(
        "", description="the first pass, as long as ``written_at`` has always been empty; else empty"
    )


class GroupSyncReport(Document):
    """``results/group-sync.json``: whether the groups of a mirror are brought up to date; written when that changes."""

    version: int = 1
    migration_id: str
    at: str
    failing_since: str = Field("", description="since when no pass has succeeded; empty: the last one has")
    problem: str = Field("", description="what the passes since then fail with; empty: nothing")


class MissingGroup(GrownPart):
    """A group whose offsets the mirror has written on the target, and that the source does not list."""

    LATER_FIELDS = ("is_refused",)

    group: str
    since: str = Field("", description="when all brokers of the source first said that it is gone; empty: not yet")
    looked_at: str = Field(description="when they were last asked")
    brokers: list[int] = Field(default_factory=list, description="the brokers that said so first, ascending")
    kept: str = Field("", description="why the target still has the group, by the last look")
    is_refused: bool = Field(False, description="whether the target has certainly refused the last request to delete")


class MissingGroups(Document):
    """``results/groups-missing.json``. It only observes: without it the next look is a first one."""

    version: int = 1
    migration_id: str
    groups: list[MissingGroup] = Field(default_factory=list)


class PromotedPartition(GrownPart):
    """How far one partition was mirrored when its mirror was promoted."""

    LATER_FIELDS = ("log_end_offset",)

    topic: str
    partition: int
    target_topic: str
    mirrored_until: int = Field(description="exclusive source offset: all records below it are on the target")
    target_end_offset: int = Field(description="log end of the copy on the target")
    source_end_offset: int = Field(
        description="exclusive source offset; of a source that is gone, the last one that a copier has seen; "
        "-1: never seen"
    )
    log_end_offset: int = Field(
        -1, description="log end on the target then; what lies behind the copy was written by others. -1: not read"
    )

    @property
    def of_others(self) -> int:
        """Number of target offsets behind the copy that others have used already."""
        return max(self.log_end_offset - self.target_end_offset, 0)

    @property
    def possibly_lost(self) -> int:
        """Number of source offsets that are known not to be on the target."""
        return max(self.source_end_offset - self.mirrored_until, 0)


class Promotion(Document):
    """``results/promotion.json``: the end of a mirror whose target is used on its own from now on."""

    LATER_FIELDS = ("late_writes", "not_checked", "source_checked_at", "former_stopped")

    version: int = 1
    migration_id: str
    source_gone: bool
    at: str
    requested_by: str = ""
    reason: str = ""
    partitions: list[PromotedPartition]
    source_seen_at: str = Field(
        "", description="when copiers last reported the source's ends; what it got after that is unknown"
    )
    problems: list[str] = Field(
        default_factory=list,
        description="what is left for a person: what could not be put back on the target, fenced or granted there, and "
        "what the source got meanwhile",
    )
    late_writes: dict[str, str] = Field(
        default_factory=dict,
        description="by source partition (orders-1): what it got behind the copy while the mirror was promoted; the "
        "target does not have it",
    )
    not_checked: dict[str, str] = Field(
        default_factory=dict,
        description="by source partition, or `source`: why it is not known whether it got anything meanwhile",
    )
    source_checked_at: str = Field(
        "", description="when the source was read for that, after the copiers were fenced; empty: its source was gone"
    )
    former_stopped: list[str] = Field(
        default_factory=list,
        description="of a mirror that fails back: which producers of the target are still stopped by the promotion of "
        "the mirror that it reverses, and what frees them; `mirror promote` tries again",
    )


class RemoteTopic(Part):
    """A remote topic whose source topic is gone, as a person has seen it."""

    topic: str = Field(description="source topic")
    remote_topic: str
    topic_id: str = Field(description="id of the remote topic")
    why: str = Field(description="what happened to the source topic")
    log_end_offsets: list[int] = Field(description="of the remote topic, by partition")


class TopicDeletions(Document):
    """``control/topic-deletions.json``: the remote topics that a person has approved to delete.

    Like a request it needs no claim. Whoever holds the mirror deletes a topic only as long as it is exactly as it was
    shown.
    """

    version: int = 1
    migration_id: str
    topics: list[RemoteTopic] = Field(description="ascending by remote topic")
    code: str = Field(description="the approved code, over the topics")
    approved_by: str
    approved_at: str
    reason: str = ""


#: Outcome of comparing one partition. ``nothing``: neither side has anything that is to be compared.
Verified = Literal["equal", "different", "unchecked", "nothing"]


class VerifiedPartition(Part):
    """The comparison of one partition of a mirror. Offsets of -1: no range was determined."""

    topic: str
    target_topic: str
    partition: int
    outcome: Verified
    reason: str = Field("", description="why it could not be checked, or why there is nothing to compare")
    source_start_offset: int = -1
    source_end_offset: int = Field(-1, description="exclusive")
    target_start_offset: int = -1
    target_end_offset: int = Field(-1, description="exclusive")
    compared: int = Field(0, description="records found equal on both sides")
    only_on_source: dict[str, int] = Field(
        default_factory=dict,
        description="records that the target may lack, by the reason: compacted, expired, unkeyed",
    )
    only_on_target: dict[str, int] = Field(
        default_factory=dict, description="records that the source may lack, by the reason"
    )
    deleted_meanwhile: int = Field(0, description="records that one side has deleted before they were compared")
    difference_count: int = 0
    differences: list[ContentDifference] = Field(default_factory=list, description="the first ones, ascending")
    notes: list[str] = Field(default_factory=list, description="what was not compared, for people")


class MirrorVerification(Document):
    """``results/verification.json``: the last comparison of the contents of a mirror."""

    LATER_FIELDS = ("reader",)

    version: int = 1
    migration_id: str
    state: str = Field(description="state of the mirror when it began")
    topics: list[str] = Field(default_factory=list, description="patterns of the topics; empty: all")
    last: int | None = Field(None, description="number of last offsets of each partition; null: all")
    started_at: str
    finished_at: str
    partitions: list[VerifiedPartition] = Field(description="ascending by topic and partition")
    reader: str = Field(
        "", description="what has read both sides, with its versions; empty: the code that copies has read them"
    )

    def count(self, outcome: Verified) -> int:
        """Return the number of partitions with an outcome."""
        return sum(item.outcome == outcome for item in self.partitions)

    @property
    def is_equal(self) -> bool:
        """Whether something was compared, and all that there is to compare is equal."""
        return self.count("equal") > 0 and not self.count("different") and not self.count("unchecked")


# -- comparison as a job ----------------------------------------------------------------------------------------------
#
# What data plane processes need for the comparison of a mirror, and their stored results. Small and without secrets.


class MirroredRange(Part):
    """One partition that is to be compared: its range, and what belongs to the judgement about it."""

    range: ContentRange
    topic_id: str = Field("", description="source topic id when it was copied; empty: unknown")
    first_source_offset: int = Field(description="first source offset of the copy: where its offset map begins")
    first_target_offset: int = Field(description="the target offset that belongs to it")
    copied_source_offset: int | None = Field(None, description="exclusive end of a finished copy; null: it goes on")
    copied_target_offset: int | None = Field(None, description="the target offset that belongs to it")
    source_rules: TopicRules = Field(description="what the source may do to its records")
    target_rules: TopicRules = Field(description="what the target may do to its records")
    below: str = Field("", description="what of the copy is no longer on both sides, for people")
    held_back: str = Field("", description="why less is compared than was copied")
    lacking: str = Field("", description="what the target must have and does not have any more")
    notes: list[str] = Field(default_factory=list, description="what else a person should know")

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return self.range.key


class MirrorComparison(Document):
    """``<migration_id>/jobs/compare-<run>.json``: one comparison of a mirror, for Spark."""

    LATER_FIELDS = ("independent", "without_timestamps", "slice_offsets")

    version: int = 1
    migration_id: str
    name: str = Field(description="of the job: compare-<run>, with a digest of the run")
    run: str = Field(description="who compares: DAG id and run id. Another attempt of the same run continues the job")
    spec_digest: str = Field(description="digest of the mirror's spec; another one is another job")
    journal_location: str = Field(description="results go to <migration_id>/comparisons/<name>/ below it")
    state: str = Field(description="state of the mirror when it began")
    topics: list[str] = Field(default_factory=list, description="patterns of the topics; empty: all")
    last: int | None = Field(None, description="number of last offsets of each partition; null: all")
    started_at: str
    timestamps: Literal["visible", "raw"] = "visible"
    schema_ids: SchemaIdSettings | None = Field(None, description="as in a ContentJob")
    provenance: ProvenanceSettings | None = Field(None, description="how copied records are marked; null: not at all")
    known: list[VerifiedPartition] = Field(
        default_factory=list, description="partitions whose outcome is known without a comparison"
    )
    independent: bool = Field(False, description="Spark's own Kafka source reads both sides")
    without_timestamps: list[str] = Field(default_factory=list, description="as in an IndependentJob")
    slice_offsets: dict[str, int] = Field(default_factory=dict, description="as in an IndependentJob")
    ranges: list[MirroredRange] = Field(description="ascending by topic and partition")


class ComparedPartition(Document):
    """``<migration_id>/comparisons/<name>/<topic>-<partition>.json``: one partition's comparison.

    It is deleted with its job once ``results/verification.json`` has all results.
    """

    LATER_FIELDS = ("reader",)

    version: int = 1
    migration_id: str
    job_digest: str = Field(description="digest of the MirrorComparison; a different one belongs to another job")
    range: ContentRange
    found: VerifiedPartition
    error: dict[str, Any] | None = Field(None, description="MigrationError.as_dict(): what prevented the comparison")
    reader: str = Field("", description="as in a MirrorVerification")
