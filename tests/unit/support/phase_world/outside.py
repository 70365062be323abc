"""Everything outside of the migration's process: each call can fail, and the process can die after any change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

_T = TypeVar("_T")


class Killed(BaseException):
    """The process no longer exists. No code of the product catches this."""


@dataclass
class Fault:
    """What goes wrong with some calls.

    :param calls: pattern of the names of calls, for instance ``source.wire.list_offsets``.
    :param what: an exception that the call raises before it has an effect, or a function that changes its answer.
    :param times: how many calls are hit; -1: all.
    :param skip: how many calls pass before the first one is hit.
    """

    calls: str
    what: BaseException | Callable[[Any], Any]
    times: int = -1
    skip: int = 0

    def hits(self, name: str) -> bool:
        """Whether this call is hit; counts it."""
        if not self.times or not fnmatchcase(name, self.calls):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Outside:
    """Counts calls and changes, applies faults, and kills the process after its n-th change."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        #: names of all calls, and of those that changed something, since the last :meth:`revive`
        self.calls: list[str] = []
        self.changes: list[str] = []
        #: the process dies after this many changes; -1: never
        self.dies_after = -1
        self._is_dead = False
        self._lock = threading.RLock()

    def fail(self, calls: str, what: BaseException | Callable[[Any], Any], *, times: int = -1, skip: int = 0) -> Fault:
        """Add a fault; :meth:`heal` removes all of them."""
        self.faults.append(Fault(calls, what, times, skip))
        return self.faults[-1]

    def heal(self) -> None:
        """Remove all faults."""
        self.faults.clear()

    def revive(self) -> None:
        """Start a new process: counts begin at 0, and it does not die."""
        self._is_dead, self.dies_after = False, -1
        self.calls.clear()
        self.changes.clear()

    def call(self, name: str, act: Callable[[], _T], *, changes: str = "") -> _T:
        """Perform one call.

        :param changes: what it changes, for people; empty: it only reads.
        """
        with self._lock:
            if self._is_dead or (changes and 0 <= self.dies_after <= len(self.changes)):
                self._is_dead = True
                raise Killed(f"before {name}, after {self.changes[-3:]}")
            self.calls.append(name)
            fault = next((item for item in self.faults if item.hits(name)), None)
            if fault is not None and isinstance(fault.what, BaseException):
                raise fault.what
            answer = act()
            if changes:
                self.changes.append(f"{name} {changes}")
        # Without the lock: another process, with threads of its own, may run in between.
        return answer if fault is None else fault.what(answer)  # type: ignore[operator]
