"""The section ``mirror``: how a flow that goes on names its topics, and whom it keeps up to date."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.naming.policies import (
    DefaultPolicy,
    FlowNames,
    RenamePolicy,
    ReplicationPolicy,
    load_policy,
    why_unusable_alias,
)
from airflow_provider_kafka_migration.spec.sections import RenameSection, Section
from airflow_provider_kafka_migration.spec.types import Duration

#: (path in the spec, reason)
Mistake = tuple[str, str]

_ALIAS = r"^[a-zA-Z0-9._-]*$"


class StateTopicsSection(Section):
    """MirrorMaker 2's state topics, which its clients read. A running mirror writes them; off by default."""

    checkpoints: bool = Field(
        False,
        description="Write the exact positions of groups (`<source alias>.checkpoints.internal` on the target) and "
        "offset syncs, for RemoteClusterUtils and for a MirrorMaker 2 that takes over.",
    )
    checkpoints_interval: Duration = Field("60s", description="How often they are written.")  # type: ignore[assignment]
    offset_syncs: Literal["target", "source"] = Field(
        "target",
        description="Where offset syncs go, as `offset-syncs.topic.location`. source writes to the source cluster.",
    )
    heartbeats: bool = Field(
        False,
        description="Write `heartbeats` on the target, and copy those of the source to `<source alias>.heartbeats`.",
    )
    heartbeats_interval: Duration = Field("1s", description="How often.")  # type: ignore[assignment]
    heartbeats_on_source: bool = Field(
        False,
        description="Write `heartbeats` on the source, too, as MirrorMaker 2 does. Otherwise an answer of the source "
        "takes their place, and the mirror never writes there.",
    )
    internal_separator: str = Field(
        "",
        pattern=r"^[a-zA-Z0-9._-]*$",
        description="In the names of internal topics; `.` with `replication.policy.internal.topic.separator.enabled="
        "false`. Empty: mirror.separator.",
    )

    @property
    def is_on(self) -> bool:
        """Whether anything is written."""
        return self.checkpoints or self.heartbeats


class MirrorSection(Section):
    """One flow of a mirror (kind: mirror)."""

    source_alias: str = Field("", pattern=_ALIAS, description="Short name of the source, as in MirrorMaker 2.")
    target_alias: str = Field("", pattern=_ALIAS, description="Short name of the target.")
    known_aliases: list[str] = Field(
        default_factory=list,
        description="Aliases of further clusters. Only known aliases count in front of a topic's name: a local topic "
        "`a.b` is not a remote topic of `a` unless `a` is one of them.",
    )
    naming: Literal["default", "identity", "rename", "custom"] = Field(
        "default",
        description="default puts the source's alias and the separator in front; identity keeps names; rename uses "
        "topics.rename; custom asks the class in mirror.policy.",
    )
    separator: str = Field(".", pattern=r"^[a-zA-Z0-9._-]+$", description="Between alias and topic.")
    policy: str = Field("", description="Dotted path of a class with KIP-382's two methods (naming: custom).")
    two_way: bool = Field(
        False, description="Another flow copies from this target back to this source (active/active)."
    )
    max_hops: int | None = Field(
        None,
        ge=1,
        description="Topics that would arrive after more hops are left out; empty: no limit. With naming: identity "
        "and two_way it counts for each record: 1 copies only what was first written to the source.",
    )
    provenance_header: str = Field(
        "kafka-migration.provenance",
        min_length=1,
        max_length=100,
        description="Header that copied records get with naming: identity and two_way: the cluster, topic, partition "
        "and offset that they were copied from. All flows between the same clusters need the same name.",
    )
    start: Literal["earliest", "latest"] = Field(
        "earliest",
        description="Where partitions begin that are there when the mirror is first planned: at their log's start, or "
        "at their end, so that only what comes later is copied. What appears afterwards begins at its log's start.",
    )
    sync_groups: bool = Field(
        True, description="Keep the offsets of groups that are idle on the target up to date, forward only (KIP-545)."
    )
    sync_interval: Duration = Field("5s", description="How often they are brought up to date.")  # type: ignore[assignment]
    target_retention: Literal["source", "own", "keep"] = Field(
        "source",
        description="What the target deletes while it is mirrored. source: what the source has deleted, and "
        "nothing that the copy did not write; own: what retention of its topics says; keep: nothing. With source and "
        "own, compacted topics are compacted on the target, too.",
    )
    state_topics: StateTopicsSection = Field(
        default_factory=StateTopicsSection, description="MirrorMaker 2's state topics, written while it mirrors."
    )

    @property
    def aliases(self) -> frozenset[str]:
        """All known aliases."""
        return frozenset({self.source_alias, self.target_alias, *self.known_aliases})

    def names(self, rename: RenameSection) -> FlowNames:
        """Return the names of this flow.

        :raises NamingPolicyUnusable: the class of a custom policy cannot be used.
        """
        return FlowNames(
            self._policy(rename),
            self.source_alias,
            self.target_alias,
            self.max_hops,
            self.aliases,
            self.separator,
            self.state_topics.internal_separator,
        )

    def _policy(self, rename: RenameSection) -> ReplicationPolicy:
        if self.naming == "custom":
            return load_policy(self.policy)
        if self.naming == "default":
            return DefaultPolicy(self.aliases, self.separator)
        return RenamePolicy(rename.prefix, rename.topics) if self.naming == "rename" else RenamePolicy()

    @property
    def merges(self) -> bool:
        """Whether the topics of both clusters have the same names in both directions, so that records tell cycles."""
        return bool(self.two_way) and self.naming == "identity"

    def rename(self, given: RenameSection) -> RenameSection:
        """Return the renames that this naming amounts to; those of a custom policy are asked for by topic."""
        return RenameSection(prefix=f"{self.source_alias}{self.separator}") if self.naming == "default" else given


