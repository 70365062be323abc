"""What validation asks and what it answers: six checks with per-partition detail.

The third check, the content of all records, is done by a runner that the context carries (Spark or local). The phase
gives it a list of :class:`ContentRange` and gets one :class:`PartitionContent` for each of them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import Plan, TopicPlan, Verdict


class Outcome(StrEnum):
    """Result of a check, a validation or an evidence bundle; ordered by :func:`worst`."""

    PASSED = "PASSED"
    WARNING = "WARNING"
    FAILED = "FAILED"


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of some outcomes; PASSED for none."""
    order = list(Outcome)
    return max(outcomes, key=order.index, default=Outcome.PASSED)


class ContentRange(Part):
    """What is to be compared of one partition. Offsets are inclusive at the start, exclusive at the end."""

    topic: str
    target_topic: str
    partition: int
    verdict: Verdict
    source_start_offset: int
    source_end_offset: int
    target_start_offset: int
    target_end_offset: int

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)


class ContentDifference(Part):
    """One difference between the two logs that nothing explains."""

    kind: Literal["missing", "extra", "changed", "duplicate", "order", "offset", "unreadable"]
    source_offset: int | None = None
    target_offset: int | None = None
    detail: str = Field("", description="which part differs; never a key's or value's content")


class PartitionContent(Part):
    """What the comparison of one partition found. Partial failure is data."""

    topic: str
    partition: int
    source_records: int = Field(description="visible records read in the source's range")
    target_records: int = Field(description="visible records read in the target's range")
    compared: int = Field(description="records found equal on both sides")
    source_digest: str = Field("", description="digest of the compared content, hex")
    target_digest: str = ""
    method: Literal["payload", "decoded", "archive"] = "payload"
    explained: dict[str, int] = Field(
        default_factory=dict,
        description="records that only the target has and why that is right: compacted, expired, unkeyed",
    )
    uncompared: list[tuple[int, int]] = Field(
        default_factory=list,
        description="source ranges, end exclusive, that the source had deleted before anybody compared them",
    )
    uncompared_records: int = Field(0, description="records of the target in these ranges")
    archive_records: int = Field(0, description="of the compared records: those that only the archive still had")
    uncompared_reason: str = Field("", description="why the archive did not help")
    difference_count: int = 0
    differences: list[ContentDifference] = Field(default_factory=list, description="the first ones, ascending")
    error: dict[str, Any] | None = Field(None, description="MigrationError.as_dict(): the partition was not compared")

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)

    @property
    def is_equal(self) -> bool:
        """Nothing differs. Ranges that could not be compared may be left: see :attr:`is_proven`."""
        return self.error is None and self.difference_count == 0

    @property
    def is_proven(self) -> bool:
        """Everything was compared, and is equal or explained. Records of which none was compared prove nothing."""
        return self.is_equal and not self.uncompared and (self.compared > 0 or self.target_records == 0)


class ContentVerifier(Protocol):
    """Compares the content of all records: implemented on Spark and in one process."""

    def verify(self, ranges: Sequence[ContentRange]) -> Iterable[PartitionContent]:
        """One result per range, in any order.

        A partition that cannot be compared is a result with ``error``, not an exception; an exception means that
        the run as a whole did not work and can be tried again.
        """


class CheckResult(Part):
    """One of the checks."""

    name: Literal["topic_parity", "counts_and_offsets", "content", "sentinels", "groups", "source_drift"]
    outcome: Outcome
    summary: str
    partitions: list[dict[str, Any]] = Field(default_factory=list, description="per-partition detail")
    findings: list[str] = Field(default_factory=list, description="what is not as it should be, for people")


