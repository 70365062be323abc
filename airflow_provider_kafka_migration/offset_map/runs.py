"""Maps source offsets to target offsets: runs of constant shift, and an exact answer for every offset.

``equal`` is one run with shift 0, ``shifted`` one run with another shift, ``mapped`` several runs. With one run, the
answer reduces to ``target_first + (committed - source_first)``, with the start and the end as special cases.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from airflow_provider_kafka_migration.documents.copy import MappedPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import OffsetMapInvalid, Where

_OPEN = -1


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A run: source offsets from ``source_start`` on are on the target from ``target_start`` on.

    It is ``count`` offsets long; None: up to the next run, or open at the end.
    """

    source_start: int
    target_start: int
    count: int | None = None

    @property
    def shift(self) -> int:
        """Source offset minus target offset."""
        return self.source_start - self.target_start


class How(StrEnum):
    """How a committed offset was translated."""

    #: the same number
    EQUAL = "equal"
    #: another number, the same place
    EXACT = "exact"
    #: no record has this offset any more: the place of the next one
    HOLE_FORWARD = "hole_forward"
    #: below the first copied offset: the target's start
    RESET_TO_START = "reset_to_start"
    #: beyond the source's end: the target's end
    CLAMPED = "clamped"
    #: the partition has no map
    SKIPPED = "skipped"


class TranslatedPosition(NamedTuple):
    """A consumer that committed the source offset continues at ``target_offset`` (None if skipped)."""

    target_offset: int | None
    how: How


class OffsetTranslator(Protocol):
    """Whatever translates the offsets of one partition."""

    @property
    def verdict(self) -> Verdict | None:
        """What kind of offsets the partition has; None: unknown."""

    @property
    def target_start_offset(self) -> int | None:
        """Where the copy begins on the target; None: unknown."""

    def translate(self, source_offset: int) -> TranslatedPosition:
        """Return where a consumer that committed ``source_offset`` continues."""

    def source_of(self, target_offset: int) -> int:
        """Return the source offset of the copied record at a target offset."""


