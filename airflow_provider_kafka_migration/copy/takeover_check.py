"""Is the end of the target's log what the source has there? Asked at each take-over, in both directions.

Each record at the target's end must be the source's record of that offset, and each committed record that the source
has in that stretch must be on the target. What the source has compacted or deleted since does not count; an offset
that is a marker or an aborted record there cannot be a record of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.copy.chunk import Chunk
from airflow_provider_kafka_migration.copy.log_tail import LogTail
from airflow_provider_kafka_migration.copy.transform import AbortedTransactions
from airflow_provider_kafka_migration.errors import BrokerBusy, OutsideOfLog
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
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap

#: So many equal records at their offsets cannot be a coincidence of shifted ones.
STRONG_RECORDS = 16

#: Gives the chunk that covers an offset, or None if there is none (any more, or yet).
ReadChunk = Callable[[int], Chunk | None]


class Agreement(Enum):
    """What a comparison of both ends has brought."""

    #: equal, and enough records to be sure
    STRONG = "strong"
    #: nothing differs, but few records could be compared
    WEAK = "weak"
    DIFFERENT = "different"


@dataclass
class SourceSpan:
    """What the source has in a stretch of offsets: committed records, and offsets where none can be."""

    committed: dict[int, Record] = field(default_factory=dict)
    barred: list[tuple[int, int]] = field(default_factory=list)

    def is_barred(self, offset: int) -> bool:
        """A marker or an aborted record is there."""
        return any(first <= offset <= last for first, last in self.barred)


def chunks_of_cluster(wire: Wire, key: TopicPartition, first: tuple[int, FetchedPartition] | None = None) -> ReadChunk:
    """Chunks as a cluster gives them now; the last one is kept for a second look.

    None is where the log ends, never only an answer without records.

    :param first: what was fetched already: (position, answer with read_committed).
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
                # Nothing below the log start is asked for, so it has moved since it was read.
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
    """Chunks as they were archived, for a restore that does not know the source.

    A gap of the source that was passed stays one in here, also if its records have come into the archive later: the
    target may have been copied before or after that.
    """

    def read(position: int) -> Chunk | None:
        entry = index.find_undisputed(position)
        return None if entry is None else index.read(entry)

    return read


def chunks_from(read: ReadChunk, from_offset: int, until_offset: int) -> Iterator[Chunk]:
    """Chunks that cover a stretch; ends early where there is nothing more."""
    position = from_offset
    while position < until_offset:
        chunk = read(position)
        if chunk is None or chunk.until_offset <= position:
            return
        yield chunk
        position = chunk.until_offset


def committed_batches(chunk: Chunk) -> Iterator[tuple[AnyBatch, bool]]:
    """Batches of a chunk and whether their records are committed data."""
    aborted = AbortedTransactions(chunk.aborted)
    for batch in read_batches(chunk.batches)[0]:
        if isinstance(batch, LegacyBatch):
            yield batch, True
        else:
            dropped = bool(aborted) and aborted.drops(batch)
            yield batch, not dropped and not batch.is_control


def records_of(batch: AnyBatch, timestamps: Timestamps) -> Iterator[Record]:
    """The records of any batch."""
    return batch.records(timestamps) if isinstance(batch, LegacyBatch) else records(batch, timestamps)


def read_source(read: ReadChunk, from_offset: int, until_offset: int, timestamps: Timestamps) -> SourceSpan:
    """What the source has in ``[from_offset, until_offset)``."""
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

    :param tail: with at least one data batch, all of our own.
    :param source_start_offset: what lies below it on the source is gone, and is not compared.
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
    """The source has this very batch at the same place: nothing needs to be unpacked."""
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
