"""Finds the position of a partition's copy from the target's own log; no other state is stored.

The rules are learned from failures (KIP-98's sequence numbers make them possible):

1. Wait until the high watermark has reached the log end: what a dead copier left is then final.
2. The last *data* batch gives the next sequence and the source offset. The end of the log must agree with the source
   ("takeover check" below); where excess markers have displaced records, the map is corrected ("realign" below).
3. Markers behind that batch fill a part of the next hole; the next source record must not lie below the log end. The
   copier notices that when it places the next record (``OffsetLayout``), so it needs no extra read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import NamedTuple

from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.copy.holes import delete_fillers_again
from airflow_provider_kafka_migration.copy.partition import PartitionCopy, ResumePoint, advance_sequence
from airflow_provider_kafka_migration.copy.rewriting import RewrittenChunks
from airflow_provider_kafka_migration.copy.source import ReadUpTo, check_not_truncated, last_epoch
from airflow_provider_kafka_migration.copy.transform import AbortedTransactions, Chunk
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    FloorViolated,
    ForeignData,
    MigrationError,
    OutsideOfLog,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka.batches.api import (
    AnyBatch,
    LegacyBatch,
    RawBatch,
    Record,
    Timestamps,
    read_batches,
    records,
)
from airflow_provider_kafka_migration.kafka.batches.header import CONTROL_BIT, TRANSACTIONAL_BIT
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, READ_UNCOMMITTED, Aborted, FetchedPartition
from airflow_provider_kafka_migration.kafka.logs import LogEnds, fetch_span, fetch_where_possible, read_ends
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from airflow_provider_kafka_migration.offset_map.store import LaneMaps

# -- log tail ---------------------------------------------------------------------------------------------------------
#
# The end of a target's log: the last data batches before a log end that was read, without markers.
#
# Batches appended after that read are ignored: a position must come from one state of the log. Long stretches of
# markers are skipped without parsing each of them.


#: This many data batches are kept, which is more than one copier ever has in flight.
MAX_TAIL_BATCHES = 32
_QUICK_BYTES = 1024 * 1024
_LONG_FETCH_BYTES = 8 * 1024 * 1024
#: The size of a control batch with its one record, as brokers write it for WriteTxnMarkers and EndTxn.
MARKER_BYTES = 78


class LogTail(NamedTuple):
    """The data batches of ``[from_offset, end_offset)``, ascending; the first may begin below ``from_offset``."""

    from_offset: int
    end_offset: int
    batches: list[AnyBatch]


def read_tails(
    wire: Wire, spans: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, LogTail | MigrationError]:
    """Read the tails of several partitions; a partition that cannot be read has its error instead.

    :param spans: (from offset, log end) by partition.
    """
    quick, problems = fetch_where_possible(
        wire,
        [(key, start) for key, (start, _) in spans.items()],
        isolation=READ_UNCOMMITTED,
        max_bytes=_QUICK_BYTES,
    )
    found: dict[TopicPartition, LogTail | MigrationError] = dict(problems)
    for key, (start, end) in spans.items():
        if key in found:
            continue
        try:
            found[key] = _tail(wire, key, start, end, quick.get(key))
        except MigrationError as error:
            found[key] = error
    return found


def _tail(wire: Wire, key: TopicPartition, start: int, end: int, quick: FetchedPartition | None) -> LogTail:
    if quick is not None and not quick.error_code:
        batches, _ = read_batches(quick.records)
        if batches and batches[-1].next_offset >= end:
            return _kept(start, end, batches)
    return _kept(start, end, _data_span(wire, key, start, end))


def _kept(start: int, end: int, batches: Iterable[AnyBatch]) -> LogTail:
    last: deque[AnyBatch] = deque(maxlen=MAX_TAIL_BATCHES)
    count = 0
    for batch in batches:
        if batch.next_offset > end:
            break
        if batch.next_offset > start and _is_data(batch):
            last.append(batch)
            count += 1
    if count > len(last):
        start = _base_offset(last[0])
    return LogTail(start, end, list(last))


def _is_data(batch: AnyBatch) -> bool:
    return isinstance(batch, LegacyBatch) or (not batch.is_control and batch.record_count > 0)


def _base_offset(batch: AnyBatch) -> int:
    return batch.base_offset if isinstance(batch, RawBatch) else batch.last_offset


def _data_span(wire: Wire, key: TopicPartition, start: int, end: int) -> Iterator[AnyBatch]:
    position = start
    size = _QUICK_BYTES
    while position < end:
        span = fetch_span(wire, key, position, isolation=READ_UNCOMMITTED, max_bytes=size)
        if span.until_offset <= position:
            raise Transient(f"the log ends at {end}, but nothing can be read at offset {position}")
        behind = behind_markers(span.records)
        if behind is not None:
            position, size = max(position, behind), _LONG_FETCH_BYTES
            continue
        yield from span.batches
        position = span.until_offset


def behind_markers(records: memoryview) -> int | None:
    """Return the first offset behind the whole markers in these bytes; None if they hold anything else, too."""
    count = len(records) // MARKER_BYTES
    if not count:
        return None
    data = bytes(records[: count * MARKER_BYTES])
    marks = {
        # length of the batch (4 bytes), magic, attributes (2 bytes)
        8: 0, 9: 0, 10: 0, 11: MARKER_BYTES - 12, 16: 2, 21: 0, 22: CONTROL_BIT | TRANSACTIONAL_BIT,
    }  # fmt: skip
    if any(data[position::MARKER_BYTES] != bytes([value]) * count for position, value in marks.items()):
        return None
    return int.from_bytes(data[-MARKER_BYTES : 8 - MARKER_BYTES], "big") + 1


# -- takeover check ---------------------------------------------------------------------------------------------------
#
# Compares the end of the target's log with the source at each take-over, in both directions.
#
# Each record at the target's end must be the source's record of that offset, and each committed record that the source
# has in that stretch must be on the target. Records that the source has compacted or deleted since do not count; an
# offset that is a marker or an aborted record on the source cannot be a copied record.


#: This many equal records at their offsets cannot be a coincidence among shifted ones.
STRONG_RECORDS = 16

#: Returns the chunk that covers an offset, or None if there is none (no longer, or not yet).
ReadChunk = Callable[[int], Chunk | None]


class Agreement(Enum):
    """The result of comparing both ends."""

    #: equal, and enough records to be sure
    STRONG = "strong"
    #: nothing differs, but few records could be compared
    WEAK = "weak"
    DIFFERENT = "different"


@dataclass
class SourceSpan:
    """The source's content in a stretch of offsets: committed records, and offsets where none can be."""

    committed: dict[int, Record] = field(default_factory=dict)
    barred: list[tuple[int, int]] = field(default_factory=list)

    def is_barred(self, offset: int) -> bool:
        """Return whether a marker or an aborted record is at this offset."""
        return any(first <= offset <= last for first, last in self.barred)


