"""Certificate and key files that something else renews while a process runs: whether they changed since they were read.

Brokers and clients look at certificates only while a connection begins. A connection that lives for days is therefore
renewed when the files have changed, so that the old certificate is out of use before it expires.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: How often the files of an open connection are looked at.
CHECK_SECONDS = 5.0
#: After a renewal that failed the next one is tried after this time; the connection is used on.
FAILED_PAUSE_SECONDS = 30.0
#: Files younger than this may still be replaced one after the other.
YOUNG_SECONDS = 60.0

#: path, modification time in ns, size, inode; a file of a mounted secret changes its inode
State = tuple[tuple[str, int, int, int], ...]


def state_of(paths: Iterable[str]) -> State | None:
    """Return what identifies the content of files; None while one of them is missing."""
    found = []
    for path in paths:
        try:
            stat = Path(path).stat()
        except OSError:
            return None
        found.append((path, stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


def are_young(paths: Iterable[str]) -> bool:
    """Return whether one of the files was replaced a moment ago, or is missing at the moment."""
    state = state_of(paths)
    return state is None or any(time.time() - item[1] / 1e9 < YOUNG_SECONDS for item in state)


@dataclass
class TlsFiles:
    """The files of one connection.

    :param paths: none: nothing ever changes.
    """

    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        self._used = state_of(self.paths)
        self._seen = self._used
        self._next_check = time.monotonic() + CHECK_SECONDS

    def have_changed(self) -> bool:
        """Return whether the files differ from those in use, and have not changed since the last look at them."""
        if not self.paths:
            return False
        now = time.monotonic()
        if now < self._next_check:
            return False
        self._next_check = now + CHECK_SECONDS
        before, self._seen = self._seen, state_of(self.paths)
        # A certificate and its key are replaced one after the other: wait until both are there.
        return self._seen is not None and self._seen == before and self._seen != self._used

    def failed(self) -> None:
        """Wait before the next attempt."""
        self._next_check = time.monotonic() + FAILED_PAUSE_SECONDS
