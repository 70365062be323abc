"""Topics that are left out unless the spec names them: they belong to the brokers, or to tools that rebuild them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Each cluster has its own; copying them over another cluster's would break that cluster, so no pattern includes them.
BROKER_TOPICS = (
    r"__consumer_offsets",
    r"__transaction_state",
    r"__share_group_state",
    r"__cluster_metadata",
    r"__remote_log_metadata",
    r"__amazon_msk_.*",
)

#: The precheck's scratch topics on the target. They exist for seconds; no pattern includes them, because a flow that
#: reads that cluster would copy them, and find them gone.
SCRATCH_PREFIX = "kafka-migration-probe-"


@dataclass(frozen=True)
class BuiltInExclude:
    """Internal topics, recognized by a mark in their names.

    :param pattern: must match the whole name.
    :param begins: how a pattern of ``topics.include`` has to begin, and ``ends`` to end, in order to name such topics.
    """

    pattern: str
    begins: str = ""
    ends: str = ""

    def matches(self, topic: str) -> bool:
        """Return whether a topic has this mark."""
        return re.fullmatch(self.pattern, topic) is not None

    def is_named_by(self, include: str) -> bool:
        """Return whether a pattern spells out the mark. ``.*`` does not: it would include unintended topics."""
        plain = include.replace("\\", "")
        return plain.startswith(self.begins) and plain.endswith(self.ends)


BUILT_IN_EXCLUDES = (
    BuiltInExclude(r"__.*", begins="__"),
    BuiltInExclude(r".*\.replica", ends=".replica"),
    BuiltInExclude(r"mm2.*\.internal", begins="mm2", ends=".internal"),
    BuiltInExclude(r".*\.checkpoints\.internal", ends=".checkpoints.internal"),
    BuiltInExclude(r"_confluent.*", begins="_confluent"),
)


def is_internal(topic: str) -> bool:
    """Return whether a topic is left out unless the spec names it."""
    return topic.startswith(SCRATCH_PREFIX) or any(item.matches(topic) for item in BUILT_IN_EXCLUDES)


def why_internal(topic: str, include: Iterable[str]) -> str:
    """Return why an internal topic is left out; empty if it is not internal or a pattern of ``include`` names it."""
    if any(re.fullmatch(pattern, topic) for pattern in BROKER_TOPICS):
        return "internal topic of the brokers: each cluster has its own"
    if topic.startswith(SCRATCH_PREFIX):
        return "internal topic of a precheck, which removes it again"
    matching = [pattern for pattern in include if re.fullmatch(pattern, topic)]
    for item in BUILT_IN_EXCLUDES:
        if item.matches(topic) and not any(item.is_named_by(pattern) for pattern in matching):
            return f"internal topic (built-in exclude {item.pattern}; name it in topics.include to include it)"
    return ""
