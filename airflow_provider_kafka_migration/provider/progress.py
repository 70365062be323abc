"""Progress for people: a log line every few seconds, and the task state store. Not XCom, which a clear deletes."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.kafka.clock import elapsed_seconds
from airflow_provider_kafka_migration.metrics.table import BY_NAME
from airflow_provider_kafka_migration.provider.compat import conf
from airflow_provider_kafka_migration.provider.lines import Lines
from airflow_provider_kafka_migration.provider.metrics import Gauge, write_gauge

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.record.context import Progress


log = logging.getLogger(__name__)

#: Key in ``context["task_state_store"]``; shown and editable in Airflow's UI, so no decision depends on it. What runs
#: beside a copy has keys of its own: ``progress.schemas``.
STORE_KEY = "progress"


def interval_seconds() -> float:
    """Return how often progress is shown: ``[kafka_migration] progress_interval``."""
    return float(conf.get("kafka_migration", "progress_interval", fallback="5"))


class ProgressSink:
    """Accepts progress at any rate, and shows that of each slot at most every ``every_seconds``.

    :param store: the task state store, or None if there is none (tests, CLI).
    :param write: receives the lines.
    :param copies: the task copies: the figures of its copy are its progress, and nothing else is.
    """

    def __init__(
        self,
        store: Any,
        write: Callable[[str], None],
        *,
        every_seconds: float,
        copies: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._write = write
        self._every_seconds = every_seconds
        self._clock = clock
        self._copies = copies
        #: by slot: when its progress was shown
        self._shown_at: dict[tuple[str, bool], float] = {}
        self._lines: defaultdict[tuple[str, bool], Lines] = defaultdict(Lines)
        self._lock = threading.Lock()
        self._names: Mapping[str, str] = {}

    def named(self, names: Mapping[str, str]) -> ProgressSink:
        """Return this sink, which calls phases by other names from now on."""
        self._names = names
        return self

    def __call__(self, progress: Progress) -> None:
        """Show this progress, unless progress was shown just before."""
        progress = replace(progress, phase=self._names.get(progress.phase, progress.phase))
        with self._lock:
            now, slot = self._clock(), progress.slot
            if slot in self._shown_at and now - self._shown_at[slot] < self._every_seconds:
                return
            self._shown_at[slot] = now
            text = line(progress)
            is_news = self._lines[slot].is_news(text, now, _gist(progress))
        if is_news:
            self._write(text)
        self._save(progress)

    def _save(self, progress: Progress) -> None:
        if self._store is None:
            return
        try:
            beside = self._copies and not progress.heartbeat
            self._store.set(f"{STORE_KEY}.{progress.phase}" if beside else STORE_KEY, progress.figures())
        except Exception as error:  # an unreachable state store must not stop a migration
            log.warning("The progress could not be written to the task state store: %s", error)


def _gist(progress: Progress) -> object:
    """Return what is news whenever it changes: of a copy its troubles; None: the words, as of all else.

    The words of a copy name the partition that is furthest behind, which is another one each time.
    """
    if progress.heartbeat:
        return progress.failed, progress.went_back, progress.stuck > 0
    return None


def line(progress: Progress) -> str:
    """Return one line for a task's log: ``seed: 3 of 8 partitions, ..., 41%, 510,000 rec/s, 12 s left``."""
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

    :param read: returns the latest progress, or None if there is none yet. Its errors are only logged.
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


# -- trouble ----------------------------------------------------------------------------------------------------------
#
# Partitions that seed or tail cannot copy: gauges for Airflow's metrics, and a notification when it matters.
#
# The task itself stays green: it keeps retrying for as long as it runs.


#: Long enough that a broker restart does not wake anybody up.
STUCK_NOTICE_SECONDS = 120.0

#: Key in the context of callbacks: the line about the partitions that are not copied, or about a freeze.
TROUBLE = "migration_trouble"

#: Long enough that a driver that restarts, or waits for its first executor, does not wake anybody up.
SILENT_NOTICE_SECONDS = 120.0

