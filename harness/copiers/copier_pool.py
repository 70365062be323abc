"""Starts copier processes in a few milliseconds each, as forks of one process that has imported everything.

``python -m harness.copiers.copier_pool SOCKET`` listens; :class:`CopierPool` starts it and requests copiers from it
(:mod:`harness.copiers.copy_worker`), which die with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_kafka_migration.documents.copy import PartitionResult
from harness.copiers import copy_worker
from harness.copiers.copying import results_of
from harness.processes import Process, start, wait_for

_START_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1


class Copier:
    """One copier process, a grandchild of this process."""

    def __init__(self, pid: int, lane: int, output: Path) -> None:
        self.pid = pid
        self.lane = lane
        self.output = output

    @property
    def state(self) -> str:
        """Letter of ``/proc/PID/stat``: T is stopped; empty: it has ended."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            return ""
        return "" if state in "ZX" else state

    @property
    def running(self) -> bool:
        """Whether it exists; a stopped one does."""
        return self.state != ""

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self.state == "T"

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None: it runs, or was killed."""
        try:
            return int(self.output.with_suffix(".rc").read_text())
        except (OSError, ValueError):
            return None

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it with SIGKILL and wait for its end."""
        self.signal(signal.SIGKILL)
        self.wait(20)

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; its exit code, None if it was killed."""
        wait_for(f"end of copier {self.pid} of lane {self.lane}", lambda: not self.running, seconds, 0.01)
        return self.exit_code

    def text(self) -> str:
        """Its output."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def results(self) -> list[PartitionResult]:
        """Results of its last slice."""
        return results_of("\n".join(self.text().split("\n")[:-1]))


class CopierPool:
    """Starts copiers.

    :param folder: for the socket and the output of the copiers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "pool.sock"
        self._process: Process | None = None
        self._number = 0
        self.copiers: list[Copier] = []

    def __enter__(self) -> CopierPool:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "harness.copiers.copier_pool", str(self._socket)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = start("copier pool", command, self._folder / "pool.log", env=environment)
        self._process = process

        def listens() -> bool:
            process.check_running()
            return self._socket.exists()

        wait_for("copier pool", listens, _START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        for copier in self.copiers:
            copier.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.kill()

    def start(self, lane: int, arguments: Sequence[str]) -> Copier:
        """Start a copier; ``arguments`` are those of :mod:`harness.copiers.copy_worker`."""
        self._number += 1
        output = self._folder / f"copier-{self._number:05d}.log"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_START_SECONDS)
            connection.connect(str(self._socket))
            connection.sendall(json.dumps([str(output), *arguments]).encode() + b"\n")
            pid = int(connection.makefile().readline())
        copier = Copier(pid, lane, output)
        self.copiers = [*(item for item in self.copiers if item.running), copier]
        return copier


def main(path: str) -> int:
    """Fork a copier for each received line; answer with its process id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path + ".new")
        listener.listen(64)
        os.rename(path + ".new", path)
        while True:
            connection, _ = listener.accept()
            with connection:
                arguments = json.loads(connection.makefile().readline())
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    connection.close()
                    _be_copier(Path(arguments[0]), arguments[1:])
                connection.sendall(f"{pid}\n".encode())


def _be_copier(output: Path, arguments: list[str]) -> None:
    code = 70
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = copy_worker.main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        output.with_suffix(".rc").write_text(str(code))
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
