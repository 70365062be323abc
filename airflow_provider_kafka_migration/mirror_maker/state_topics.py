"""Names of MirrorMaker 2's state topics on the target, and their creation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_kafka_migration.errors import SpecInvalid, TopologyRefused, Where
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.topics import TOPIC_ALREADY_EXISTS, NewTopic

_CONFIGS = {"cleanup.policy": "compact"}
_HEARTBEATS = "heartbeats"


@dataclass(frozen=True)
class StateTopics:
    """The state topics of a flow, all on its target.

    :param source_alias: name of the source in MirrorMaker 2's words; also the prefix of remote topics.
    :param separator: between alias and topic.
    :param internal_separator: in the names of internal topics: the separator, or ``.`` where MirrorMaker 2 runs with
        ``replication.policy.internal.topic.separator.enabled=false``.
    :raises SpecInvalid: an alias contains the separator, so clients could not tell alias and topic apart.
    """

    source_alias: str
    target_alias: str
    separator: str = "."
    internal_separator: str = "."

    def __post_init__(self) -> None:
        for alias in (self.source_alias, self.target_alias):
            if not alias or self.separator in alias:
                raise SpecInvalid(
                    f"the alias {alias!r} is empty or contains the separator {self.separator!r}",
                    next_step="choose an alias without it: clients take everything up to the first separator for it",
                )
        if self.source_alias == self.target_alias:
            raise SpecInvalid("source and target have the same alias", next_step="choose two different aliases")

    @property
    def checkpoints(self) -> str:
        """Exact positions of consumer groups."""
        return self._internal(f"{self.source_alias}{self.internal_separator}checkpoints")

    @property
    def offset_syncs(self) -> str:
        """Pairs of offsets (``offset-syncs.topic.location=target``)."""
        return self._internal(f"mm2-offset-syncs{self.internal_separator}{self.source_alias}")

    @property
    def heartbeats(self) -> str:
        """Signs of life of this flow."""
        return _HEARTBEATS

    @property
    def remote_heartbeats(self) -> str:
        """Its name tells clients that the source is upstream; their ``replicationHops`` looks at nothing else."""
        return f"{self.source_alias}{self.separator}{_HEARTBEATS}"

    def _internal(self, name: str) -> str:
        return f"{name}{self.internal_separator}internal"

    def names(self) -> list[str]:
        """Return all of them."""
        return [self.checkpoints, self.offset_syncs, self.heartbeats, self.remote_heartbeats]


def create(admin: Admin, names: Iterable[str]) -> list[str]:
    """Create the topics that are missing, with one partition and compaction; return their names.

    :raises TopologyRefused: a broker refuses one, or one exists with several partitions, of which readers see only 0.
    """
    wanted = sorted(set(names))
    answers = admin.create_topics([NewTopic(name, 1, configs=_CONFIGS) for name in wanted])
    made = []
    for name in wanted:
        error = answers[name].error
        if error is None:
            made.append(name)
        elif error.code != TOPIC_ALREADY_EXISTS:
            raise TopologyRefused(
                f"a state topic cannot be created: {error}",
                where=Where(cluster="target", topic=name),
                next_step="grant the principal Create on it, or create it with one partition and compaction",
            )
    for name, facts in admin.describe_topics([item for item in wanted if item not in made]).items():
        if facts.error is None and len(facts.partitions) != 1:
            raise TopologyRefused(
                f"a state topic has {len(facts.partitions)} partitions; MirrorMaker 2 and its clients read only one",
                where=Where(cluster="target", topic=name),
                next_step="choose another alias, or delete the topic if nothing uses it",
            )
    return made
