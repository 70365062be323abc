"""Documents of a way back: the offsets of groups that it has written on the old cluster."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, GrownPart


class WrittenOffset(GrownPart):
    """What a way back has committed for a group on one partition of the old cluster."""

    LATER_FIELDS = ("is_final",)

    topic: str = Field(description="on the old cluster")
    partition: int
    former_offset: int | None = Field(
        None, description="what the group had there before the way back wrote; null: it had no offset there"
    )
    former_metadata: str = ""
    written: list[int] = Field(
        default_factory=list,
        description="offsets of which one is there, if nobody else has moved the group since: the last one that was "
        "certainly written, and the one after it, which is recorded before it is written",
    )
    is_final: bool = Field(False, description="the last one is of the cutover's commit, or of a refresh after it")


class WrittenGroups(Document):
    """``results/groups-written.json``: all groups that a way back has written on the old cluster, and their former
    offsets. It is written before the offsets are.
    """

    version: int = 1
    migration_id: str
    groups: dict[str, list[WrittenOffset]] = Field(default_factory=dict)
