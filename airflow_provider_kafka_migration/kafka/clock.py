"""Deadlines that keep counting while the machine sleeps.

``time.monotonic()`` stops while Linux is suspended (a closed laptop lid, a virtual machine that is paused and notified
of it). A process that wakes up hours later would believe that its slice has just begun, and would send, although other
processes took over its partitions long ago. ``CLOCK_BOOTTIME`` counts the time asleep; where that clock does not
exist, the monotonic clock counts it.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def suspended_seconds() -> float:
    """Return how long the machine has slept since it started; only differences are meaningful."""
    return time.clock_gettime(_CLOCK) - time.monotonic()


def elapsed_seconds() -> float:
    """Read a clock that never goes back and counts time asleep; only differences are meaningful."""
    return time.clock_gettime(_CLOCK)


class Deadline(float):
    """A moment of the monotonic clock that moves earlier by the time the machine sleeps from now on.

    Code that only waits can use it as a number. Code that must not act too late calls :func:`is_over`.
    """

    __slots__ = ("_suspended",)
    _suspended: float

    def __new__(cls, moment: float) -> Deadline:
        """:param moment: a moment of the monotonic clock."""
        made = super().__new__(cls, moment)
        made._suspended = suspended_seconds()
        return made

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed, even if it passed while the machine slept."""
        return time.monotonic() + max(suspended_seconds() - self._suspended, 0.0) >= self


def is_over(deadline: float) -> bool:
    """Return whether a moment has passed; for a :class:`Deadline`, time asleep counts."""
    return deadline.is_over if isinstance(deadline, Deadline) else time.monotonic() >= deadline
