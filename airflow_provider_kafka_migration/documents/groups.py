"""Consumer groups: what was read on the source, what it becomes on the target, and what was committed."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import Verdict


class Translation(StrEnum):
    """How a committed offset got its counterpart (seed 001 "Offset Translation"; issue D part 4)."""

    #: the same number
    EQUAL = "equal"
    #: another number, the same record
    EXACT = "exact"
    #: it pointed into a hole of the source log: the next record after the hole
    HOLE_FORWARD = "hole_forward"
    #: it was before the first copied record: the first copied record
    RESET_TO_START = "reset_to_start"
    #: it was beyond the last copied record: the end of what was copied
    CLAMPED = "clamped"
    #: nothing was committed; ``reason`` says why
    SKIPPED = "skipped"


class CommittedOffset(Part):
    """One offset that a group has committed on the source. ``metadata`` is kept as it is."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""


class GroupSnapshot(Part):
    """One group as it stood on the source."""

    group: str
    type: str = Field(description="classic, consumer, simple, share, streams, unknown")
    state: str
    members: list[str] = Field(default_factory=list, description="client id and host of the members")
    offsets: list[CommittedOffset] = Field(default_factory=list, description="topics of the migration only")
    other_topics: list[str] = Field(default_factory=list, description="committed topics outside of the migration")
    error: dict[str, Any] | None = None


class GroupsSnapshot(Document):
    """``results/groups-snapshot.json``."""

    version: int = 1
    migration_id: str
    taken_at: str
    groups: list[GroupSnapshot]


class TranslatedOffset(Part):
    """One translated offset. ``target_offset`` is None when nothing may be committed."""

    topic: str
    target_topic: str
    partition: int
    source_offset: int
    target_offset: int | None
    translation: Translation
    verdict: Verdict | None = None
    metadata: str = ""
    reason: str = ""


class GroupResult(Part):
    """What became of one group on the target. Partial failure is data."""

    group: str
    type: str
    source_state: str
    target_state: str = Field("", description="state on the target when it was looked at; NotFound if it had none")
    offsets: list[TranslatedOffset] = Field(default_factory=list)
    committed: int = Field(0, description="partitions committed by this call")
    unchanged: int = Field(0, description="partitions that were already right, or ahead, on the target")
    skipped_reason: str = Field("", description="why the whole group was left alone")
    failures: list[dict[str, Any]] = Field(default_factory=list, description="MigrationError.as_dict() each")

    @property
    def is_complete(self) -> bool:
        """Everything that can be committed is committed."""
        return not self.failures and not self.skipped_reason


class GroupsResult(Document):
    """``results/groups.json``: the latest state of all groups; rewritten by each refresh."""

    version: int = 1
    migration_id: str
    at: str
    groups: list[GroupResult]
    active_on_source: list[str] = Field(default_factory=list, description="groups with members on the source")
