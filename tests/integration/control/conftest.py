"""Fixtures of the control plane's tests on real brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.brokers import KafkaCluster
from tests.integration.control.control_support import Control


@pytest.fixture(scope="module", autouse=True)
def nobody_has_rights(source_cluster: KafkaCluster, target_cluster: KafkaCluster) -> None:
    """What everybody may see would be seen by the users of these tests."""
    for cluster in (source_cluster, target_cluster):
        cluster.forget_rights("*")


@pytest.fixture
def make_control(
    tmp_path: Path,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> Iterator[Callable[..., Control]]:
    """Makes migrations and closes them."""
    made: list[Control] = []

    def make(prefix: str | None = None, **options: Any) -> Control:
        folder = tmp_path / f"control-{len(made)}"
        folder.mkdir()
        name = prefix or f"{unique_name('c')}."
        made.append(Control(folder, source_cluster, target_cluster, name, **options))
        return made[-1]

    yield make
    for control in made:
        control.close()


@pytest.fixture
def control(make_control: Callable[..., Control]) -> Control:
    """One migration of its own topics."""
    return make_control()
