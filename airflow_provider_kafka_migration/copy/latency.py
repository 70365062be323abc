"""Replication latency of records, as a small histogram that can be merged. No I/O, no clock.

A bucket is a range of whole milliseconds: one each below 8 ms, and four between two powers of two above, so a value
read from it is at most 25 % too high. Adding a batch takes a few integer operations, whatever it contains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

#: Records that were older when the target acknowledged them are not counted: they waited in a backlog, which the lag
#: shows. Their latency would say nothing about the copy's.
BOUND_MS = 60_000
_LINEAR = 8
_SIZE = ((BOUND_MS - 1).bit_length() - 3) * 4 + 8


def upper_ms(index: int) -> int:
    """Return the upper bound of a bucket in milliseconds, exclusive."""
    if index < _LINEAR:
        return index + 1
    shift = (index - 4) >> 2
    return (index - 4 * shift + 1) << shift


class LatencyHistogram:
    """Numbers of records by their age when the target acknowledged them.

    One thread adds; others may read, and see a state of a moment ago.
    """

    __slots__ = ("counts", "sum_ms", "untimed")

    def __init__(self) -> None:
        self.counts: list[int] | None = None
        #: sum of the ages of all counted records, by the newest timestamp of their batch
        self.sum_ms = 0
        #: records that are not counted: too old, without a timestamp, or from the future by this machine's clock
        self.untimed = 0

    def add(self, age_ms: int, records: int) -> None:
        """Count the records of a batch.

        :param age_ms: the clock at the acknowledgement minus the newest timestamp of the batch.
        """
        if 0 <= age_ms < BOUND_MS:
            if self.counts is None:
                self.counts = [0] * _SIZE
            shift = age_ms.bit_length() - 3
            self.counts[age_ms if shift <= 0 else (shift << 2) + (age_ms >> shift)] += records
            self.sum_ms += age_ms * records
        else:
            self.untimed += records

    def merge(self, flat: Sequence[int]) -> None:
        """Add another histogram in the form of :meth:`flat`; what does not have that form is ignored."""
        if len(flat) < 2 or len(flat) % 2:
            return
        self.sum_ms += flat[0]
        self.untimed += flat[1]
        for position in range(2, len(flat), 2):
            index, count = flat[position], flat[position + 1]
            if 0 <= index < _SIZE:
                if self.counts is None:
                    self.counts = [0] * _SIZE
                self.counts[index] += count

    def flat(self) -> list[int]:
        """Return the form that documents have: sum_ms, untimed, then (bucket, count) of buckets that are not empty.

        An empty histogram is an empty list.
        """
        pairs = [number for item in self.filled() for number in item]
        return [self.sum_ms, self.untimed, *pairs] if pairs or self.untimed else []

    def filled(self) -> Iterator[tuple[int, int]]:
        """Yield (bucket, count) of the buckets that are not empty, ascending."""
        return ((index, count) for index, count in enumerate(self.counts or ()) if count)

    @property
    def count(self) -> int:
        """The number of counted records."""
        return sum(self.counts or ())

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """Return what was counted after an earlier state; this state itself if it does not continue the earlier one."""
        found = LatencyHistogram()
        before = earlier.counts or [0] * _SIZE
        counts = [now - then for now, then in zip(self.counts or [0] * _SIZE, before, strict=True)]
        if any(count < 0 for count in counts) or self.untimed < earlier.untimed:
            return self
        found.counts, found.sum_ms = counts, self.sum_ms - earlier.sum_ms
        found.untimed = self.untimed - earlier.untimed
        return found

    def percentile_seconds(self, share: float) -> float | None:
        """Return the age that this share of the records does not exceed (upper bound of its bucket).

        None if nothing was counted.

        :param share: 0.99 for p99.
        """
        left = self.count * share
        if not left:
            return None
        for index, count in self.filled():
            left -= count
            if left <= 0:
                return upper_ms(index) / 1000
        return BOUND_MS / 1000
