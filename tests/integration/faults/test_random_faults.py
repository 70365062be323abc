"""Random faults, in small; the part ``faults`` of ``make soak`` has hundreds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.faults.lab import FaultLab
from harness.faults.random_faults import FaultRun
from harness.faults.writers import THREE_YEARS_SECONDS

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("brokers", "age_seconds"),
    [
        pytest.param(1, 0.0, id="records of today, one broker"),
        pytest.param(3, THREE_YEARS_SECONDS, id="records of three years ago, three brokers"),
    ],
)
def test_random_faults_cost_nothing(tmp_path: Path, brokers: int, age_seconds: float) -> None:
    """Ten of each, besides the hundreds of `make soak`."""
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    with FaultLab(tmp_path / "lab", brokers=brokers) as lab:
        result = FaultRun(lab, seed, 10, age_seconds=age_seconds, max_seconds=150).run()
    print(result.line())
    assert result.faults >= 10
    assert not result.damage.named
    assert not result.damage.silent, result.damage.where
    assert result.damage.records > 1_000
