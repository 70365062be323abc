"""Limits of speed: our own, and the brokers' quotas, which are obeyed and shown; and partitions that have nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.lanes.assignment import set_rates
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from harness.brokers import KafkaCluster
from harness.processes import wait_for
from tests.integration.copy.conftest import MakeCopying

pytestmark = pytest.mark.integration

MEGABYTES = 3


@pytest.fixture
def bulk(source_cluster: KafkaCluster, topic: str) -> str:
    """A topic of two partitions with 3 MB in small batches that no codec makes smaller."""
    source_cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap, "linger.ms": 5, "batch.size": 20_000})
    for number in range(MEGABYTES * 1000):
        producer.produce(topic, b"%d" % number + b"x" * 1000, partition=number % 2)
        producer.poll(0)
    assert producer.flush(120) == 0
    return topic


@pytest.mark.parametrize("via", ["direct", "s3"])
def test_max_bytes_per_second(copying: MakeCopying, bulk: str, via: str) -> None:
    copy = copying([bulk], via=via, job_fields={"max_bytes_per_second": 1_500_000, "segment_max_bytes": 100_000})
    started = time.monotonic()
    progress = copy.run()
    seconds = time.monotonic() - started
    # The first piece is free: what was read is what the next one waits for.
    assert int(progress["copied_bytes"]) / seconds < 1.6 * 1_500_000
    copy.compare().check()


def test_the_rate_of_a_running_copy_is_changed(copying: MakeCopying, bulk: str) -> None:
    """At 200 bytes a second and lane it would take two hours."""
    copy = copying([bulk], job_fields={"max_bytes_per_second": 200, "slice_seconds": 3600})
    store = copy.clients.store(copy.journal)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(copy.run, segment_max_bytes=100_000)
        wire = copy.clients.wire("target")
        keys = [(bulk, 0), (bulk, 1)]
        wait_for("the first records", lambda: sum(wire.list_offsets(keys, "log_end").values()) > 0, 120)
        set_rates(store, copy.migration_id, {"seed": 0}, set_by="test", set_at="now")
        assert running.result(120)["finished"]
    copy.compare().check()


@pytest.fixture
def quotas(source_cluster: KafkaCluster, target_cluster: KafkaCluster) -> Iterator[dict[str, str]]:
    """Client ids that both clusters allow 200 kB a second: 2 MB pass at once, by Kafka's rule of ten windows."""
    limits = {"source": "consumer_byte_rate", "target": "producer_byte_rate"}
    clusters = {"source": source_cluster, "target": target_cluster}
    names = {side: f"slow-{side}-{time.monotonic_ns()}" for side in clusters}
    admins = {side: Admin(ClientConfig.from_librdkafka(clusters[side].client_config(), "target")) for side in clusters}
    for side, admin in admins.items():
        answers = admin.alter_quotas({(("client-id", names[side]),): {limits[side]: 200_000.0}})
        assert list(answers.values()) == [None]
    yield names
    for side, admin in admins.items():
        admin.alter_quotas({(("client-id", names[side]),): {limits[side]: None}})
        admin.close()


@pytest.mark.soak
@pytest.mark.parametrize("slow", ["source", "target"])
def test_quotas_of_brokers_are_obeyed_and_shown(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    bulk: str,
    quotas: dict[str, str],
    slow: str,
) -> None:
    """One side at a time: a source that is slow keeps the copy below the target's quota."""
    references: dict[str, Any] = {
        "source": {"bootstrap.servers": source_cluster.bootstrap},
        "target": {"bootstrap.servers": target_cluster.bootstrap},
        "storage": None,
    }
    references[slow]["client.id"] = quotas[slow]
    copy = copying([bulk], references=references, job_fields={"slice_seconds": 60, "segment_max_bytes": 100_000})
    started = time.monotonic()
    progress = copy.run()
    seconds = time.monotonic() - started
    throttled = {side: float(progress[f"{side}_throttled_seconds"]) for side in ("source", "target")}
    print(f"{seconds:.1f} s, throttled by the {slow} alone: {throttled}")
    assert 0.5 < throttled.pop(slow) < seconds + 10, "a pause that is still to come when the copy ends counts, too"
    assert set(throttled.values()) == {0.0}
    assert seconds > (MEGABYTES - 2) * 1_000_000 / 200_000 / 2, "what the brokers said was not waited for"
    copy.compare().check()


@pytest.mark.soak
def test_busy_partitions_beside_a_thousand_idle_ones(
    copying: MakeCopying, source_cluster: KafkaCluster, topic: str
) -> None:
    """What idle ones cost is measured by ``make bench-idle``; here all of them arrive, woken up ones too."""
    busy, idle = f"{topic}.busy", f"{topic}.idle"
    source_cluster.create_topic(busy, 10)
    source_cluster.create_topic(idle, 1000)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap, "linger.ms": 5})
    copy = copying([busy, idle], job_fields={"slice_seconds": 5})
    stop = threading.Event()
    job = copy.write_job("tail")
    runner = LocalRunner(copy.clients, stop=stop.is_set)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runner.run, job)
        try:
            for number in range(30_000):
                producer.produce(busy, b"%d" % number, partition=number % 10)
                if number % 100 == 0:
                    producer.produce(idle, b"%d" % number, partition=(number * 7) % 1000)
                    producer.poll(0.05)
            assert producer.flush(60) == 0
        finally:
            stop.set()
        running.result(60)
    copy.run(max_concurrent_partitions=1000)
    copy.compare().check()
