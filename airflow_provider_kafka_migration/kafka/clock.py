"""Deadlines that go on while the machine sleeps.

``time.monotonic()`` stands still while Linux is suspended (a laptop's lid, a virtual machine that is paused and told
so): a process that wakes up hours later would believe that its slice has begun a moment ago, and send. Others have long
taken its partitions over. ``CLOCK_BOOTTIME`` counts that time; where there is none, the monotonic clock counts it.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def suspended_seconds() -> float:
    """For how long the machine has slept since it was started; only differences mean something."""
    return time.clock_gettime(_CLOCK) - time.monotonic()


def elapsed_seconds() -> float:
    """A clock that never goes back and goes on while the machine sleeps; only differences mean something."""
    return time.clock_gettime(_CLOCK)


class Deadline(float):
    """A moment of the monotonic clock that comes earlier by what the machine sleeps from now on.

    It is a number for everything that only waits; what must not happen too late asks :func:`is_over`.
    """

    __slots__ = ("_suspended",)
    _suspended: float

    def __new__(cls, moment: float) -> Deadline:
        """:param moment: of the monotonic clock."""
        made = super().__new__(cls, moment)
        made._suspended = suspended_seconds()
        return made

    @property
    def is_over(self) -> bool:
        """Whether it has passed, also while the machine slept."""
        return time.monotonic() + max(suspended_seconds() - self._suspended, 0.0) >= self


def is_over(deadline: float) -> bool:
    """Whether a moment has passed; time asleep counts for a :class:`Deadline`."""
    return deadline.is_over if isinstance(deadline, Deadline) else time.monotonic() >= deadline
