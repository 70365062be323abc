"""What tests of mirrors share: worlds whose precheck needs no more than two clusters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from phase_support import Clock
from phase_world.world import Worlds, without_probes

from airflow_provider_kafka_migration.mirrors import last_looks


@pytest.fixture(autouse=True)
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)


@pytest.fixture(autouse=True)
def window(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of a promotion's window: pauses take no time."""
    clock = Clock()
    monkeypatch.setattr(last_looks, "time", SimpleNamespace(sleep=clock.sleep, monotonic=clock.seconds))
    return clock


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()
