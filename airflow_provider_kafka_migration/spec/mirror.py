"""The section ``mirror``: how a flow that goes on names its topics, and whom it keeps up to date."""

from __future__ import annotations

from collections.abc import Iterator
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
        None, ge=1, description="Topics that would arrive after more hops are left out; empty: no limit."
    )
    sync_groups: bool = Field(
        True, description="Keep the offsets of groups that are idle on the target up to date, forward only (KIP-545)."
    )
    sync_interval: Duration = Field("5s", description="How often they are brought up to date.")  # type: ignore[assignment]

    @property
    def aliases(self) -> frozenset[str]:
        """All known aliases."""
        return frozenset({self.source_alias, self.target_alias, *self.known_aliases})

    def names(self, rename: RenameSection) -> FlowNames:
        """Return the names of this flow.

        :raises NamingPolicyUnusable: the class of a custom policy cannot be used.
        """
        return FlowNames(
            self._policy(rename), self.source_alias, self.target_alias, self.max_hops, self.aliases, self.separator
        )

    def _policy(self, rename: RenameSection) -> ReplicationPolicy:
        if self.naming == "custom":
            return load_policy(self.policy)
        if self.naming == "default":
            return DefaultPolicy(self.aliases, self.separator)
        return RenamePolicy(rename.prefix, rename.topics) if self.naming == "rename" else RenamePolicy()

    def rename(self, given: RenameSection) -> RenameSection:
        """Return the renames that this naming amounts to; those of a custom policy are asked for by topic."""
        return RenameSection(prefix=f"{self.source_alias}{self.separator}") if self.naming == "default" else given


# -- mistakes ---------------------------------------------------------------------------------------------------------


def mistakes(kind: str, mirror: Any, topics: Any, acls: Any, seed: Any) -> Iterator[Mistake]:
    """Find what does not go together in a mirror, and keys of a mirror in the spec of a migration.

    :param mirror: a :class:`MirrorSection`, or its valid keys; so for the other sections.
    """
    if kind != "mirror":
        if mirror.source_alias or mirror.target_alias:
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
    if mirror.two_way and mirror.naming in ("identity", "rename"):
        yield "mirror.two_way", _why_not_both_ways(mirror.naming)


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


def _why_not_both_ways(naming: str) -> str:
    if naming == "identity":
        return (
            "naming: identity cannot go both ways with equal offsets: both flows and the local producers would write "
            "to the same partitions, and a partition gives each offset only once; use naming: default"
        )
    return "naming: rename cannot go both ways: its names do not say where a topic comes from, so it would come round"
