"""The section ``way_back`` of the spec: how clients can return to the old cluster after they have switched."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from airflow_provider_kafka_migration.spec.sections import Section
from airflow_provider_kafka_migration.spec.types import Duration, Regex


class WayBackSection(Section):
    """The way back: after the client switch, what clients write to the new cluster is copied to the old one.

    It is a migration of its own, with both ends swapped, until a person decides to keep the new cluster or to go back.
    """

    enabled: bool = Field(
        True, description="The spec's own DAG starts that of the way back once clients have switched."
    )
    keep_for: Duration = Field(  # type: ignore[assignment]
        "7d", description="After this time the question is asked again: keep, or back. Nothing decides by itself."
    )
    freeze_old: Literal["acl", "none"] = Field(
        "none",
        description="How producers are kept out of the old cluster. acl: DENY WRITE for each principal that may write "
        "to its topics, put and removed by the migration; none: nothing is set. In both cases a foreign record stops "
        "the way back of its partition, and nothing is overwritten.",
    )
    source_settings: Literal["set", "refuse"] = Field(
        "set",
        description="Old topics whose own settings would delete or change what comes back (retention, compaction, "
        "timestamps). set: they get copy-time settings, and their own ones back at the end; refuse: begin only if no "
        "topic needs that.",
    )
    freeze: Literal["webhook", "manual", "acl"] | None = Field(
        None, description="How producers of the new cluster are stopped when clients go back; empty: cutover.freeze."
    )
    sync_groups: bool = Field(
        True,
        description="While records come back, committed offsets of groups follow on the old cluster, where a group is "
        "idle, forward only. false: they are translated at the return only.",
    )
    sync_interval: Duration = Field("30s", description="How often groups are brought up to date.")  # type: ignore[assignment]
    exclude: list[Regex] = Field(
        default_factory=list, description="Topics of the new cluster that do not go back (names there, full match)."
    )
