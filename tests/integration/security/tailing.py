"""A tail in this process, and a producer that writes while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from airflow_provider_kafka_migration.lanes.slices import run_slice
from harness.brokers import KafkaCluster
from tests.integration.copy.copying import Copying


@contextmanager
def writing(cluster: KafkaCluster, topic: str) -> Iterator[None]:
    """Records for both partitions, all the time."""
    stop = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
        number = 0
        while not stop.wait(0.005):
            for _ in range(5):
                producer.produce(topic, b"value %d" % number, b"key %d" % number, partition=number % 2)
                number += 1
            producer.poll(0)
        assert producer.flush(120) == 0

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def tail(copy: Copying, seconds: float, stop: Callable[[], bool] | None = None) -> None:
    """Run one slice of the job `tail`, which must have been written."""
    job = copy.clients.load_job(copy.journal, copy.job_key("tail"))
    for result in run_slice(job, job.lanes[0], clients=copy.clients, slice_seconds=seconds, stop=stop):
        assert result.error is None, result.error
