"""Labs: two clusters behind proxies each, started when the first test of a module asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.faults.lab import FaultLab
from harness.faults.net_scenarios import SWEEPING


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultLab]:
    """One broker on each side; the target forgets producers of old records within a fifth of a second."""
    with FaultLab(tmp_path_factory.mktemp("lab"), target_config=SWEEPING) as lab:
        yield lab


@pytest.fixture(scope="package")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultLab]:
    """Three brokers on the target, replication factor 3, min.insync.replicas 2."""
    with FaultLab(tmp_path_factory.mktemp("lab3"), brokers=3, target_config=SWEEPING) as lab:
        yield lab
