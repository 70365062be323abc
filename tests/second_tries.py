"""Second tries: a test on brokers or Airflow that fails runs once more, and no second try stays invisible.

A busy machine makes such a test fail now and then, and one of them must not hold up a merge. A test that passes only
on its second try is flaky: the end of the run lists it, and more than `MOST_FLAKY_TESTS` of them fail the run. Unit
tests have no such excuse, and a soak run that fails has found something: neither gets a second try.
"""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter

#: So many flaky tests are a noisy minute; more of them are a defect of the product or of the tests.
MOST_FLAKY_TESTS = 3

_SECOND_TRY_MARKERS = ("integration", "e2e")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives each test on brokers or Airflow one more try, unless the plugin that runs it is switched off."""
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return
    for item in items:
        if item.get_closest_marker("soak") or item.get_closest_marker("flaky"):
            continue
        if any(item.get_closest_marker(name) for name in _SECOND_TRY_MARKERS):
            item.add_marker(pytest.mark.flaky(reruns=1))


def flaky_tests(reporter: TerminalReporter) -> list[str]:
    """Node ids of the tests that failed first and passed on their second try, sorted."""
    tried_again = {report.nodeid for report in reporter.stats.get("rerun", [])}
    failed = {report.nodeid for kind in ("failed", "error") for report in reporter.stats.get(kind, [])}
    return sorted(tried_again - failed)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run when more tests were flaky than a noisy minute explains; the controller counts for all workers."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    if session.exitstatus == pytest.ExitCode.OK and len(flaky_tests(reporter)) > MOST_FLAKY_TESTS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Lists the flaky tests with the last line of what failed on their first try."""
    flaky = flaky_tests(terminalreporter)
    if not flaky:
        return
    first_tries = {report.nodeid: report for report in terminalreporter.stats["rerun"]}
    terminalreporter.section("flaky tests", "=", yellow=True)
    for nodeid in flaky:
        lines = first_tries[nodeid].longreprtext.strip().splitlines() or ["no text of the failure"]
        errors = [line for line in lines if line.startswith("E ")]
        terminalreporter.write_line(f"FLAKY {nodeid}: {(errors or lines)[0].removeprefix('E').strip()}")
    if len(flaky) > MOST_FLAKY_TESTS:
        terminalreporter.write_line(
            f"The run fails: {len(flaky)} tests passed only on their second try, and at most {MOST_FLAKY_TESTS} may.",
            red=True,
        )