def chunks_of_cluster(wire: Wire, key: TopicPartition, first: tuple[int, FetchedPartition] | None = None) -> ReadChunk:
    """Return a reader of a cluster's present chunks, which keeps the last one for a second read.

    The reader returns None only where the log ends, never merely because an answer has no records.

    :param first: an answer fetched already: (position, answer with read_committed).
    """
    kept: dict[int, Chunk] = {}
    if first is not None and not first[1].error_code:
        position, answer = first
        batches, used = read_batches(answer.records)
        if batches:
            kept[position] = _chunk(key, position, batches[-1].next_offset, answer.records[:used], answer.aborted)

    def read(position: int) -> Chunk | None:
        found = kept.get(position)
        if found is None:
            try:
                span = fetch_span(wire, key, position)
            except OutsideOfLog as error:
                # No read goes below the log start, so the log start has moved since it was determined.
                raise BrokerBusy(
                    f"the {wire.config.name} log changed while the target's end was compared with it: {error.what}",
                    where=error.where,
                    next_step="none: the comparison starts again with the log's present start",
                    details=error.details,
                ) from error
            if span.until_offset <= position:
                return None
            found = _chunk(key, position, span.until_offset, span.records, span.aborted)
            kept.clear()
            kept[position] = found
        return found

    return read


