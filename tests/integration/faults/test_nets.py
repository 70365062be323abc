"""Each net of the data plane holds where it is the one that counts, and the harness finds the damage without it."""

from __future__ import annotations

import pytest

from harness.faults.lab import FaultLab
from harness.faults.net_scenarios import NAMED_WITH_ALL_NETS, SCENARIOS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

#: Others show in `make test` that these hold.
LONG = {"lease", "sequence", "all"}


def one_broker(soak: set[str]) -> list[object]:
    """Names of the situations; the long ones are for soak runs."""
    names = [name for name, (_, _, brokers) in SCENARIOS.items() if brokers == 1]
    return [pytest.param(name, marks=pytest.mark.soak if name in soak else ()) for name in names]


@pytest.mark.parametrize("name", one_broker(LONG))
def test_with_all_nets(lab: FaultLab, name: str) -> None:
    _, scenario, _ = SCENARIOS[name]
    damage = scenario(lab, [])
    assert bool(damage.named) == (name in NAMED_WITH_ALL_NETS), damage
    assert damage.named or not damage.found, damage


@pytest.mark.soak
@pytest.mark.parametrize("name", one_broker({"all"}))
def test_without_one_net(lab: FaultLab, name: str) -> None:
    off, scenario, _ = SCENARIOS[name]
    damage = scenario(lab, off)
    assert damage.found, damage
    if name in NAMED_WITH_ALL_NETS:
        assert damage.silent, damage
        assert not damage.named, damage
