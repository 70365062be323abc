"""What is looked for (candidates) and found (starts, or why there is none): the words of all that can be taken over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_kafka_migration.documents.adoption import (
    AdoptedPartition,
    AdoptedStart,
    Adoption,
    BelowMap,
    RefusedPartition,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import PhaseContext


@dataclass(frozen=True)
class Candidate:
    """A planned partition that the target already has.

    :param source_start_offset: log start on the source when the plan was made.
    :param source_end_offset: last stable offset likewise.
    """

    topic: str
    partition: int
    target_topic: str
    source_topic_id: str
    target_topic_id: str
    source_start_offset: int
    source_end_offset: int

    @property
    def key(self) -> TopicPartition:
        """(source topic, partition)."""
        return (self.topic, self.partition)

    @property
    def target_key(self) -> TopicPartition:
        """(target topic, partition)."""
        return (self.target_topic, self.partition)


@dataclass
class FoundStarts:
    """What was found, by (source topic, partition).

    A candidate that is in neither mapping is not adopted: it is copied from the source's log start, so nothing may be
    on the target yet.

    :param starts: where adopted partitions begin.
    :param refused: partitions that cannot be adopted, and why; each is a blocker of the precheck.
    :param left_out: partitions to which nothing is copied, by policy, and why.
    :param below: positions below the boundary, for groups that lag behind it.
    :param known: all partitions that what is taken over has left on the target, candidates or not. One that the target
        does not show is refused: it does not begin on an empty log.
    :param boundary_of: migration whose end is the boundary; empty: none.
    :param boundary_digest: hash of its journal entry that told clients to switch.
    """

    starts: dict[TopicPartition, AdoptedStart] = field(default_factory=dict)
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    left_out: dict[TopicPartition, str] = field(default_factory=dict)
    below: dict[TopicPartition, BelowMap] = field(default_factory=dict)
    known: frozenset[TopicPartition] = frozenset()
    boundary_of: str = ""
    boundary_digest: str = ""


class FindStarts(Protocol):
    """Finds where partitions begin; each module of this room that ``make.FINDERS`` names has such a function."""

    def __call__(self, context: PhaseContext, candidates: Mapping[TopicPartition, Candidate]) -> FoundStarts:
        """Only read. Whatever is not proven is refused by name; an unreadable cluster raises.

        :raises MigrationError: what concerns all partitions.
        """


def adoption_document(migration_id: str, adopted_from: str, found: FoundStarts, names: Mapping[str, str]) -> Adoption:
    """Return the document of what was found.

    :param names: source topic to target topic.
    """
    return Adoption(
        migration_id=migration_id,
        adopted_from=adopted_from,
        boundary_of=found.boundary_of,
        boundary_digest=found.boundary_digest,
        partitions=[
            AdoptedPartition(topic=key[0], partition=key[1], target_topic=names[key[0]], start=start)
            for key, start in sorted(found.starts.items())
        ],
        refused=_refused(found.refused.items()),
        left_out=_refused(found.left_out.items()),
    )


def _refused(items: Iterable[tuple[TopicPartition, str]]) -> list[RefusedPartition]:
    return [RefusedPartition(topic=key[0], partition=key[1], reason=reason) for key, reason in sorted(items)]
