"""The process behind a CLI claim, and whether it has certainly ended.

Two commands of one user on one host are two owners: both would copy, freeze and commit. But a command that died must
not lock its user out. So a claim names its process, and the next command of the same user on the same host continues
without a takeover if that process has certainly ended. Without that certainty the command is refused: for a process in
another container, on another machine with the same name, or for a claim that does not name a process.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
#: The inode of the initial pid namespace, the same on every Linux: outside all containers.
_FIRST_NAMESPACE = "pid:[4026531836]"


class Life(StrEnum):
    """What is known about a process."""

    RUNS = "still runs"
    ENDED = "has ended"
    UNKNOWN = "cannot be checked from here"


@dataclass(frozen=True)
class OwnerProcess:
    """One process, during one boot of one machine.

    :param machine_id: id of the installation, if any; distinguishes a reboot from another machine of the same name.
    :param namespace: pid namespace: the same pid in another container is another process. Empty on other systems than
        Linux.
    :param started: its start time in its system's own format, because pids are reused.
    """

    host: str
    machine_id: str
    boot_id: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def of_this_process(cls) -> OwnerProcess:
        """Return the current process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _machine_id(), _boot_id(), _namespace(), pid, _started(pid))

    @classmethod
    def of_details(cls, details: Mapping[str, Any] | None) -> OwnerProcess | None:
        """Read what :meth:`as_details` wrote; ``None`` for a claim without a process."""
        if not details:
            return None
        texts = {name: str(details.get(name, "")) for name in ("host", "machine_id", "boot_id", "namespace", "started")}
        return cls(pid=int(details.get("pid", -1)), **texts)

    def as_details(self) -> dict[str, Any]:
        """Return the details for a journal entry."""
        return asdict(self)

    def life(self) -> Life:
        """Return whether it runs, as far as this process can know."""
        here = OwnerProcess.of_this_process()
        if not self.boot_id or not self.started or self.host != here.host:
            return Life.UNKNOWN
        if self.boot_id != here.boot_id:
            return Life.ENDED if self._was_before_a_reboot(here) else Life.UNKNOWN
        if self.namespace != here.namespace:
            return Life.UNKNOWN
        return Life.RUNS if _started(self.pid) == self.started else Life.ENDED

    def _was_before_a_reboot(self, here: OwnerProcess) -> bool:
        # In containers neither the name nor the machine id identifies the machine: images contain them.
        outside = self.namespace == here.namespace == _FIRST_NAMESPACE
        return outside and bool(self.machine_id) and self.machine_id == here.machine_id

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _machine_id() -> str:
    return _read(Path("/etc/machine-id"))


def _boot_id() -> str:
    # macOS also names each boot. If neither exists, nothing is known.
    return _read(_PROC / "sys/kernel/random/boot_id") or _answer("sysctl", "-n", "kern.bootsessionuuid")


def _namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started; empty if it does not exist, or has ended without being reaped by its parent."""
    if not (_PROC / "self/stat").exists():
        return _answer("ps", "-o", "lstart=", "-p", str(pid))
    fields = _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return "" if not fields or fields[0] in "ZX" else f"{fields[19]} ticks after boot"


def _answer(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
