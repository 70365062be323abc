"""The independent proof: both clusters read again, by Spark's own Kafka source (:mod:`~..spark.independent`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.proof import ContentDifference, ContentRange, TopicRules
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings

#: The name of the job, and of the check.
INDEPENDENT: Final = "independent"
#: Source offsets, and about so many bytes of them, that are read at a time: what a killed job has to read again.
SLICE_OFFSETS: Final = 20_000_000
SLICE_BYTES: Final = 20_000_000_000


#: The reason for a record beside other producers that the offset map does not know, and that carries the copy's mark.
MARKED: Final = "marked"
#: The reason for a tombstone from the future, and for what it may have compacted.
UNDATED: Final = "undated"


class IndependentJob(Document):
    """``<migration_id>/jobs/independent.json``: the ranges to compare, and the rules to apply."""

    LATER_FIELDS = ("slice_offsets",)

    version: int = 1
    migration_id: str
    name: Literal["independent"] = INDEPENDENT
    attempt: int = Field(1, description="a repeated validation compares again; a retried task does not")
    journal_location: str = Field(description="results go to <migration_id>/results/independent/ below it")
    extent: Literal["all", "sample"] = "all"
    sample_seed: int | None = Field(None, description="seed of the draw; null: every partition is compared")
    left_out: int = Field(0, description="number of partitions that the draw left out")
    without_timestamps: list[str] = Field(
        default_factory=list, description="source topics whose readers see other times by design (timestamps: raw)"
    )
    topics: dict[str, TopicRules] = Field(default_factory=dict, description="by source topic")
    schema_ids: SchemaIdSettings | None = Field(None, description="topics whose records carry rewritten schema ids")
    slice_offsets: dict[str, int] = Field(
        default_factory=dict,
        description="by source topic with large records: offsets that are read at a time, and that a killed job has to "
        "read again",
    )
    ranges: list[ContentRange]

    def rules(self, topic: str) -> TopicRules:
        """Return the rules of a topic; an unlisted topic may lose no records."""
        return self.topics.get(topic, TopicRules(compacted=False, delete_retention_ms=None))


class IndependentResult(Document):
    """``<migration_id>/results/independent/<topic>-<partition>.json``: what the reader found in one partition."""

    LATER_FIELDS = ("target_deleted_records", "reached_offset", "source_only")

    version: int = 1
    migration_id: str
    job_digest: str = Field(description="digest of the IndependentJob; a different one belongs to an earlier attempt")
    range: ContentRange
    reader: str = Field(description="what has read both sides, with its versions")
    source_records: int = Field(0, description="committed records read in the source's range")
    target_records: int = Field(0, description="committed records read in the target's range")
    compared: int = Field(0, description="records found equal on both sides")
    source_digest: str = Field(
        "",
        description="SHA-256 over the digests of the source's blocks, hex; of a partition read in slices, over the "
        "digest so far and that of the next slice",
    )
    target_digest: str = ""
    explained: dict[str, int] = Field(
        default_factory=dict, description="records that only the target has, by the valid reason"
    )
    deleted_records: int = Field(
        0,
        description="records of the target that the source no longer has to compare with, or may have compacted away "
        "because of a tombstone from the future",
    )
    target_deleted_records: int = Field(
        0, description="records of the source that the target no longer has to compare with"
    )
    difference_count: int = 0
    differences: list[ContentDifference] = Field(default_factory=list, description="the first ones, ascending")
    not_compared: str = Field("", description="why this reader cannot compare the partition; empty: it has")
    reached_offset: int | None = Field(
        None, description="exclusive source offset up to which the partition is compared so far; null: all of it is"
    )
    source_only: dict[str, int] = Field(
        default_factory=dict, description="records that only the source has, by the valid reason"
    )

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return self.range.key


#: Why a proof did not run whose driver has not written that it began.
NEVER_STARTED: Final = "its driver never started"


class IndependentRefusal(Document):
    """``<migration_id>/results/independent-not-run.json``: why the proof did not run."""

    LATER_FIELDS = ("tries",)

    version: int = 1
    migration_id: str
    job_digest: str
    reason: str = Field(description="empty: the driver has begun")
    tries: int = Field(0, description="how often the job was submitted without a driver that began")


def records_of(results: Iterable[IndependentResult]) -> int:
    """Return how many records were compared."""
    return sum(result.compared for result in results)
