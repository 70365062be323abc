"""Labs for the tests of the cutover."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cutover_support import Lab, closing

from airflow_provider_kafka_migration.lanes import job_progress
from harness.brokers import KafkaCluster


@pytest.fixture(autouse=True)
def _tails_write_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every drain waits until it has heard from the tail."""
    monkeypatch.setattr(job_progress, "_PROGRESS_SECONDS", 0.2)


@pytest.fixture
def make_lab(
    tmp_path: Path, source_cluster: KafkaCluster, target_cluster: KafkaCluster
) -> Iterator[Callable[..., Lab]]:
    """Makes labs and closes them."""
    made: list[Lab] = []

    def make(topics: Sequence[str], **options: Any) -> Lab:
        folder = tmp_path / f"lab-{len(made)}"
        folder.mkdir()
        made.append(Lab(folder, source_cluster, target_cluster, topics, **options))
        return made[-1]

    yield make
    for lab in made:
        with closing(lab):
            pass


@pytest.fixture
def fill(source_cluster: KafkaCluster) -> Callable[[Mapping[str, int], int], None]:
    """Creates topics on the source (name -> partitions) with some records in each partition."""
    from confluent_kafka import Producer

    def make(topics: Mapping[str, int], records: int = 20) -> None:
        source_cluster.create_topics({name: (count, {}) for name, count in topics.items()})
        producer = Producer({**source_cluster.client_config(), "linger.ms": 5})
        for name, count in topics.items():
            for number in range(records * count):
                producer.produce(name, b"value-%d" % number, b"key-%d" % number, number % count)
        assert producer.flush(120) == 0

    return make
