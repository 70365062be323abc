"""Starts ``spark-submit`` so that it cannot outlive its task.

``python -m airflow_provider_kafka_migration.provider.spark_launch PARENT_PID spark-submit ARGS...``

A task that dies without a word (SIGKILL, out of memory) would leave its Spark driver running: the next attempt would
then meet a second copier. So the kernel is asked to kill the driver with its task. The process replaces itself by
``spark-submit``, which replaces itself by the JVM: the signal stays set over both, and the process id stays the same.
Python workers end with their JVM (their daemon reads from it). Imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def bind_to_parent(parent_pid: int) -> None:
    """Ask for SIGKILL when the parent dies; end at once if it is already dead. No effect outside of Linux."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call, and no signal will come
        raise SystemExit(f"the task (process {parent_pid}) has ended before Spark was started")


def main(argv: list[str]) -> None:
    """Bind, then become the given command."""
    parent_pid, command = int(argv[0]), argv[1:]
    bind_to_parent(parent_pid)
    os.execvp(command[0], command)  # noqa: S606 - no shell is what is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
