"""Progress: lines at intervals, the state store, and no harm when either fails."""

from __future__ import annotations

import threading
from typing import Any

from airflow_provider_kafka_migration.provider.progress import ProgressSink, ProgressWatcher, line
from airflow_provider_kafka_migration.record.context import Progress


class Store:
    def __init__(self, error: Exception | None = None) -> None:
        self.values: dict[str, Any] = {}
        self._error = error

    def set(self, key: str, value: Any) -> None:
        if self._error:
            raise self._error
        self.values[key] = value


def test_line_has_what_is_known() -> None:
    assert line(Progress("drain_ready", "lag 7")) == "drain_ready: lag 7"
    full = Progress("seed", "3 of 8 partitions", 3, 8, "partitions", 410, 1000, 510_000.4, 12.2)
    assert line(full) == "seed: 3 of 8 partitions, 41%, 510,000 rec/s, 12 s left"
    grown = Progress("seed", "x", done_bytes=2000, total_bytes=1000)
    assert line(grown) == "seed: x, 100%"


def test_shown_at_most_once_per_interval_and_stored() -> None:
    now = 0.0
    lines: list[str] = []
    store = Store()
    sink = ProgressSink(store, lines.append, every_seconds=5, clock=lambda: now)
    for now in (0.0, 1.0, 4.9, 5.0, 6.0, 11.0):
        sink(Progress("seed", f"at {now}"))
    assert lines == ["seed: at 0.0", "seed: at 5.0", "seed: at 11.0"]
    assert store.values["progress"]["message"] == "at 11.0"


def test_what_runs_beside_a_copy_hides_none_of_its_figures() -> None:
    now = 0.0
    lines: list[str] = []
    store = Store()
    sink = ProgressSink(store, lines.append, every_seconds=5, clock=lambda: now, copies=True)
    for now in (0.0, 1.0, 5.0, 6.0):
        sink(Progress("schemas", f"{now:.0f} of 6 subjects"))
        sink(Progress("tail", f"a topic is followed, {now:.0f}"))
        sink(Progress("tail", f"lag {now:.0f}", heartbeat=f"run {now}"))
    assert store.values["progress"]["message"] == "lag 5"
    assert store.values["progress.schemas"]["message"] == "5 of 6 subjects"
    assert store.values["progress.tail"]["message"] == "a topic is followed, 5"
    assert [text for text in lines if "lag" in text] == ["tail: lag 0", "tail: lag 5"], "each has its own interval"
    assert len(lines) == 6


def test_two_phases_of_a_task_do_not_use_up_each_others_interval() -> None:
    lines: list[str] = []
    store = Store()
    sink = ProgressSink(store, lines.append, every_seconds=5, clock=lambda: 0.0)
    sink(Progress("cutover", "waits"))
    sink(Progress("schemas", "copied"))
    assert lines == ["cutover: waits", "schemas: copied"]
    assert store.values["progress"]["phase"] == "schemas"


def test_unchanged_line_is_written_once_a_minute() -> None:
    times = iter([*range(0, 130, 5), 127, 132])
    lines: list[str] = []
    sink = ProgressSink(None, lines.append, every_seconds=5, clock=lambda: next(times))
    for _ in range(0, 130, 5):
        sink(Progress("sync_groups", "nothing new"))
    assert lines == ["sync_groups: nothing new"] * 3
    sink(Progress("sync_groups", "news"))
    assert len(lines) == 3, "not before its interval is over"
    sink(Progress("sync_groups", "news"))
    assert lines[-1] == "sync_groups: news"


def test_figures_alone_make_one_line_a_minute_once_a_task_has_run_for_long() -> None:
    """A mirror copies for months: 17,280 lines a day tell nobody anything."""
    now = 0.0
    lines: list[tuple[float, str]] = []
    store = Store()
    sink = ProgressSink(store, lambda text: lines.append((now, text)), every_seconds=5, clock=lambda: now)

    def copies(minutes: int, **trouble: int) -> int:
        nonlocal now
        before = len(lines)
        for number in range(minutes * 12):
            now += 5
            sink(Progress("tail", f"lag {number}, the largest at t{number}", heartbeat=f"{now}", **trouble))
        return len(lines) - before

    assert copies(10) == 120, "people look on at first"
    assert 10 <= copies(10) <= 12
    assert store.values["progress"]["heartbeat"] == f"{now}", "the state store has each one"
    for trouble in ({"failed": 1}, {"failed": 2, "stuck": 1}, {"went_back": 1}, {}):
        change = now + 5
        copies(1, **trouble)
        assert change in [at for at, _ in lines], "what is wrong, or right again, is told at once"


def test_words_that_change_are_a_line_at_once_also_after_hours() -> None:
    now = 0.0
    lines: list[str] = []
    sink = ProgressSink(None, lines.append, every_seconds=5, clock=lambda: now)
    for now in range(0, 7200, 5):
        sink(Progress("drain_ready", f"lag {now}"))
    del lines[:]
    now += 5
    sink(Progress("drain_ready", "the tail is silent"))
    assert lines == ["drain_ready: the tail is silent"]


def test_broken_store_stops_nothing() -> None:
    lines: list[str] = []
    ProgressSink(Store(RuntimeError("gone")), lines.append, every_seconds=0)(Progress("seed", "x"))
    assert lines == ["seed: x"]


def test_without_a_store_there_are_lines() -> None:
    lines: list[str] = []
    ProgressSink(None, lines.append, every_seconds=0)(Progress("seed", "x"))
    assert lines == ["seed: x"]


def test_watcher_survives_errors_and_nothing_and_ends_with_its_block() -> None:
    seen = threading.Event()
    answers = iter([RuntimeError("storage"), None, Progress("tail", "alive")])

    def read() -> Progress | None:
        answer = next(answers, None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def write(text: str) -> None:
        assert text == "tail: alive"
        seen.set()

    with ProgressWatcher(read, ProgressSink(None, write, every_seconds=0), every_seconds=0.01):
        assert seen.wait(120)
    assert "migration-progress" not in {thread.name for thread in threading.enumerate()}
