"""A demo from its first line to its exit status: what both demos have in common."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console

_EXIT_INTERRUPTED = 130


class Outcome(Protocol):
    """What a demo found. ``problems`` is empty when everything was right."""

    seconds: float
    problems: list[str]

    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``."""


class HasLogs(Protocol):
    """The running parts of a demo."""

    def logs(self) -> list[Path]:
        """The logs to check after a failure."""


W = TypeVar("W", bound=HasLogs)
V = TypeVar("V", bound=Outcome)


class DemoRun(ABC, Generic[W, V]):
    """One demo from beginning to end.

    :param folder: gets everything that the demo writes; what an earlier demo has left there is removed.
    :param keep: leave everything running after the demo until Ctrl-C.
    """

    def __init__(self, console: Console, folder: Path, *, keep: bool) -> None:
        self._console = console
        self._folder = folder
        self._keep = keep
        self._begun = time.monotonic()
        self.world: W | None = None

    def run(self) -> V:
        """Run the demo; all processes are stopped when it returns or raises."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        with ExitStack() as stack:
            self.world = world = self._make_world(stack)
            verdict = self._play(stack, world)
            verdict.seconds = time.monotonic() - self._begun
            summary = json.dumps(verdict.summary(), indent=2) + "\n"
            (self._folder / "summary.json").write_text(summary, encoding="utf-8")
            self._show(verdict)
            if self._keep:
                self._stay(world)
            return verdict

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        self._console.print(f"[dim]{time.monotonic() - self._begun:5.0f} s[/]  {text}", highlight=False, soft_wrap=True)

    @abstractmethod
    def _make_world(self, stack: ExitStack) -> W:
        """Return the parts of the demo; none of them runs yet."""

    @abstractmethod
    def _play(self, stack: ExitStack, world: W) -> V:
        """Start everything, do what the demo shows, and judge the result."""

    @abstractmethod
    def _show(self, verdict: V) -> None:
        """Print the summary."""

    @abstractmethod
    def _addresses(self, world: W) -> Iterable[str]:
        """Yield the lines that say where to look while everything keeps running."""

    def _stay(self, world: W) -> None:
        for line in self._addresses(world):
            self.say(line)
        self.say("Ctrl-C ends all")
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()

    def report_failure(self, error: BaseException) -> None:
        """Print an error that ended the demo, and where the logs are."""
        show = self._console.print
        show(f"\n[bold red]The demo failed:[/] {type(error).__name__}")
        show(str(error), highlight=False, markup=False, soft_wrap=True)
        show("\nLogs:")
        for path in self.world.logs() if self.world is not None else [self._folder]:
            show(f"  {path}", highlight=False, soft_wrap=True)


def exit_status(console: Console, demo: DemoRun[W, V]) -> int:
    """Run a demo, and return the exit status of its process: 0 if everything was right."""
    signal.signal(signal.SIGTERM, _on_signal)
    try:
        verdict = demo.run()
    except KeyboardInterrupt:
        console.print("\nInterrupted; everything that was started is stopped.")
        return _EXIT_INTERRUPTED
    except Exception as error:
        demo.report_failure(error)
        return 1
    return 1 if verdict.problems else 0


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def is_set(name: str) -> bool:
    """Return whether an environment variable is set, and not to 0."""
    return os.environ.get(name, "") not in ("", "0")
