"""The Prometheus endpoint of a long-running process: a driver on Spark, or the command line. Off by default.

It has no login and no TLS, so it listens on the loopback interface unless the spec says otherwise. A scrape reads what
the job has stored; several within :data:`CACHE_SECONDS` read it once. Nothing here ever stops a job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_kafka_migration.copy.latency import LatencyHistogram, upper_ms
from airflow_provider_kafka_migration.documents.copy import CopyJob, MetricsSettings
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.metrics.snapshot import LatencyWindow, Snapshot
from airflow_provider_kafka_migration.metrics.table import ALL, BY_NAME, COMMON_LABELS, FLOW_LABEL, Metric
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: Scrapers that come more often are answered from memory.
CACHE_SECONDS = 2.0
_HISTOGRAM = BY_NAME["replication_latency_seconds"]
#: Upper bounds of the histogram's buckets in milliseconds: powers of two, which are also bounds of our own buckets.
_BOUNDS_MS = tuple(1 << power for power in range(3, 17))

log = logging.getLogger(__name__)


class JobCollector:
    """Makes Prometheus families of a job's snapshot. Thread-safe: several scrapers may come at a time.

    :param read: returns the job's snapshot; None if there is none yet.
    """

    def __init__(
        self,
        read: Callable[[], Snapshot | None],
        settings: MetricsSettings,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._read = read
        self._settings = settings
        self._clock = clock
        self._window = LatencyWindow()
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._snapshot: Snapshot | None = None
        self._recent = LatencyHistogram()

    def describe(self) -> list[Any]:
        """Return nothing: registering the collector must not read the storage."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield a family for each metric that has samples.

        Nothing if the storage does not answer: a scrape then has no such series, which is not the same as a lag of 0.
        """
        with self._lock:
            snapshot, recent = self._newest()
            yield from () if snapshot is None else self._families(snapshot, recent)

    def _newest(self) -> tuple[Snapshot | None, LatencyHistogram]:
        now = time.monotonic()
        if now - self._read_at >= CACHE_SECONDS:
            self._read_at = now
            try:
                self._snapshot = self._read()
            except MigrationError as error:
                log.warning("The metrics could not be read: %s", error)
                self._snapshot = None
            if self._snapshot is not None:
                self._recent = self._window.take(self._snapshot.latency, now)
        return self._snapshot, self._recent

    def _families(self, snapshot: Snapshot, recent: LatencyHistogram) -> Iterator[Any]:
        names = (*COMMON_LABELS, *((FLOW_LABEL,) if self._settings.flow else ()))
        families = {metric.name: _family(metric, (*names, *metric.labels)) for metric in ALL if metric.prometheus}
        for metric, labels, value in snapshot.samples(self._settings, self._clock(), recent=recent):
            if metric.prometheus:
                families[metric.name].add_metric([labels[name] for name in (*names, *metric.labels)], value)
        common = {**snapshot.labels, FLOW_LABEL: self._settings.flow}
        buckets, sum_seconds = histogram_buckets(snapshot.latency)
        families[_HISTOGRAM.name].add_metric([common[name] for name in names], buckets, sum_seconds)
        yield from (family for family in families.values() if family.samples)


def _family(metric: Metric, labels: tuple[str, ...]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
    return kinds[metric.kind](metric.prometheus_name.removesuffix("_total"), metric.meaning, labels=labels)


def histogram_buckets(latency: LatencyHistogram) -> tuple[list[tuple[str, float]], float]:
    """Return ((upper bound in seconds, cumulative count) ..., sum of all in seconds) as Prometheus wants them."""
    filled = [(upper_ms(index), count) for index, count in latency.filled()]
    buckets = [
        (str(bound / 1000), float(sum(count for upper, count in filled if upper <= bound))) for bound in _BOUNDS_MS
    ]
    return [*buckets, ("+Inf", float(latency.count))], latency.sum_ms / 1000


@contextmanager
def endpoint(job: CopyJob, store: ObjectStore) -> Iterator[int | None]:
    """Serve a job's metrics under ``/metrics`` until the block ends, if the job asks for it.

    :returns: the port; None if there is no endpoint. A port that is taken, or a missing library, is logged.
    """
    settings = job.metrics
    if settings is None or settings.prometheus_host is None:
        yield None
        return
    with _serving(lambda: Snapshot.read(store, job.migration_id, job.name), settings) as port:
        yield port


@contextmanager
def _serving(read: Callable[[], Snapshot | None], settings: MetricsSettings) -> Iterator[int | None]:
    host, wanted_port = settings.prometheus_host, settings.prometheus_port
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        log.warning(
            "There is no Prometheus endpoint, because prometheus-client is not installed where this process runs: "
            "install airflow-provider-kafka-migration[prometheus], or set metrics.prometheus.enabled: false"
        )
        yield None
        return
    registry = CollectorRegistry(auto_describe=False)
    registry.register(JobCollector(read, settings))
    try:
        server, thread = start_http_server(wanted_port, addr=str(host), registry=registry)
    except (OSError, OverflowError) as error:
        log.warning(
            "There is no Prometheus endpoint on %s:%s (%s): give metrics.prometheus a host of this machine and a free "
            "port; the job runs without it",
            host,
            wanted_port,
            error,
        )
        yield None
        return
    port = int(server.server_port)
    log.info("Prometheus metrics are at http://%s:%d/metrics while this job runs", host, port)
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
