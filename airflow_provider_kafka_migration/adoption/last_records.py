"""The ends of two logs before the first append: nobody else writes, and the last records are equal under the map."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from airflow_provider_kafka_migration.copy.resuming.agreement import chunks_of_cluster, read_source
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.batches.api import Record, Timestamps
from airflow_provider_kafka_migration.kafka.logs import read_ends
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire

#: Offsets that are read at first; each further window is larger by the same factor.
_FIRST_WINDOW_OFFSETS = 256
_WINDOW_GROWTH = 8
#: No more is read, however few records there are.
_MAX_OFFSETS = 1_000_000


@dataclass(frozen=True)
class LogEnd:
    """The bounds of one log."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int

    def why_not_at(self, offset: int) -> str:
        """Return why nothing may be appended at an offset yet, or any more; empty: the log ends there, undisputed."""
        if self.log_end_offset > offset:
            return (
                f"the target's log ends at {self.log_end_offset}, behind the boundary {offset}: somebody has written "
                "there"
            )
        if self.log_end_offset < offset:
            return f"the target's log ends at {self.log_end_offset}, below the boundary {offset}: records were lost"
        if self.high_watermark < offset:
            return f"the target's replicas are behind: the high watermark is {self.high_watermark} of {offset}"
        if self.last_stable_offset < offset:
            return (
                f"a transaction is open on the target from offset {self.last_stable_offset} on: its marker would take "
                "an offset of the copy"
            )
        return ""


def read_log_ends(wire: Wire, keys: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnd | MigrationError]:
    """Read the bounds of several logs; a partition that cannot be read has its error instead."""
    wanted = sorted(set(keys))
    if not wanted:
        return {}
    ends = read_ends(wire, wanted)
    readable = [key for key in wanted if not isinstance(ends[key], MigrationError)]
    stable = wire.list_offsets(readable, "stable") if readable else {}
    found: dict[TopicPartition, LogEnd | MigrationError] = {}
    for key in wanted:
        end = ends[key]
        if isinstance(end, MigrationError):
            found[key] = end
        else:
            found[key] = LogEnd(end.log_start_offset, end.log_end_offset, end.high_watermark, stable[key])
    return found


@dataclass(frozen=True)
class Side:
    """One of two logs that are compared.

    :param log_start_offset: below it, records are deleted.
    :param end_offset: exclusive end of what is compared.
    :param may_lack: whether compaction may have removed records inside the log.
    """

    wire: Wire
    key: TopicPartition
    log_start_offset: int
    end_offset: int
    may_lack: bool


@dataclass(frozen=True)
class Compared:
    """The result: how many records are equal, and the first difference; empty: there is none."""

    records: int
    difference: str = ""


def compare_last(
    source: Side,
    target: Side,
    to_target: Callable[[int], int | None],
    *,
    count: int,
    timestamps: Timestamps,
    whole: bool = False,
    has_all_places: bool = True,
) -> Compared:
    """Compare the committed records below a boundary, back from it, until ``count`` records are equal on both sides.

    A record that one side lacks is a difference, unless that side may have deleted it since: below its log start, or
    by compaction.

    :param to_target: target offset of a source record; None: it was not copied.
    :param whole: compare everything, not only the last records.
    :param has_all_places: ``to_target`` knows every copied record; otherwise records without a place are passed over.
    """
    window = _FIRST_WINDOW_OFFSETS
    while True:
        from_offset = max(source.log_start_offset, source.end_offset - window)
        found = _compare_from(source, target, to_target, from_offset, timestamps, has_all_places)
        enough = found.records >= count and not whole
        if found.difference or enough or from_offset <= source.log_start_offset:
            return found
        if window >= _MAX_OFFSETS and not whole:
            return found
        window *= _WINDOW_GROWTH


def _compare_from(
    source: Side,
    target: Side,
    to_target: Callable[[int], int | None],
    from_offset: int,
    timestamps: Timestamps,
    has_all_places: bool,
) -> Compared:
    theirs = _committed(source, from_offset, timestamps)
    places = {offset: to_target(offset) for offset in theirs}
    if not has_all_places:
        theirs = {offset: record for offset, record in theirs.items() if places[offset] is not None}
    reached = [place for place in places.values() if place is not None]
    if has_all_places and (begin := _begin(source, from_offset, to_target)) is not None:
        reached.append(begin)
    if not reached:
        return Compared(0)
    first = max(min(reached), target.log_start_offset)
    ours = _committed(target, first, timestamps)
    return _judge(theirs, ours, places, target, source)


def _begin(source: Side, from_offset: int, to_target: Callable[[int], int | None]) -> int | None:
    """Return where the compared part begins on the target, though no record of the source shows it; None: not known.

    It is not known either where the source has deleted records meanwhile: the target may still have them.
    """
    begin = to_target(from_offset)
    if begin is None or source.wire.list_offsets([source.key], "earliest")[source.key] > from_offset:
        return None
    return begin


def _judge(
    theirs: dict[int, Record],
    ours: dict[int, Record],
    places: dict[int, int | None],
    target: Side,
    source: Side,
) -> Compared:
    equal = 0
    expected: set[int] = set()
    for offset, record in sorted(theirs.items()):
        place = places[offset]
        if place is None:
            if target.may_lack or source.may_lack:
                continue
            return Compared(equal, f"the source's record at offset {offset} has no place on the target")
        expected.add(place)
        there = ours.get(place)
        if there is None:
            if place < target.log_start_offset or target.may_lack:
                continue
            return Compared(equal, f"the target lacks the source's record at offset {offset} (there: {place})")
        if there._replace(offset=offset) != record:
            return Compared(equal, f"the target's record at {place} differs from the source's at {offset}")
        equal += 1
    # The compared part begins at or above the source's log start, which therefore explains nothing within it.
    surplus = next((place for place in sorted(ours) if place not in expected), None)
    if surplus is not None and not source.may_lack:
        return Compared(equal, f"the source has no record that the target has at {surplus}")
    return Compared(equal)


def _committed(side: Side, from_offset: int, timestamps: Timestamps) -> dict[int, Record]:
    if from_offset >= side.end_offset:
        return {}
    read = chunks_of_cluster(side.wire, side.key)
    return read_source(read, from_offset, side.end_offset, timestamps).committed
