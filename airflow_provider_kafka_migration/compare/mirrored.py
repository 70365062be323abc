"""The comparison of one partition of a mirror, in any process; and of those of a job, with stored results.

A partition of a mirror differs from one of a migration: both sides may delete and compact, its copy may go on, and its
records may carry a mark of where they come from. What is compared, and why the rest is not, was decided before
(:mod:`~.mirrors.verification`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from airflow_provider_kafka_migration.compare.comparison import ContentOptions, Stretch, compare_stretch
from airflow_provider_kafka_migration.compare.connections import OwnConnections
from airflow_provider_kafka_migration.compare.logs import CommittedLog, KafkaLog, MarkedLog, OurLog
from airflow_provider_kafka_migration.compare.record_ids import record_ids
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.copy.provenance import ProvenanceMarker
from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.documents.independent import MARKED, UNDATED, IndependentResult
from airflow_provider_kafka_migration.documents.mirror import (
    ComparedPartition,
    MirrorComparison,
    MirroredRange,
    Verified,
    VerifiedPartition,
)
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings
from airflow_provider_kafka_migration.errors import Interrupted, MigrationError, OffsetMapInvalid, Where
from airflow_provider_kafka_migration.kafka.batches.api import Timestamps
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap, topic_key
from airflow_provider_kafka_migration.offset_map.store import RunLog
from airflow_provider_kafka_migration.offset_map.transactional import (
    MapPages,
    TransactionalMap,
    group_name,
    read_positions,
    settled_positions,
)
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: Why a comparison says nothing.
CORRECTED = "its offset map was corrected since the comparison began: compare it again"
_MARKED = (
    "records outside the offset map say that they were copied from the source: an application has written them again, "
    "or they were copied twice; the other comparison tells them apart by their producers"
)


@dataclass(frozen=True)
class MirrorSettings:
    """How the records of a mirror are compared.

    :param timestamps: as in the copy job.
    :param ids: topics whose records carry schema ids; None: there are none.
    :param provenance: how copied records are marked; None: they are not.
    """

    timestamps: Timestamps = "visible"
    ids: SchemaIdSettings | None = None
    provenance: ProvenanceSettings | None = None


def compare_mirrored(
    piece: MirroredRange,
    offset_map: PartitionMap,
    settings: MirrorSettings,
    store: ObjectStore,
    migration_id: str,
    wire: Callable[[str], Wire],
    *,
    map_again: Callable[[], PartitionMap | None],
    stop: Callable[[], bool] = lambda: False,
    pace: Callable[[int], None] = lambda size_bytes: None,
) -> VerifiedPartition:
    """Compare a partition and judge it.

    :param offset_map: of the whole copy, open or closed.
    :param wire: gives the connection to ``source`` or ``target``.
    :param map_again: called if something differs; returns the map if it is another one by now: a copier that takes over
        may correct it.
    :param stop: called before each batch; True ends the comparison with :class:`Interrupted`.
    :param pace: called with the bytes of each batch that was read.
    :raises Interrupted: a stop was requested.
    :raises MigrationError: one side cannot be read.
    """
    compared = piece.range
    options = ContentOptions(
        timestamps=settings.timestamps,
        stop=stop,
        pace=pace,
        ids=record_ids(settings.ids, compared.topic, store, migration_id),
        target_rules=piece.target_rules,
    )

    def stretch(found: PartitionMap) -> Stretch:
        source: CommittedLog = KafkaLog(wire("source"), compared.topic, compared.partition)
        if settings.provenance is not None:
            source = MarkedLog(source, ProvenanceMarker(settings.provenance, compared.target_topic, compared.partition))
        target: CommittedLog = KafkaLog(wire("target"), compared.target_topic, compared.partition)
        if isinstance(found, TransactionalMap):
            target = OurLog(target, found)
        return compare_stretch(compared, found, piece.source_rules, source, target, options)

    found = stretch(offset_map)
    if not found.content.is_equal:
        again = map_again()
        if again is not None and still_covers(piece, again):
            found = stretch(again)
    return _judged(piece, found)


def still_covers(piece: MirroredRange, offset_map: PartitionMap) -> bool:
    """Whether a map leads to the range that was determined; the ends of another one would have to be read again."""
    compared = piece.range
    return offset_map.translate(compared.source_start_offset).target_offset == compared.target_start_offset


# -- judgement --------------------------------------------------------------------------------------------------------


def _judged(piece: MirroredRange, stretch: Stretch) -> VerifiedPartition:
    """Return the outcome of a comparison."""
    content, compared, only = stretch.content, stretch.compared, stretch.source_only
    assert only is not None
    gone_on_target = only.deleted_records
    notes = _notes(piece)
    if content.uncompared:
        first, until = content.uncompared[0][0], content.uncompared[-1][1]
        text = f"{content.uncompared_records} records of the target could not be compared"
        notes.append(f"the source deleted offsets {first} to {until - 1} meanwhile, or may have: {text}")
    if gone_on_target:
        notes.append(f"the target deleted {gone_on_target} records meanwhile: they could not be compared")
    undated = 0 if stretch.source_only is None else stretch.source_only.undated_records
    seen = content.source_records + content.target_records
    outcome, reason = _outcome(piece, content.difference_count, undated, content.compared, seen)
    return _verified(
        compared,
        outcome,
        reason,
        compared=content.compared,
        only_on_source=dict(sorted(Counter(only.explained).items())),
        only_on_target=content.explained,
        deleted_meanwhile=gone_on_target + content.uncompared_records,
        difference_count=content.difference_count,
        differences=content.differences,
        notes=notes,
    )


def _verified(place: ContentRange, outcome: Verified, reason: str, **found: Any) -> VerifiedPartition:
    """Return the outcome of a range that was compared, with the other fields as they were found."""
    return VerifiedPartition(
        topic=place.topic,
        target_topic=place.target_topic,
        partition=place.partition,
        outcome=outcome,
        reason=reason,
        source_start_offset=place.source_start_offset,
        source_end_offset=place.source_end_offset,
        target_start_offset=place.target_start_offset,
        target_end_offset=place.target_end_offset,
        **found,
    )


def _notes(piece: MirroredRange) -> list[str]:
    return [*piece.notes, *([piece.below] if piece.below else [])]


def _outcome(
    piece: MirroredRange, difference_count: int, undated: int, compared: int, seen: int
) -> tuple[Verified, str]:
    """Judge a partition.

    :param undated: records that only the source has, and that a tombstone from the future may explain.
    :param compared: records that are equal.
    :param seen: records of both sides.
    """
    if difference_count:
        return "different", ""
    if piece.held_back:
        return "unchecked", f"{piece.held_back}; {compared} records below are equal"
    if piece.lacking:
        return "unchecked", f"{piece.lacking}; {compared} records above are equal"
    if undated:
        why = "records cannot be compared: tombstones with timestamps in the future may be gone on the target, or lost"
        return "unchecked", f"{undated} {why}; {compared} records are equal"
    if compared:
        return "equal", ""
    if seen:
        return "unchecked", "none of its records could be compared: one side has deleted or compacted each of them"
    return "nothing", "neither side has a record in this range"


def judged_independently(piece: MirroredRange, found: IndependentResult) -> VerifiedPartition:
    """Return the outcome of a comparison that Spark's own Kafka source has made."""
    compared, notes = piece.range, _notes(piece)
    source_only, target_only = dict(found.source_only), dict(found.explained)
    undated, marked = source_only.pop(UNDATED, 0), target_only.pop(MARKED, 0)
    for count, side, other in (
        (found.deleted_records, "source", "target"),
        (found.target_deleted_records, "target", "source"),
    ):
        if count:
            notes.append(f"{count} records of the {other} could not be compared: the {side} has deleted them meanwhile")
    seen = found.source_records + found.target_records
    outcome, reason = _outcome(piece, found.difference_count, undated, found.compared, seen)
    if found.not_compared and not found.difference_count:
        outcome, reason = "unchecked", found.not_compared
    elif marked and outcome in ("equal", "nothing"):
        outcome, reason = "unchecked", f"{marked} {_MARKED}; {found.compared} records are equal"
    return _verified(
        compared,
        outcome,
        reason,
        compared=found.compared,
        only_on_source=source_only,
        only_on_target=target_only,
        deleted_meanwhile=found.deleted_records + found.target_deleted_records,
        difference_count=found.difference_count,
        differences=found.differences,
        notes=notes,
    )


