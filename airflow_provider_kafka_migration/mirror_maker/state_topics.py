"""Names of MirrorMaker 2's state topics, and their creation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from airflow_provider_kafka_migration.errors import SpecInvalid, TopologyRefused, Where
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.topics import TOPIC_ALREADY_EXISTS, NewTopic
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.spec import MigrationSpec

_CONFIGS = {"cleanup.policy": "compact"}
_HEARTBEATS = "heartbeats"


class StateCluster(Protocol):
    """A cluster that has state topics, with its clients."""

    @property
    def role(self) -> Literal["source", "target"]: ...
    @property
    def config(self) -> ClientConfig: ...
    @property
    def wire(self) -> Wire: ...
    @property
    def admin(self) -> Admin: ...


@dataclass(frozen=True)
class StateTopics:
    """The state topics of a flow: on its target, except where ``syncs_on`` and heartbeats of the source say otherwise.

    :param source_alias: name of the source in MirrorMaker 2's words; also the prefix of remote topics.
    :param separator: between alias and topic.
    :param internal_separator: in the names of internal topics: the separator, or ``.`` where MirrorMaker 2 runs with
        ``replication.policy.internal.topic.separator.enabled=false``.
    :param syncs_on: where offset syncs are (``offset-syncs.topic.location``).
    :raises SpecInvalid: an alias contains the separator, so clients could not tell alias and topic apart.
    """

    source_alias: str
    target_alias: str
    separator: str = "."
    internal_separator: str = "."
    syncs_on: Literal["source", "target"] = "target"

    def __post_init__(self) -> None:
        for alias in (self.source_alias, self.target_alias):
            if not alias or self.separator in alias:
                raise SpecInvalid(
                    f"the alias {alias!r} is empty or contains the separator {self.separator!r}",
                    next_step="choose an alias without it: clients take everything up to the first separator for it",
                )
        if self.source_alias == self.target_alias:
            raise SpecInvalid("source and target have the same alias", next_step="choose two different aliases")

    @classmethod
    def of(cls, spec: MigrationSpec) -> StateTopics:
        """Return those of a mirror."""
        mirror, section = spec.mirror, spec.mirror.state_topics
        between = section.internal_separator or mirror.separator
        return cls(mirror.source_alias, mirror.target_alias, mirror.separator, between, section.offset_syncs)

    @property
    def checkpoints(self) -> str:
        """Exact positions of consumer groups."""
        return self._internal(f"{self.source_alias}{self.internal_separator}checkpoints")

    @property
    def offset_syncs(self) -> str:
        """Pairs of offsets, named after the other cluster than the one that has the topic."""
        other = self.source_alias if self.syncs_on == "target" else self.target_alias
        return self._internal(f"mm2-offset-syncs{self.internal_separator}{other}")

    @property
    def heartbeats(self) -> str:
        """Signs of life of this flow; the topic has the same name on both clusters."""
        return _HEARTBEATS

    @property
    def remote_heartbeats(self) -> str:
        """The copy of the source's heartbeats.

        Its name tells clients that the source is upstream; their ``replicationHops`` looks at nothing else.
        """
        return f"{self.source_alias}{self.separator}{_HEARTBEATS}"

    def _internal(self, name: str) -> str:
        return f"{name}{self.internal_separator}internal"

    def of_groups(self, side: Literal["source", "target"]) -> list[str]:
        """Return those of one cluster that have the positions of groups."""
        places = {self.checkpoints: "target", self.offset_syncs: self.syncs_on}
        return [name for name, place in places.items() if place == side]

    def names(self) -> list[str]:
        """Return all of them."""
        return [self.checkpoints, self.offset_syncs, self.heartbeats, self.remote_heartbeats]


def create(cluster: StateCluster, names: Iterable[str]) -> list[str]:
    """Create the topics that are missing, with one partition and compaction; return their names.

    :raises TopologyRefused: a broker refuses one, or one exists with several partitions, of which readers see only 0.
    """
    admin = cluster.admin
    there = {name for name, facts in admin.describe_topics(sorted(set(names))).items() if facts.error is None}
    # Brokers also refuse to create a topic that exists, if the principal has no right to create it.
    wanted = sorted(set(names) - there)
    answers = admin.create_topics([NewTopic(name, 1, configs=_CONFIGS) for name in wanted]) if wanted else {}
    made = []
    for name in wanted:
        error = answers[name].error
        if error is None:
            made.append(name)
        elif error.code != TOPIC_ALREADY_EXISTS:
            raise TopologyRefused(
                f"a state topic cannot be created: {error}",
                where=Where(cluster=cluster.role, topic=name),
                next_step="grant the principal Create on it, or create it with one partition and compaction",
            )
    others = sorted(set(names) - set(made))
    for name, facts in admin.describe_topics(others).items() if others else ():
        if facts.error is None and len(facts.partitions) != 1:
            raise TopologyRefused(
                f"a state topic has {len(facts.partitions)} partitions; MirrorMaker 2 and its clients read only one",
                where=Where(cluster=cluster.role, topic=name),
                next_step="choose another alias, or delete the topic if nothing uses it",
            )
    return made
