"""The endpoint as a scraper sees it: real HTTP, and Prometheus' own parser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from job_documents import job, lane, partition
from job_snapshots import document, entry
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_kafka_migration.documents.copy import MetricsSettings
from airflow_provider_kafka_migration.errors import StorageUnavailable
from airflow_provider_kafka_migration.metrics import prometheus
from airflow_provider_kafka_migration.metrics.prometheus import endpoint
from airflow_provider_kafka_migration.metrics.table import ALL, prometheus_series
from airflow_provider_kafka_migration.storage.local import LocalStore

LANE = lane(0, partition("a", 0))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scrape reads again."""
    monkeypatch.setattr(prometheus, "CACHE_SECONDS", 0.0)


def settings(**fields: Any) -> MetricsSettings:
    return MetricsSettings(**{"prometheus_host": "127.0.0.1", "prometheus_port": 0, **fields})


def put(store: LocalStore, *partitions: dict[str, Any], **more: Any) -> None:
    import json

    store.put("m1/progress/tail.json", json.dumps(document(*partitions, **{"migration_id": "m1", **more})).encode())


def scrape(port: int | None) -> Iterator[Any]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return text_string_to_metric_families(answer.read().decode())


def test_a_scrape(local_store: LocalStore) -> None:
    put(local_store, entry("a", 0, 5), latency=[4009, 6, 3, 3, 50, 1], target_throttled_seconds=1.5)
    with endpoint(job([LANE], metrics=settings()), local_store) as port:
        families = {family.name: family for family in scrape(port)}
    assert {sample.name for family in families.values() for sample in family.samples} <= prometheus_series()
    (lag,) = families["kafka_migration_partition_lag_records"].samples
    assert (lag.labels, lag.value) == ({"migration_id": "m1", "phase": "tail", "topic": "a", "partition": "0"}, 5)
    assert families["kafka_migration_lag_records"].type == "gauge"
    assert families["kafka_migration_lag_records"].documentation.startswith("Sum over all partitions")
    throttled = families["kafka_migration_target_throttled_seconds"]
    assert (throttled.type, throttled.samples[0].name) == ("counter", "kafka_migration_target_throttled_seconds_total")
    assert throttled.samples[0].value == 1.5
    (untimed,) = families["kafka_migration_untimed_records"].samples
    assert untimed.value == 6


def test_the_histogram(local_store: LocalStore) -> None:
    put(local_store, entry("a", 0, 5), latency=[4009, 0, 3, 3, 50, 1])
    with endpoint(job([LANE], metrics=settings()), local_store) as port:
        families = {family.name: family for family in scrape(port)}
    found = {
        (sample.name.rpartition("_")[2], sample.labels.get("le", "")): sample.value
        for sample in families["kafka_migration_replication_latency_seconds"].samples
    }
    assert (found[("bucket", "0.008")], found[("bucket", "0.016")]) == (3, 3)
    assert found[("bucket", "65.536")] == found[("bucket", "+Inf")] == found[("count", "")] == 4
    assert found[("sum", "")] == 4.009
    counts = [value for (name, _), value in found.items() if name == "bucket"]
    assert counts == sorted(counts)


def test_all_metrics_of_the_table_can_be_scraped(local_store: LocalStore) -> None:
    put(
        local_store,
        entry("a", 0, 5, waited=3.0),
        latency=[0, 0, 1, 1],
        source_throttled_seconds=0.0,
        target_throttled_seconds=0.0,
    )
    local_store.put("m1/results/groups.json", b'{"at": "2026-11-23T09:00:00Z", "groups": []}')
    local_store.put("m1/results/mirror-maker-heartbeats.json", b'{"written_at": "2026-11-23T09:00:00Z"}')
    with endpoint(job([LANE], metrics=settings()), local_store) as port:
        list(scrape(port))
        put(
            local_store,
            entry("a", 0, 5, waited=3.0),
            latency=[0, 0, 1, 2],
            source_throttled_seconds=0.0,
            target_throttled_seconds=0.0,
        )
        found = {sample.name for family in scrape(port) for sample in family.samples}
    assert found == prometheus_series()
    assert [item.name for item in ALL if not item.prometheus] == ["silent_seconds"]


def test_there_is_none_unless_it_is_asked_for(local_store: LocalStore) -> None:
    for metrics in (None, MetricsSettings()):
        with endpoint(job([LANE], metrics=metrics), local_store) as port:
            assert port is None


def test_it_ends_with_the_job_also_with_an_error(local_store: LocalStore) -> None:
    ports = []
    with pytest.raises(RuntimeError), endpoint(job([LANE], metrics=settings()), local_store) as port:  # noqa: PT012
        ports.append(port)
        list(scrape(port))
        raise RuntimeError
    with pytest.raises(URLError):
        scrape(ports[0])


def test_it_listens_where_it_is_told_to(local_store: LocalStore) -> None:
    """Nobody else on the network reaches a server on the loopback interface."""
    with endpoint(job([LANE], metrics=settings()), local_store) as port:
        assert port is not None
        with socket.socket() as other:
            # The same port on another address of this machine is free.
            other.bind(("127.0.0.2", port))


def test_a_port_that_is_taken_stops_no_job(local_store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = settings(prometheus_port=taken.getsockname()[1])
        with endpoint(job([LANE], metrics=wanted), local_store) as port:
            assert port is None
    assert "give metrics.prometheus a host of this machine and a free port" in caplog.text


def test_a_missing_library_stops_no_job(
    local_store: LocalStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with endpoint(job([LANE], metrics=settings()), local_store) as port:
        assert port is None
    assert "airflow-provider-kafka-migration[prometheus]" in caplog.text


def test_a_storage_that_is_away_gives_no_values(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape without series is not a lag of 0; an alert on absent series finds it."""
    put(local_store, entry("a", 0, 5))
    with endpoint(job([LANE], metrics=settings()), local_store) as port:
        assert list(scrape(port))

        def away(_key: str) -> bytes:
            raise StorageUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(local_store, "get", away)
            assert list(scrape(port)) == []
        assert list(scrape(port))
