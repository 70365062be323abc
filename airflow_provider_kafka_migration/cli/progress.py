"""Progress on stderr: a live line on a terminal, periodic plain lines elsewhere, nothing with ``--json``."""

from __future__ import annotations

import threading
import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.record.context import Progress as PhaseProgress

_PLAIN_EVERY_SECONDS = 5.0


class ProgressView:
    """Shows the progress of phases. Thread-safe.

    :param quiet: show nothing (``--json``).
    """

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._lock = threading.Lock()
        self._printed: dict[tuple[str, bool], float] = {}
        self._tasks: dict[tuple[str, bool], TaskID] = {}
        self._bar = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[message]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            if console.is_terminal and not quiet
            else None
        )

    def __enter__(self) -> ProgressView:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: PhaseProgress) -> None:
        """Show one line of progress."""
        if self._quiet:
            return
        with self._lock:
            if self._bar is not None:
                self._update(progress)
            elif time.monotonic() - self._printed.get(progress.slot, 0.0) >= _PLAIN_EVERY_SECONDS:
                self._printed[progress.slot] = time.monotonic()
                self._console.print(escape(str(progress)))

    def done(self, result: PhaseResult) -> None:
        """Show the result of a phase."""
        if self._quiet:
            return
        with self._lock:
            if self._bar is not None:
                for task in self._tasks.values():
                    self._bar.remove_task(task)
                self._tasks.clear()
            note = " [dim](done before)[/]" if result.already_done else ""
            self._console.print(f"[green]✓[/] [bold]{escape(result.phase)}[/]  {escape(result.summary)}{note}")

    def _update(self, progress: PhaseProgress) -> None:
        assert self._bar is not None
        task = self._tasks.get(progress.slot)
        if task is None:
            task = self._tasks[progress.slot] = self._bar.add_task(progress.phase, total=None, message="")
        done, total = progress.done, progress.total
        if progress.total_bytes > 0 and progress.done_bytes >= 0:
            done, total = progress.done_bytes, progress.total_bytes
        known = total > 0 and done >= 0
        self._bar.update(
            task,
            total=total if known else None,
            completed=min(done, total) if known else 0,
            message=escape(_without_phase(progress)),
        )


def _without_phase(progress: PhaseProgress) -> str:
    return str(progress).removeprefix(f"{progress.phase}: ")
