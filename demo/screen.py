"""The display of a run: one live line per phase on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_provider_kafka_migration.phase_table import TASKS

_MARKS = {
    None: ("·", "dim"),
    "success": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "upstream_failed": ("✗", "red"),
    "skipped": ("-", "dim"),
    "awaiting_input": ("?", "bold yellow"),
    "deferred": ("…", "cyan"),
    "running": ("▶", "bold cyan"),
    "up_for_retry": ("↻", "yellow"),
}
_PLAIN_EVERY_SECONDS = 5.0
#: In the order in which they run, and then those that end a freeze. Others follow.
ORDER = tuple(row.id for row in sorted(TASKS, key=lambda row: row.needs_journal_only))


def progress_text(progress: Any) -> str:
    """A line from the content of a task's state store."""
    if not isinstance(progress, Mapping):
        return str(progress or "")
    parts = [str(progress.get("message", ""))]
    rate = progress.get("records_per_second")
    if isinstance(rate, int | float) and rate >= 0:
        parts.append(f"{rate:,.0f} rec/s")
    done, total = progress.get("done_bytes", -1), progress.get("total_bytes", -1)
    if isinstance(done, int) and isinstance(total, int) and total > 0 and done >= 0:
        parts.append(f"{min(done / total, 1):.0%}")
    eta = progress.get("eta_seconds")
    if isinstance(eta, int | float) and eta >= 0:
        parts.append(f"{eta:.0f} s left")
    return ", ".join(part for part in parts if part)


class Screen:
    """Shows the phases during a run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._begun: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._shown: dict[str, tuple[str | None, float, str]] = {}

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the phases."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def show(self, states: Mapping[str, str | None], progress: Mapping[str, str]) -> None:
        """Show the current state of all phases."""
        names = [name for name in ORDER if name in states] + sorted(set(states) - set(ORDER))
        now = time.monotonic()
        for name in names:
            self._note_times(name, states[name], now)
        if self._live is not None:
            self._live.update(self._table(names, states, progress))
        else:
            for name in names:
                self._print_change(name, states[name], progress.get(name, ""), now)

    def _note_times(self, name: str, state: str | None, now: float) -> None:
        if state in ("running", "deferred", "awaiting_input"):
            self._begun.setdefault(name, now)
            self._ended.pop(name, None)
        elif state in ("success", "failed") and name in self._begun:
            self._ended.setdefault(name, now)

    def _seconds(self, name: str) -> str:
        if name not in self._begun:
            return ""
        return f"{self._ended.get(name, time.monotonic()) - self._begun[name]:.0f} s"

    def _table(self, names: list[str], states: Mapping[str, str | None], progress: Mapping[str, str]) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(width=1)
        table.add_column()
        table.add_column(justify="right", width=7)
        table.add_column(overflow="ellipsis", no_wrap=True)
        for name in names:
            mark, style = _MARKS.get(states[name], ("○", "dim"))
            text = progress.get(name, "") if states[name] not in (None, "skipped") else ""
            table.add_row(Text(mark, style), Text(name, style), self._seconds(name), Text(text, "dim"))
        return table

    def _print_change(self, name: str, state: str | None, text: str, now: float) -> None:
        if state in (None, "scheduled", "queued"):
            return
        former_state, printed, former_text = self._shown.get(name, (None, 0.0, ""))
        moved = text and text != former_text and now - printed >= _PLAIN_EVERY_SECONDS
        if state == former_state and not moved:
            return
        self._shown[name] = (state, now, text)
        self.say(f"{name:<24} {state:<15} {self._seconds(name):>6}  {text}".rstrip())
