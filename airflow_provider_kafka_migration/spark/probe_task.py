"""The task of the probe. Shipped by value, so that it also runs where this package or a library is missing.

For that reason this module imports only the standard library, and everything else inside of functions, where a failed
import is a finding. It returns text (JSON), which needs neither pyarrow nor our classes on its way to the driver.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import pickle
import platform
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PACKAGE = "airflow_provider_kafka_migration"


def look_around(packages: dict[str, str], pointer: bytes, name: str = "") -> dict[str, Any]:
    """Return what this process sees, as fields of ``MachineLook``; never raises.

    :param packages: import name to distribution, of what copiers import.
    :param pointer: a pickled :class:`~.worker.JobPointer`, which can be read only where this package is installed.
    :param name: of this machine; empty: an executor, which finds out its own name.
    """
    seen: dict[str, Any] = {
        "name": name or executor_name(),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "began_at": time.time(),
        "packages": {distribution: version_of(module, distribution) for module, distribution in packages.items()},
        "free_disk_bytes": free_disk_bytes(),
    }
    try:
        seen["package_version"] = str(importlib.import_module(PACKAGE).__version__)
        look = importlib.import_module(f"{PACKAGE}.spark.probe").look_from_here
        seen |= look(pickle.loads(pointer))  # noqa: S301 - the driver's own
    except Exception as error:
        seen["package_error"] = f"{type(error).__name__}: {error}"[:500]
        why = "what this machine needs for it cannot be imported"
        if "package_version" in seen:
            why = f"the look at it failed: {seen['package_error']}"
        seen["not_looked_at"] = dict.fromkeys(("source", "target", "storage"), why)
    seen["ended_at"] = time.time()
    return seen


def version_of(module: str, distribution: str) -> str | None:
    """Return the installed version; None: it cannot be imported; empty: it can, but its version is unknown."""
    try:
        importlib.import_module(module)
    except Exception:
        return None
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(module), "__version__", ""))


def free_disk_bytes() -> int:
    """Return the free space where Spark and Python put temporary files; the least of several folders; -1: unknown."""
    folders = [
        *os.environ.get("SPARK_EXECUTOR_DIRS", "").split(","),
        *os.environ.get("SPARK_LOCAL_DIRS", "").split(","),
    ]
    sizes = []
    for folder in [*filter(None, folders), tempfile.gettempdir()]:
        try:
            sizes.append(shutil.disk_usage(folder).free)
        except OSError:
            continue
    return min(sizes, default=-1)


# -- which executor ---------------------------------------------------------------------------------------------------


def executor_name() -> str:
    """Return Spark's id of the executor above this process, or ``host/pid`` where its command line does not tell.

    Only the id is read from that command line: the rest may hold settings that must not be shown.
    """
    for pid in ancestors():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            break
        if b"--executor-id" in words[:-1]:
            return words[words.index(b"--executor-id") + 1].decode("ascii", "replace")
    return f"{socket.gethostname()}/{os.getppid()}"


def ancestors() -> list[int]:
    """Return the processes above this one, nearest first: PySpark's daemon, then the executor's JVM."""
    found: list[int] = []
    pid = os.getppid()
    while pid > 0 and len(found) < 4:
        found.append(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])
    return found


def is_first(token: str, executor: str) -> bool:
    """Return whether no other task of this executor has looked in this round: one look per machine is enough.

    An abstract socket can be bound once per name, and vanishes with its process. Without such sockets (other systems
    than Linux) every task looks.
    """
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except (OSError, AttributeError):
        return True
    try:
        mark.bind(f"\0kafka-migration-probe-{token}-{namespace}-{executor}")
    except OSError:
        mark.close()
        return False
    # This module is shipped by value and does not outlive its task, but the mark has to: until this process ends.
    sys.__dict__.setdefault("_kafka_migration_probe_marks", []).append(mark)
    return True


def make_task(
    packages: dict[str, str], pointer: bytes, token: str, answered: frozenset[str], hold_seconds: float
) -> Any:
    """Return the function of a task: a row number in, a JSON text out.

    :param token: names the round.
    :param answered: executors that have answered in an earlier round.
    :param hold_seconds: how long a task takes at least, so that free executors get the other tasks.
    """

    def task(_number: int) -> str:
        began = time.monotonic()
        name = executor_name()
        seen: dict[str, Any] = {"name": name}
        if name not in answered and is_first(token, name):
            seen = look_around(packages, pointer)
        time.sleep(max(hold_seconds - (time.monotonic() - began), 0.0))
        return json.dumps(seen)

    return task
