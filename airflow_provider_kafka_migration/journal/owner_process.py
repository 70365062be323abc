"""The process behind a claim of the command line, and whether it certainly has ended.

Two commands of one user on one host are two owners: both would copy, freeze and commit. But a command that died must
not keep its user out. So a claim names its process, and the next command of the same user on the same host goes on
without a takeover if that process is gone for sure. Whoever cannot be sure is refused: a process of another container,
of another machine with the same name, or of a claim that does not name one.
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
#: The inode of the first pid namespace, the same on every Linux: outside of all containers.
_FIRST_NAMESPACE = "pid:[4026531836]"


class Life(StrEnum):
    """What is known of a process."""

    RUNS = "still runs"
    ENDED = "has ended"
    UNKNOWN = "cannot be looked at from here"


@dataclass(frozen=True)
class OwnerProcess:
    """One process of one boot of one machine.

    :param machine_id: of the installation, where there is one; tells a reboot from another machine of the same name.
    :param namespace: pid namespace: the same pid in another container is another process. Empty outside of Linux.
    :param started: when it started, in words of its system: pids are used again.
    """

    host: str
    machine_id: str
    boot_id: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def of_this_process(cls) -> OwnerProcess:
        """This process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _machine_id(), _boot_id(), _namespace(), pid, _started(pid))

    @classmethod
    def of_details(cls, details: Mapping[str, Any] | None) -> OwnerProcess | None:
        """As :meth:`as_details` has written it; ``None`` for a claim without one."""
        if not details:
            return None
        texts = {name: str(details.get(name, "")) for name in ("host", "machine_id", "boot_id", "namespace", "started")}
        return cls(pid=int(details.get("pid", -1)), **texts)

    def as_details(self) -> dict[str, Any]:
        """For a journal entry."""
        return asdict(self)

    def life(self) -> Life:
        """Whether it runs, as far as this process can know."""
        here = OwnerProcess.of_this_process()
        if not self.boot_id or not self.started or self.host != here.host:
            return Life.UNKNOWN
        if self.boot_id != here.boot_id:
            return Life.ENDED if self._was_before_a_reboot(here) else Life.UNKNOWN
        if self.namespace != here.namespace:
            return Life.UNKNOWN
        return Life.RUNS if _started(self.pid) == self.started else Life.ENDED

    def _was_before_a_reboot(self, here: OwnerProcess) -> bool:
        # In containers neither the name nor the machine's id says which machine it is: images bring them along.
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
    # Outside of Linux: macOS names each boot, too. Where neither is there nothing is known.
    return _read(_PROC / "sys/kernel/random/boot_id") or _answer("sysctl", "-n", "kern.bootsessionuuid")


def _namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process started; empty if there is none, or only its parent has not noticed yet that it has ended."""
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
