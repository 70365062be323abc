"""Metrics through Airflow's configuration: what arrives at a StatsD socket and at an OTLP receiver."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from job_snapshots import NOW, entry, snapshot, some_partitions

from airflow_provider_kafka_migration.documents.copy import MetricsSettings
from airflow_provider_kafka_migration.metrics.table import ALL, OTHER
from airflow_provider_kafka_migration.provider import metrics
from airflow_provider_kafka_migration.provider.metrics import MetricsWriter, keeps_tags
from airflow_provider_kafka_migration.storage.local import LocalStore

Written = dict[tuple[str, str, str], float]


class Backend:
    """Keeps the last value of each gauge, as a server does."""

    def __init__(self) -> None:
        self.values: Written = {}

    def __call__(self, name: str, value: float, tags: dict[str, str]) -> None:
        assert (tags["migration_id"], tags["phase"]) == ("orders", "tail")
        self.values[(name, tags.get("topic", ""), tags.get("partition", ""))] = value


def writer(backend: Backend, *, tagged: bool = True, **settings: Any) -> MetricsWriter:
    return MetricsWriter(MetricsSettings(**settings), gauge=backend, tagged=tagged, clock=lambda: NOW)


def test_all_levels_are_written(local_store: LocalStore) -> None:
    backend = Backend()
    writer(backend)(snapshot(local_store, entry("a", 0, 5, waited=2.0), entry("a", 1, 6, waited=1.0)))
    assert backend.values[("kafka_migration.lag_records", "", "")] == 11
    assert backend.values[("kafka_migration.topic_lag_seconds", "a", "")] == 2.0
    assert backend.values[("kafka_migration.partition_lag_records", "a", "1")] == 6
    assert backend.values[("kafka_migration.stuck_seconds", "", "")] == 7.5
    assert {name for name, _, _ in backend.values} <= {item.airflow_name for item in ALL if item.airflow}


def test_without_tags_only_the_migration_is_written(local_store: LocalStore) -> None:
    """Partitions would overwrite each other under one name."""
    backend = Backend()
    writer(backend, tagged=False)(snapshot(local_store, *some_partitions(20)))
    assert ("kafka_migration.lag_records", "", "") in backend.values
    assert not [name for name, _, _ in backend.values if "topic" in name or "partition_" in name]
    assert ("kafka_migration.partitions", "", "") not in backend.values


def test_a_partition_that_is_no_longer_among_the_worst_gets_its_last_value(local_store: LocalStore) -> None:
    backend = Backend()
    write = writer(backend, max_partitions=1)
    write(snapshot(local_store, entry("a", 0, 500), entry("b", 0, 1)))
    assert backend.values[("kafka_migration.partition_lag_records", "a", "0")] == 500
    write(snapshot(local_store, entry("a", 0, 2), entry("b", 0, 70)))
    assert backend.values[("kafka_migration.partition_lag_records", "a", "0")] == 2
    assert backend.values[("kafka_migration.partition_lag_records", "b", "0")] == 70
    assert backend.values[("kafka_migration.partition_lag_records", OTHER, OTHER)] == 2


def test_a_deferred_task_has_percentiles_since_its_last_part(local_store: LocalStore) -> None:
    first, second = Backend(), Backend()
    write = writer(first)
    write(snapshot(local_store, entry("a", 0, 0), latency=[0, 0, 50, 100]))
    assert ("kafka_migration.replication_latency_p99_seconds", "", "") not in first.values
    memory = json.loads(json.dumps(write.remembered()))
    write = writer(second)
    write.recall(memory)
    write(snapshot(local_store, entry("a", 0, 0), latency=[0, 0, 1, 7, 50, 100]))
    assert second.values[("kafka_migration.replication_latency_p99_seconds", "", "")] == 0.002


def test_a_mistake_in_metrics_stops_nothing(local_store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("not a number")

    MetricsWriter(MetricsSettings(), gauge=broken, tagged=True)(snapshot(local_store, entry("a", 0, 5)))
    assert "not a number" in caplog.text


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, False),
        ({"STATSD_ON": "True"}, False),
        ({"STATSD_ON": "True", "STATSD_INFLUXDB_ENABLED": "True"}, True),
        ({"STATSD_DATADOG_ENABLED": "True"}, True),
        ({"OTEL_ON": "True"}, True),
    ],
)
def test_which_backends_keep_tags(settings: dict[str, str], kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__{name}", value)
    assert keeps_tags() is kept


# --- real sockets, each with a process of its own: Airflow's backend is a global of the process ----------------------

_WRITE = """
import sys
from pathlib import Path
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory
stats.initialize(factory=get_stats_factory(), export_legacy_names=False)
from job_snapshots import entry, snapshot
from airflow_provider_kafka_migration.documents.copy import MetricsSettings
from airflow_provider_kafka_migration.provider.metrics import MetricsWriter
from airflow_provider_kafka_migration.storage.local import LocalStore
write = MetricsWriter(MetricsSettings())
write(snapshot(LocalStore(Path(sys.argv[1])), entry("a", 0, 5, waited=2.0), entry("b.c", 1, 6)))
if len(sys.argv) > 2:
    from opentelemetry.metrics import get_meter_provider
    assert get_meter_provider().force_flush()
