"""Metrics of seed and tail through Airflow's own metrics configuration: StatsD, Datadog or OpenTelemetry.

The task writes them while it waits for the job, or each time that it wakes up if it is deferred.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_kafka_migration.copy.latency import LatencyHistogram
from airflow_provider_kafka_migration.documents.copy import MetricsSettings
from airflow_provider_kafka_migration.metrics.snapshot import LatencyWindow, Sample, Snapshot
from airflow_provider_kafka_migration.provider.compat import conf, write_airflow_gauge

log = logging.getLogger(__name__)

Gauge = Callable[[str, float, dict[str, str]], None]

_Series = tuple[str, tuple[tuple[str, str], ...]]


def write_gauge(name: str, value: float, tags: dict[str, str]) -> None:
    """Write a metric through Airflow; without a metrics backend nothing happens."""
    try:
        write_airflow_gauge(name, value, tags)
    except Exception as error:  # an unreachable metrics server must not stop a migration
        log.debug("The metric %s could not be written: %s", name, error)


def keeps_tags() -> bool:
    """Return whether Airflow's metrics backend keeps tags.

    Plain StatsD has none, so the values of all partitions would overwrite each other under one name.
    """

    def is_on(key: str) -> bool:
        return bool(conf.getboolean("metrics", key, fallback=False))

    if is_on("statsd_datadog_enabled"):
        return bool(conf.getboolean("metrics", "statsd_datadog_metrics_tags", fallback=True))
    return is_on("statsd_influxdb_enabled") if is_on("statsd_on") else is_on("otel_on")


class MetricsWriter:
    """Writes the samples of each snapshot as gauges.

    :param tagged: whether the backend keeps tags; without, only metrics of the whole migration are written.
    """

    def __init__(
        self,
        settings: MetricsSettings,
        *,
        gauge: Gauge = write_gauge,
        tagged: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._gauge = gauge
        self._tagged = keeps_tags() if tagged is None else tagged
        self._clock = clock
        self._window = LatencyWindow()
        self._latency = LatencyHistogram()
        self._written: dict[_Series, Sample] = {}

    def remembered(self) -> dict[str, Any]:
        """Return what the task's next part needs, on whatever machine; JSON-serializable."""
        return {"latency": self._latency.flat()}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Take over what the task's last part has written: percentiles are then those of the time in between."""
        if memory:
            earlier = LatencyHistogram()
            earlier.merge(memory["latency"])
            self._window.take(earlier, self._clock())

    def __call__(self, snapshot: Snapshot) -> None:
        """Write all metrics of a snapshot. Whatever is wrong with metrics, the migration goes on."""
        try:
            self._write(snapshot, self._clock())
        except Exception:
            log.exception("The metrics could not be written; the migration continues")

    def _write(self, snapshot: Snapshot, now: float) -> None:
        self._latency = snapshot.latency
        recent = self._window.take(self._latency, now)
        written: dict[_Series, Sample] = {}
        for sample in snapshot.samples(self._settings, now, recent=recent):
            if sample.metric.airflow and (self._tagged or sample.metric.level == "migration"):
                written[(sample.metric.name, tuple(sorted(sample.labels.items())))] = sample
        for sample in (*written.values(), *self._ended(snapshot, written, now)):
            self._gauge(sample.metric.airflow_name, sample.value, dict(sample.labels))
        self._written = written

    def _ended(self, snapshot: Snapshot, written: Mapping[_Series, Sample], now: float) -> list[Sample]:
        """Return last values of series that have no value any more because others are worse: a gauge keeps its value.

        Without them, a backend would show for hours what a partition's lag was when it was last among the worst.
        """
        gone = {key for key in self._written if key not in written and self._written[key].metric.level != "migration"}
        if not gone:
            return []
        everything = self._settings.model_copy(update={"max_topics": 1 << 30, "max_partitions": 1 << 30})
        samples = snapshot.samples(everything, now, recent=None)
        return [item for item in samples if (item.metric.name, tuple(sorted(item.labels.items()))) in gone]
