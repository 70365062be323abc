"""A stretch of a compacted partition that the copy has read so late that tombstones may have gone before."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document


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
