"""Documents of a mirror: what a person asks of it, and what its promotion found."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part

Want = Literal["run", "paused", "promoted", "ended"]


class MirrorRequest(Document):
    """``control/mirror.json``: what a person wants of a mirror. Whoever holds the mirror does it and journals it.

    A request needs no claim, so that it reaches a mirror that runs elsewhere, for instance in Airflow.
    """

    version: int = 1
    migration_id: str
    number: int = Field(description="ascending; the last request counts")
    want: Want
    source_gone: bool = Field(False, description="promoted: without the source, which may never come back")
    reason: str = ""
    requested_by: str = ""
    requested_at: str = ""
    refused: str = Field("", description="why the holder has turned a request down; it goes on mirroring")


class PromotedPartition(Part):
    """How far one partition was mirrored when its mirror was promoted."""

    topic: str
    partition: int
    target_topic: str
    mirrored_until: int = Field(description="exclusive source offset: all records below it are on the target")
    target_end_offset: int = Field(description="log end of the copy on the target")
    source_end_offset: int = Field(
        description="exclusive source offset; of a source that is gone, the last one that a copier has seen; "
        "-1: never seen"
    )

    @property
    def possibly_lost(self) -> int:
        """Number of source offsets that are known not to be on the target."""
        return max(self.source_end_offset - self.mirrored_until, 0)


class Promotion(Document):
    """``results/promotion.json``: the end of a mirror whose target is used on its own from now on."""

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
    problems: list[str] = Field(default_factory=list, description="what could not be put back on the target")