class PartitionMap:
    """The runs of one partition, ascending. A look-up is O(log runs); a run takes 16 bytes.

    The guarantee of :meth:`translate`: a consumer that starts at the answer reads next, on the target, the first record
    whose source offset is at least the requested one. (This is about the records as they were copied: what the source
    compacts away afterwards still exists on the target.)

    :param runs: in order; the first one is the partition's start and always stays. Runs of the same shift are joined,
        and empty ones left out.
    :param source_end_offset: one past the last source offset that was copied, including holes; None while copying.
    :param target_end_offset: target log end that corresponds to ``source_end_offset``.
    :raises OffsetMapInvalid: the runs go backwards.
    """

    __slots__ = ("_source", "_target", "source_end_offset", "target_end_offset")

    def __init__(
        self,
        runs: Iterable[OffsetRange] = (),
        *,
        source_end_offset: int | None = None,
        target_end_offset: int | None = None,
    ) -> None:
        self._source = array("q")
        self._target = array("q")
        self.source_end_offset = source_end_offset
        self.target_end_offset = target_end_offset
        for run in runs:
            self._push(run)

    def _push(self, run: OffsetRange) -> None:
        source, target = self._source, self._target
        if source:
            if run.source_start < source[-1] or run.target_start < target[-1]:
                raise OffsetMapInvalid(
                    f"run {run.source_start} -> {run.target_start} comes before run {source[-1]} -> {target[-1]}",
                    next_step="restore the partition's map objects from an earlier version of the bucket",
                )
            if run.source_start - run.target_start == source[-1] - target[-1]:
                return
            if len(source) > 1 and (run.source_start == source[-1] or run.target_start == target[-1]):
                # The previous run is empty: this one replaces it, and may continue the one before that.
                source.pop()
                target.pop()
                self._push(run)
                return
        source.append(run.source_start)
        target.append(run.target_start)

    def __len__(self) -> int:
        return len(self._source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionMap) and self._state() == other._state()

    __hash__ = None  # type: ignore[assignment]

    def _state(self) -> tuple[object, ...]:
        return (self._source, self._target, self.source_end_offset, self.target_end_offset)

    def __repr__(self) -> str:
        return f"PartitionMap({list(self.runs())}, {self.source_end_offset}, {self.target_end_offset})"

    def runs(self) -> Iterator[OffsetRange]:
        """Yield the runs with their lengths; the last one's is None while the partition is being copied."""
        last = len(self._source) - 1
        for index in range(last + 1):
            count = self._count(index) if index < last or self.source_end_offset is not None else None
            yield OffsetRange(self._source[index], self._target[index], count)

    def _count(self, index: int) -> int:
        """Return the length of a run: until the source or the target enters the next run, or ends."""
        if index + 1 < len(self._source):
            source_end, target_end = self._source[index + 1], self._target[index + 1]
        else:
            source_end = 2**63 - 1 if self.source_end_offset is None else self.source_end_offset
            target_end = 2**63 - 1 if self.target_end_offset is None else self.target_end_offset
        return max(0, min(source_end - self._source[index], target_end - self._target[index]))

    @property
    def verdict(self) -> Verdict | None:
        """The verdict: ``equal``, ``shifted`` or ``mapped``; None without a run."""
        if not self._source:
            return None
        if len(self._source) > 1:
            return Verdict.MAPPED
        return Verdict.EQUAL if self._source[0] == self._target[0] else Verdict.SHIFTED

    @property
    def source_start_offset(self) -> int | None:
        """The first source offset that was copied."""
        return self._source[0] if self._source else None

    @property
    def target_start_offset(self) -> int | None:
        """The target offset of :attr:`source_start_offset`."""
        return self._target[0] if self._target else None

    @property
    def last_run(self) -> OffsetRange | None:
        """The run that appends continue; its shift is the present one."""
        return OffsetRange(self._source[-1], self._target[-1]) if self._source else None

    @property
    def skips_holes(self) -> bool:
        """Whether the copy left out holes: a run has a larger shift than the one before it.

        Excess markers make the shift smaller; only holes that were not filled make it larger.
        """
        source, target = self._source, self._target
        shifts = (source[index] - target[index] for index in range(len(source) - 1, -1, -1))
        later = next(shifts, 0)
        for shift in shifts:
            if shift < later:
                return True
            later = shift
        return False

    def source_of(self, target_offset: int) -> int:
        """Return the source offset of the record at a target offset."""
        index = max(bisect_right(self._target, target_offset) - 1, 0)
        return self._source[index] + target_offset - self._target[index]

    def translate(self, source_offset: int) -> TranslatedPosition:
        """Return where a consumer that committed ``source_offset`` continues; see the class for the guarantee."""
        source, target = self._source, self._target
        if not source:
            return TranslatedPosition(None, How.SKIPPED)
        if source_offset < source[0]:
            return TranslatedPosition(target[0], How.RESET_TO_START)
        if self.source_end_offset is not None and source_offset > self.source_end_offset:
            return TranslatedPosition(self._end(), How.CLAMPED)
        index = bisect_right(source, source_offset) - 1
        distance = source_offset - source[index]
        count = self._count(index)
        # One past a run belongs to that run only if the run is the last one.
        if distance < count or (distance == count and index == len(source) - 1):
            found = target[index] + distance
            return TranslatedPosition(found, How.EQUAL if found == source_offset else How.EXACT)
        forward = target[index + 1] if index + 1 < len(target) else self._end()
        return TranslatedPosition(forward, How.HOLE_FORWARD)

    def _end(self) -> int:
        if self.target_end_offset is not None:
            return self.target_end_offset
        assert self.source_end_offset is not None
        return self._target[-1] + max(0, self.source_end_offset - self._source[-1])

    def source_position(self, target_end_offset: int) -> int:
        """Return the next source offset to copy when the target's log ends at ``target_end_offset``.

        Runs that start at or above it were written ahead and never appended, so they do not count.

        :raises OffsetMapInvalid: the map has no runs.
        """
        if not self._source:
            raise OffsetMapInvalid("a map without runs has no position", next_step="plan the partition again")
        index = bisect_left(self._target, target_end_offset) - 1
        if index < 0:
            return self._source[0]
        position = self._source[index] + target_end_offset - self._target[index]
        return min(position, self._source[index + 1]) if index + 1 < len(self._source) else position

    def override(self, from_target_offset: int, runs: Iterable[OffsetRange]) -> bool:
        """Drop the runs at or above a target offset, but not the first; then add others.

        :returns: True if some were dropped.
        """
        kept = max(bisect_left(self._target, from_target_offset), min(len(self), 1))
        dropped = kept < len(self._target)
        del self._source[kept:]
        del self._target[kept:]
        for run in runs:
            self._push(run)
        return dropped

    def copy(self) -> PartitionMap:
        """Return an independent map with the same runs."""
        twin = PartitionMap(source_end_offset=self.source_end_offset, target_end_offset=self.target_end_offset)
        twin._source, twin._target = self._source[:], self._target[:]
        return twin

    def inverse(self) -> PartitionMap:
        """Return the map from target to source; its guarantee is that of :meth:`translate`, with the ends swapped.

        Markers in excess on the target are its holes: they lead to the source offset of the next record.
        """
        return PartitionMap(
            (OffsetRange(run.target_start, run.source_start) for run in self.runs()),
            source_end_offset=self.target_end_offset,
            target_end_offset=self.source_end_offset,
        )

    def closed(self, source_end_offset: int, target_end_offset: int) -> PartitionMap:
        """Return the map of a finished copy, without runs that were written ahead beyond the target's end."""
        twin = self.copy()
        twin.override(target_end_offset, ())
        twin.source_end_offset, twin.target_end_offset = source_end_offset, target_end_offset
        return twin


