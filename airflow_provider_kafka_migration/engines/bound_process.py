"""A child process that cannot outlive the process that needs it, and can be killed with everything below it.

``python -m airflow_provider_kafka_migration.engines.bound_process PARENT_PID spark-submit ARGS...``

A task that dies abruptly (SIGKILL, out of memory) would leave its Spark driver running, and the next attempt would
meet a second copier. So this module asks the kernel to kill the driver with its task. The process replaces itself with
``spark-submit``, which replaces itself with the JVM: the signal setting and the process id survive both replacements.
Python workers end with their JVM (their daemon reads from it). As a program it imports little but
the standard library.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_kafka_migration.spark import IS_FOLLOWED

if TYPE_CHECKING:
    import psutil

log = logging.getLogger(__name__)

#: How long a driver may take to end by itself after SIGTERM.
GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.05
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
    os.environ[IS_FOLLOWED] = "1"
    os.execvp(command[0], command)  # noqa: S606 - deliberately without a shell


def bound_command(binary: str) -> list[str]:
    """Return the command that starts a program as a child which dies with this process.

    The kernel watches the *thread* that starts it, so that thread has to live for as long as the program runs.
    """
    return [sys.executable, "-m", __name__, str(os.getpid()), find_binary(binary)]


def find_binary(name: str) -> str:
    """Find the binary on PATH, or next to this Python, where pip puts it: a worker's PATH may lack that folder."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if beside.exists() else name)


def kill_tree(pid: int, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """Send SIGTERM to a process, then SIGKILL to it and all its descendants. Return when they have ended.

    The process itself is not reaped: its parent must still get its exit status, or a killed driver would look like a
    successful one.
    """
    import psutil

    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
        root.terminate()
    except psutil.NoSuchProcess:
        return
    for process in _wait(tree, grace_seconds):
        log.warning("Process %d of the Spark driver did not end by itself and is killed", process.pid)
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _wait(tree, grace_seconds)


def _wait(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait for processes to end, at most this long, and return those that have not."""
    deadline = time.monotonic() + seconds
    while alive := [process for process in processes if _is_alive(process)]:
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    return alive


def _is_alive(process: psutil.Process) -> bool:
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
