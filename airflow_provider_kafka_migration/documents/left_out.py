"""Topics and groups of the source that are not part of the migration, each with its reason."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part


class LeftOutGroup(Part):
    """A consumer group that is not moved. Its consumers start by ``auto.offset.reset`` on the target."""

    group: str
    type: str
    reason: str
    topics_in_scope: list[str] = Field(default_factory=list, description="migrated topics in which it has offsets")
    unread: str = Field("", description="why its offsets could not be read; empty: they were read")


class LeftOut(Document):
    """``results/left-out.json``: what the source had beside the migration when the client switch was acknowledged."""

    version: int = 1
    migration_id: str
    at: str
    topics: dict[str, str] = Field(default_factory=dict, description="source topic to why it is not migrated")
    groups: list[LeftOutGroup] = Field(default_factory=list)
    unread: dict[str, str] = Field(default_factory=dict, description="what could not be looked at, and why")