@dataclass(slots=True)
class MapEntry:
    """A partition and its map, for :func:`build_offset_map_document`."""

    topic: str
    partition: int
    map: PartitionMap
    target_topic: str = ""
    topic_id: str = ""
    #: set if it differs from the map's own verdict (``transactional``)
    verdict: str = ""


def build_offset_map_document(migration_id: str, entries: Iterable[MapEntry]) -> OffsetMapDocument:
    """Build a migration's ``offset-map.json``; the same maps give the same bytes."""
    partitions = [
        MappedPartition(
            topic=entry.topic,
            target_topic=entry.target_topic or entry.topic,
            topic_id=entry.topic_id,
            partition=entry.partition,
            verdict=entry.verdict or str(entry.map.verdict or ""),
            source_start_offset=entry.map.source_start_offset,
            source_end_offset=entry.map.source_end_offset,
            target_start_offset=entry.map.target_start_offset,
            target_end_offset=entry.map.target_end_offset,
            runs=_flat(entry.map),
        )
        for entry in sorted(entries, key=lambda entry: (entry.topic, entry.partition))
    ]
    return OffsetMapDocument(migration_id=migration_id, partitions=partitions)


def _flat(partition_map: PartitionMap) -> list[int]:
    flat: list[int] = []
    source_end = partition_map.source_start_offset or 0
    target_end = partition_map.target_start_offset or 0
    for run in partition_map.runs():
        flat += (
            run.source_start - source_end,
            run.target_start - target_end,
            _OPEN if run.count is None else run.count,
        )
        source_end, target_end = run.source_start + (run.count or 0), run.target_start + (run.count or 0)
    return flat


def read_partition_map(entry: MappedPartition) -> PartitionMap:
    """Read a partition's map from a document.

    :raises OffsetMapInvalid: the runs are not complete, or go backwards.
    """
    flat = entry.runs
    if len(flat) % 3 or (flat and (entry.source_start_offset is None or entry.target_start_offset is None)):
        raise OffsetMapInvalid(
            "the runs of a partition's offset map are not complete",
            where=Where(topic=entry.topic, partition=entry.partition),
            next_step="take offset-map.json from the evidence bucket again",
        )
    runs: list[OffsetRange] = []
    source, target = entry.source_start_offset or 0, entry.target_start_offset or 0
    for source_gap, target_gap, count in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        source, target = source + source_gap, target + target_gap
        runs.append(OffsetRange(source, target))
        source, target = source + max(count, 0), target + max(count, 0)
    return PartitionMap(runs, source_end_offset=entry.source_end_offset, target_end_offset=entry.target_end_offset)


# -- topic key --------------------------------------------------------------------------------------------------------
#
# Topic names as parts of object keys.


def topic_key(topic: str) -> str:
    """Return a topic's name as one part of a key. Kafka allows ``[a-zA-Z0-9._-]``; only a leading dot needs care."""
    return f"%2E{topic[1:]}" if topic.startswith(".") else topic


def topic_of_key(part: str) -> str:
    """Return the topic's name from a :func:`topic_key`."""
    return f".{part[3:]}" if part.startswith("%2E") else part
