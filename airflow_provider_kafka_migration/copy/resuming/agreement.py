"""Compares the end of the target's log with the source at each take-over, in both directions.

Each record at the target's end must be the source's record of that offset, and each committed record that the source
has in that stretch must be on the target. Records that the source has compacted or deleted since do not count; an
offset that is a marker or an aborted record on the source cannot be a copied record. Where the target's own cleaner
runs (a mirror), it may have removed a record that the source still has: a tombstone, or one that a later record of its
key has superseded. Such a record does not count either.

:func:`realigned` corrects the offset map of a partition whose last records landed later than planned because of excess
control markers. A copier that dies before it has seen the answers to its last appends cannot know that a hole was
filled twice. Order and content are right nevertheless, because appends are compare-and-append: after the last record
that is at its planned offset, the target's records must be the source's next ones, one by one. Then only the map is
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.copy.resuming.log_tail import LogTail
from airflow_provider_kafka_migration.copy.transform import AbortedTransactions, Chunk
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    OutsideOfLog,
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
from airflow_provider_kafka_migration.kafka.fetch import Aborted, FetchedPartition
from airflow_provider_kafka_migration.kafka.logs import fetch_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap

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
    is_cleaned: bool = False,
) -> Agreement:
    """Compare the target's tail with the source.

    :param tail: with at least one data batch; this migration has written all of its batches.
    :param source_start_offset: the source has deleted what lies below it, which is not compared.
    :param is_whole: the tail reaches down to the first record that was ever copied.
    :param is_cleaned: the target compacts the topic, too.
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
    # Later records of a key, which the target may have removed meanwhile, lie between the last batch and the log end.
    span = read_source(read, begin, offset_map.source_position(tail.end_offset) if is_cleaned else end, timestamps)
    own = {
        source_offset: record._replace(offset=source_offset)
        for source_offset, record in _own_records(batches, offset_map)
        if source_offset >= begin
    }
    if is_cleaned:
        kept = _without_cleaned(own, span.committed, end)
        return _compare(own, SourceSpan(kept, span.barred), is_whole=False)
    return _compare(own, span, is_whole=is_whole)


def _without_cleaned(own: dict[int, Record], committed: dict[int, Record], end: int) -> dict[int, Record]:
    """Return the source's records below ``end`` without those that the target's cleaner may have removed."""
    last_of_key: dict[bytes | None, int] = {}
    for offset, record in sorted({**committed, **own}.items()):
        last_of_key[record.key] = offset

    def is_superseded(offset: int, record: Record) -> bool:
        last = last_of_key[record.key]
        # What only we have further on, and is the same record, is this very record, displaced: it supersedes nothing.
        is_displaced = last not in committed and own[last]._replace(offset=offset) == record
        return last != offset and not is_displaced

    return {
        offset: record
        for offset, record in committed.items()
        if offset < end and (offset in own or (record.value is not None and not is_superseded(offset, record)))
    }


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


_FAR = 2**63 - 1


def realigned(
    tail: LogTail,
    offset_map: PartitionMap,
    read: ReadChunk,
    *,
    source_start_offset: int,
    is_whole: bool,
    timestamps: Timestamps,
    is_cleaned: bool = False,
) -> list[OffsetRange] | None:
    """Return the runs that correct the map from the first displaced record on; None if markers are not the cause.

    :param tail: reaches back to a record at its planned offset (or to the very first record).
    :param source_start_offset: batches that begin below it cannot be compared, because the source has deleted them.
    :param is_whole: the tail reaches down to the first record that was ever copied.
    :param is_cleaned: as in :func:`agreement`.
    """
    ours = [batch for batch in tail.batches if isinstance(batch, RawBatch)]
    batches = [batch for batch in ours if offset_map.source_of(batch.base_offset) >= source_start_offset]
    is_whole = is_whole and len(batches) == len(ours)
    good = _well_placed(batches, offset_map, read, timestamps, is_cleaned=is_cleaned)
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


def _well_placed(
    batches: Sequence[RawBatch],
    offset_map: PartitionMap,
    read: ReadChunk,
    timestamps: Timestamps,
    *,
    is_cleaned: bool,
) -> int:
    """Return how many batches, from the first on, hold records that the source has at their offsets."""
    for index, batch in enumerate(batches):
        begin = offset_map.source_of(batch.base_offset)
        end = offset_map.source_of(batch.last_offset) + 1
        span = read_source(read, begin, end, timestamps)
        own = {offset_map.source_of(record.offset): record for record in records(batch)}
        equal = sum(1 for offset, record in own.items() if span.committed.get(offset) == record._replace(offset=offset))
        # What a cleaner has left of a batch proves its place as well: records never move.
        wanted = len(own.keys() & span.committed.keys()) if is_cleaned else len(span.committed)
        if (not equal and not (is_cleaned and not own)) or equal < wanted:
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
