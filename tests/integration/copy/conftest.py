"""Copies for the tests of the data plane."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.brokers import KafkaCluster
from tests.integration.copy.copying import Copying


@pytest.fixture
def copying(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, unique_name: Callable[[str], str]
) -> Callable[..., Copying]:
    """Makes a :class:`Copying` of topics that are on the source."""

    def make(topics: list[str], **options: Any) -> Copying:
        return Copying(source_cluster, target_cluster, tmp_path, topics, unique_name("m").lower(), **options)

    return make
