"""A real tail between two brokers, as a scraper sees it: the lag rises while the target throttles, then falls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_kafka_migration.documents.copy import MetricsSettings
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from airflow_provider_kafka_migration.metrics.prometheus import endpoint
from harness.brokers import KafkaCluster
from harness.processes import wait_for
from tests.integration.copy.conftest import MakeCopying

pytestmark = [pytest.mark.integration, pytest.mark.soak]

_SECONDS = 120
_QUOTA = "producer_byte_rate"


class Scraper:
    """Values of a running endpoint, by name and labels other than the common ones."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    def values(self) -> dict[tuple[str, str, str], float]:
        with urlopen(self._url, timeout=30) as answer:
            text = answer.read().decode()
        return {
            (sample.name, sample.labels.get("topic", ""), sample.labels.get("partition", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, topic: str = "", partition: str = "") -> float:
        """-1: there is no such series now."""
        return self.values().get((f"kafka_migration_{name}", topic, partition), -1.0)


@pytest.fixture
def slow_client(target_cluster: KafkaCluster) -> Iterator[tuple[str, Admin]]:
    """A client id that the target allows 20 kB a second."""
    name = f"slow-{time.monotonic_ns()}"
    admin = Admin(ClientConfig.from_librdkafka(target_cluster.client_config(), "target"))
    assert list(admin.alter_quotas({(("client-id", name),): {_QUOTA: 20_000.0}}).values()) == [None]
    yield name, admin
    admin.alter_quotas({(("client-id", name),): {_QUOTA: None}})
    admin.close()


def test_the_lag_rises_while_the_target_throttles_and_falls_afterwards(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    topic: str,
    slow_client: tuple[str, Admin],
) -> None:
    client_id, admin = slow_client
    source_cluster.create_topic(topic, 2)
    references: dict[str, Any] = {
        "source": {"bootstrap.servers": source_cluster.bootstrap},
        "target": {"bootstrap.servers": target_cluster.bootstrap, "client.id": client_id},
        "storage": None,
    }
    settings = MetricsSettings(prometheus_host="127.0.0.1", prometheus_port=0)
    copy = copying([topic], references=references, job_fields={"slice_seconds": 6, "metrics": settings})
    job = copy.write_job("tail")
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap, "linger.ms": 5, "batch.size": 20_000})

    def produce(count: int) -> None:
        for number in range(count):
            producer.produce(topic, b"%d" % number + b"x" * 1000, partition=number % 2)
            producer.poll(0)
        assert producer.flush(60) == 0

    stop = threading.Event()
    runner = LocalRunner(copy.clients, stop=stop.is_set)
    with ThreadPoolExecutor(1) as pool, endpoint(job, copy.clients.store(copy.journal)) as port:
        assert port is not None
        scraper = Scraper(port)
        running = pool.submit(runner.run, job)
        try:
            produce(2)
            wait_for("the first records", lambda: scraper.value("records_total") >= 2, _SECONDS)
            wait_for("no lag", lambda: scraper.value("lag_records") == 0, _SECONDS)
            assert scraper.value("lag_seconds") == 0

            produce(1000)
            wait_for("a lag", lambda: scraper.value("lag_records") > 100, _SECONDS)
            before = scraper.value("lag_records")
            produce(1000)
            wait_for("a larger lag", lambda: scraper.value("lag_records") > before + 100, _SECONDS)
            first = scraper.value("lag_seconds")
            wait_for("an older lag", lambda: scraper.value("lag_seconds") > first >= 0, _SECONDS)
            found = scraper.values()
            assert found[("kafka_migration_lag_records", "", "")] == sum(
                value for (name, _, number), value in found.items() if name == "kafka_migration_partition_lag_records"
            )
            wait_for("what the quota did", lambda: scraper.value("target_throttled_seconds_total") > 0, _SECONDS)

            admin.alter_quotas({(("client-id", client_id),): {_QUOTA: None}})
            wait_for("the end of the lag", lambda: scraper.value("lag_records") == 0, _SECONDS)
            assert scraper.value("lag_seconds") == 0
            positions = [scraper.value("partition_source_offset", topic, str(number)) for number in range(2)]
            assert positions == [1001, 1001]
            # A slice that ends before an answer comes does not count the records, although they are on the target.
            assert 2 < scraper.value("records_total") <= 2002
        finally:
            stop.set()
        running.result(60)
    with pytest.raises(OSError):
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)
    copy.compare().check()
