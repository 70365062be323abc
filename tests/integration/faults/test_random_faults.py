"""Random faults, in small; ``make soak`` has hundreds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.fault_lab import FaultLab
from harness.fault_writers import THREE_YEARS_SECONDS
from harness.faults import FaultRun

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("brokers", "age_seconds"),
    [(1, 0.0), (3, THREE_YEARS_SECONDS)],
    ids=["records of today, one broker", "records of three years ago, three brokers"],
)
def test_random_faults_cost_nothing(tmp_path: Path, brokers: int, age_seconds: float) -> None:
    """Twenty in all."""
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    with FaultLab(tmp_path / "lab", brokers=brokers) as lab:
        result = FaultRun(lab, seed, 10, age_seconds=age_seconds, max_seconds=150).run()
    print(result.line())
    assert result.faults >= 10
    assert not result.damage.named
    assert not result.damage.silent, result.damage.where
    assert result.damage.records > 1_000
