"""Runs ``spark-submit`` as a child that ends with its task, and can be killed with all its processes."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import time
from pathlib import Path

import psutil

from airflow_provider_kafka_migration.errors import MigrationError, error_from_dict
from airflow_provider_kafka_migration.provider.compat import OpenSparkSubmitHook
from airflow_provider_kafka_migration.spark.launch import build_py_files

log = logging.getLogger(__name__)

#: How long a driver may take to end by itself after SIGTERM.
GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.05
_LAST_WORD = re.compile(r"^\[(?P<code>[A-Z][A-Z_]+)\] (?P<text>.+)$")


class BoundSparkSubmitHook(OpenSparkSubmitHook):
    """The Spark provider's hook, with two differences.

    * The driver dies with its task, even if the task is killed without warning.
    * A kill reaches every process below ``spark-submit``: the JVM, the driver's Python, and the Python workers, which
      PySpark puts into a separate process group.
    """

    def binary_command(self, binary: str) -> list[str]:
        """Return the command for ``spark-submit`` through the launcher that binds it to this process."""
        launcher = [sys.executable, "-m", "airflow_provider_kafka_migration.provider.spark_launch", str(os.getpid())]
        return [*launcher, find_binary(binary)]

    def on_kill(self) -> None:
        """End the driver with all its processes, then anything that runs on a cluster."""
        pid = self.running_pid
        if pid is not None:
            kill_tree(pid)
        super().on_kill()

    def ship(self, folder: Path) -> None:
        """Ship this package to executors on other machines, unless the caller specified py_files."""
        if not self.py_files and not self.master.startswith("local"):
            self.py_files = str(build_py_files(folder))

    def failure(self) -> MigrationError | None:
        """Return the error in the job's last message, one line ``[CODE] what. Next: step``; None if there is none."""
        for line in reversed(tuple(self.last_lines)):
            found = _LAST_WORD.search(line)
            if found:
                what, _, next_step = found["text"].partition(". Next: ")
                return error_from_dict({"code": found["code"], "what": what, "next_step": next_step})
        return None


def find_binary(name: str) -> str:
    """Find the binary on PATH, or next to this Python, where pip puts it: a worker's PATH may lack that folder."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if beside.exists() else name)


def kill_tree(pid: int, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """Send SIGTERM to a process, then SIGKILL to it and all its descendants. Return when they have ended.

    The process itself is not reaped: its parent must still get its exit status, or a killed driver would look like a
    successful one.
    """
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
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
