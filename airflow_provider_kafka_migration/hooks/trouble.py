"""Partitions that seed or tail cannot copy: gauges for Airflow's metrics, and a notification when it matters.

The task itself stays green: it tries again for as long as it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.phases.context import Progress

log = logging.getLogger(__name__)

#: A broker that is restarted wakes nobody up.
STUCK_NOTICE_SECONDS = 120.0

#: Key in the context that callbacks get: the line about the partitions that are not copied.
TROUBLE = "migration_trouble"

Gauge = Callable[[str, float, dict[str, str]], None]


class TroubleNotices:
    """Takes the progress of a copy; notifies once of each partition that fails, and once per time that some are stuck.

    :param notify: called with a line for people.
    :param gauge: writes a metric with its tags.
    """

    def __init__(self, migration_id: str, notify: Callable[[str], None], *, gauge: Gauge | None = None) -> None:
        self._migration_id = migration_id
        self._notify = notify
        self._gauge = gauge or _write_gauge
        self._failed = 0
        self._told_stuck = False

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


def _write_gauge(name: str, value: float, tags: dict[str, str]) -> None:
    """Airflow's own metrics; without a backend for them nothing happens."""
    try:
        from airflow.sdk.observability.stats import gauge

        gauge(name, value, tags=tags)
    except Exception as error:  # a metrics server that cannot be reached must not stop a migration
        log.debug("The metric %s could not be written: %s", name, error)
