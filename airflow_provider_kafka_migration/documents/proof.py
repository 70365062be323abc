"""Input and results of the validation: eight checks with per-partition detail.

A runner from the context (Spark or local) does the third check, the content of all records. The phase passes it a list
of :class:`ContentRange` and gets back one :class:`PartitionContent` for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import Plan, TopicPlan, Verdict
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings


class Outcome(StrEnum):
    """Result of a check, a validation or an evidence bundle; ordered by :func:`worst`."""

    PASSED = "PASSED"
    #: Only of a check that may be left out: it says nothing about the migration.
    NOT_RUN = "NOT_RUN"
    WARNING = "WARNING"
    FAILED = "FAILED"
    #: Only of evidence: a way back has ended with *Keep*, so nothing was validated.
    KEPT = "KEPT"
    #: Only of evidence: the migration was abandoned before a client had switched, so nothing was validated.
    ABANDONED = "ABANDONED"


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of some outcomes; PASSED if there are none."""
    order = list(Outcome)
    return max(outcomes, key=order.index, default=Outcome.PASSED)


class ContentRange(Part):
    """The range of one partition to compare. Start offsets are inclusive, end offsets exclusive."""

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
    """One unexplained difference between the two logs."""

    kind: Literal["missing", "extra", "changed", "duplicate", "order", "offset", "unreadable"]
    source_offset: int | None = None
    target_offset: int | None = None
    detail: str = Field("", description="which part differs; never the content of a key or value")


class SchemaIdUse(Part):
    """A schema id that occurs in the compared records of one partition, as the source has it."""

    part: Literal["key", "value"]
    kind: Literal["id32", "id64", "guid"] = Field(description="a number of 4 or 8 bytes, or a GUID of 16 bytes")
    id: int | str = Field(description="a number, or a GUID as 36 characters of lower case")
    count: int = Field(description="compared records in which it occurs")
    first_offset: int = Field(description="source offset of the first of them")


class PartitionContent(Part):
    """The result of comparing one partition. Partial failure is data."""

    #: Written only where schema ids were gathered: documents that were journaled before keep their digests.
    _ID_FIELDS: ClassVar[tuple[str, ...]] = ("schema_ids", "schema_ids_left_out", "schema_id_rule")

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
        description="records that only the target has, by the valid reason: compacted, expired, unkeyed",
    )
    uncompared: list[tuple[int, int]] = Field(
        default_factory=list,
        description="source ranges, end exclusive, that the source deleted before they were compared",
    )
    uncompared_records: int = Field(0, description="records of the target in these ranges")
    archive_records: int = Field(0, description="compared records that only the archive still had")
    uncompared_reason: str = Field("", description="why the archive did not help")
    difference_count: int = 0
    differences: list[ContentDifference] = Field(default_factory=list, description="the first ones, ascending")
    error: dict[str, Any] | None = Field(None, description="MigrationError.as_dict(): the partition was not compared")
    schema_ids: list[SchemaIdUse] = Field(
        default_factory=list, description="ids in the compared records, ascending by part, kind and id"
    )
    schema_ids_left_out: int = Field(
        0, description="occurrences of ids that the list has no room for; 0: it is complete"
    )
    schema_id_rule: str = Field(
        "",
        description="how ids were gathered and compared (TopicIdSettings.rule); empty: they were not, and an empty "
        "list proves nothing",
    )

    @model_serializer(mode="wrap")
    def _serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        return data if self.schema_id_rule else {name: data[name] for name in data if name not in self._ID_FIELDS}

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs. Some ranges may still be uncompared: see :attr:`is_proven`."""
        return self.error is None and self.difference_count == 0

    @property
    def is_proven(self) -> bool:
        """Whether everything was compared and is equal or explained. If no record was compared, nothing is proven."""
        return self.is_equal and not self.uncompared and (self.compared > 0 or self.target_records == 0)


class ContentVerifier(Protocol):
    """Compares the content of all records; implemented on Spark and in one process."""

    def verify(self, ranges: Sequence[ContentRange]) -> Iterable[PartitionContent]:
        """Return one result per range, in any order.

        A partition that cannot be compared yields a result with ``error``, not an exception; an exception means that
        the whole run failed and can be retried.
        """


class CheckResult(Part):
    """One of the checks."""

    name: Literal[
        "topic_parity", "counts_and_offsets", "content", "sentinels", "groups", "source_drift", "schemas", "independent"
    ]
    outcome: Outcome
    summary: str
    partitions: list[dict[str, Any]] = Field(default_factory=list, description="per-partition detail")
    findings: list[str] = Field(default_factory=list, description="what is wrong, for people")


class ValidationResult(Document):
    """``results/validation.json``."""

    version: int = 1
    migration_id: str
    outcome: Outcome
    checks: list[CheckResult]
    started_at: str
    finished_at: str

    def check(self, name: str) -> CheckResult:
        """Return a check by name; raise ``KeyError`` if there is none."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)


