"""What a copier has to offer to be measured. Add your own: three methods and a line in ``registry.py``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from harness.processes import HarnessError, Process, start

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Task:
    """One copy: a topic of the source into ``target_topic``, which exists, empty, with as many partitions.

    :param source: bootstrap servers (plaintext).
    :param until: partition -> exclusive end offset on the source; empty: go on until stopped (tail).
    :param folder: a folder of the peer's own, empty.
    :param read_committed: the topic has transactions.
    :param linger_ms: how long a producer may gather a batch; the peer may ignore it.
    :param replication_factor: of the target cluster.
    """

    source: str
    target: str
    topic: str
    target_topic: str
    partitions: int
    folder: Path
    until: Mapping[int, int] = field(default_factory=dict)
    read_committed: bool = False
    linger_ms: int = 5
    replication_factor: int = 1

    @property
    def is_tail(self) -> bool:
        return not self.until


@dataclass(frozen=True)
class Usage:
    """What the copier has used up to now: all its processes, from their start on.

    :param idle_bytes: resident size of one worker before it copies; None where nobody knows.
    :param worker_bytes: resident size of its largest worker now.
    """

    cpu_seconds: float
    rss_bytes: int
    worker_bytes: int
    idle_bytes: int | None = None


class Peer(Protocol):
    """A copier. A new one is made for each copy.

    ``name`` has letters, digits and underscores; the target topic is ``<name>.<topic>``. ``keeps_offsets``: target
    offsets will be those of the source, so that the copy is complete at equal end offsets; otherwise it is complete
    when the target has as many records as a reader of the source sees.
    """

    name: str
    title: str
    keeps_offsets: bool

    def start(self, task: Task) -> None:
        """Begin to copy, in processes of its own; return at once."""
        ...

    def stop(self) -> None:
        """End all processes; may be called twice, and before :meth:`start`."""
        ...

    def measure(self) -> Usage:
        """What was used up to now; cheap, called many times a second.

        :raises HarnessError: the copier has ended with an error; says why.
        """
        ...


class ProcessPeer:
    """A peer that is one child process, and what comes of it. Subclasses give :meth:`command`."""

    name = ""
    title = ""
    keeps_offsets = False

    def __init__(self) -> None:
        self._process: Process | None = None
        self._root: psutil.Process | None = None
        self._gone_seconds: dict[int, float] = {}
        self._last = Usage(0.0, 0, 0)

    def command(self, task: Task) -> Sequence[str]:
        """What to run; may write files into ``task.folder``."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str] | None:
        """Of the process; None: ours."""
        return None

    def start(self, task: Task) -> None:
        task.folder.mkdir(parents=True, exist_ok=True)
        self._process = start(
            self.title or self.name, self.command(task), task.folder / "log", env=self.environment(), cwd=ROOT
        )
        self._root = psutil.Process(self._process.pid)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(5)

    def measure(self) -> Usage:
        assert self._process is not None
        assert self._root is not None
        code = self._process.returncode
        if code not in (None, 0):
            self._process.check_running()
            raise HarnessError(f"{self.title} ended with {code}")
        if code == 0:
            return self._last
        self._last = self._usage()
        return self._last

    def _usage(self) -> Usage:
        assert self._root is not None
        rss, largest = 0, 0
        for process in self.processes():
            try:
                with process.oneshot():
                    times, size = process.cpu_times(), process.memory_info().rss
                    worker = self.is_worker(process)
            except psutil.Error:
                continue
            # A process that ends keeps its last reading: what it used was used.
            self._gone_seconds[process.pid] = times.user + times.system
            rss += size
            if worker:
                largest = max(largest, size)
        return Usage(sum(self._gone_seconds.values()), rss, largest, self.idle_bytes())

    def processes(self) -> list[psutil.Process]:
        """All of this copier."""
        assert self._root is not None
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return []

    def is_worker(self, process: psutil.Process) -> bool:
        """Whether this process moves data: its size is the worker's size."""
        return True

    def idle_bytes(self) -> int | None:
        """Resident size of a worker before it copies."""
        return None


class PythonPeer(ProcessPeer):
    """A Python module of ours as a peer. It may write its idle size into the file ``idle`` of its folder."""

    _folder: Path | None = None

    def start(self, task: Task) -> None:
        self._folder = task.folder
        super().start(task)

    def idle_bytes(self) -> int | None:
        try:
            return int((self._folder / "idle").read_text()) if self._folder else None
        except (FileNotFoundError, ValueError):
            return None

    @staticmethod
    def python(module: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", module, *arguments]


def note_idle_size(folder: Path) -> None:
    """To be called by a worker process before its copy begins."""
    (folder / "idle").write_text(str(psutil.Process().memory_info().rss))