def _chunk(key: TopicPartition, position: int, until: int, records: memoryview, aborted: list[Aborted]) -> Chunk:
    return Chunk(key[0], key[1], from_offset=position, until_offset=until, batches=records, aborted=aborted)


def chunks_of_archive(index: SegmentIndex) -> ReadChunk:
    """Return a reader of archived chunks, for a restore that does not know the source.

    A recorded source gap remains a gap here, even if its records came into the archive later: the target may have been
    copied before or after that.
    """

    def read(position: int) -> Chunk | None:
        entry = index.find_undisputed(position)
        return None if entry is None else index.read(entry)

    return read


def chunks_from(read: ReadChunk, from_offset: int, until_offset: int) -> Iterator[Chunk]:
    """Yield the chunks that cover a stretch; end early where there is nothing more."""
    position = from_offset
    while position < until_offset:
        chunk = read(position)
        if chunk is None or chunk.until_offset <= position:
            return
        yield chunk
        position = chunk.until_offset


def committed_batches(chunk: Chunk) -> Iterator[tuple[AnyBatch, bool]]:
    """Yield the batches of a chunk, and whether their records are committed data."""
    aborted = AbortedTransactions(chunk.aborted)
    for batch in read_batches(chunk.batches)[0]:
        if isinstance(batch, LegacyBatch):
            yield batch, True
        else:
            dropped = bool(aborted) and aborted.drops(batch)
            yield batch, not dropped and not batch.is_control


def records_of(batch: AnyBatch, timestamps: Timestamps) -> Iterator[Record]:
    """Yield the records of any batch."""
    return batch.records(timestamps) if isinstance(batch, LegacyBatch) else records(batch, timestamps)


def read_source(read: ReadChunk, from_offset: int, until_offset: int, timestamps: Timestamps) -> SourceSpan:
    """Return the source's content in ``[from_offset, until_offset)``."""
    span = SourceSpan()
    for chunk in chunks_from(read, from_offset, until_offset):
        stop = min(chunk.until_offset, until_offset)
        for batch, is_committed in committed_batches(chunk):
            if batch.next_offset <= from_offset or (isinstance(batch, RawBatch) and batch.base_offset >= stop):
                continue
            if not is_committed and isinstance(batch, RawBatch):
                span.barred.append((batch.base_offset, batch.last_offset))
                continue
            for record in records_of(batch, timestamps):
                if from_offset <= record.offset < stop:
                    span.committed[record.offset] = record
    return span


def agreement(
    tail: LogTail,
    offset_map: PartitionMap,
    read: ReadChunk,
    *,
    source_start_offset: int,
    is_whole: bool,
    timestamps: Timestamps,
) -> Agreement:
    """Compare the target's tail with the source.

    :param tail: with at least one data batch; this migration has written all of its batches.
    :param source_start_offset: the source has deleted what lies below it, which is not compared.
    :param is_whole: the tail reaches down to the first record that was ever copied.
    """
    batches = [batch for batch in tail.batches if isinstance(batch, RawBatch)]
    first, last = batches[0], batches[-1]
    begin = min(offset_map.source_of(min(tail.from_offset, first.base_offset)), offset_map.source_of(first.base_offset))
    begin = max(begin, source_start_offset)
    end = offset_map.source_of(last.last_offset) + 1
    if begin >= end:
        return Agreement.STRONG if is_whole else Agreement.WEAK
    is_there = offset_map.source_of(first.base_offset) >= source_start_offset
    if len(batches) == 1 and is_there and _is_forwarded(first, offset_map, read):
        return Agreement.STRONG if is_whole or first.record_count >= STRONG_RECORDS else Agreement.WEAK
    span = read_source(read, begin, end, timestamps)
    own = {
        source_offset: record._replace(offset=source_offset)
        for source_offset, record in _own_records(batches, offset_map)
        if source_offset >= begin
    }
    return _compare(own, span, is_whole=is_whole)


