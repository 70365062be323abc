"""Makes the adoption of a plan: which partitions begin behind content that is there, found by ``adopt.from``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.adoption.starts import Candidate, FindStarts, FoundStarts, adoption_document
from airflow_provider_kafka_migration.documents.adoption import AdoptedStart, Adoption, BelowMap
from airflow_provider_kafka_migration.documents.plan import AdoptionSummary, PartitionPlan, TopicPlan, Verdict
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.runs import topic_key
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import AdoptFrom, MigrationSpec

PHASE = "plan"

#: ``module:function`` of this room, by what is taken over. Named instead of imported: most plans need none of them.
FINDERS: dict[AdoptFrom, str] = {
    "way_back": "boundary:find_starts",
    "mirror": "boundary:find_starts",
    "mirrormaker2": "mirror_maker:find_starts",
    "redpanda_migrator": "redpanda_migrator:find_starts",
    "comparison": "comparison:find_starts",
}
_PACKAGE = "airflow_provider_kafka_migration.adoption"


@dataclass(frozen=True)
class MadeAdoption:
    """The adoption of a plan, with the maps that it refers to."""

    document: Adoption
    below: dict[TopicPartition, BelowMap] = field(default_factory=dict)

    def summary(self) -> AdoptionSummary:
        """Return what the plan holds of it."""
        digest = self.document.digest()
        return AdoptionSummary(
            document=keys.adoption(digest),
            digest=digest,
            adopted_from=self.document.adopted_from,
            boundary_of=self.document.boundary_of,
            partitions=len(self.document.partitions),
            refused=len(self.document.refused),
        )

    def put(self, record: MigrationRecord) -> None:
        """Store the documents. Their keys have their digests, so nothing that a plan refers to is ever replaced."""
        for (topic, partition), below in sorted(self.below.items()):
            key = keys.map_below(topic_key(topic), partition, below.digest())
            record.journal_store.put(record.key(key), below.canonical())
        record.journal_store.put(record.key(keys.adoption(self.document.digest())), self.document.canonical())


def make_adoption(context: PhaseContext, topics: Sequence[TopicPlan]) -> MadeAdoption | None:
    """Find where the planned partitions begin; None if the spec adopts nothing. Only reads.

    :raises MigrationError: what is to be taken over cannot be read.
    """
    adopt = context.spec.adopt
    if adopt is None:
        return None
    facts = context.target.admin.describe_topics(sorted(topic.target_name for topic in topics))
    candidates = find_candidates(topics, facts)
    context.progress(Progress(PHASE, f"adoption: {len(candidates)} partitions that the target already has"))
    found = load_finder(adopt.from_)(context, candidates)
    _refuse_other_offsets(context.spec, found)
    _refuse_not_shown(topics, facts, candidates, found)
    names = {topic.name: topic.target_name for topic in topics}
    document = adoption_document(context.migration_id, adopt.from_, found, names)
    kept = {(item.topic, item.partition) for item in document.partitions if item.start.below_digest}
    return MadeAdoption(document, {key: below for key, below in found.below.items() if key in kept})


def load_finder(adopt_from: AdoptFrom) -> FindStarts:
    """Import the function that finds starts."""
    module, _, name = FINDERS[adopt_from].partition(":")
    found: FindStarts = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
    return found


def find_candidates(topics: Sequence[TopicPlan], facts: Mapping[str, TopicFacts]) -> dict[TopicPartition, Candidate]:
    """Return the planned partitions that the target has, by (source topic, partition).

    :param facts: what the target shows, by target topic.
    """
    found = {}
    for topic in topics:
        there = facts[topic.target_name]
        if there.error is not None:
            continue
        numbers = {item.partition for item in there.partitions}
        for item in topic.partitions:
            if item.partition in numbers:
                found[topic.name, item.partition] = Candidate(
                    topic=topic.name,
                    partition=item.partition,
                    target_topic=topic.target_name,
                    source_topic_id=topic.topic_id,
                    target_topic_id=there.topic_id,
                    source_start_offset=item.log_start_offset,
                    source_end_offset=item.end_offset,
                )
    return found


def _refuse_other_offsets(spec: MigrationSpec, found: FoundStarts) -> None:
    """Refuse starts whose offsets differ on the two sides where the spec promises equal ones."""
    for key, start in sorted(found.starts.items()):
        if spec.offsets.mode_of(key[0]) == "equal" and start.source_offset != start.target_offset:
            found.refused[key] = (
                f"source offset {start.source_offset} goes to {start.target_offset}, but offsets.mode is equal"
            )
            del found.starts[key]


def _refuse_not_shown(
    topics: Sequence[TopicPlan],
    facts: Mapping[str, TopicFacts],
    candidates: Mapping[TopicPartition, Candidate],
    found: FoundStarts,
) -> None:
    """Refuse partitions that have been on the target and that it does not show now.

    One broker that does not know a topic yet is no proof that it was deleted; and where it was, its history is gone.
    """
    for topic in topics:
        error = facts[topic.target_name].error
        why = "does not show this partition" if error is None else f"does not show this topic ({error.name})"
        for item in topic.partitions:
            key = (topic.name, item.partition)
            if key in found.known and key not in candidates:
                found.refused[key] = (
                    f"the target {why}, on which {found.boundary_of} has ended: clear plan, which asks again; if it "
                    "was deleted there, its history is gone, so exclude the topic"
                )


def with_starts(spec: MigrationSpec, topic: TopicPlan, adoption: Adoption) -> TopicPlan:
    """Return a topic's plan whose adopted partitions begin where the adoption says."""
    starts = adoption.starts()
    left_out = {(item.topic, item.partition): item.reason for item in adoption.left_out}
    partitions = [
        _begun(spec, topic.name, item, starts[topic.name, item.partition])
        if (topic.name, item.partition) in starts
        else item.model_copy(update={"left_out": left_out.get((topic.name, item.partition), "")})
        for item in topic.partitions
    ]
    return topic.model_copy(update={"partitions": partitions})


def _begun(spec: MigrationSpec, topic: str, item: PartitionPlan, start: AdoptedStart) -> PartitionPlan:
    verdict = Verdict.EQUAL if start.source_offset == start.target_offset else Verdict.SHIFTED
    if spec.offsets.mode_of(topic) == "mapped":
        verdict = Verdict.MAPPED
    share = _share_behind(item, start.source_offset)
    return item.model_copy(
        update={
            "adopted": start,
            "source_start_offset": start.source_offset,
            "target_start_offset": start.target_offset,
            "verdict": verdict,
            "reason": f"adopted ({start.proof}): source offset {start.source_offset} goes to {start.target_offset}",
            "estimated_holes": round(item.estimated_holes * share),
            "estimated_records": item.estimated_records
            if item.estimated_records < 0
            else round(item.estimated_records * share),
            "size_bytes": item.size_bytes if item.size_bytes < 0 else round(item.size_bytes * share),
        }
    )


def _share_behind(item: PartitionPlan, offset: int) -> float:
    whole = item.end_offset - item.log_start_offset
    return min(max(item.end_offset - offset, 0) / whole, 1.0) if whole > 0 else 0.0
