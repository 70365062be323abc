"""Partitions that seed or tail cannot copy: gauges for Airflow's metrics, and a notification when it matters.

The task itself stays green: it tries again for as long as it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.kafka.clock import elapsed_seconds

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.record.context import Progress

log = logging.getLogger(__name__)

#: A broker that is restarted wakes nobody up.
STUCK_NOTICE_SECONDS = 120.0

#: Key in the context that callbacks get: the line about the partitions that are not copied.
TROUBLE = "migration_trouble"

#: A driver that is started again, or waits for its first executor, wakes nobody up.
SILENT_NOTICE_SECONDS = 120.0

Callback = Callable[[Any], object]
Gauge = Callable[[str, float, dict[str, str]], None]


def as_callbacks(given: Callback | Sequence[Callback] | None) -> list[Callback]:
    """One, several or none, as Airflow takes its own callbacks."""
    return [given] if callable(given) else list(given or ())


def call_all(callbacks: Sequence[Callback], context: Context, text: str) -> None:
    """Call those who want to know of trouble; one that fails is logged and does no harm."""
    extended: dict[str, Any] = {**context, TROUBLE: text}
    for callback in callbacks:
        try:
            callback(extended)
        except Exception:
            log.exception("A callback of partitions that are not copied failed; the migration goes on")


class TroubleNotices:
    """Takes the progress of a copy; notifies once of each partition that fails, once per time that some are stuck, and
    once per time that the tail's driver is silent although its task waits for it.

    :param notify: called with a line for people.
    :param gauge: writes a metric with its tags.
    """

    def __init__(
        self,
        migration_id: str,
        notify: Callable[[str], None],
        *,
        gauge: Gauge | None = None,
        clock: Callable[[], float] = elapsed_seconds,
    ) -> None:
        self._migration_id = migration_id
        self._notify = notify
        self._gauge = gauge or _write_gauge
        self._failed = 0
        self._told_stuck = self._told_silent = False
        self._clock = clock
        self._heartbeat, self._heard_at = "", clock()

    def __call__(self, progress: Progress) -> None:
        """Take in what the job has written last."""
        if progress.failed < 0:
            return
        tags = {"migration_id": self._migration_id, "phase": progress.phase}
        for name, value in (
            ("partitions_failed", progress.failed),
            ("partitions_stuck", progress.stuck),
            ("stuck_seconds", max(progress.stuck_seconds, 0.0)),
        ):
            self._gauge(f"kafka_migration.{name}", value, tags)
        has_news = progress.failed > self._failed
        is_long = progress.stuck > 0 and progress.stuck_seconds >= STUCK_NOTICE_SECONDS
        has_news = has_news or (is_long and not self._told_stuck)
        # A new driver counts from 0, so a partition that fails again is reported again.
        self._failed = progress.failed
        self._told_stuck = progress.stuck > 0 and (self._told_stuck or is_long)
        if has_news:
            self._notify(progress.message)
        if progress.phase == "tail":
            self._look_for_silence(progress, tags)

    def _look_for_silence(self, progress: Progress, tags: dict[str, str]) -> None:
        """A driver that hangs does not say so. Measured by the clock of the one who looks: others may be wrong."""
        now = self._clock()
        if progress.heartbeat != self._heartbeat:
            self._heartbeat, self._heard_at, self._told_silent = progress.heartbeat, now, False
        silent_seconds = now - self._heard_at
        self._gauge("kafka_migration.silent_seconds", silent_seconds, tags)
        if silent_seconds >= SILENT_NOTICE_SECONDS and not self._told_silent:
            self._told_silent = True
            self._notify(f"the tail's driver has not been heard from for {silent_seconds:.0f} s: check that it runs")


def _write_gauge(name: str, value: float, tags: dict[str, str]) -> None:
    """Airflow's own metrics; without a backend for them nothing happens."""
    try:
        from airflow.sdk.observability.stats import gauge

        gauge(name, value, tags=tags)
    except Exception as error:  # a metrics server that cannot be reached must not stop a migration
        log.debug("The metric %s could not be written: %s", name, error)
