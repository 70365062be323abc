"""Worlds for the tests of bad input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.brokers import KafkaCluster
from harness.s3 import S3Server
from tests.integration.bad_input.world import World


@pytest.fixture
def world(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    s3_server: S3Server,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> World:
    """A good migration."""
    return World(tmp_path, source_cluster, target_cluster, s3_server, unique_name("bad").lower())


@pytest.fixture
def untouched(world: World) -> Iterator[World]:
    """A good migration whose target must hold afterwards what it held before, and whose source, too."""
    before = world.holdings(), world.holdings(world.source_cluster)
    yield world
    after = world.holdings(), world.holdings(world.source_cluster)
    own = {name for name in after[1]["topics"] if name.startswith(world.prefix)}
    after[1]["topics"] = [name for name in after[1]["topics"] if name not in own]
    before[1]["topics"] = [name for name in before[1]["topics"] if name not in own]
    assert after == before