class ValidationResult(Document):
    """``results/validation.json``."""

    version: int = 1
    migration_id: str
    outcome: Outcome
    checks: list[CheckResult]
    started_at: str
    finished_at: str

    def check(self, name: str) -> CheckResult:
        """A check by its name; raises ``KeyError``."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)


# -- content ----------------------------------------------------------------------------------------------------------
#
# The content check as a job for data plane processes, and its stored results. Small, and without secrets.


#: Kafka's default of ``delete.retention.ms``, where nobody has said what the source's brokers have.
DEFAULT_DELETE_RETENTION_MS = 86_400_000


class TopicRules(Part):
    """What the source may do to records of a topic while it is being compared."""

    compacted: bool = Field(description="cleanup.policy has compact: older records of a key may go")
    delete_retention_ms: int | None = Field(
        DEFAULT_DELETE_RETENTION_MS, description="how long tombstones stay at least; None: they never go"
    )


class ContentJob(Document):
    """``<migration_id>/jobs/verify.json``: which ranges to compare, and by which rules."""

    version: int = 1
    migration_id: str
    name: Literal["verify"] = "verify"
    attempt: int = Field(1, description="a validation that is run again compares again; a retried task does not")
    journal_location: str = Field(description="results go to <migration_id>/results/content/ below it")
    archive_location: str | None = Field(
        None, description="the target is compared with the segments there; None: with the source cluster"
    )
    archive_of_deleted: str | None = Field(
        None, description="what the source has deleted is compared with the segments there; None: with nothing"
    )
    start_from_proven: bool = Field(
        False, description="compare only what is not proven yet, and store what is found equal (documents.proven)"
    )
    timestamps: Literal["visible", "raw"] = "visible"
    topics: dict[str, TopicRules] = Field(default_factory=dict, description="by source topic")
    ranges: list[ContentRange]

    def rules(self, topic: str) -> TopicRules:
        """The rules of a topic; for one that is not listed: nothing may go."""
        return self.topics.get(topic, TopicRules(compacted=False, delete_retention_ms=None))


class ContentResult(Document):
    """``<migration_id>/results/content/<topic>-<partition>.json``: one partition's comparison."""

    version: int = 1
    migration_id: str
    job_digest: str = Field(description="digest of the ContentJob; another one means that it is of an earlier attempt")
    range: ContentRange
    content: PartitionContent


def is_compacted(topic: TopicPlan) -> bool:
    """Whether older records of a key may go."""
    return "compact" in topic.source_configs.get("cleanup.policy", "") or "compacted" in topic.kinds


def topic_rules(plan: Plan, delete_retention_ms: Mapping[str, int]) -> dict[str, TopicRules]:
    """The rules of all topics of a plan.

    :param delete_retention_ms: as in force on the source (the topic's own, else the broker's default), by topic.
    """
    return {
        topic.name: TopicRules(
            compacted=is_compacted(topic),
            delete_retention_ms=delete_retention_ms.get(
                topic.name,
                int(topic.source_configs.get("delete.retention.ms", str(DEFAULT_DELETE_RETENTION_MS))),
            ),
        )
        for topic in plan.topics
    }


def content_job(
    plan: Plan,
    ranges: Sequence[ContentRange],
    *,
    journal_location: str,
    timestamps: Literal["visible", "raw"],
    delete_retention_ms: Mapping[str, int],
    attempt: int = 1,
    archive_of_deleted: str | None = None,
) -> ContentJob:
    """The job that compares these ranges of a planned migration.

    :param delete_retention_ms: see :func:`topic_rules`.
    """
    return ContentJob(
        migration_id=plan.migration_id,
        attempt=attempt,
        journal_location=journal_location,
        timestamps=timestamps,
        archive_of_deleted=archive_of_deleted,
        start_from_proven=True,
        topics=topic_rules(plan, delete_retention_ms),
        ranges=sorted(ranges, key=lambda item: item.key),
    )


# -- proven -----------------------------------------------------------------------------------------------------------
#
# What of a migration's content is proven equal, so that it need not be compared again.
#
# A partition is proven from its first copied offset up to somewhere: one range, which only grows. It is written by
# whoever compares (the tail in the background, the validation, the approval of the client switch), and read by all of
# them: each goes on where the former one ended. The check as a whole, once it has passed, is journaled with its ranges
# before anything on the target may be deleted: from then on log starts move, and nothing is read again.


