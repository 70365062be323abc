"""Positions below the boundary of an adopted partition, for consumer groups that lag behind it.

The offset map of an adopted partition begins at its boundary. What is below it was copied by another migration or by
another tool, and may be there several times. Translating must never skip a record: where a position is not proven, the
answer is an earlier one, or none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from airflow_provider_kafka_migration.documents.adoption import BelowMap


@dataclass(frozen=True, slots=True)
class BelowRange:
    """Consecutive source offsets that are at consecutive target offsets."""

    source_first: int
    target_first: int
    count: int

    @property
    def source_end(self) -> int:
        """Exclusive."""
        return self.source_first + self.count


class BelowPosition(NamedTuple):
    """Where a consumer continues. Not exact: it reads some records again, and skips none."""

    target_offset: int
    is_exact: bool


def flat_ranges(ranges: Iterable[BelowRange]) -> list[int]:
    """Return ranges as ``BelowMap.ranges`` stores them: three numbers each, ascending by target offset."""
    kept = sorted((item for item in ranges if item.count > 0), key=lambda item: item.target_first)
    return [number for item in kept for number in (item.source_first, item.target_first, item.count)]


def ranges_of(flat: Sequence[int]) -> list[BelowRange]:
    """Return the ranges of ``BelowMap.ranges``."""
    return [BelowRange(*item) for item in zip(flat[::3], flat[1::3], flat[2::3], strict=True)]


def inverted(ranges: Iterable[BelowRange]) -> list[BelowRange]:
    """Return exact ranges with source and target exchanged: those of the way back."""
    return [BelowRange(item.target_first, item.source_first, item.count) for item in ranges]


class BelowTranslator:
    """Translates committed offsets below the boundary of one partition."""

    def __init__(self, document: BelowMap) -> None:
        self._document = document
        self._ranges = ranges_of(document.ranges)
        #: every range begins behind the one before it on both sides, so each record is there once
        self._is_monotone = all(
            first.source_end <= second.source_first and first.target_first + first.count <= second.target_first
            for first, second in pairwise(self._ranges)
        )
        self._source_firsts = [item.source_first for item in self._ranges] if self._is_monotone else []

    def translate(self, source_offset: int) -> BelowPosition | None:
        """Return where a consumer that committed a source offset below the boundary continues; None: not known.

        Every record at or above ``source_offset`` that was copied is at or above the answer.
        """
        if self._document.is_exact:
            if source_offset < self._document.exact_from_offset:
                return None
            return BelowPosition(self._exact(source_offset), True)
        return self._conservative(source_offset)

    def exact_place(self, source_offset: int) -> int | None:
        """Return the target offset of the record at a source offset, the last one if it is there several times."""
        found = [
            item.target_first + source_offset - item.source_first
            for item in self._near(source_offset)
            if item.source_first <= source_offset < item.source_end
        ]
        return max(found, default=None)

    def _near(self, source_offset: int) -> Sequence[BelowRange]:
        """Return the ranges that may have an offset: one, where each record is there once."""
        if not self._is_monotone:
            return self._ranges
        index = bisect_right(self._source_firsts, source_offset) - 1
        return self._ranges[index : index + 1] if index >= 0 else ()

    def _conservative(self, source_offset: int) -> BelowPosition | None:
        """Return the place of the last known record at or below the offset; one past it if it was consumed."""
        known = [
            item.target_first + min(source_offset - item.source_first, item.count)
            for item in self._ranges
            if item.source_first <= source_offset
        ]
        return BelowPosition(max(known), False) if known else None

    def _exact(self, source_offset: int) -> int:
        if self._is_monotone:
            return self._once(source_offset)
        wanted = _covered(self._ranges, source_offset)
        if not wanted:
            return self._document.target_offset
        next_offset = wanted[0][0]
        # Later copies of a record come first: whoever starts there reads the fewest records again.
        for index in range(len(self._ranges) - 1, -1, -1):
            item = self._ranges[index]
            if not item.source_first <= next_offset < item.source_end:
                continue
            if _covered(self._ranges[index:], next_offset) == wanted:
                return item.target_first + next_offset - item.source_first
        return min(item.target_first for item in self._ranges)

    def _once(self, source_offset: int) -> int:
        index = bisect_right(self._source_firsts, source_offset) - 1
        if index >= 0 and source_offset < self._ranges[index].source_end:
            return self._ranges[index].target_first + source_offset - self._ranges[index].source_first
        if index + 1 < len(self._ranges):
            return self._ranges[index + 1].target_first
        return self._document.target_offset


def _covered(ranges: Iterable[BelowRange], from_offset: int) -> list[tuple[int, int]]:
    """Return the source offsets at or above one that the ranges have, as ascending joined intervals [from, until)."""
    spans = sorted((max(item.source_first, from_offset), item.source_end) for item in ranges)
    joined: list[tuple[int, int]] = []
    for first, end in spans:
        if first >= end:
            continue
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((first, end))
    return joined
