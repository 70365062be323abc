"""Ranges of offsets, joined where they touch."""

from __future__ import annotations

#: With more ranges than this, the two closest ranges become one, including what lies between them.
MAX_RANGES = 100


class Spans:
    """A set of offsets stored as a few ranges. It may contain more offsets than were added, never fewer."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, from_offset: int, until_offset: int) -> None:
        """Add ``[from_offset, until_offset)``; an empty range adds nothing."""
        if until_offset <= from_offset:
            return
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last[0] <= from_offset <= last[1]:
            self._ranges[-1] = (last[0], max(last[1], until_offset))
            return
        self._ranges.append((from_offset, until_offset))
        if len(self._ranges) > 2 * MAX_RANGES:
            self._ranges = self.ranges()

    def update(self, other: Spans) -> None:
        """Add all ranges of another set."""
        for from_offset, until_offset in other.ranges():
            self.add(from_offset, until_offset)

    def ranges(self) -> list[tuple[int, int]]:
        """Return at most :data:`MAX_RANGES` disjoint ranges, ascending; ends are exclusive."""
        joined: list[tuple[int, int]] = []
        for from_offset, until_offset in sorted(self._ranges):
            if joined and from_offset <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], until_offset))
            else:
                joined.append((from_offset, until_offset))
        while len(joined) > MAX_RANGES:
            at = min(range(len(joined) - 1), key=lambda index: joined[index + 1][0] - joined[index][1])
            joined[at : at + 2] = [(joined[at][0], joined[at + 1][1])]
        return joined