def unchecked(piece: MirroredRange, reason: str) -> VerifiedPartition:
    """Return the outcome of a partition that was to be compared, and was not."""
    return VerifiedPartition(
        topic=piece.range.topic,
        target_topic=piece.range.target_topic,
        partition=piece.range.partition,
        outcome="unchecked",
        reason=reason,
        notes=piece.notes,
    )


def why_not_compared(error: MigrationError) -> str:
    """Return what prevented a comparison, for people, with the cluster."""
    return f"{error.where.cluster}: {error.what}" if error.where.cluster else error.what


# -- jobs -------------------------------------------------------------------------------------------------------------


def results_prefix(migration_id: str, name: str) -> str:
    """Return the prefix of the results of a job, below the journal location."""
    return f"{migration_id}/comparisons/{name}/"


#: Below the results of a job: what Spark's own Kafka source has found so far, partition by partition.
SLICES = "slices/"


class MirrorResults:
    """Stored results of one job. Results of another job of this name are ignored."""

    def __init__(self, job: MirrorComparison, store: ObjectStore) -> None:
        self._job = job
        self._store = store
        self._digest = job.digest()
        self._prefix = results_prefix(job.migration_id, job.name)

    def _key(self, key: TopicPartition) -> str:
        return f"{self._prefix}{topic_key(key[0])}-{key[1]}.json"

    def read(self, piece: MirroredRange) -> ComparedPartition | None:
        """Read the result of a partition, if this job has one."""
        data = self._store.get(self._key(piece.key))
        if data is None:
            return None
        try:
            found = ComparedPartition.parse(data)
        except ValidationError:
            return None
        return found if found.job_digest == self._digest and found.range == piece.range else None

    def write(
        self, piece: MirroredRange, found: VerifiedPartition, error: MigrationError | None, *, reader: str = ""
    ) -> ComparedPartition:
        """Store the result of a partition, and return it."""
        document = ComparedPartition(
            migration_id=self._job.migration_id,
            job_digest=self._digest,
            range=piece.range,
            found=found,
            error=None if error is None else error.as_dict(),
            reader=reader,
        )
        self._store.put(self._key(piece.key), document.canonical())
        return document

    def count(self) -> int:
        """Return how many partitions have a result of a job of this name, for progress."""
        prefix = self._prefix
        return sum("/" not in item.key.removeprefix(prefix) for item in self._store.list(prefix))


