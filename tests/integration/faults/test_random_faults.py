"""Random faults, in small; ``make soak`` has hundreds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.fault_lab import FaultLab
from harness.fault_writers import THREE_YEARS_SECONDS
from harness.faults import FaultRun

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def test_twenty_random_faults_cost_nothing(tmp_path: Path) -> None:
    """Half of them with records of today, half with records of three years ago."""
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    with FaultLab(tmp_path / "lab") as lab:
        for number, age_seconds in enumerate((0.0, THREE_YEARS_SECONDS)):
            result = FaultRun(lab, seed + number, 10, age_seconds=age_seconds, max_seconds=100).run()
            print(result.line())
            assert result.faults >= 10
            assert not result.damage.named
            assert not result.damage.silent, result.damage.where
            assert result.damage.records > 1_000
