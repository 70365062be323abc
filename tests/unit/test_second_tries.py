"""Second tries of tests on brokers: seen in real pytest runs, with and without workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.second_tries import FIRST_TRIES, MOST_FLAKY_TESTS

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

_ROOT = Path(__file__).parents[2]

_TESTS = """
import pathlib
import pytest

def first_time(name):
    file = pathlib.Path(__file__).with_name(name + ".tried")
    if file.exists():
        return False
    file.touch()
    return True

@pytest.mark.integration
@pytest.mark.parametrize("number", range({flaky}))
def test_flaky(number):
    assert not first_time(f"flaky-{{number}}"), "the broker was slow"

@pytest.mark.e2e
def test_steady():
    pass
"""

_BROKEN = """
import pathlib
import pytest

@pytest.fixture
def broker():
    file = pathlib.Path(__file__).with_name("broker.tried")
    if not file.exists():
        file.touch()
        raise TimeoutError("no broker")

@pytest.mark.integration
def test_slow_broker(broker):
    pass

@pytest.mark.integration
def test_broken():
    assert False

def test_broken_unit():
    assert False

@pytest.mark.soak
@pytest.mark.integration
def test_broken_soak():
    assert False
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini("[pytest]\nmarkers =\n  integration:\n  e2e:\n  soak:\n")
    pytester.makeconftest("from tests.second_tries import *")
    return pytester


def _has(result: pytest.RunResult, **outcomes: int) -> None:
    assert result.parseoutcomes() == outcomes


def test_flaky_tests_pass_and_are_listed(run: pytest.Pytester) -> None:
    run.makepyfile(_TESTS.format(flaky=MOST_FLAKY_TESTS))
    result = run.runpytest_subprocess("-n", "0")
    assert result.ret == pytest.ExitCode.OK
    _has(result, passed=MOST_FLAKY_TESTS + 1, rerun=MOST_FLAKY_TESTS)
    result.stdout.fnmatch_lines(["FLAKY *test_flaky[[]0[]]: AssertionError: the broker was slow"])
    result.stdout.no_fnmatch_line("FLAKY *test_steady*")
    first_tries = (run.path / FIRST_TRIES).read_text()
    assert first_tries.count("AssertionError: the broker was slow") == MOST_FLAKY_TESTS


def test_too_many_flaky_tests_fail_the_run_of_several_workers(run: pytest.Pytester) -> None:
    run.makepyfile(_TESTS.format(flaky=MOST_FLAKY_TESTS + 1))
    result = run.runpytest_subprocess("-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    _has(result, passed=MOST_FLAKY_TESTS + 2, rerun=MOST_FLAKY_TESTS + 1)
    result.stdout.fnmatch_lines([f"The run fails: {MOST_FLAKY_TESTS + 1} tests passed only on their second try*"])


def test_what_a_second_try_is_for(run: pytest.Pytester) -> None:
    """Broken tests fail twice, unit tests and soak runs fail once, and a fixture may fail first, too."""
    run.makepyfile(_BROKEN)
    result = run.runpytest_subprocess("-n", "0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    _has(result, passed=1, failed=3, rerun=2)
    result.stdout.fnmatch_lines(["FLAKY *test_slow_broker: TimeoutError: no broker"])
    result.stdout.no_fnmatch_line("FLAKY *test_broken*")


def test_second_tries_can_be_switched_off(run: pytest.Pytester) -> None:
    run.makepyfile(_BROKEN)
    _has(run.runpytest_subprocess("-n", "0", "-p", "no:rerunfailures"), failed=3, errors=1)
