"""The list of deliberate bugs fits the code: each text is there once, and each test that has to notice it exists."""

from __future__ import annotations

from scripts.mutants import ROOT, catalogue


def test_each_deliberate_bug_can_be_made() -> None:
    mutants = catalogue()
    assert mutants
    for mutant in mutants:
        assert mutant.find != mutant.replace, mutant.id
        assert mutant.means, mutant.id
        for test in mutant.tests:
            assert (ROOT / test).exists(), f"{mutant.id}: {test}"