class ProvenRange(Part):
    """One stretch of a partition that was found equal on both sides. Ends are exclusive.

    The anchor is what tells later whether the target's log is still the one that was read: Kafka gives each leader of
    a partition an epoch, and writes it into each batch. The same epoch at the same offset means the same log below
    it. After an unclean election whatever was lost is written again under a newer epoch. Epochs of a topic that was
    deleted and made again begin at 0 again, so the id of the topic belongs to the anchor.
    """

    source_start_offset: int
    source_end_offset: int
    target_start_offset: int
    target_end_offset: int
    anchor_offset: int = Field(-1, description="target offset whose leader epoch was seen; -1: the range has none")
    anchor_epoch: int = -1
    target_topic_id: str = Field(
        "", description="of the topic that was read; empty (older releases did not write it): the range is not trusted"
    )
    source_log_start_offset: int = Field(-1, description="of the source when the last piece was compared")
    target_log_start_offset: int = Field(-1, description="of the target when the last piece was compared")
    content: PartitionContent = Field(description="figures and digests of the whole range")
    pieces: int = 1
    first_at: str = Field("", description="when its first piece was compared, ISO 8601")
    last_at: str = ""


class ProvenPartition(Document):
    """``<migration_id>/proven/<topic>-<partition>.json``: how far a partition is proven, and what stands in the way."""

    LATER_FIELDS = ("overtaken_times",)

    version: int = 1
    migration_id: str
    topic: str
    target_topic: str
    partition: int
    verdict: Verdict
    proven: ProvenRange | None = None
    differing: PartitionContent | None = Field(
        None, description="what differs behind the proven range; null again when it is found equal later"
    )
    differed_times: int = Field(0, description="in how many comparisons in a row")
    differed_at: str = Field("", description="when that was last seen, ISO 8601")
    overtaken_times: int = Field(
        0, description="objects below overtaken-tombstones/ when the range began; more by now: it is not trusted"
    )
    postponed: str = Field("", description="why the background comparison leaves this partition to the validation")
    postponed_at: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)


class PassedContent(Document):
    """``results/content-passed.json``: a comparison of all content that has passed, with its ranges.

    Journaled with its digest before configs that delete data go back to the target. Later runs of the validation take
    it as it is, as long as the ranges are the same.
    """

    version: int = 1
    migration_id: str
    passed_at: str
    ranges: list[ContentRange]
    contents: list[PartitionContent]
    sentinels: CheckResult = Field(description="found at their places then; retention may take them since")
    target_log_starts: dict[str, int] = Field(
        default_factory=dict, description='"target topic-partition" to the log start that was seen then'
    )


# -- overtaken tombstones ---------------------------------------------------------------------------------------------
#
# A stretch of a compacted partition that the copy has read so late that tombstones may have gone before.


class OvertakenTombstones(Document):
    """``overtaken-tombstones/<topic>/<partition>/<from>-<until>-<event>.json``: a key deleted there may live on.

    Written when the stretch is met (``met``), before anything of it is copied, and when the copy has passed its end
    (``passed``). A comparison that began before either of them says nothing about deleted keys any more.
    """

    version: int = 1
    migration_id: str
    topic: str = Field(description="on the source")
    topic_id: str = Field(default="", description="hex; empty where the source has none")
    partition: int
    event: Literal["met", "passed"]
    from_offset: int = Field(description="source offset where reading went on")
    until_offset: int = Field(description="last stable offset of the source at that time")
    caught_up_at: str = Field("", description="the copy has all that was written before, ISO 8601; empty: not known")
    caught_up_offset: int = Field(-1, description="the source's log end at that time; -1: not known")
    read_at: str = Field(description="ISO 8601")
    gap_seconds: float = Field(-1.0, description="from caught_up_at to read_at; -1: not known")
    retention_ms: int = Field(description="lowest delete.retention.ms that was seen in that time")