# -- content ----------------------------------------------------------------------------------------------------------
#
# The content check as a job for data plane processes, and its stored results. Small and without secrets.


#: Kafka's default for ``delete.retention.ms``, used where the value of the source's brokers is unknown.
DEFAULT_DELETE_RETENTION_MS = 86_400_000


class TopicRules(Part):
    """What the source may do to the records of a topic during the comparison."""

    compacted: bool = Field(description="cleanup.policy has compact: older records of a key may be removed")
    delete_retention_ms: int | None = Field(
        DEFAULT_DELETE_RETENTION_MS, description="minimum time that tombstones are kept; None: forever"
    )


class ContentJob(Document):
    """``<migration_id>/jobs/verify.json``: the ranges to compare, and the rules to apply."""

    LATER_FIELDS = ("schema_ids",)

    version: int = 1
    migration_id: str
    name: Literal["verify"] = "verify"
    attempt: int = Field(1, description="a repeated validation compares again; a retried task does not")
    journal_location: str = Field(description="results go to <migration_id>/results/content/ below it")
    archive_location: str | None = Field(
        None, description="the target is compared with the segments there; None: with the source cluster"
    )
    archive_of_deleted: str | None = Field(
        None, description="records that the source has deleted are compared with the segments there; None: not at all"
    )
    start_from_proven: bool = Field(
        False, description="compare only what is not proven yet, and store what is equal (ProvenPartition)"
    )
    timestamps: Literal["visible", "raw"] = "visible"
    topics: dict[str, TopicRules] = Field(default_factory=dict, description="by source topic")
    schema_ids: SchemaIdSettings | None = Field(
        None, description="topics whose records carry schema ids: compared under the id map; null: there are none"
    )
    ranges: list[ContentRange]

    def rules(self, topic: str) -> TopicRules:
        """Return the rules of a topic; an unlisted topic may lose no records."""
        return self.topics.get(topic, TopicRules(compacted=False, delete_retention_ms=None))


class ContentResult(Document):
    """``<migration_id>/results/content/<topic>-<partition>.json``: one partition's comparison."""

    version: int = 1
    migration_id: str
    job_digest: str = Field(description="digest of the ContentJob; a different one belongs to an earlier attempt")
    range: ContentRange
    content: PartitionContent


def is_compacted(topic: TopicPlan) -> bool:
    """Return whether older records of a key may be removed."""
    return "compact" in topic.source_configs.get("cleanup.policy", "") or "compacted" in topic.kinds