def _own_records(batches: Sequence[RawBatch], offset_map: PartitionMap) -> Iterator[tuple[int, Record]]:
    for batch in batches:
        for record in records(batch):
            yield offset_map.source_of(record.offset), record


def _compare(own: dict[int, Record], span: SourceSpan, *, is_whole: bool) -> Agreement:
    if any(own.get(offset) != record for offset, record in span.committed.items()):
        return Agreement.DIFFERENT
    vanished = own.keys() - span.committed.keys()
    if any(span.is_barred(offset) for offset in vanished):
        return Agreement.DIFFERENT
    equal = len(span.committed)
    return Agreement.STRONG if is_whole or equal >= STRONG_RECORDS else Agreement.WEAK


def _is_forwarded(batch: RawBatch, offset_map: PartitionMap, read: ReadChunk) -> bool:
    """Return whether the source has this very batch at the same place, so that no record needs to be unpacked."""
    source_offset = offset_map.source_of(batch.base_offset)
    chunk = read(source_offset)
    if chunk is None:
        return False
    for other, is_committed in committed_batches(chunk):
        if not isinstance(other, RawBatch) or other.base_offset > source_offset:
            return False
        if other.base_offset == source_offset:
            return (
                is_committed
                and other.base_timestamp == batch.base_timestamp
                and other.record_count == batch.record_count
                and not other.is_log_append_time
                and other.payload == batch.payload
            )
    return False


# -- realign ----------------------------------------------------------------------------------------------------------
#
# Rewrites the offset map of a partition whose last records landed later than planned because of excess control markers.
#
# A copier that dies before it has seen the answers to its last appends cannot know that a hole was filled twice. Order
# and content are right nevertheless, because appends are compare-and-append: after the last record that is at its
# planned offset, the target's records must be the source's next ones, one by one. Then only the map is wrong, and is
# rewritten.


_FAR = 2**63 - 1


def realigned(
    tail: LogTail,
    offset_map: PartitionMap,
    read: ReadChunk,
    *,
    source_start_offset: int,
    is_whole: bool,
    timestamps: Timestamps,
) -> list[OffsetRange] | None:
    """Return the runs that correct the map from the first displaced record on; None if markers are not the cause.

    :param tail: reaches back to a record at its planned offset (or to the very first record).
    :param source_start_offset: batches that begin below it cannot be compared, because the source has deleted them.
    :param is_whole: the tail reaches down to the first record that was ever copied.
    """
    ours = [batch for batch in tail.batches if isinstance(batch, RawBatch)]
    batches = [batch for batch in ours if offset_map.source_of(batch.base_offset) >= source_start_offset]
    is_whole = is_whole and len(batches) == len(ours)
    good = _well_placed(batches, offset_map, read, timestamps)
    displaced = [record for batch in batches[good:] for record in records(batch)]
    if not displaced or (good == 0 and not is_whole):
        return None
    if good:
        target_offset = batches[good - 1].next_offset
        source_offset = offset_map.source_position(target_offset)
    else:
        source_offset, target_offset = offset_map.source_start_offset or 0, offset_map.target_start_offset or 0
        if source_offset < source_start_offset:
            return None
    expected = _next_committed(read, source_offset, len(displaced), timestamps)
    if len(expected) < len(displaced):
        return None
    return _runs(displaced, expected, source_offset - target_offset)


def _well_placed(batches: Sequence[RawBatch], offset_map: PartitionMap, read: ReadChunk, timestamps: Timestamps) -> int:
    """Return how many batches, from the first on, hold records that the source has at their offsets."""
    for index, batch in enumerate(batches):
        begin = offset_map.source_of(batch.base_offset)
        end = offset_map.source_of(batch.last_offset) + 1
        span = read_source(read, begin, end, timestamps)
        own = {offset_map.source_of(record.offset): record for record in records(batch)}
        equal = sum(1 for offset, record in own.items() if span.committed.get(offset) == record._replace(offset=offset))
        if not equal or equal < len(span.committed):
            return index
    return len(batches)


