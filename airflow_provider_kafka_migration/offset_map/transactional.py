"""The offset map of a partition that others write to as well: every run has its own length.

Between two runs of ours lie transaction markers and records of others, so nothing follows from the next run about the
length of the one before it, as it does in :class:`~.offset_map.PartitionMap`. A target offset is ours exactly if a run
covers it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from airflow_provider_kafka_migration.documents.offset_map import MappedPartition
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import OffsetMapInvalid, Where
from airflow_provider_kafka_migration.offset_map.runs import How, PartitionMap, Run, Translation, read_partition_map


class TransactionalMap(PartitionMap):
    """Runs with lengths of their own, ascending on both sides. Looking up is O(log runs); 24 bytes per run.

    The guarantee of :meth:`translate` is that of :class:`~.offset_map.PartitionMap`: of *our* records, the next one
    read from the answer on is the first whose source offset is at least the one asked for.

    :param start: first source offset that is copied, and the target's log end when the copy began.
    :param copied_until_offset: one past the last source offset that is known to be copied (holes included), while the
        map is open.
    :param producer_ids: producer ids under which the runs were written.
    :raises OffsetMapInvalid: runs that go backwards or overlap.
    """

    __slots__ = ("_counts", "_start", "copied_until_offset", "producer_ids")

    def __init__(
        self,
        start: Run,
        runs: Iterable[Run] = (),
        *,
        copied_until_offset: int | None = None,
        source_end_offset: int | None = None,
        target_end_offset: int | None = None,
        producer_ids: Iterable[int] = (),
    ) -> None:
        self._counts = array("q")
        self._start = start
        self.copied_until_offset = copied_until_offset
        self.producer_ids = frozenset(producer_ids)
        super().__init__(runs, source_end_offset=source_end_offset, target_end_offset=target_end_offset)

    def _push(self, run: Run) -> None:
        source, target, counts = self._source, self._target, self._counts
        count = run.count or 0
        if count <= 0:
            return
        if source:
            source_end, target_end = source[-1] + counts[-1], target[-1] + counts[-1]
            if run.source_start < source_end or run.target_start < target_end:
                raise OffsetMapInvalid(
                    f"run {run.source_start} -> {run.target_start} overlaps the one that ends at "
                    f"{source_end} -> {target_end}",
                    next_step="restore the partition's map objects from an earlier version of the bucket",
                )
            if (run.source_start, run.target_start) == (source_end, target_end):
                counts[-1] += count
                return
        source.append(run.source_start)
        target.append(run.target_start)
        counts.append(count)

    def _state(self) -> tuple[object, ...]:
        return (self._start, self._counts, *super()._state())

    def __repr__(self) -> str:
        return f"TransactionalMap({self._start}, {list(self.runs())}, {self.source_end_offset})"

    def runs(self) -> Iterator[Run]:
        """The runs, each with its length."""
        for source, target, count in zip(self._source, self._target, self._counts, strict=True):
            yield Run(source, target, count)

    def _count(self, index: int) -> int:
        return self._counts[index]

    @property
    def verdict(self) -> Verdict | None:
        """Always ``transactional``."""
        return Verdict.TRANSACTIONAL

    @property
    def source_start_offset(self) -> int | None:
        """First source offset that was copied, or would have been."""
        return self._start.source_start

    @property
    def target_start_offset(self) -> int | None:
        """Where our first record is; the target's log end at the beginning if there is none yet."""
        return self._target[0] if self._target else self._start.target_start

    @property
    def skips_holes(self) -> bool:
        """Holes are never filled."""
        return True

    def source_of(self, target_offset: int) -> int:
        """Source offset of our record at a target offset; of our next one where it is somebody else's."""
        index = bisect_right(self._target, target_offset) - 1
        if index >= 0 and target_offset < self._target[index] + self._counts[index]:
            return self._source[index] + target_offset - self._target[index]
        return self._source[index + 1] if index + 1 < len(self._source) else self._copied_until()

    def source_position(self, target_end_offset: int) -> int:
        """The next source offset to copy if the target's log ended there."""
        index = bisect_left(self._target, target_end_offset) - 1
        if index < 0:
            return self._start.source_start
        return self._source[index] + min(target_end_offset - self._target[index], self._counts[index])

    def covers(self, target_offset: int) -> bool:
        """Whether the record at a target offset is ours."""
        index = bisect_right(self._target, target_offset) - 1
        return index >= 0 and target_offset < self._target[index] + self._counts[index]

    def overlaps(self, from_offset: int, until_offset: int) -> bool:
        """Whether one of our records lies in ``[from_offset, until_offset)`` on the target."""
        index = bisect_left(self._target, until_offset) - 1
        return index >= 0 and from_offset < self._target[index] + self._counts[index]

    def _copied_until(self) -> int:
        if self.source_end_offset is not None:
            return self.source_end_offset
        last = self._source[-1] + self._counts[-1] if self._source else self._start.source_start
        return last if self.copied_until_offset is None else max(last, self.copied_until_offset)

    def _end(self) -> int:
        if self._target:
            return self._target[-1] + self._counts[-1]
        return self._start.target_start

    def translate(self, source_offset: int) -> Translation:
        """Where a consumer that committed ``source_offset`` goes on; see the class for the guarantee."""
        source, target, counts = self._source, self._target, self._counts
        if source_offset < self._start.source_start:
            return Translation(target[0] if target else self._start.target_start, How.RESET_TO_START)
        if source_offset > self._copied_until():
            return Translation(self._end(), How.CLAMPED)
        index = bisect_right(source, source_offset) - 1
        distance = source_offset - source[index] if index >= 0 else 0
        is_last = index == len(source) - 1
        # One past a run is its own place only at the end of all.
        if index >= 0 and (distance < counts[index] or (distance == counts[index] and is_last)):
            found = target[index] + distance
            return Translation(found, How.EQUAL if found == source_offset else How.EXACT)
        if not source:
            return Translation(self._end(), How.EQUAL if self._end() == source_offset else How.EXACT)
        return Translation(self._end() if is_last else target[index + 1], How.HOLE_FORWARD)

    def override(self, from_target_offset: int, runs: Iterable[Run]) -> bool:
        """Drop what lies at or above a target offset, then add runs. True if something was dropped."""
        kept = bisect_left(self._target, from_target_offset)
        dropped = kept < len(self._target)
        del self._source[kept:], self._target[kept:], self._counts[kept:]
        if kept and self._target[-1] + self._counts[-1] > from_target_offset:
            self._counts[-1] = from_target_offset - self._target[-1]
            dropped = True
        for run in runs:
            self._push(run)
        return dropped

    def copy(self) -> TransactionalMap:
        """An independent map with the same runs."""
        return TransactionalMap(
            self._start,
            self.runs(),
            copied_until_offset=self.copied_until_offset,
            source_end_offset=self.source_end_offset,
            target_end_offset=self.target_end_offset,
            producer_ids=self.producer_ids,
        )

    def closed(self, source_end_offset: int, target_end_offset: int) -> TransactionalMap:
        """The map of a finished copy; it ends with our last record, wherever the log ends by now."""
        twin = self.copy()
        twin.source_end_offset = source_end_offset
        twin.target_end_offset = min(twin._end(), target_end_offset)
        return twin


