"""Runs a command and ends all its descendants: ``python -m harness.reaper COMMAND...``.

Airflow starts tasks that start spark-submit that starts JVMs and Python workers, some in their own sessions. This
process adopts every orphan below it (Linux: child subreaper), so that no process escapes: when the command ends, or on
SIGTERM or SIGINT, all descendants get SIGTERM and, after some seconds, SIGKILL. Exits with the command's code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36
#: Between SIGTERM and SIGKILL; shorter than the time that the starter of this process waits for its end.
GRACE_SECONDS = 8.0
_POLL_SECONDS = 0.1


def descendants(pid: int) -> list[int]:
    """All processes below ``pid`` except zombies, parents before their children. Empty where there is no /proc."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # pid (name, which may contain any character) state ppid ...
            state, parent = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                children[int(parent)].append(int(stat.parent.name))
    return list(_below(pid, children))


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    for child in children.get(pid, []):
        yield child
        yield from _below(child, children)


class Reaper:
    """The command and its descendants."""

    def __init__(self, command: Sequence[str]) -> None:
        self._asked = False
        self._childless = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._main = subprocess.Popen(list(command), process_group=0)

    def run(self) -> int:
        """Wait for the command or a signal, end all descendants, return the command's exit code."""
        code: int | None = None
        while code is None and not self._asked:
            code = self._reap()
            time.sleep(_POLL_SECONDS)
        ended = self._end_all()
        if code is None:
            code = ended
        return 128 + signal.SIGTERM if code is None else code if code >= 0 else 128 - code

    def _ask(self, _: int, __: FrameType | None) -> None:
        self._asked = True

    def _reap(self) -> int | None:
        """Reap all zombies; return the command's exit code if it was among them."""
        code: int | None = None
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._main.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self._main.returncode = code
        except ChildProcessError:
            self._childless = True
        return code

    def _end_all(self) -> int | None:
        code: int | None = None
        told: set[int] = set()
        deadline = time.monotonic() + GRACE_SECONDS
        # A scan of one process after the other misses the children of one that ends meanwhile. But all orphans
        # become children of this process, so the work is done when it has none.
        while not self._childless:
            late = time.monotonic() > deadline
            for pid in self._left():
                if late or pid not in told:
                    told.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            time.sleep(_POLL_SECONDS)
            found = self._reap()
            code = found if found is not None else code
        return code

    def _left(self) -> list[int]:
        if Path("/proc/self/stat").exists():
            return descendants(os.getpid())
        return [self._main.pid] if self._main.returncode is None else []


if __name__ == "__main__":
    raise SystemExit(Reaper(sys.argv[1:]).run())
