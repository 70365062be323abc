"""The boundary that a migration has left: where its way back begins, read from its journal and checked on both logs.

The way back has the ends of that migration exchanged: its source is the cluster that the clients have switched to. On
each partition it begins where the copy ended. What the fence of the migration's producer took behind that offset is a
hole, which the way back fills on its own target.

A mirror that fails back begins at the end of a promoted mirror in the same way. If that one was promoted because its
source was gone, the source may have records that nobody mirrored (``diverged``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_kafka_migration.adoption.diverged import left_out_by_policy, past_diverged
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
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.spec.adoption import AdoptSection
from airflow_provider_kafka_migration.state import State, mirror_name
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
    _check_kind(context, spec)
    stores = (context.journal_store, context.archive_store, context.evidence_store)
    return MigrationRecord(spec, journal, *stores, now=context.now)


def _check_kind(context: PhaseContext, spec: MigrationSpec) -> None:
    adopt = context.spec.adopt
    wanted = "mirror" if adopt is not None and adopt.from_ == "mirror" else "migration"
    if spec.kind == wanted:
        return
    raise SpecInvalid(
        f"{spec.migration_id} is a {spec.kind}, but adopt.from asks for the end of a {wanted}",
        where=context.where(PHASE, path="adopt.from"),
        next_step="set adopt.from to "
        + (
            "mirror, in a spec of kind: mirror (kafka-migration mirror fail-back FILE)"
            if spec.kind == "mirror"
            else "way_back (kafka-migration way-back plan FILE)"
        ),
    )


def boundary_of(record: MigrationRecord) -> dict[TopicPartition, LeftBoundary]:
    """Return where the way back of a migration begins, by (its source topic, partition): the migration's target topic.

    Partitions that were copied in transactions are left out: their offsets on the target follow no rule that could be
    inverted while others write.

    :raises Terminal: the migration has not handed its clients over, or its offset map is missing.
    """
    _check_handed_over(record)
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


def _check_handed_over(record: MigrationRecord) -> None:
    state = record.journal.tip_state
    if record.spec.kind == "mirror":
        if state is not State.PROMOTED:
            raise Terminal(
                f"the mirror {record.migration_id} is not promoted (state {state and mirror_name(state)}), so it has "
                "no boundary to fail back from",
                where=record.where(PHASE),
                next_step="promote it first (kafka-migration mirror promote FILE)",
            )
    elif not record.journal.is_past(State.CUTOVER):
        raise Terminal(
            f"the migration {record.migration_id} has not handed its clients over (state {state}), so it has no "
            "boundary yet",
            where=record.where(PHASE),
            next_step="finish its cutover; until then its own rollback ends it",
        )


def _handed_over(record: MigrationRecord) -> JournalEntry | None:
    """Return the journal entry that told clients to switch, or that has promoted a mirror."""
    if record.spec.kind == "mirror":
        return record.journal.find_step(steps.PROMOTED)
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
    """See :class:`~.starts.FindStarts`: the boundary of ``adopt.migration_id``, checked on both clusters.

    :raises Terminal: the migration has no boundary yet.
    """
    adopt = context.spec.adopt
    assert adopt is not None
    assert adopt.migration_id is not None
    record = forward_record(context, adopt.migration_id)
    boundaries, transactional = boundary_of(record), transactional_partitions(record)
    ready = _handed_over(record)
    found = FoundStarts(boundary_of=record.migration_id, boundary_digest="" if ready is None else ready.hash)
    if adopt.from_ == "way_back":
        found.known = frozenset(boundaries.keys() | transactional | _left_out_before(record).keys())
    left = {key: item for key, item in candidates.items() if key in boundaries}
    for key in sorted(candidates.keys() & transactional):
        found.refused[key] = (
            "it was copied in transactions next to other producers, so no map leads back; exclude the topic, or move "
            "its clients back without it"
        )
    others = {key: item for key, item in candidates.items() if key not in boundaries and key not in transactional}
    _judge_others(context, record, others, found)
    target_ends = read_log_ends(context.target.wire, (item.target_key for item in left.values()))
    source_ends = read_log_ends(context.source.wire, left)
    for key, candidate in sorted(left.items()):
        source_end, target_end = source_ends[key], target_ends[candidate.target_key]
        why = _why_not(candidate, boundaries[key], source_end, target_end)
        if why:
            found.refused[key] = why
            continue
        assert isinstance(source_end, LogEnd)
        assert isinstance(target_end, LogEnd)
        start = boundaries[key].start
        if adopt.from_ == "mirror" and target_end.log_end_offset > start.target_offset:
            past = past_diverged(context, candidate, start, target_end, adopt.on_diverged)
            if past.refused or past.left_out:
                (found.refused if past.refused else found.left_out)[key] = past.refused or past.left_out
                continue
            start = past.start
        elif why := target_end.why_not_at(start.target_offset):
            has_lost = target_end.log_end_offset < start.target_offset
            _leave(
                found, adopt, key, why, f"{why}: the cluster has lost records that were mirrored" if has_lost else ""
            )
            continue
        below = BelowMap(
            migration_id=context.migration_id,
            topic=key[0],
            partition=key[1],
            source_offset=start.source_offset,
            target_offset=start.target_offset,
            is_exact=boundaries[key].is_exact,
            ranges=flat_ranges(boundaries[key].below),
        )
        compared = _compare(context, record, candidate, boundaries[key], below, source_end, target_end)
        if compared is not None and compared.difference:
            _leave(found, adopt, key, compared.difference, f"below the boundary the logs differ: {compared.difference}")
            continue
        found.below[key] = below
        found.starts[key] = start.model_copy(
            update={
                "compared_records": 0 if compared is None else compared.records,
                "below_digest": below.digest(),
                "note": "; ".join(filter(None, (start.note, _NOT_COMPARED if compared is None else ""))),
            }
        )
    return found


def _leave(found: FoundStarts, adopt: AdoptSection, key: TopicPartition, why: str, diverged: str) -> None:
    """Note a partition that is not adopted: left out if it has diverged and the policy says so, else refused.

    :param diverged: how the former source has diverged below the boundary; empty: it has not.
    """
    if diverged and adopt.from_ == "mirror" and adopt.on_diverged == "note":
        found.left_out[key] = left_out_by_policy(diverged)
    else:
        found.refused[key] = why


def _judge_others(
    context: PhaseContext,
    record: MigrationRecord,
    candidates: Mapping[TopicPartition, Candidate],
    found: FoundStarts,
) -> None:
    """Note partitions without a boundary: left out as before, or refused if they hold anything."""
    for key, reason in _left_out_before(record).items():
        if key in candidates:
            found.left_out[key] = (
                f"{record.migration_id} copied nothing to this partition, so both sides have records of their own "
                f"({reason})"
            )
    unknown = [item for key, item in candidates.items() if key not in found.left_out]
    found.refused.update(_without_boundary(context, record, unknown))


def _left_out_before(record: MigrationRecord) -> dict[TopicPartition, str]:
    """Return what a migration has left out itself, by (target topic, partition), with its reason."""
    return {
        (topic.target_name, item.partition): item.left_out
        for topic in record.plan().topics
        for item in topic.partitions
        if item.left_out
    }


def _without_boundary(
    context: PhaseContext, record: MigrationRecord, candidates: list[Candidate]
) -> dict[TopicPartition, str]:
    """Return the partitions that hold records and that the migration knows nothing of, with what to do about them."""
    ends = read_log_ends(context.target.wire, (item.target_key for item in candidates))
    found = {}
    for candidate in candidates:
        end = ends[candidate.target_key]
        if isinstance(end, MigrationError):
            found[candidate.key] = f"the target's log cannot be read: {end.what}"
        elif end.log_end_offset > 0:
            found[candidate.key] = (
                f"the target has offsets up to {end.log_end_offset} there, which {record.migration_id} knows nothing "
                "of, so nobody knows where a copy would begin; exclude the topic"
            )
    return found


#: The boundary itself stays proven by journal and logs.
_NOT_COMPARED = (
    "no record before the boundary was compared, whatever adopt.compare says: with schemas.ids translate the records "
    "of both sides carry different schema ids"
)


def _why_not(
    candidate: Candidate, left: LeftBoundary, source: LogEnd | MigrationError, target: LogEnd | MigrationError
) -> str:
    """Return why the boundary does not hold any more; empty if it does. The target's end is not looked at here."""
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
    return ""


def _compare(
    context: PhaseContext,
    record: MigrationRecord,
    candidate: Candidate,
    left: LeftBoundary,
    below: BelowMap,
    source_end: LogEnd,
    target_end: LogEnd,
) -> Compared | None:
    """Compare the records below a boundary; None: they cannot be compared."""
    adopt = context.spec.adopt
    assert adopt is not None
    if record.spec.schemas.ids == "translate":
        return None
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