class MirrorChecker(OwnConnections):
    """Compares partitions of one job over its own connections. Not thread-safe: one owner.

    :param stop: called before each batch; True ends the comparison with :class:`Interrupted`.
    """

    def __init__(
        self,
        job: MirrorComparison,
        clients: Clients,
        store: ObjectStore,
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(clients)
        self._job = job
        self._store = store
        self._results = MirrorResults(job, store)
        self._maps = MirrorMaps(job.migration_id, store, self.wire)
        self._settings = MirrorSettings(job.timestamps, job.schema_ids, job.provenance)
        self._stop = stop

    def check(self, piece: MirroredRange) -> ComparedPartition:
        """Compare a partition and store the result; what this job has found equal is not read again.

        A partition that cannot be compared gives a result with ``error``.

        :raises Interrupted: a stop was requested.
        :raises StorageUnavailable: the result cannot be stored.
        """
        known = self._results.read(piece)
        if known is not None and known.found.outcome in ("equal", "nothing"):
            log.info("%s-%d was compared by an earlier attempt", *piece.key)
            return known
        try:
            return self._results.write(piece, self._compare(piece), None)
        except Interrupted:
            raise
        except MigrationError as error:
            self.close()  # a broken connection must not affect the next partition
            return self._results.write(piece, unchecked(piece, why_not_compared(error)), error)

    def _compare(self, piece: MirroredRange) -> VerifiedPartition:
        offset_map = self._maps.load(piece)
        if not still_covers(piece, offset_map):
            return unchecked(piece, CORRECTED)
        return compare_mirrored(
            piece,
            offset_map,
            self._settings,
            self._store,
            self._job.migration_id,
            self.wire,
            map_again=lambda: self._maps.again(piece, offset_map),
            stop=self._stop,
        )


class MirrorMaps:
    """Loads the offset maps of a mirror in any process.

    :param store: of the journal.
    :param wire: gives the connection to ``target``.
    """

    def __init__(self, migration_id: str, store: ObjectStore, wire: Callable[[str], Wire]) -> None:
        self._migration_id = migration_id
        self._store = store
        self._wire = wire

    def load(self, piece: MirroredRange) -> PartitionMap:
        """Load the map of the whole copy.

        :raises OffsetMapInvalid: it cannot be read, or is not there.
        """
        source_end, target_end = piece.copied_source_offset, piece.copied_target_offset
        if piece.range.verdict is Verdict.TRANSACTIONAL:
            return self._transactional_map(piece)
        if piece.range.verdict is Verdict.MAPPED:
            found = self._runs(piece).load()
        else:
            found = PartitionMap([OffsetRange(piece.first_source_offset, piece.first_target_offset)])
        return found if source_end is None or target_end is None else found.closed(source_end, target_end)

    def again(self, piece: MirroredRange, former: PartitionMap) -> PartitionMap | None:
        """Load an open map again; None: it has not changed."""
        if piece.copied_source_offset is not None or isinstance(former, TransactionalMap):
            return None
        found = self._runs(piece).load()
        return None if found == former else found

    def _runs(self, piece: MirroredRange) -> RunLog:
        base = OffsetRange(piece.first_source_offset, piece.first_target_offset)
        return RunLog(self._store, self._migration_id, *piece.key, base, topic_id=piece.topic_id)

    def _transactional_map(self, piece: MirroredRange) -> TransactionalMap:
        pages = MapPages(self._store, self._migration_id, *piece.key)
        if piece.copied_source_offset is not None:
            return pages.load_final()
        place, group = (piece.range.target_topic, piece.range.partition), group_name(self._migration_id)
        position = settled_positions(lambda keys: read_positions(self._wire("target"), group, keys), [place])[place]
        if position is None:
            raise OffsetMapInvalid(
                "the target has no position of its copy any more",
                where=Where(cluster="target", topic=place[0], partition=place[1], group=group),
                next_step="see kafka-migration mirror status FILE",
            )
        return pages.load(position)
