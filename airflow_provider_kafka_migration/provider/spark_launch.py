"""Starts ``spark-submit`` so that it cannot outlive its task.

``python -m airflow_provider_kafka_migration.provider.spark_launch PARENT_PID spark-submit ARGS...``

A task that dies abruptly (SIGKILL, out of memory) would leave its Spark driver running, and the next attempt would
meet a second copier. So this module asks the kernel to kill the driver with its task. The process replaces itself with
``spark-submit``, which replaces itself with the JVM: the signal setting and the process id survive both replacements.
Python workers end with their JVM (their daemon reads from it). This module imports only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def bind_to_parent(parent_pid: int) -> None:
    """Request SIGKILL for when the parent dies; exit immediately if it is already dead. Only Linux has the signal."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # the parent died before the call, so no signal will come
        raise SystemExit(f"the task (process {parent_pid}) has ended before Spark was started")


def main(argv: list[str]) -> None:
    """Bind to the parent, then become the given command."""
    parent_pid, command = int(argv[0]), argv[1:]
    bind_to_parent(parent_pid)
    os.execvp(command[0], command)  # noqa: S606 - deliberately without a shell


if __name__ == "__main__":
    main(sys.argv[1:])