"""


def write_in_a_process(folder: Path, *more: str, **settings: str) -> None:
    import os

    stats = pytest.importorskip("airflow.sdk.observability.stats", reason="an Airflow before 3.2")
    if not hasattr(stats, "gauge"):
        pytest.skip("an Airflow before 3.3")
    environment = {**os.environ, **{f"AIRFLOW__METRICS__{name}": value for name, value in settings.items()}}
    environment["PYTHONPATH"] = os.pathsep.join(item for item in sys.path if item)
    done = subprocess.run(
        [sys.executable, "-c", _WRITE, str(folder), *more],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def statsd() -> Iterator[socket.socket]:
    """A UDP socket in place of a StatsD server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        yield server


def received(server: socket.socket) -> list[str]:
    server.setblocking(False)
    found = []
    while True:
        try:
            found.append(server.recv(65536).decode())
        except BlockingIOError:
            return found


@pytest.mark.slow
def test_plain_statsd(statsd: socket.socket, tmp_path: Path) -> None:
    write_in_a_process(tmp_path, STATSD_ON="True", STATSD_HOST="127.0.0.1", STATSD_PORT=str(statsd.getsockname()[1]))
    found = received(statsd)
    assert "airflow.kafka_migration.lag_records:11.0|g" in found
    assert not [line for line in found if "partition_lag" in line]


@pytest.mark.slow
def test_statsd_with_tags(statsd: socket.socket, tmp_path: Path) -> None:
    write_in_a_process(
        tmp_path,
        STATSD_ON="True",
        STATSD_INFLUXDB_ENABLED="True",
        STATSD_HOST="127.0.0.1",
        STATSD_PORT=str(statsd.getsockname()[1]),
    )
    found = received(statsd)
    name = "airflow.kafka_migration.partition_lag_records,migration_id=orders,phase=tail,topic=b.c,partition=1"
    assert f"{name}:6.0|g" in found


@pytest.fixture
def otlp() -> Iterator[tuple[int, list[bytes]]]:
    """An OTLP receiver over HTTP: (port, bodies)."""
    bodies: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server.server_port, bodies
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_opentelemetry(otlp: tuple[int, list[bytes]], tmp_path: Path) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    port, bodies = otlp
    write_in_a_process(tmp_path, "flush", OTEL_ON="True", OTEL_HOST="127.0.0.1", OTEL_PORT=str(port))
    found = {}
    for body in bodies:
        request = ExportMetricsServiceRequest.FromString(body)
        for metric in (m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics):
            for point in metric.gauge.data_points:
                tags = {item.key: item.value.string_value for item in point.attributes}
                found[(metric.name, tags.get("topic", ""), tags.get("partition", ""))] = point.as_double
    assert found[("airflow.kafka_migration.lag_records", "", "")] == 11
    assert found[("airflow.kafka_migration.partition_lag_records", "b.c", "1")] == 6
    assert found[("airflow.kafka_migration.topic_lag_records", "a", "")] == 5


def test_without_a_backend_nothing_happens() -> None:
    metrics.write_gauge("kafka_migration.lag_records", 1.0, {"migration_id": "orders"})
