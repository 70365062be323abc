"""How long to wait before a lane is tried again. When a lane has failed for good is the coordinator's decision."""

from __future__ import annotations

import threading
from collections.abc import Iterable

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0


class Pauses:
    """Counts the slices of each lane that failed in a row. Safe for use by several threads."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def after(self, lanes: Iterable[int], failed: Iterable[int]) -> float:
        """Seconds to wait after a slice.

        :param lanes: lanes of the slice; those that did not fail are forgotten.
        :param failed: lanes in which something went wrong.
        """
        with self._lock:
            wrong = set(failed)
            for lane in set(lanes) - wrong:
                self._counts.pop(lane, None)
            for lane in wrong:
                self._counts[lane] = self._counts.get(lane, 0) + 1
            worst = max((self._counts[lane] for lane in wrong), default=0)
        return min(_FIRST_SECONDS * 2.0 ** (worst - 1), _LONGEST_SECONDS) if worst else 0.0
