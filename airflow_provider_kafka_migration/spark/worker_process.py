"""A Python worker must not outlive its parent: a copier without a driver would be nobody's.

Three nets: Linux' parent-death signal, a look at the parent before each step of the slice, and the slice's deadline.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> bool:
    """Ask the kernel for SIGKILL when the process dies that forked this one. Linux only.

    The signal is sent when the *thread* that forked ends. PySpark's daemon forks in its only thread; without the
    daemon the parent is a pooled thread of the JVM, which may end while its process lives, so then nothing is asked.

    :returns: whether the signal is set.
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux") or not _is_single_threaded_python(parent):
        return False
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return False
    if os.getppid() != parent:  # it died between the two calls, and no signal will come
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def _is_single_threaded_python(pid: int) -> bool:
    try:
        return "pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return False


class ParentWatch:
    """Tells whether the parent of this process has died since the watch began. One cheap system call per look."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    def orphaned(self) -> bool:
        """True once another process has taken this one over."""
        return os.getppid() != self._parent
