"""What a slice costs before its first record, and how long the next one has to be for that.

A slice finds positions, connects, and where a hole comes next it asks for a fencing token and writes a first marker
alone. On a slow machine, or far from the clusters, that may take longer than the slice: its partitions then begin again
in each slice and never get further, while those that need fewer answers are copied. So the driver measures it, lets the
partitions that waited go first, and makes the next slices longer.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy

#: A slice is made so long that its begin takes at most this part of it ...
_SHARE = 3
#: ... but at most this many times as long as the job wants it: others wait for the lane of a copier that was killed.
MAX_GROWTH = 3


def begin_seconds(copies: Iterable[PartitionCopy], *, follows: bool, began: float, now: float) -> float:
    """Return the longest time until a partition that had something to copy from the start has copied some of it.

    :param follows: partitions without an answer of the source count, too; otherwise they wait for their turn.
    :param began: when the slice began, as ``now`` of the monotonic clock.
    :returns: the whole slice, if one has copied nothing; -1: no partition had anything to copy.
    """
    waited = [
        (now if copy.progressed_at is None else copy.progressed_at) - began for copy in copies if _waited(copy, follows)
    ]
    return round(max(waited, default=-1.0), 3)


def _waited(copy: PartitionCopy, follows: bool) -> bool:
    if copy.state is CopyState.FAILED or copy.trouble is not None or copy.read.held_since is not None:
        return False  # something else than time is missing
    return copy.read.had_backlog or (follows and copy.read.last_stable_offset < 0)


def next_slice_seconds(slice_seconds: int, begin: float) -> int:
    """Return how long the next slice has to be, given what the last one took to begin."""
    return int(min(max(slice_seconds, _SHARE * begin), MAX_GROWTH * slice_seconds))
