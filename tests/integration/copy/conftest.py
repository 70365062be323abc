"""Copies for the tests of the data plane, and clusters that differ from the usual ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.brokers import KafkaCluster
from harness.copiers.copying import Copying
from harness.raw_writer import RawWriter

MakeCopying = Callable[..., Copying]


def kept_topic(cluster: KafkaCluster, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """A topic of a source that takes and keeps records of all times; Kafka 4 refuses future ones by default."""
    always = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
    cluster.create_topic(name, partitions, config=always | dict(config or {}))


@pytest.fixture
def copying(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, unique_name: Callable[[str], str]
) -> MakeCopying:
    """Makes a :class:`Copying` of topics that are on the source."""

    def make(
        topics: list[str], *, source: KafkaCluster | None = None, target: KafkaCluster | None = None, **options: Any
    ) -> Copying:
        name = unique_name("m").lower()
        return Copying(source or source_cluster, target or target_cluster, tmp_path / name, topics, name, **options)

    return make


@pytest.fixture
def raw_writer(source_cluster: KafkaCluster) -> Iterator[RawWriter]:
    """Writes batches of any shape to the source."""
    with RawWriter(source_cluster.bootstrap) as writer:
        yield writer


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Kafka 3.9.1 that speaks as 2.8 did: it still writes message formats 0 and 1. Its retention is swept often."""
    config = {
        "inter.broker.protocol.version": "2.8",
        "log.message.format.version": "2.8",
        "log.retention.check.interval.ms": "300",
        "log.initial.task.delay.ms": "500",
        "log.segment.delete.delay.ms": "100",
    }
    folder = tmp_path_factory.mktemp("old-source")
    with KafkaCluster(folder, "3.9.1", "zookeeper", config=config, sasl=False, authorizer=False) as cluster:
        yield cluster
