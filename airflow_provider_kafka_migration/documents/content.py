"""The content check as a job for data plane processes, and its stored results. Small, and without secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import Plan, TopicPlan
from airflow_provider_kafka_migration.documents.proof import ContentRange, PartitionContent

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