Callback = Callable[[Any], object]


def as_callbacks(given: Callback | Sequence[Callback] | None) -> list[Callback]:
    """Return one, several or no callbacks as a list, like Airflow does for its own."""
    return [given] if callable(given) else list(given or ())


def call_all(callbacks: Sequence[Callback], context: Context, text: str) -> None:
    """Call the callbacks for trouble, or for a freeze; if one fails, the error is only logged."""
    extended: dict[str, Any] = {**context, TROUBLE: text}
    for callback in callbacks:
        try:
            callback(extended)
        except Exception:
            log.exception("A callback failed; the migration continues. It was to tell: %s", text)


class TroubleNotices:
    """Processes the progress of a copy. It notifies once for each partition that fails or whose records the target has
    lost, once each time some are stuck, and once each time the tail's driver is silent although its task waits for it.

    :param notify: called with a line for people.
    :param gauge: writes a metric with its tags.
    :param copy: what people call the copy that follows the source.
    """

    def __init__(
        self,
        migration_id: str,
        notify: Callable[[str], None],
        *,
        gauge: Gauge | None = None,
        clock: Callable[[], float] = elapsed_seconds,
        copy: str = "tail",
    ) -> None:
        self._copy = copy
        self._migration_id = migration_id
        self._notify = notify
        self._gauge = gauge or write_gauge
        self._failed = 0
        #: None: not seen yet; what the first progress has was notified by the task's former run
        self._went_back: int | None = None
        self._told_stuck = self._told_silent = False
        self._clock = clock
        self._heartbeat, self._heard_at = "", clock()

    def remembered(self) -> dict[str, Any]:
        """Return what was notified, for the task's next part on another machine; JSON-serializable."""
        return {
            "failed": self._failed,
            "went_back": self._went_back,
            "stuck": self._told_stuck,
            "silent": self._told_silent,
            "heartbeat": self._heartbeat,
            "heard_at": time.time() - (self._clock() - self._heard_at),
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Take over what the task's last part has notified. Clocks of machines differ: a silence is never negative."""
        if not memory:
            return
        self._failed, self._told_stuck = int(memory["failed"]), bool(memory["stuck"])
        self._went_back = memory.get("went_back")
        self._told_silent, self._heartbeat = bool(memory["silent"]), str(memory["heartbeat"])
        self._heard_at = self._clock() - max(time.time() - float(memory["heard_at"]), 0.0)

    def __call__(self, progress: Progress) -> None:
        """Process the job's latest progress."""
        if progress.failed < 0:
            return
        tags = {"migration_id": self._migration_id, "phase": progress.phase}
        has_lost = self._went_back is not None and progress.went_back > self._went_back
        has_news = progress.failed > self._failed or has_lost
        is_long = progress.stuck > 0 and progress.stuck_seconds >= STUCK_NOTICE_SECONDS
        has_news = has_news or (is_long and not self._told_stuck)
        # A new driver counts from 0, so a partition that fails again is reported again.
        self._failed, self._went_back = progress.failed, max(progress.went_back, 0)
        self._told_stuck = progress.stuck > 0 and (self._told_stuck or is_long)
        if has_news:
            self._notify(progress.message)
        if progress.phase == "tail":
            self._look_for_silence(progress, tags)

    def _look_for_silence(self, progress: Progress, tags: dict[str, str]) -> None:
        """Detect a driver that hangs. The time is measured by the local clock: other clocks may be wrong."""
        now = self._clock()
        if progress.heartbeat != self._heartbeat:
            self._heartbeat, self._heard_at, self._told_silent = progress.heartbeat, now, False
        silent_seconds = now - self._heard_at
        self._gauge(BY_NAME["silent_seconds"].airflow_name, silent_seconds, tags)
        if silent_seconds >= SILENT_NOTICE_SECONDS and not self._told_silent:
            self._told_silent = True
            self._notify(
                f"the {self._copy}'s driver has not been heard from for {silent_seconds:.0f} s: check that it runs"
            )
