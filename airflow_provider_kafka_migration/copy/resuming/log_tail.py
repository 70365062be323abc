"""The end of a target's log: the last data batches before a log end that was read, without markers.

Batches appended after that read are ignored: a position must come from one state of the log. Long stretches of
markers are skipped without parsing each of them.

The cleaner of a compacted topic leaves the header of a producer's last batch when all records of it are gone, as long
as the broker remembers the producer. Such an empty batch counts: it has the sequence, and the offset where it ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from airflow_provider_kafka_migration.errors import (
    MigrationError,
    Transient,
)
from airflow_provider_kafka_migration.kafka.batches.api import (
    AnyBatch,
    LegacyBatch,
    RawBatch,
    read_batches,
)
from airflow_provider_kafka_migration.kafka.batches.header import CONTROL_BIT, TRANSACTIONAL_BIT
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED, FetchedPartition
from airflow_provider_kafka_migration.kafka.logs import fetch_span, fetch_where_possible
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire

#: This many data batches are kept, which is more than one copier ever has in flight.
MAX_TAIL_BATCHES = 32
_FIRST_WINDOW_OFFSETS = 64
_WINDOW_GROWTH = 64
_QUICK_BYTES = 1024 * 1024
_LONG_FETCH_BYTES = 8 * 1024 * 1024
#: The size of a control batch with its one record, as brokers write it for WriteTxnMarkers and EndTxn.
MARKER_BYTES = 78


class LogTail(NamedTuple):
    """The data batches of ``[from_offset, end_offset)``, ascending; the first may begin below ``from_offset``."""

    from_offset: int
    end_offset: int
    batches: list[AnyBatch]
    #: Behind the last data batch offsets are missing from the log: compaction or DeleteRecords has removed something
    #: there, which may have been data.
    lacks_end: bool = False


class MarkerRun(NamedTuple):
    """A stretch of markers that is skipped without parsing them."""

    first_offset: int
    next_offset: int
    is_whole: bool


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


def last_batches(
    wire: Wire, spans: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, AnyBatch | MigrationError | None]:
    """Return the last data batch of each span; None: there is none. The window that is read back grows as needed.

    :param spans: (log start, log end) by partition.
    """
    found: dict[TopicPartition, AnyBatch | MigrationError | None] = {}
    for key, (start, end) in spans.items():
        try:
            found[key] = _last_batch(wire, key, start, end)
        except MigrationError as error:
            found[key] = error
    return found


def _last_batch(wire: Wire, key: TopicPartition, start: int, end: int) -> AnyBatch | None:
    window, position = _FIRST_WINDOW_OFFSETS, end
    while position > start:
        position = max(start, end - window)
        tail = _tail(wire, key, position, end, None)
        if tail.batches:
            return tail.batches[-1]
        window *= _WINDOW_GROWTH
    return None


def _tail(wire: Wire, key: TopicPartition, start: int, end: int, quick: FetchedPartition | None) -> LogTail:
    if quick is not None and not quick.error_code:
        batches, _ = read_batches(quick.records)
        if batches and batches[-1].next_offset >= end:
            return _kept(start, end, batches)
    return _kept(start, end, _data_span(wire, key, start, end))


def _kept(start: int, end: int, batches: Iterable[AnyBatch | MarkerRun]) -> LogTail:
    last: deque[AnyBatch] = deque(maxlen=MAX_TAIL_BATCHES)
    count, covered, lacks_end = 0, start, False
    for batch in batches:
        if batch.next_offset > end:
            break
        if batch.next_offset <= start:
            continue
        if isinstance(batch, MarkerRun):
            lacks_end = lacks_end or not batch.is_whole or batch.first_offset > covered
        elif _is_data(batch):
            last.append(batch)
            count += 1
            lacks_end = False
        else:
            lacks_end = lacks_end or _base_offset(batch) > covered
        covered = batch.next_offset
    if count > len(last):
        start = _base_offset(last[0])
    return LogTail(start, end, list(last), lacks_end or covered < end)


def _is_data(batch: AnyBatch) -> bool:
    return isinstance(batch, LegacyBatch) or not batch.is_control


def _base_offset(batch: AnyBatch) -> int:
    return batch.base_offset if isinstance(batch, RawBatch) else batch.last_offset


def _data_span(wire: Wire, key: TopicPartition, start: int, end: int) -> Iterator[AnyBatch | MarkerRun]:
    position = start
    size = _QUICK_BYTES
    while position < end:
        span = fetch_span(wire, key, position, isolation=READ_UNCOMMITTED, max_bytes=size)
        if span.until_offset <= position:
            raise Transient(f"the log ends at {end}, but nothing can be read at offset {position}")
        behind = behind_markers(span.records)
        if behind is not None:
            first, count = int.from_bytes(span.records[:8], "big"), len(span.records) // MARKER_BYTES
            yield MarkerRun(first, behind, first + count == behind)
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