def topic_rules(plan: Plan, delete_retention_ms: Mapping[str, int]) -> dict[str, TopicRules]:
    """Return the rules of all topics of a plan.

    :param delete_retention_ms: the value in force on the source (the topic's own, else the broker's), by topic.
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
    schema_ids: SchemaIdSettings | None = None,
) -> ContentJob:
    """Return the job that compares these ranges of a planned migration.

    :param delete_retention_ms: see :func:`topic_rules`.
    :param schema_ids: the settings that the copy used.
    """
    return ContentJob(
        migration_id=plan.migration_id,
        attempt=attempt,
        journal_location=journal_location,
        timestamps=timestamps,
        archive_of_deleted=archive_of_deleted,
        start_from_proven=True,
        topics=topic_rules(plan, delete_retention_ms),
        schema_ids=schema_ids,
        ranges=sorted(ranges, key=lambda item: item.key),
    )


# -- proven -----------------------------------------------------------------------------------------------------------
#
# Which part of a migration's content is proven equal, so that it need not be compared again.
#
# A partition is proven from its first copied offset up to some offset: one range, which only grows. Each comparison
# (the tail in the background, the validation, the approval of the client switch) writes it, and continues where the
# previous one ended. Once the whole check has passed, it is journaled with its ranges before anything on the target may
# be deleted: from then on log starts move, and nothing is read again.


class ProvenRange(Part):
    """One range of a partition that was found equal on both sides. Ends are exclusive.

    The anchor shows later whether the target's log is still the one that was read: Kafka gives each leader of a
    partition an epoch, and writes it into each batch. The same epoch at the same offset means the same log below
    it. After an unclean election, lost records are written again under a newer epoch. The epochs of a recreated topic
    start at 0 again, so the topic id is part of the anchor.
    """

    source_start_offset: int
    source_end_offset: int
    target_start_offset: int
    target_end_offset: int
    anchor_offset: int = Field(-1, description="target offset whose leader epoch was seen; -1: no anchor")
    anchor_epoch: int = -1
    target_topic_id: str = Field(
        "", description="id of the topic that was read; empty (from older releases): the range is not trusted"
    )
    source_log_start_offset: int = Field(-1, description="of the source when the last piece was compared")
    target_log_start_offset: int = Field(-1, description="of the target when the last piece was compared")
    content: PartitionContent = Field(description="figures and digests of the whole range")
    pieces: int = 1
    first_at: str = Field("", description="when its first piece was compared, ISO 8601")
    last_at: str = ""


class ProvenPartition(Document):
    """``<migration_id>/proven/<topic>-<partition>.json``: how far a partition is proven, and what prevents more."""

    LATER_FIELDS = ("overtaken_times",)

    version: int = 1
    migration_id: str
    topic: str
    target_topic: str
    partition: int
    verdict: Verdict
    proven: ProvenRange | None = None
    differing: PartitionContent | None = Field(
        None, description="what differs after the proven range; null again once it is found equal"
    )
    differed_times: int = Field(0, description="number of consecutive comparisons that found it")
    differed_at: str = Field("", description="when it was last seen, ISO 8601")
    overtaken_times: int = Field(
        0, description="objects below overtaken-tombstones/ when the range began; if more exist now, it is not trusted"
    )
    postponed: str = Field("", description="why the background comparison leaves this partition to the validation")
    postponed_at: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)


class PassedContent(Document):
    """``results/content-passed.json``: a passed comparison of all content, with its ranges.

    It is journaled with its digest before configs that delete data are restored on the target. Later runs of the
    validation reuse it as long as the ranges are the same.
    """

    version: int = 1
    migration_id: str
    passed_at: str
    ranges: list[ContentRange]
    contents: list[PartitionContent]
    sentinels: CheckResult = Field(description="found in place at that time; retention may remove them later")
    target_log_starts: dict[str, int] = Field(
        default_factory=dict, description='"target topic-partition" to the log start at that time'
    )


# -- overtaken tombstones ---------------------------------------------------------------------------------------------
#
# A stretch of a compacted partition that the copy read so late that tombstones may already be removed.


class OvertakenTombstones(Document):
    """``overtaken-tombstones/<topic>/<partition>/<from>-<until>-<event>.json``: a key deleted there may live on.

    It is written when the copy reaches the stretch (``met``), before copying any of it, and when the copy has passed
    its end (``passed``). A comparison that began before either event no longer proves anything about deleted keys.
    """

    version: int = 1
    migration_id: str
    topic: str = Field(description="on the source")
    topic_id: str = Field(default="", description="hex; empty where the source has none")
    partition: int
    event: Literal["met", "passed"]
    from_offset: int = Field(description="source offset where reading continued")
    until_offset: int = Field(description="last stable offset of the source at that time")
    caught_up_at: str = Field("", description="the copy has everything written before, ISO 8601; empty: unknown")
    caught_up_offset: int = Field(-1, description="the source's log end at that time; -1: unknown")
    read_at: str = Field(description="ISO 8601")
    gap_seconds: float = Field(-1.0, description="from caught_up_at to read_at; -1: unknown")
    retention_ms: int = Field(description="lowest delete.retention.ms seen in that time")
