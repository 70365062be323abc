"""Copy-time settings of the target's topics: what they were, what they are while copied, what they end with.

Written to the journal store before the first setting is changed, so that a crash in between loses none of them.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part


class TopicSettings(Part):
    """One target topic."""

    before: dict[str, str] | None = Field(
        None, description="overrides of a topic that was there before the migration; None: the migration created it"
    )
    copy_time: dict[str, str] = Field(description="overrides while it is copied")
    final: dict[str, str] = Field(description="overrides it ends with")


class CopySettings(Document):
    """All target topics by name."""

    version: int = 1
    migration_id: str
    topics: dict[str, TopicSettings]


class TopologyResult(Document):
    """``results/topology.json``: what was done to the target's topics. Lists hold target names."""

    version: int = 1
    migration_id: str
    summary: str
    topics: int
    created: list[str] = Field(default_factory=list)
    adopted: list[str] = Field(default_factory=list, description="empty topics that were there before")
    widened: dict[str, int] = Field(default_factory=dict, description="target topic to its partitions now")
    log_starts_filled: dict[str, int] = Field(default_factory=dict, description="partitions and offsets")
    dropped_configs: dict[str, dict[str, str]] = Field(default_factory=dict, description="topic to config to why")
    replication_factors: dict[str, list[int]] = Field(
        default_factory=dict, description="topic to [source, target] where they differ; -1: the target's default"
    )
    copy_settings: dict[str, Any] = Field(default_factory=dict, description="document and digest of the settings")
