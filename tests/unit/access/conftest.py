"""Simulated migrations for the tests of access settings."""

from __future__ import annotations

import pytest
from phase_support import SIGNING_SEED
from phase_world.world import SIGNING_KEY, Worlds, without_probes


@pytest.fixture(scope="session")
def all_worlds() -> Worlds:
    """Worlds that all tests of a process share; only :func:`worlds` uses them directly."""
    return Worlds()


@pytest.fixture
def worlds(all_worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> Worlds:
    """Copies of migrations at the beginning of any phase."""
    monkeypatch.setenv(SIGNING_KEY, SIGNING_SEED)
    monkeypatch.setenv("SHOP_SECRET", "s" * 20)
    without_probes(monkeypatch)
    return all_worlds
