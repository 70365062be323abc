"""Heals the offset map of a partition whose last records lie further on than planned, behind markers too many.

A copier that dies before it has seen the answers to its last appends cannot tell that a hole was filled twice. Order
and content are right nevertheless, since appends are compared: after the last record that is where it should be, the
target's records must be the source's next ones, one by one. Then only the map is wrong, and is written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from airflow_provider_kafka_migration.copy.log_tail import LogTail
from airflow_provider_kafka_migration.copy.takeover_check import (
    ReadChunk,
    chunks_from,
    committed_batches,
    read_source,
    records_of,
)
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, Timestamps, records
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap, Run

_FAR = 2**63 - 1


def realigned(
    tail: LogTail,
    offset_map: PartitionMap,
    read: ReadChunk,
    *,
    source_start_offset: int,
    is_whole: bool,
    timestamps: Timestamps,
) -> list[Run] | None:
    """The runs that make the map right from the first displaced record on; None if that is not what has happened.

    :param tail: reaches back to a record that is where it should be (or to the first one of all).
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
    """How many of the batches, from the first on, hold records that the source has at their offsets."""
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


def _runs(displaced: Sequence[Record], expected: Sequence[Record], shift: int) -> list[Run] | None:
    runs: list[Run] = []
    for ours, theirs in zip(displaced, expected, strict=True):
        if ours._replace(offset=theirs.offset) != theirs:
            return None
        if theirs.offset - ours.offset != shift:
            shift = theirs.offset - ours.offset
            runs.append(Run(theirs.offset, ours.offset))
    return runs or None
