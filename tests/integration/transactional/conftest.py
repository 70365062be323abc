"""Copies in transactions, on targets of both transaction versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.brokers import KafkaCluster
from harness.copiers.copying import Copying
from tests.integration.transactional.transactional_support import in_transactions

MakeCopying = Callable[..., Copying]


@pytest.fixture(scope="module")
def first_version_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A target of the time before KIP-890: 3.9.1 knows transaction version 1 only."""
    folder = tmp_path_factory.mktemp("target-39")
    with KafkaCluster(folder, "3.9.1", "zookeeper", sasl=False, authorizer=False) as cluster:
        yield cluster


@pytest.fixture
def copying(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, unique_name: Callable[[str], str]
) -> MakeCopying:
    """Makes a :class:`Copying` whose partitions are all copied in transactions."""

    def make(topics: list[str], *, target: KafkaCluster | None = None, **options: Any) -> Copying:
        name = unique_name("m").lower()
        verdicts = in_transactions(source_cluster, topics)
        return Copying(
            source_cluster, target or target_cluster, tmp_path / name, topics, name, verdicts=verdicts, **options
        )

    return make