def _next_committed(read: ReadChunk, from_offset: int, count: int, timestamps: Timestamps) -> list[Record]:
    found = (
        record
        for chunk in chunks_from(read, from_offset, _FAR)
        for batch, is_committed in committed_batches(chunk)
        if is_committed
        for record in records_of(batch, timestamps)
        if record.offset >= from_offset
    )
    return list(islice(found, count))


def _runs(displaced: Sequence[Record], expected: Sequence[Record], shift: int) -> list[OffsetRange] | None:
    runs: list[OffsetRange] = []
    for ours, theirs in zip(displaced, expected, strict=True):
        if ours._replace(offset=theirs.offset) != theirs:
            return None
        if theirs.offset - ours.offset != shift:
            shift = theirs.offset - ours.offset
            runs.append(OffsetRange(theirs.offset, ours.offset))
    return runs or None


# -- resume -----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_FIRST_WINDOW_OFFSETS = 64
_WINDOW_GROWTH = 64
#: How far back to read when the last batch alone is not conclusive, and when the map of displaced records is corrected.
_DEEPER_OFFSETS = 256
_REALIGN_OFFSETS = 100_000

#: The resume point; None: not known yet, ask again soon; or the error of the partition.
Resumed = ResumePoint | MigrationError | None
ArchiveReader = Callable[[PartitionCopy], ReadChunk | None]


@dataclass(eq=False)
class _Look:
    """One partition while its log end is examined."""

    copy: PartitionCopy
    ends: LogEnds
    map: PartitionMap
    tail: LogTail | None = None

    @property
    def last(self) -> RawBatch | None:
        """The last data batch of this migration."""
        if self.tail is None or not self.tail.batches:
            return None
        batch = self.tail.batches[-1]
        assert isinstance(batch, RawBatch)
        return batch

    @property
    def floor(self) -> int:
        """The offset below which this migration has written nothing that is still in the log."""
        return max(self.ends.log_start_offset, min(self.copy.spec.target_start_offset, self.ends.log_end_offset))

    @property
    def is_whole(self) -> bool:
        """Whether the tail reaches down to the very first record."""
        return self.tail is not None and self.tail.from_offset <= self.copy.spec.target_start_offset


