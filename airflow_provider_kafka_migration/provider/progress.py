"""Progress for people: a log line every few seconds and the task state store. Never XCom, which a clear deletes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.record.context import Progress

log = logging.getLogger(__name__)

#: Key in ``context["task_state_store"]``; shown and editable in Airflow's UI, so nothing is ever decided by it.
STORE_KEY = "progress"
#: A line that says the same again is written this often only: some tasks wait for days.
UNCHANGED_SECONDS = 60.0


def interval_seconds() -> float:
    """How often progress is shown: ``[kafka_migration] progress_interval``."""
    from airflow.sdk.configuration import conf

    return float(conf.get("kafka_migration", "progress_interval", fallback="5"))


class ProgressSink:
    """Takes progress as often as it comes, shows it at most every ``every_seconds``.

    :param store: the task state store, or None where there is none (tests, CLI).
    :param write: where lines go.
    """

    def __init__(
        self,
        store: Any,
        write: Callable[[str], None],
        *,
        every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._write = write
        self._every_seconds = every_seconds
        self._clock = clock
        self._shown_at: float | None = None
        self._text = ""
        self._written_at = 0.0
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        """Show this progress, unless the last one was shown just now."""
        with self._lock:
            now = self._clock()
            if self._shown_at is not None and now - self._shown_at < self._every_seconds:
                return
            self._shown_at = now
            text = line(progress)
            news = text != self._text or now - self._written_at >= UNCHANGED_SECONDS
            if news:
                self._text, self._written_at = text, now
        if news:
            self._write(text)
        self._save(progress)

    def _save(self, progress: Progress) -> None:
        if self._store is None:
            return
        try:
            self._store.set(STORE_KEY, asdict(progress))
        except Exception as error:  # a cockpit that cannot be reached must not stop a migration
            log.warning("The progress could not be written to the task state store: %s", error)


def line(progress: Progress) -> str:
    """One line for a task's log: ``seed: 3 of 8 partitions, ..., 41%, 510,000 rec/s, 12 s left``."""
    parts = [f"{progress.phase}: {progress.message}"]
    if progress.total_bytes > 0 and progress.done_bytes >= 0:
        parts.append(f"{min(progress.done_bytes / progress.total_bytes, 1):.0%}")
    if progress.records_per_second >= 0:
        parts.append(f"{progress.records_per_second:,.0f} rec/s")
    if progress.eta_seconds >= 0:
        parts.append(f"{progress.eta_seconds:,.0f} s left")
    return ", ".join(parts)


class ProgressWatcher:
    """Polls a source of progress in the background while the task waits for something else (a Spark driver).

    :param read: the newest progress, or None if there is none yet. Errors of it are logged and do no harm.
    """

    def __init__(
        self, read: Callable[[], Progress | None], sink: Callable[[Progress], None], *, every_seconds: float
    ) -> None:
        self._read = read
        self._sink = sink
        self._every_seconds = every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="migration-progress", daemon=True)

    def __enter__(self) -> ProgressWatcher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.wait(self._every_seconds):
            try:
                progress = self._read()
            except Exception as error:
                log.warning("The progress could not be read: %s", error)
                continue
            if progress is not None:
                self._sink(progress)
