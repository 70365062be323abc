"""How long to wait before a lane is tried again. When a lane has failed for good is the coordinator's decision."""

from __future__ import annotations

import threading
from collections.abc import Iterable

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
#: A job that follows its source may be inside a cutover, with producers stopped: it looks again sooner.
_LONGEST_FOLLOWING_SECONDS = 5.0


class LanePauses:
    """Counts the slices of each lane that failed in a row. Safe for use by several threads.

    :param follows: the job goes on until it is told to stop.
    """

    def __init__(self, *, follows: bool = False) -> None:
        self._longest_seconds = _LONGEST_FOLLOWING_SECONDS if follows else _LONGEST_SECONDS
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
        return min(_FIRST_SECONDS * 2.0 ** min(worst - 1, 16), self._longest_seconds) if worst else 0.0