# -- mistakes ---------------------------------------------------------------------------------------------------------


def mistakes(kind: str, mirror: Any, topics: Any, acls: Any, seed: Any) -> Iterator[Mistake]:
    """Find what does not go together in a mirror, and keys of a mirror in the spec of a migration.

    :param mirror: a :class:`MirrorSection`, or its valid keys; so for the other sections.
    """
    if kind != "mirror":
        if mirror.source_alias or mirror.target_alias or mirror.start != "earliest":
            yield "mirror", "has no effect without kind: mirror"
        return
    yield from _aliases(mirror)
    if seed.via == "split":
        yield "seed.via", "a mirror copies from cluster to cluster: split has no tail that could go on"
    if (mirror.naming == "custom") != bool(mirror.policy):
        yield "mirror.policy", "naming: custom needs it, and only naming: custom uses it"
    if mirror.naming != "rename" and _renames(topics, mirror):
        yield "topics.rename", f"mirror.naming: {mirror.naming} decides the names; use naming: rename"
    if mirror.naming == "custom" and acls.policy != "skip":
        yield "acls.policy", "naming: custom needs skip: a policy does not say what becomes of a prefix in an ACL"
    if mirror.two_way and mirror.naming == "rename":
        yield (
            "mirror.two_way",
            "naming: rename cannot go both ways: its names do not say where a topic comes from, so it would come round",
        )
    yield from _state_topics(mirror.state_topics)


def _state_topics(section: Any) -> Iterator[Mistake]:
    if section.offset_syncs == "source" and not section.checkpoints:
        yield "mirror.state_topics.offset_syncs", "has no effect without checkpoints: true, which writes offset syncs"
    if section.heartbeats_on_source and not section.heartbeats:
        yield "mirror.state_topics.heartbeats_on_source", "has no effect without heartbeats: true"
    for key, shortest in (("checkpoints_interval", 1.0), ("heartbeats_interval", 0.1)):
        if getattr(section, key).total_seconds() < shortest:
            yield f"mirror.state_topics.{key}", f"must be at least {shortest:g} s: each round asks both clusters"


def _late_start(mirror: Any, both: str) -> Iterator[Mistake]:
    if mirror.start == "latest":
        yield "mirror.start", f"use earliest {both}: a topic would begin at other records on each cluster"


def _aliases(mirror: Any) -> Iterator[Mistake]:
    given = {"source_alias": mirror.source_alias, "target_alias": mirror.target_alias}
    given |= {f"known_aliases[{number}]": alias for number, alias in enumerate(mirror.known_aliases)}
    for key, alias in given.items():
        if not alias:
            yield f"mirror.{key}", "a mirror needs it: the alias says which cluster a topic comes from"
        elif why := why_unusable_alias(alias, mirror.separator):
            yield f"mirror.{key}", why
    if mirror.source_alias and mirror.source_alias == mirror.target_alias:
        yield "mirror.target_alias", "source and target have the same alias"


def _renames(topics: Any, mirror: Any) -> bool:
    is_own = mirror.naming == "default" and topics.rename.prefix == f"{mirror.source_alias}{mirror.separator}"
    return bool(topics.rename.topics or (topics.rename.prefix and not is_own))


def freeze_mistakes(kind: str, mirror: Any, cutover: Any) -> Iterator[Mistake]:
    """Find what does not go together with a mirror that stops producers itself before its promotion."""
    if kind != "mirror" or cutover.freeze == "manual":
        return
    if mirror.merges:
        yield (
            "cutover.freeze",
            "with naming: identity in both directions there is nothing to promote, and the other flow writes to the "
            "topics whose producers would be stopped; leave it out",
        )
    if cutover.on_bypass == "note":
        yield (
            "cutover.on_bypass",
            f"a mirror with freeze: {cutover.freeze} is not promoted while a producer goes on: use stop",
        )


def merge_mistakes(kind: str, mirror: Any, others: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find what does not go together with equal names in both directions.

    :param others: the sections ``offsets``, ``acls``, ``topology`` and ``schemas``.
    """
    if kind != "mirror" or not (mirror.two_way and mirror.naming == "identity"):
        return
    offsets, acls = others["offsets"], others["acls"]
    if offsets.mode != "transactional":
        yield (
            "mirror.two_way",
            "naming: identity cannot go both ways with equal offsets: both flows and the local producers would write "
            "to the same partitions, and a partition gives each offset only once; set offsets.mode: transactional "
            "(copied records then get the header mirror.provenance_header), or use naming: default",
        )
        return
    both = "with naming: identity in both directions"
    yield from _late_start(mirror, both)
    for index, item in enumerate(offsets.by_topic):
        if item.mode != "transactional":
            yield f"offsets.by_topic[{index}].mode", f"only transactional goes {both}: others write to each partition"
    if mirror.sync_groups:
        yield (
            "mirror.sync_groups",
            f"set false {both}: the clusters order their records differently, so one offset cannot say which records "
            "of both a group has read; give the groups of each cluster names of their own",
        )
    if acls.policy != "skip":
        yield "acls.policy", f"set skip {both}: a right that is withdrawn on one cluster would come back from the other"
    if acls.quotas != "skip":
        yield "acls.quotas", f"set skip {both}: both flows would set the quotas of the other cluster back"
    if others["topology"].on_topic_deleted == "repair":
        yield (
            "topology.on_topic_deleted",
            f"use stop or note {both}: the copy has records that were first written there",
        )
    if others["schemas"].source or others["schemas"].topic:
        yield (
            "schemas",
            f"leave the section out {both}: let both clusters use one registry, or copy its schemas yourself",
        )
