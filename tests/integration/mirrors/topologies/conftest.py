"""The third cluster of the topologies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.brokers import KafkaCluster


@pytest.fixture(scope="module")
def third_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Where chains end, and the others are gathered."""
    with KafkaCluster(tmp_path_factory.mktemp("third"), "4.1.1", "kraft") as cluster:
        yield cluster


@pytest.fixture
def clusters(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, third_cluster: KafkaCluster
) -> dict[str, KafkaCluster]:
    """The three clusters by the alias that mirrors have for them."""
    return {"A": source_cluster, "B": target_cluster, "C": third_cluster}
