"""The migration and the cluster of these tests."""

from __future__ import annotations

import pytest
from engine_lab import Lab
from phase_world.world import Worlds


@pytest.fixture
def lab(worlds: Worlds) -> Lab:
    return Lab(worlds.at("seed"))
