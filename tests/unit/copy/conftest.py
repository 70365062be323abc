"""Fixtures of the copy's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from simulated.worlds import Worlds


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Worlds]:
    """Pairs of simulated clusters."""
    with ExitStack() as stack:
        yield Worlds(tmp_path, stack)
