"""Second tries of tests on brokers: seen in real pytest runs, with and without workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.second_tries import MOST_FLAKY_TESTS

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


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_flaky_test_passes_and_is_listed(run: pytest.Pytester, workers: str) -> None:
    run.makepyfile(_TESTS.format(flaky=MOST_FLAKY_TESTS))
    result = run.runpytest_subprocess("-n", workers)
    assert result.ret == pytest.ExitCode.OK
    _has(result, passed=MOST_FLAKY_TESTS + 1, rerun=MOST_FLAKY_TESTS)
    result.stdout.fnmatch_lines(["FLAKY *test_flaky[[]0[]]: AssertionError: the broker was slow"])
    result.stdout.no_fnmatch_line("FLAKY *test_steady*")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_too_many_flaky_tests_fail_the_run(run: pytest.Pytester, workers: str) -> None:
    run.makepyfile(_TESTS.format(flaky=MOST_FLAKY_TESTS + 1))
    result = run.runpytest_subprocess("-n", workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    _has(result, passed=MOST_FLAKY_TESTS + 2, rerun=MOST_FLAKY_TESTS + 1)
    result.stdout.fnmatch_lines([f"The run fails: {MOST_FLAKY_TESTS + 1} tests passed only on their second try*"])


def test_a_test_that_fails_twice_fails_and_is_not_called_flaky(run: pytest.Pytester) -> None:
    run.makepyfile("import pytest\n@pytest.mark.integration\ndef test_broken():\n    assert False\n")
    result = run.runpytest_subprocess("-n", "0")
    _has(result, failed=1, rerun=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("FLAKY *")


@pytest.mark.parametrize("marker", ["", "@pytest.mark.soak\n@pytest.mark.integration\n"])
def test_unit_tests_and_soak_runs_get_no_second_try(run: pytest.Pytester, marker: str) -> None:
    run.makepyfile(f"import pytest\n{marker}def test_broken():\n    assert False\n")
    _has(run.runpytest_subprocess("-n", "0"), failed=1)


def test_a_fixture_that_fails_once_is_flaky_too(run: pytest.Pytester) -> None:
    run.makepyfile(
        "import pathlib, pytest\n@pytest.fixture\ndef broker():\n    file = pathlib.Path(__file__).with_name('x')\n"
        "    if not file.exists():\n        file.touch()\n        raise TimeoutError('no broker')\n\n"
        "@pytest.mark.integration\ndef test_it(broker):\n    pass\n"
    )
    result = run.runpytest_subprocess("-n", "0")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["FLAKY *test_it: TimeoutError: no broker"])


def test_second_tries_can_be_switched_off(run: pytest.Pytester) -> None:
    run.makepyfile("import pytest\n@pytest.mark.integration\ndef test_broken():\n    assert False\n")
    _has(run.runpytest_subprocess("-n", "0", "-p", "no:rerunfailures"), failed=1)