class ResumeFinder:
    """Finds resume points, many partitions at a time.

    :param archive: returns the reader of the archive, for a restore that does not know the source.
    :param as_on_target: returns a reader of what it is given, with the schema ids that records have on the target.
    """

    def __init__(
        self,
        job: CopyJob,
        source: Wire | None,
        target: Wire,
        *,
        archive: ArchiveReader = lambda _copy: None,
        as_on_target: Callable[[PartitionCopy, ReadChunk], ReadChunk] = lambda _copy, read: read,
    ) -> None:
        self._job = job
        self._source = source
        self._target = target
        self._archive = archive
        self._as_on_target = as_on_target

    def resume(self, copies: Sequence[PartitionCopy], lane_maps: LaneMaps) -> dict[PartitionCopy, Resumed]:
        """Return the resume point of each partition, or its error, which does not stop the others.

        :param lane_maps: taken over here, at the log ends that are found.
        :raises Transient: no broker of a cluster answers, or the storage does not.
        """
        found: dict[PartitionCopy, Resumed] = dict.fromkeys(copies)
        looks = self._settled(copies, lane_maps, found)
        self._find_last(looks, found)
        failed = _failed(found)
        looks = self._not_truncated([look for look in looks if look.copy not in failed], found)
        reads = self._readers([look for look in looks if look.last is not None])
        source_ends = self._source_ends([look for look in looks if look.last is not None])
        for look in looks:
            try:
                read, ends = reads.get(look.copy), source_ends.get(look.copy.key)
                self._check(look, read, ends, lane_maps)
                found[look.copy] = self._point(look, self._source_epoch(look, read, ends))
            except MigrationError as error:
                found[look.copy] = error
        return found

    # -- the target --------------------------------------------------------------------------------------------------

    def _settled(
        self, copies: Sequence[PartitionCopy], lane_maps: LaneMaps, found: dict[PartitionCopy, Resumed]
    ) -> list[_Look]:
        """Return the partitions whose replicas have caught up, with their maps taken over at the log end."""
        ends = read_ends(self._target, [copy.target_key for copy in copies])
        self._restore_log_starts(copies, ends)
        looks = []
        for copy in copies:
            end = ends[copy.target_key]
            if isinstance(end, MigrationError):
                found[copy] = end
                continue
            if not end.settled:
                continue
            try:
                looks.append(_Look(copy, end, lane_maps.load(copy.spec, end.log_end_offset)))
            except MigrationError as error:
                found[copy] = error
        return looks

    def _restore_log_starts(
        self, copies: Sequence[PartitionCopy], ends: dict[TopicPartition, LogEnds | MigrationError]
    ) -> None:
        """Delete fillers again where a broker that crashed has forgotten their deletion."""
        starts: dict[TopicPartition, int] = {}
        wanted: dict[TopicPartition, int] = {}
        for copy in copies:
            end, start = ends[copy.target_key], copy.spec.target_start_offset
            if copy.spec.verdict is Verdict.EQUAL and isinstance(end, LogEnds) and end.log_end_offset >= start:
                starts[copy.target_key], wanted[copy.target_key] = end.log_start_offset, start
        done = delete_fillers_again(self._target, starts, wanted, self._job.producers.filler_producer_id)
        for key, found in done.items():
            end = ends[key]
            assert isinstance(end, LogEnds)
            ends[key] = found if isinstance(found, MigrationError) else replace(end, log_start_offset=found)

    def _find_last(self, looks: Sequence[_Look], found: dict[PartitionCopy, Resumed]) -> None:
        """Read the tail of each log, back from the end in growing windows until it has at least one data batch."""
        todo = [look for look in looks if look.ends.log_end_offset > look.ends.log_start_offset]
        window = _FIRST_WINDOW_OFFSETS
        while todo:
            starts = {look: max(look.floor, look.ends.log_end_offset - window) for look in todo}
            self._read(starts, found)
            failed = _failed(found)
            todo = [
                look for look in todo if look.copy not in failed and look.last is None and starts[look] > look.floor
            ]
            window *= _WINDOW_GROWTH

    def _read(self, starts: Mapping[_Look, int], found: dict[PartitionCopy, Resumed]) -> None:
        spans = {look.copy.target_key: (start, look.ends.log_end_offset) for look, start in starts.items()}
        tails = read_tails(self._target, spans)
        for look in starts:
            tail = tails[look.copy.target_key]
            try:
                if isinstance(tail, MigrationError):
                    raise tail
                self._check_owner(look.copy, tail)
                look.tail = tail
            except MigrationError as error:
                found[look.copy] = error

    def _check_owner(self, copy: PartitionCopy, tail: LogTail) -> None:
        for batch in tail.batches:
            if isinstance(batch, LegacyBatch) or batch.producer_id != self._job.producers.data_producer_id:
                raise self._foreign(copy, batch)

    def _source_epoch(self, look: _Look, read: ReadChunk | None, source_ends: LogEnds | MigrationError | None) -> int:
        """Return the leader epoch of the source's batch at the end of the copy; -1 if the batch is deleted by now."""
        if self._source is None or read is None or look.last is None or not isinstance(source_ends, LogEnds):
            return -1
        offset = look.map.source_of(look.last.base_offset)
        if offset < source_ends.log_start_offset:
            return -1
        chunk = read(offset)
        position = look.map.source_position(look.last.next_offset)
        batches = [] if chunk is None else read_batches(chunk.batches)[0]
        return last_epoch([item for item in batches if isinstance(item, RawBatch) and item.base_offset < position])

    def _point(self, look: _Look, source_epoch: int) -> ResumePoint:
        copy, end, last = look.copy, look.ends.log_end_offset, look.last
        run = look.map.last_run
        assert run is not None
        if last is not None:
            return ResumePoint(
                source_offset=look.map.source_position(last.next_offset),
                target_end_offset=end,
                next_sequence=advance_sequence(last.base_sequence, last.last_offset_delta),
                shift=run.shift,
                is_mapped=len(look.map) > 1,
                skips_holes=look.map.skips_holes,
                source_epoch=source_epoch,
            )
        start = copy.spec.target_start_offset
        if end < start:
            raise Transient(
                f"the log end {end} is below the first offset to copy, {start}: the fillers are not all written yet",
                where=self._where(copy),
                next_step="clear topology_copy, then this task",
            )
        if look.ends.log_start_offset > start:
            raise FloorViolated(
                f"the log start {look.ends.log_start_offset} is above the first copied offset {start}, and no copied "
                "record is left",
                where=self._where(copy),
                next_step="find what deleted records on the target (retention, DeleteRecords); delete the topic and "
                "start again",
            )
        return ResumePoint(copy.spec.source_start_offset, end, 0, run.shift, len(look.map) > 1, look.map.skips_holes)

    # -- the source --------------------------------------------------------------------------------------------------

    def _readers(self, looks: Sequence[_Look]) -> dict[PartitionCopy, ReadChunk]:
        """Return a reader of what to compare each tail with; the first read from the source is one fetch for all."""
        if self._source is None:
            archived = {look.copy: self._archive(look.copy) for look in looks}
            return {copy: self._as_on_target(copy, read) for copy, read in archived.items() if read is not None}
        positions = {look.copy.key: look.map.source_of(look.last.base_offset) for look in looks if look.last}
        quick: dict[TopicPartition, FetchedPartition] = {}
        if positions:
            quick, _ = fetch_where_possible(
                self._source, list(positions.items()), isolation=READ_COMMITTED, max_bytes=1024 * 1024
            )
        return {
            look.copy: self._as_on_target(
                look.copy,
                chunks_of_cluster(
                    self._source,
                    look.copy.key,
                    (positions[look.copy.key], quick[look.copy.key]) if look.copy.key in quick else None,
                ),
            )
            for look in looks
        }

    def _not_truncated(self, looks: Sequence[_Look], found: dict[PartitionCopy, Resumed]) -> list[_Look]:
        """Return the partitions of which the source still has what was read.

        This check comes before the contents are compared: the comparison would show the difference, but not its cause.
        """
        if self._source is None:
            return list(looks)
        asked = {look.copy.key: read for look in looks if (read := _read_up_to(look)) is not None}
        problems = check_not_truncated(self._source, asked) if asked else {}
        for look in looks:
            problem = problems.get(look.copy.key)
            if problem is not None:
                found[look.copy] = problem
        return [look for look in looks if problems.get(look.copy.key) is None]

    def _source_ends(self, looks: Sequence[_Look]) -> dict[TopicPartition, LogEnds | MigrationError]:
        if self._source is None or not looks:
            return {}
        return read_ends(self._source, [look.copy.key for look in looks])

    def _check(
        self, look: _Look, read: ReadChunk | None, source_ends: LogEnds | MigrationError | None, lane_maps: LaneMaps
    ) -> None:
        """Check that the target's end equals the source's records there, and does not lie beyond the source's end."""
        last = look.last
        if last is None or read is None:
            return
        if isinstance(source_ends, MigrationError):
            raise source_ends
        start = 0
        if source_ends is not None:
            start = source_ends.log_start_offset
            if look.map.source_of(last.last_offset) >= source_ends.high_watermark:
                raise self._beyond(look, last, source_ends.high_watermark)
        verdict = self._agreement(look, read, start)
        if verdict is Agreement.WEAK:
            self._look_further(look, last.base_offset - _DEEPER_OFFSETS)
            verdict = self._agreement(look, read, start)
        if verdict is Agreement.DIFFERENT and isinstance(read, RewrittenChunks):
            read.check_known()
        if verdict is Agreement.DIFFERENT:
            self._realign(look, last, read, start, lane_maps)

    def _agreement(self, look: _Look, read: ReadChunk, source_start_offset: int) -> Agreement:
        assert look.tail is not None
        return agreement(
            look.tail,
            look.map,
            read,
            source_start_offset=source_start_offset,
            is_whole=look.is_whole,
            timestamps=self._job.timestamps,
        )

    def _look_further(self, look: _Look, from_offset: int) -> None:
        found: dict[PartitionCopy, Resumed] = {}
        self._read({look: max(look.floor, from_offset)}, found)
        problem = found.get(look.copy)
        if isinstance(problem, MigrationError):
            raise problem

    def _realign(
        self, look: _Look, last: RawBatch, read: ReadChunk, source_start_offset: int, lane_maps: LaneMaps
    ) -> None:
        """Rewrite the map if excess markers have displaced records. Raise on any other difference."""
        self._look_further(look, last.base_offset - _REALIGN_OFFSETS)
        assert look.tail is not None
        runs = realigned(
            look.tail,
            look.map,
            read,
            source_start_offset=source_start_offset,
            is_whole=look.is_whole,
            timestamps=self._job.timestamps,
        )
        if runs is None or (look.copy.spec.on_mismatch or self._job.on_mismatch) == "fail":
            raise self._mismatch(look, last)
        log.warning(
            "%s-%s: the take-over found excess control markers before source offset %s; continuing as mapped",
            *look.copy.key,
            runs[0].source_start,
        )
        lane_maps.write_ahead(look.copy.spec, look.ends.log_end_offset, runs)
        look.map = lane_maps.maps[look.copy.key]

    # -- errors ------------------------------------------------------------------------------------------------------

    def _where(self, copy: PartitionCopy, offset: int | None = None) -> Where:
        return Where(
            migration_id=self._job.migration_id,
            cluster="target",
            topic=copy.spec.target_topic,
            partition=copy.spec.partition,
            offset=offset,
        )

    def _foreign(self, copy: PartitionCopy, batch: AnyBatch) -> ForeignData:
        producer = batch.producer_id if isinstance(batch, RawBatch) else -1
        return ForeignData(
            f"the target holds records that this migration did not write (producer id {producer})",
            where=self._where(copy, batch.last_offset),
            next_step="find and stop the producer that writes to the target topic; then delete the topic there and "
            "start a new migration, or leave the topic out",
            details={"producer_id": producer, "target_offset": batch.last_offset},
        )

    def _beyond(self, look: _Look, batch: RawBatch, source_end: int) -> ForeignData:
        return ForeignData(
            f"the target's last record is that of source offset {look.map.source_of(batch.last_offset)}, "
            f"but the source ends at {source_end}",
            where=self._where(look.copy, batch.last_offset),
            next_step="compare both ends: the source lost records (unclean election?), or another writer wrote to the "
            "target",
            details={"target_offset": batch.last_offset, "source_end_offset": source_end},
        )

    def _mismatch(self, look: _Look, batch: RawBatch) -> ForeignData:
        source_offset = look.map.source_of(batch.base_offset)
        return ForeignData(
            f"the end of the target (offsets {batch.base_offset}..{batch.last_offset}) differs from the source's "
            f"records at {source_offset}",
            where=self._where(look.copy, batch.base_offset),
            next_step="a stale copier or another writer wrote to the target: delete the target topic and start again, "
            "or leave the topic out",
            details={"target_offset": batch.base_offset, "source_offset": source_offset},
        )


def _failed(found: Mapping[PartitionCopy, Resumed]) -> set[PartitionCopy]:
    return {copy for copy, item in found.items() if isinstance(item, MigrationError)}


def _read_up_to(look: _Look) -> ReadUpTo | None:
    """Return up to which offset, and under which leader epoch, the source was read; None: not known."""
    if look.last is None:
        return None
    position = look.map.source_position(look.last.next_offset)
    if look.copy.read.leader_epoch >= 0:
        return ReadUpTo(position, look.copy.read.leader_epoch)
    before = look.copy.read.before
    # Beyond what the target has, the source may lose anything: that was not copied.
    return ReadUpTo(*before) if before is not None and before[0] <= position else None
