"""The boundary that a migration has left: where its way back begins, read from its journal and checked on both logs.

The way back has the ends of that migration exchanged: its source is the cluster that the clients have switched to. On
each partition it begins where the copy ended. What the fence of the migration's producer took behind that offset is a
hole, which the way back fills on its own target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_kafka_migration.adoption.last_records import (
    Compared,
    LogEnd,
    Side,
    compare_last,
    read_log_ends,
)
from airflow_provider_kafka_migration.adoption.starts import Candidate, FoundStarts
from airflow_provider_kafka_migration.documents.adoption import AdoptedStart, BelowMap
from airflow_provider_kafka_migration.documents.copy import MappedPartition
from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.documents.plan import Plan, Verdict
from airflow_provider_kafka_migration.errors import MigrationError, SpecInvalid, Terminal
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.spec_guard import recorded_spec
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.below import (
    BelowRange,
    BelowTranslator,
    flat_ranges,
    inverted,
    ranges_of,
)
from airflow_provider_kafka_migration.offset_map.runs import read_partition_map
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics.target_topics import journaled_ids

PHASE = "plan"


@dataclass(frozen=True)
class LeftBoundary:
    """The end of one partition of a migration, seen from its way back.

    :param target_topic: topic on the way back's target.
    :param start: without a comparison; the checks of :func:`find_starts` complete it.
    :param below: positions below the boundary, in the direction of the way back.
    :param is_exact: ``below`` has every record. It does not where the migration itself had adopted the partition
        without an exact map: a group that lags that far then gets an earlier position, or none.
    :param copied_from_offset: first offset on the way back's source that the migration has copied itself.
    :param may_lack: compaction may have removed records on either side.
    """

    target_topic: str
    start: AdoptedStart
    below: list[BelowRange]
    is_exact: bool
    copied_from_offset: int
    may_lack: bool


def forward_record(context: PhaseContext, migration_id: str) -> MigrationRecord:
    """Open the record of another migration, only to read; its journal is in the same store as this migration's.

    :raises SpecInvalid: there is no such migration.
    :raises DocumentUnreadable: its journal does not have its spec.
    """
    journal = Journal(context.journal_store, migration_id)
    journal.refresh()
    if not journal.exists:
        raise SpecInvalid(
            f"there is no journal of the migration {migration_id} in {context.journal_store.uri}",
            where=context.where(PHASE, path="adopt.migration_id"),
            next_step="check adopt.migration_id and storage.journal",
        )
    spec = parse_spec(recorded_spec(journal), recorded=True)
    stores = (context.journal_store, context.archive_store, context.evidence_store)
    return MigrationRecord(spec, journal, *stores, now=context.now)


def boundary_of(record: MigrationRecord) -> dict[TopicPartition, LeftBoundary]:
    """Return where the way back of a migration begins, by (its source topic, partition): the migration's target topic.

    Partitions that were copied in transactions are left out: their offsets on the target follow no rule that could be
    inverted while others write.

    :raises Terminal: the migration has not handed its clients over, or its offset map is missing.
    """
    if not record.journal.is_past(State.CUTOVER):
        state = record.journal.tip_state
        raise Terminal(
            f"the migration {record.migration_id} has not handed its clients over (state {state}), so it has no "
            "boundary yet",
            where=record.where(PHASE),
            next_step="finish its cutover; until then its own rollback ends it",
        )
    document = record.offset_map()
    if document is None:
        raise Terminal(
            f"the offset map of the migration {record.migration_id} is missing",
            where=record.where(PHASE),
            next_step="restore offset-map.json from an earlier version in the bucket",
        )
    ids, plan, fence, below = journaled_ids(record), record.plan(), record.fence(), record.maps_below()
    ready = _handed_over(record)
    ready_at = "" if ready is None else ready.at
    adopted = {(topic.name, item.partition) for topic in plan.topics for item in topic.partitions if item.adopted}
    found = {}
    for item in document.partitions:
        if item.verdict == Verdict.TRANSACTIONAL or item.source_end_offset is None or item.target_end_offset is None:
            continue
        earlier = below.get((item.topic, item.partition))
        marker = None if fence is None else fence.markers.get((item.target_topic, item.partition))
        found[item.target_topic, item.partition] = LeftBoundary(
            target_topic=item.topic,
            start=AdoptedStart(
                source_offset=item.target_end_offset,
                target_offset=item.source_end_offset,
                source_topic_id=ids.get(item.target_topic, ""),
                target_topic_id=item.topic_id,
                proof="boundary",
                source_hole_end_offset=-1 if marker != item.target_end_offset else marker + 1,
                caught_up_at=ready_at,
                note=_note(record, item.target_end_offset, marker),
            ),
            below=_below(item, ranges_of(earlier.ranges) if earlier is not None else []),
            copied_from_offset=item.target_start_offset or 0,
            is_exact=earlier.is_exact if earlier is not None else (item.topic, item.partition) not in adopted,
            may_lack=_may_lack(plan, item.topic),
        )
    return found


def _handed_over(record: MigrationRecord) -> JournalEntry | None:
    """Return the journal entry that told clients to switch."""
    attempt = record.freeze()
    return record.journal.find_step(steps.READY, attempt.key) if attempt is not None else None


def transactional_partitions(record: MigrationRecord) -> set[TopicPartition]:
    """Return the (target topic, partition) pairs of a migration that were copied in transactions."""
    document = record.offset_map()
    partitions = [] if document is None else document.partitions
    return {(item.target_topic, item.partition) for item in partitions if item.verdict == Verdict.TRANSACTIONAL}


def _note(record: MigrationRecord, end: int, marker: int | None) -> str:
    if marker is None:
        return f"the producer of {record.migration_id} is not fenced here: make sure that none of its copiers is left"
    if marker != end:
        return f"the marker that fences {record.migration_id} is at {marker}, not at its end {end}"
    return ""


def _below(item: MappedPartition, earlier: list[BelowRange]) -> list[BelowRange]:
    runs = read_partition_map(item).runs()
    copied = [BelowRange(run.source_start, run.target_start, run.count or 0) for run in runs]
    return inverted([*earlier, *copied])


def _may_lack(plan: Plan, topic: str) -> bool:
    kinds = next((item.kinds for item in plan.topics if item.name == topic), [])
    return "compacted" in kinds


def find_starts(context: PhaseContext, candidates: Mapping[TopicPartition, Candidate]) -> FoundStarts:
    """See :class:`~.starts.FindStarts`: the boundary of ``adopt.migration_id``, checked on both clusters."""
    adopt = context.spec.adopt
    assert adopt is not None
    assert adopt.migration_id is not None
    record = forward_record(context, adopt.migration_id)
    boundaries, transactional = boundary_of(record), transactional_partitions(record)
    ready = _handed_over(record)
    found = FoundStarts(boundary_of=record.migration_id, boundary_digest="" if ready is None else ready.hash)
    left = {key: item for key, item in candidates.items() if key in boundaries}
    for key in sorted(candidates.keys() & transactional):
        found.refused[key] = (
            "it was copied in transactions next to other producers, so no map leads back; exclude the topic, or move "
            "its clients back without it"
        )
    target_ends = read_log_ends(context.target.wire, (item.target_key for item in left.values()))
    source_ends = read_log_ends(context.source.wire, left)
    for key, candidate in sorted(left.items()):
        why = _why_not(candidate, boundaries[key], source_ends[key], target_ends[candidate.target_key])
        if why:
            found.refused[key] = why
            continue
        source_end, target_end = source_ends[key], target_ends[candidate.target_key]
        assert isinstance(source_end, LogEnd)
        assert isinstance(target_end, LogEnd)
        below = BelowMap(
            migration_id=context.migration_id,
            topic=key[0],
            partition=key[1],
            source_offset=boundaries[key].start.source_offset,
            target_offset=boundaries[key].start.target_offset,
            is_exact=boundaries[key].is_exact,
            ranges=flat_ranges(boundaries[key].below),
        )
        compared = _compare(context, record, candidate, boundaries[key], below, source_end, target_end)
        if compared.difference:
            found.refused[key] = compared.difference
            continue
        found.below[key] = below
        found.starts[key] = boundaries[key].start.model_copy(
            update={"compared_records": compared.records, "below_digest": below.digest()}
        )
    return found


def _why_not(
    candidate: Candidate, left: LeftBoundary, source: LogEnd | MigrationError, target: LogEnd | MigrationError
) -> str:
    """Return why the boundary does not hold any more; empty if it does."""
    if isinstance(source, MigrationError):
        return f"the source's log cannot be read: {source.what}"
    if isinstance(target, MigrationError):
        return f"the target's log cannot be read: {target.what}"
    start = left.start
    if candidate.target_topic != left.target_topic:
        return f"the boundary was left on the topic {left.target_topic}, not on {candidate.target_topic}"
    for now, then, side in (
        (candidate.source_topic_id, start.source_topic_id, "source"),
        (candidate.target_topic_id, start.target_topic_id, "target"),
    ):
        if now and then and now != then:
            return f"the {side} topic was deleted and created again since (id {now}, then {then})"
    if source.log_end_offset < start.source_offset:
        return (
            f"the source's log ends at {source.log_end_offset}, below the boundary {start.source_offset}: records were "
            "lost"
        )
    if source.log_start_offset > max(start.source_offset, start.source_hole_end_offset):
        return (
            f"the source's log starts at {source.log_start_offset}, above the boundary {start.source_offset}: records "
            "that clients wrote since are deleted already"
        )
    return target.why_not_at(start.target_offset)


def _compare(
    context: PhaseContext,
    record: MigrationRecord,
    candidate: Candidate,
    left: LeftBoundary,
    below: BelowMap,
    source_end: LogEnd,
    target_end: LogEnd,
) -> Compared:
    adopt = context.spec.adopt
    assert adopt is not None
    if record.spec.schemas.ids == "translate":
        # The records of both sides carry different schema ids; the boundary itself stays proven by journal and logs.
        return Compared(0)
    places = BelowTranslator(below)

    def place(offset: int) -> int | None:
        """Leave out what an inexact map says of the records before the migration's own."""
        return places.exact_place(offset) if left.is_exact or offset >= left.copied_from_offset else None

    source = Side(
        context.source.wire, candidate.key, source_end.log_start_offset, left.start.source_offset, left.may_lack
    )
    target = Side(
        context.target.wire, candidate.target_key, target_end.log_start_offset, left.start.target_offset, left.may_lack
    )
    return compare_last(
        source,
        target,
        place,
        has_all_places=left.is_exact,
        count=adopt.min_records,
        timestamps=record.spec.offsets.timestamps,
        whole=adopt.compare == "all",
    )