def flat_runs(runs: Iterable[Run]) -> list[int]:
    """Runs as gaps and lengths: three numbers a run, small ones where runs lie close together."""
    flat: list[int] = []
    source_end = target_end = 0
    for run in runs:
        count = run.count or 0
        flat += (run.source_start - source_end, run.target_start - target_end, count)
        source_end, target_end = run.source_start + count, run.target_start + count
    return flat


def runs_of(flat: list[int]) -> Iterator[Run]:
    """The runs back from :func:`flat_runs`; raises ``ValueError`` for a list that is cut."""
    source_end = target_end = 0
    for source_gap, target_gap, count in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        run = Run(source_end + source_gap, target_end + target_gap, count)
        source_end, target_end = run.source_start + count, run.target_start + count
        yield run


def read_map(entry: MappedPartition) -> PartitionMap:
    """The map that a document holds, of either kind; raises :class:`OffsetMapInvalid`."""
    if entry.verdict != Verdict.TRANSACTIONAL.value:
        return read_partition_map(entry)
    if len(entry.runs) % 3 or entry.source_start_offset is None or entry.target_start_offset is None:
        raise OffsetMapInvalid(
            "the runs of a partition are not complete",
            where=Where(topic=entry.topic, partition=entry.partition),
            next_step="take offset-map.json from the evidence bucket again",
        )
    start = Run(entry.source_start_offset, entry.target_start_offset)
    runs = [
        Run(run.source_start + start.source_start, run.target_start + start.target_start, run.count)
        for run in runs_of(entry.runs)
    ]
    return TransactionalMap(
        start, runs, source_end_offset=entry.source_end_offset, target_end_offset=entry.target_end_offset
    )
