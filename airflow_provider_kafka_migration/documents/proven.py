"""What of a migration's content is proven equal, so that it need not be compared again.

A partition is proven from its first copied offset up to somewhere: one range, which only grows. It is written by
whoever compares (the tail in the background, the validation, the approval of the client switch), and read by all of
them: each goes on where the former one ended. The check as a whole, once it has passed, is journaled with its ranges
before anything on the target may be deleted: from then on log starts move, and nothing is read again.
"""

from __future__ import annotations

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import CheckResult, ContentRange, PartitionContent


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
