"""What tests of mirrors share: worlds whose precheck needs no more than two clusters."""

from __future__ import annotations

import pytest
from phase_world.world import Worlds, without_probes


@pytest.fixture(autouse=True)
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()
