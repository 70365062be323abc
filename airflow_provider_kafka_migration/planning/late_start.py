"""Where the partitions of a mirror with ``start: latest`` begin, so that no transaction is cut in two.

A partition begins at its last stable offset, the first offset of all open transactions: what they write is copied as a
whole. A transaction that has ended above that offset, beside an open one, may have begun below it. Then the partition
begins at the first offset of that transaction, unless this cuts another one, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import fetch_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.planning import mirror_starts
from airflow_provider_kafka_migration.planning.source_snapshot import SourceSnapshot
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.partition_names import partition_name

#: What may be read of one partition, and of all of them together.
PARTITION_BYTES = 64 * 1024 * 1024
ALL_BYTES = 512 * 1024 * 1024
_FETCH_BYTES = 1024 * 1024
#: How far the first look back goes, and how much further each next one goes.
_FIRST_WINDOW_OFFSETS, _WINDOW_GROWTH = 1_000, 10


def first_offsets(context: PhaseContext, found: SourceSnapshot) -> dict[TopicPartition, int]:
    """Return where partitions begin that do not begin at their log's start; others are absent.

    :param found: the source now; ``unknown`` gets the partitions where a transaction may be cut in two, and why.
    """
    if mirror_starts.are_known(context.record):
        return mirror_starts.kept(context.record, {name: facts.topic_id for name, facts in found.topics.items()})
    starts, left_bytes = dict[TopicPartition, int](), ALL_BYTES
    for key in found.keys:
        look = _Look(context.source.wire, key, min(PARTITION_BYTES, left_bytes))
        try:
            starts[key] = look.start(found.starts[key], found.stable[key], found.high_watermarks[key])
        except _TooMuchError:
            why = f"more than {look.limit_bytes:,} bytes would have to be read"
        except MigrationError as error:
            why = error.what
        left_bytes -= look.read_bytes
        if key not in starts:
            starts[key] = found.stable[key]
            found.unknown[f"transactions at the start of {partition_name(key)}, one of which may be cut in two"] = why
    return starts


class _TooMuchError(Exception):
    """More bytes would have to be read than may be read."""


@dataclass(frozen=True)
class _Event:
    """One batch of a transaction, or the marker that ends it."""

    producer_id: int
    offset: int
    is_end: bool
    #: it is the first batch of its producer (and epoch)
    is_first: bool


@dataclass
class _Transaction:
    """A transaction that has ended. ``begin_offset`` is -1 if it may have begun before everything that was read."""

    begin_offset: int
    last_offset: int


class _Look:
    """What is read of one partition."""

    def __init__(self, wire: Wire, key: TopicPartition, limit_bytes: int) -> None:
        self._wire = wire
        self._key = key
        self.limit_bytes = limit_bytes
        self.read_bytes = 0

    def start(self, log_start: int, stable: int, high_watermark: int) -> int:
        """Return the highest offset up to the last stable one at which no transaction that has ended is cut in two.

        :raises _TooMuchError: finding it takes too much.
        :raises MigrationError: the log cannot be read.
        """
        if high_watermark <= stable:
            return stable  # nothing is open, so everything has ended below
        above = list(self._events(stable, high_watermark))
        below: list[_Event] = []
        window, begin = _FIRST_WINDOW_OFFSETS, stable
        while True:
            start = _uncut(_ended([*below, *above], is_whole=begin <= log_start), stable)
            if start is not None:
                return max(start, log_start)
            wider = max(log_start, stable - window)
            below = [*self._events(wider, begin), *below]
            begin, window = wider, window * _WINDOW_GROWTH

    def _events(self, from_offset: int, until_offset: int) -> Iterator[_Event]:
        position = from_offset
        while position < until_offset:
            span = fetch_span(self._wire, self._key, position, isolation=READ_UNCOMMITTED, max_bytes=_FETCH_BYTES)
            self.read_bytes += len(span.records)
            if self.read_bytes > self.limit_bytes:
                raise _TooMuchError
            for batch in span.batches:
                if not isinstance(batch, RawBatch) or not batch.is_transactional:
                    continue
                if batch.base_offset < until_offset:
                    is_first = batch.base_sequence == 0
                    # The first batch may begin below what was asked for, and a transaction with it.
                    offset = batch.base_offset if is_first else max(batch.base_offset, from_offset)
                    yield _Event(batch.producer_id, offset, batch.is_control, is_first)
            if span.until_offset <= position:
                return
            position = span.until_offset


def _ended(events: list[_Event], *, is_whole: bool) -> list[_Transaction]:
    """Return the transactions with records that end among the events.

    :param is_whole: nothing lies before the events.
    """
    found: list[_Transaction] = []
    running: dict[int, _Transaction] = {}
    known: set[int] = set()
    for event in events:
        if event.is_end:
            if event.producer_id in running:
                found.append(running.pop(event.producer_id))
        elif event.producer_id in running:
            running[event.producer_id].last_offset = event.offset
        else:
            begins = is_whole or event.is_first or event.producer_id in known
            running[event.producer_id] = _Transaction(event.offset if begins else -1, event.offset)
        known.add(event.producer_id)
    return found


def _uncut(ended: list[_Transaction], stable: int) -> int | None:
    """Return the highest offset up to ``stable`` that cuts none of them; None: more has to be read."""
    start = stable
    while True:
        reaching = [item for item in ended if item.last_offset >= start]
        if any(item.begin_offset < 0 for item in reaching):
            return None
        cut = [item.begin_offset for item in reaching if item.begin_offset < start]
        if not cut:
            return start
        start = min(cut)
