"""A range of source offsets that retention deleted before anybody had read it (``on_source_gap: record``)."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document


class SourceGapRecord(Document):
    """``source-gaps/<topic>/<partition>/<from>-<until>.json``, written before the copy goes on behind the gap."""

    version: int = 1
    migration_id: str
    topic: str = Field(description="on the source")
    topic_id: str = Field(default="", description="hex; empty where the source has none")
    partition: int
    from_offset: int = Field(description="first source offset that was not read")
    until_offset: int = Field(description="the first offset that could be read: the log start by then")
