"""The section ``adopt`` of the spec: partitions that go on behind content that is already on both clusters."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from airflow_provider_kafka_migration.spec.sections import Section
from airflow_provider_kafka_migration.spec.types import Duration
from airflow_provider_kafka_migration.verbs import AnyVerb, StopOrNote, on

#: Where the boundary between the content that is there and the copy comes from.
AdoptFrom = Literal["way_back", "mirror", "mirrormaker2", "redpanda_migrator", "comparison"]


class MirrorMaker2Section(Section):
    """The MirrorMaker 2 whose mirror is taken over (`from: mirrormaker2`)."""

    source_alias: str = Field("source", min_length=1, description="Alias of the source cluster in its configuration.")
    target_alias: str = Field("target", min_length=1, description="Alias of the target cluster.")
    offsets_topic: str | None = Field(
        None,
        description="Topic on the target with its source offsets: mm2-offsets.ALIAS.internal in dedicated mode (the "
        "default), offset.storage.topic of a Connect cluster.",
    )
    offset_syncs_topic: str | None = Field(
        None, description="Topic with its offset syncs; default: the name that MirrorMaker 2 gives it."
    )
    offset_syncs_location: Literal["source", "target"] = Field(
        "source", description="Its offset-syncs.topic.location: the cluster that has the offset syncs."
    )
    replication_policy: Literal["default", "identity", "prefix"] = Field(
        "default",
        description="How it names topics. default: source_alias, separator, name; identity: unchanged; prefix: a "
        "custom policy that prepends prefix.",
    )
    separator: str = Field(".", description="Separator of the default policy (replication.policy.separator).")
    prefix: str = Field("", description="What a custom policy prepends (replication_policy: prefix).")
    isolation_level: Literal["read_uncommitted", "read_committed"] = Field(
        "read_uncommitted",
        description="isolation.level of its consumer. With read_uncommitted, aborted records are on the target.",
    )


class RedpandaMigratorSection(Section):
    """The Redpanda Migrator whose copy is taken over (`from: redpanda_migrator`)."""

    group: str = Field(
        "", description="Its consumer group on the source; required. The committed offsets are where it stopped."
    )


class AdoptSection(Section):
    """Takes logs over: the copy begins behind content that is already on both clusters, once it is proven equal.

    Without this section a copy begins on empty partitions.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    from_: AdoptFrom = Field(
        alias="from",
        description="way_back: the end of another migration of this tool, in the other direction; mirror: that of a "
        "promoted mirror, likewise; mirrormaker2 and "
        "redpanda_migrator: the positions of that tool, checked by content; comparison: content alone.",
    )
    migration_id: str | None = Field(
        None,
        description="The migration, or the mirror, whose end is the boundary (from: way_back, mirror); same "
        "storage.journal.",
    )
    on_diverged: AnyVerb = on("adopt.on_diverged", "stop")
    stable_window: Duration = Field(  # type: ignore[assignment]
        "10s", description="How long the target's log ends must not move: nobody else writes there."
    )
    min_records: int = Field(
        64, ge=1, description="Records before the boundary that are compared on both sides, as far as they exist."
    )
    compare: Literal["suffix", "all"] = Field(
        "suffix",
        description="How much below the boundary is compared: the newest records, or all that both sides have.",
    )
    on_duplicates: StopOrNote = on("adopt.on_duplicates", "stop")
    map_below: Literal["exact", "offset_syncs", "none"] = Field(
        "exact",
        description="Positions of groups that lag behind the boundary: from the content comparison, from offset syncs "
        "(approximate: some records are read again), or not at all (such groups are named).",
    )
    mirrormaker2: MirrorMaker2Section = Field(default_factory=lambda: MirrorMaker2Section())
    redpanda_migrator: RedpandaMigratorSection = Field(default_factory=lambda: RedpandaMigratorSection())

    @field_validator("migration_id")
    @classmethod
    def _is_not_empty(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("the name of a migration, or remove the key")
        return value
