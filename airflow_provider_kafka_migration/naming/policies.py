"""Replication policies (KIP-382): the name of a topic on the other cluster, and the cluster that a name points to.

``topic_source`` of KIP-382's default policy takes the first part of any name as an alias, so that a local topic ``a.b``
counts as a remote topic of a cluster ``a``. Here only aliases that the spec names count.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from airflow_provider_kafka_migration.errors import NamingPolicyUnusable, Where

#: What brokers accept inside topic names.
_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+")


@runtime_checkable
class ReplicationPolicy(Protocol):
    """What a policy has to answer: the two methods that KIP-382 asks of a ``ReplicationPolicy``.

    A policy may also have ``upstream_topic(topic) -> str | None``: the name of a remote topic on the cluster that it
    came from. Without it, only the last hop of a topic is known.
    """

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        """Return the name on the target of a topic of the source."""

    def topic_source(self, topic: str) -> str | None:
        """Return the alias of the cluster that a remote topic was copied from; ``None`` for a local topic."""


def why_unusable_alias(alias: str, separator: str) -> str:
    """Return why names with this alias could not be taken apart again; empty if they can.

    The alias ends where the separator first appears. So an alias must not contain it, nor end in its beginning:
    ``a-`` and ``--`` make ``a---orders``, which is also ``a``, ``--`` and ``-orders``.
    """
    if not _ALLOWED.fullmatch(alias):
        return f"{alias!r} has characters that topic names must not have: letters, digits and . _ - only"
    if separator in alias:
        return f"{alias!r} contains the separator {separator!r}, so a name could not be taken apart again"
    if f"{alias}{separator}".index(separator) != len(alias):
        return f"{alias!r} ends in the beginning of the separator {separator!r}, so a name would be ambiguous"
    return ""


@dataclass(frozen=True)
class DefaultPolicy:
    """``<alias><separator><topic>``.

    :param aliases: all known aliases; the first part of a name counts only if it is one of them.
    """

    aliases: frozenset[str]
    separator: str = "."

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        """Return the topic with the alias in front."""
        return f"{source_cluster_alias}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """Return the known alias in front of the topic."""
        return self._split(topic)[0]

    def upstream_topic(self, topic: str) -> str | None:
        """Return the name without the alias; ``None`` for a local topic."""
        return self._split(topic)[1]

    def _split(self, topic: str) -> tuple[str | None, str | None]:
        alias, separator, rest = topic.partition(self.separator)
        return (alias, rest) if separator and rest and alias in self.aliases else (None, None)


@dataclass(frozen=True)
class RenamePolicy:
    """An optional prefix and exact names; unchanged names without either. A name tells nothing about its source."""

    prefix: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        """Return the exact name if there is one, else the topic with the prefix."""
        return self.topics.get(topic, f"{self.prefix}{topic}")

    def topic_source(self, topic: str) -> str | None:
        """Return ``None``: such a name does not say where its topic comes from."""
        return None


def load_policy(path: str) -> ReplicationPolicy:
    """Import the class at a dotted path and make one, without arguments.

    :raises NamingPolicyUnusable: it cannot be imported or made, or lacks one of the two methods.
    """
    module, _, name = path.rpartition(".")
    try:
        policy = getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise NamingPolicyUnusable(
            f"the naming policy {path} cannot be used: {type(error).__name__}",
            where=Where(path="mirror.policy"),
            next_step="give the dotted path of a class without arguments that every worker can import",
        ) from error
    if not isinstance(policy, ReplicationPolicy):
        raise NamingPolicyUnusable(
            f"the naming policy {path} lacks format_remote_topic or topic_source",
            where=Where(path="mirror.policy"),
            next_step="give the class both methods (KIP-382); see docs/mirrors.md",
        )
    return policy


# -- hops -------------------------------------------------------------------------------------------------------------


def hops(policy: ReplicationPolicy, topic: str) -> tuple[str, ...]:
    """Return the aliases of the clusters that a topic has come through, the nearest first; empty for a local topic."""
    found: list[str] = []
    upstream = getattr(policy, "upstream_topic", None)
    name: str | None = topic
    while name:
        alias = policy.topic_source(name)
        if alias is None:
            break
        found.append(alias)
        rest = upstream(name) if upstream is not None else None
        # A policy whose names do not get shorter would go on for ever.
        name = rest if rest is not None and len(rest) < len(name) else None
    return tuple(found)


#: The topic of heartbeats on the cluster of a flow; on further ones aliases come in front.
HEARTBEATS = "heartbeats"
_WRITTEN = "the mirror, translate publish or MirrorMaker 2 writes it"


def why_state_topic(topic: str, aliases: frozenset[str], separator: str, internal_separator: str = "") -> str:
    """Return why a topic is one of MirrorMaker 2's state topics; empty if it is not.

    Its internal topics are told by their names as KIP-690 does it. ``heartbeats`` counts alone or behind known aliases
    only, so that ``my-heartbeats`` and ``shop.heartbeats`` are topics like any other.

    :param aliases: all known aliases.
    :param internal_separator: a second separator that internal topics may have; empty: they have the first one.
    """
    for between in {separator, internal_separator or separator}:
        internal = f"{between}internal"
        if topic.endswith(f"{between}checkpoints{internal}") or (topic.startswith("mm2") and topic.endswith(internal)):
            return f"internal topic of MirrorMaker 2: {_WRITTEN}"
    return f"heartbeats of a flow: {_WRITTEN}" if _is_heartbeats(topic, DefaultPolicy(aliases, separator)) else ""


def _is_heartbeats(topic: str, policy: DefaultPolicy) -> bool:
    name = topic
    while (rest := policy.upstream_topic(name)) is not None:
        name = rest
    return name == HEARTBEATS


@dataclass(frozen=True)
class FlowNames:
    """The names of one flow, and the topics that it must not copy.

    :param max_hops: how many clusters a topic may have come through when it arrives; None: any number.
    :param aliases: all known aliases; with the separator they tell MirrorMaker 2's state topics.
    """

    policy: ReplicationPolicy
    source_alias: str
    target_alias: str
    max_hops: int | None = None
    aliases: frozenset[str] = frozenset()
    separator: str = "."
    internal_separator: str = ""

    def remote(self, topic: str) -> str:
        """Return the name on the target."""
        return self.policy.format_remote_topic(self.source_alias, topic)

    def remote_heartbeats(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the names on the target of those topics of the source that are heartbeats, in ascending order.

        They have the alias in front under every policy, as MirrorMaker 2 has it: clients count hops by these names.
        Those that have come through the target, or over too many clusters, are left out.
        """
        policy = DefaultPolicy(self.aliases | {self.source_alias, self.target_alias}, self.separator)
        found = {}
        for topic in sorted(set(topics)):
            path = hops(policy, topic)
            is_near = self.max_hops is None or len(path) + 1 <= self.max_hops
            if _is_heartbeats(topic, policy) and self.target_alias not in path and is_near:
                found[topic] = policy.format_remote_topic(self.source_alias, topic)
        return found

    def why_not(self, topic: str) -> str:
        """Return why this flow must not copy a topic of the source; empty if it may.

        A topic that has come through the target already is never copied back: it would come round again for ever.
        Neither are MirrorMaker 2's state topics: somebody else writes those of the target.
        """
        if why := why_state_topic(topic, self.aliases, self.separator, self.internal_separator):
            return why
        path = hops(self.policy, topic)
        if self.target_alias in path:
            return f"cycle: it has come from {self.target_alias} already ({' <- '.join(path)})"
        if self.max_hops is not None and len(path) + 1 > self.max_hops:
            return f"mirror.max_hops: {self.max_hops}, and it would arrive after {len(path) + 1} hops"
        return ""

    def remote_topics(self, topics: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the remote topics among the given ones, with their hops, in ascending order."""
        return {topic: found for topic in sorted(topics) if (found := hops(self.policy, topic))}
