"""Child processes that never outlive this one, and loopback ports that no two helpers get at the same time.

A child runs in its own process group (Ctrl-C in the terminal reaches only this process, which stops the child in
order), gets SIGKILL from the kernel when this process dies (Linux), and logs to a file.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
# Below the ephemeral range (32768..60999 on Linux), so that no outgoing connection takes a port between lease and bind.
_PORTS = range(20_000, 32_000)
#: Where everything listens that does not run on a host of its own (:mod:`harness.hosts`).
LOOPBACK = "127.0.0.1"


class HarnessError(Exception):
    """A part of the harness failed or was too slow; the message ends with the tail of its log."""


def wait_for(what: str, condition: Callable[[], T | None], timeout_seconds: float, every_seconds: float = 0.05) -> T:
    """Wait for the first truthy result of ``condition`` and return it.

    :raises HarnessError: the time is over; names ``what``.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise HarnessError(f"{what}: not within {timeout_seconds:g} s")
        time.sleep(every_seconds)


def tail_of(path: Path, lines: int = 20) -> str:
    """Last lines of a log, for messages."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return f"(no log at {path})"


class PortLeases:
    """Loopback ports, each held by a lock file until it is released or this process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, IO[bytes]] = {}
        self._folder = Path(tempfile.gettempdir()) / f"kafka-migration-ports-{os.getuid()}"

    def take(self) -> int:
        """Lease a port that is not in use and not leased by another harness of this user.

        :raises HarnessError: all ports are in use.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        candidates = list(_PORTS)
        random.shuffle(candidates)  # harnesses start at different ports and rarely collide
        with self._lock:
            for port in candidates:
                if port in self._held or not _can_bind(port):
                    continue
                file = (self._folder / str(port)).open("wb")
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    file.close()
                    continue
                self._held[port] = file
                return port
        raise HarnessError(f"no free loopback port in {_PORTS.start}..{_PORTS.stop - 1}")

    def release(self, ports: Iterable[int]) -> None:
        """Release ports. Unknown ones are ignored."""
        with self._lock:
            for port in ports:
                if (file := self._held.pop(port, None)) is not None:
                    file.close()


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_ports = PortLeases()


def free_port() -> int:
    """Lease a loopback port until :func:`release_ports` or the end of this process."""
    return _ports.take()


def release_ports(ports: Iterable[int]) -> None:
    """Release leased ports, after their listeners have ended."""
    _ports.release(ports)


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A loopback port that refuses connections until the block ends.

    A socket holds it without listening: a port that was merely closed may belong to any other process a moment later.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.bind((LOOPBACK, 0))
        yield holder.getsockname()[1]


def is_listening(port: int, address: str = LOOPBACK) -> bool:
    """Whether a process accepts connections on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


class _Spawner:
    """One thread that starts all children and lives as long as the process.

    The kernel sends the parent-death signal when the *thread* that forked ends, so a child started from a short-lived
    worker thread would be killed with it.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], queue.SimpleQueue[object]]] = (
            queue.SimpleQueue()
        )
        self.pid = os.getpid()
        threading.Thread(target=self._run, name="harness-spawner", daemon=True).start()

    def _run(self) -> None:
        while True:
            start, answer = self._requests.get()
            try:
                answer.put(start())
            except BaseException as error:
                answer.put(error)

    def call(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._requests.put((start, answer))
        result = answer.get()
        if isinstance(result, subprocess.Popen):
            return result
        assert isinstance(result, BaseException)
        raise result


_spawner: _Spawner | None = None
_spawner_lock = threading.Lock()
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _get_spawner() -> _Spawner:
    global _spawner
    with _spawner_lock:
        if _spawner is None or _spawner.pid != os.getpid():  # after a fork the thread does not exist
            _spawner = _Spawner()
        return _spawner


def _die_with(parent: int, death_signal: int) -> Callable[[], None]:
    def in_child() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
            if os.getppid() != parent:  # the parent died before the request
                os._exit(1)

    return in_child


class Process:
    """A running child. Make one with :func:`start`.

    It is not reaped before :meth:`kill` or :meth:`stop`: until then no other process can get its id or its group's.
    """

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self.owner = os.getpid()
        self._popen = popen

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit code (negative: the signal that ended it), or None while it runs."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    @property
    def running(self) -> bool:
        return self.returncode is None

    def check_running(self) -> None:
        """:raises HarnessError: the process has ended."""
        if (code := self.returncode) is not None:
            raise HarnessError(f"{self.name} ended with code {code}; its log {self.log} ends:\n{tail_of(self.log)}")

    def wait(self, timeout_seconds: float) -> int:
        """Exit code.

        :raises HarnessError: the process still runs.
        """
        wait_for(f"end of {self.name}", lambda: not self.running, timeout_seconds, 0.02)
        code = self.returncode
        assert code is not None
        return code

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, unless it has ended."""
        if self.running:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM), without waiting. A stopped (SIGSTOP) process is woken first."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill its whole process group with SIGKILL, and reap it."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()
        _running.discard(self)

    def stop(self, timeout_seconds: float = 15) -> None:
        """SIGTERM, then SIGKILL to the group after ``timeout_seconds``. Does nothing if it was stopped before."""
        if self._popen.returncode is None:
            self.terminate()
            with contextlib.suppress(HarnessError):
                self.wait(timeout_seconds)
        self.kill()


_running: set[Process] = set()


def start(
    name: str,
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    death_signal: int = signal.SIGKILL,
    kind: type[Process] = Process,
) -> Process:
    """Start a child.

    :param name: for messages.
    :param log: file that gets its output, appended.
    :param env: the whole environment; None: that of this process.
    :param death_signal: the signal that the child gets when this process dies (Linux).
    :param kind: the class of the result.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    parent = os.getpid()

    def spawn() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                process_group=0,
                preexec_fn=_die_with(parent, death_signal),
            )

    process = kind(name, _get_spawner().call(spawn), log)
    _running.add(process)
    return process


def stop_all(processes: Iterable[Process], timeout_seconds: float = 15) -> None:
    """Stop several at the same time: SIGTERM to all, then wait, then SIGKILL for the rest."""
    all_of_them = list(processes)
    for process in all_of_them:
        process.terminate()
    deadline = time.monotonic() + timeout_seconds
    for process in all_of_them:
        process.stop(max(0.0, deadline - time.monotonic()))


@atexit.register
def _stop_leftovers() -> None:
    """End what a test or a broken demo left behind, also where the kernel does not do so."""
    for process in list(_running):
        if process.owner == os.getpid():  # not in a fork of the owner
            process.kill()
