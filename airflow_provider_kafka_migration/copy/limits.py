"""What bounds a lane from outside: the end of its slice, a request to stop, the rate, and the brokers' quotas."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_kafka_migration.copy.partition import PartitionCopy
from airflow_provider_kafka_migration.errors import SliceExpired
from airflow_provider_kafka_migration.kafka import clock


@dataclass(frozen=True)
class SliceLimits:
    """How long, and how fast, a lane may run.

    :param deadline: a moment of the monotonic clock; nothing is sent after it. A ``Deadline`` counts time asleep.
    :param until: maps a partition's copy to its exclusive source stop offset, or to None while there is none.
    :param stop: polled periodically; True ends the slice early.
    :param rate: returns the bytes per second that may be read now; 0 or None is unlimited. Without this function the
        job's rate applies.
    """

    deadline: float
    until: Callable[[PartitionCopy], int | None]
    stop: Callable[[], bool] = lambda: False
    rate: Callable[[], int | None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return clock.is_over(self.deadline)

    def ends_within(self, seconds: float) -> bool:
        """Return whether less than this is left of the slice."""
        return time.monotonic() >= self.deadline - seconds

    def check(self) -> None:
        """Raise ``SliceExpired`` once the deadline has passed."""
        if self.is_over:
            raise SliceExpired(
                "the slice has ended", next_step="none: the next slice continues from the target's log end"
            )

    def is_read(self, copy: PartitionCopy) -> bool:
        """Return whether a partition is read up to its stop offset."""
        until = self.until(copy)
        return until is not None and copy.read.next_offset >= until


class Throttling:
    """Adds up throttle times, which overlap: each answer gives how long its connection is muted from now on.

    :ivar seconds: the time in which at least one connection was muted.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._until = 0.0

    def note(self, throttle_time_ms: int, now: float) -> float:
        """Add an answer's throttle time.

        :param now: the present time of the monotonic clock.
        :returns: when the answer's connection may send again.
        """
        until = now + throttle_time_ms / 1000
        self.seconds += max(0.0, until - max(now, self._until))
        self._until = max(self._until, until)
        return until
