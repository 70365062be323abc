"""Second tries: a test on brokers or Airflow that fails runs once more, and no second try stays invisible.

A busy machine makes such a test fail now and then, and one of them must not hold up a merge. A test that passes only
on its second try is flaky: the end of the run lists it, and more than `MOST_FLAKY_TESTS` of them fail the run. Unit
tests have no such excuse, and a soak run that fails has found something: neither gets a second try.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

#: So many flaky tests are a noisy minute; more of them are a defect of the product or of the tests.
MOST_FLAKY_TESTS = 3

#: The whole reports of the first tries that failed, below the root of the checkout.
FIRST_TRIES = Path("build") / "first-tries.txt"

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


def _lines(reporter: TerminalReporter) -> list[str]:
    """One line for each flaky test, with what failed on its first try, and one for the run that they fail."""
    flaky = flaky_tests(reporter)
    first_tries = {report.nodeid: report for report in reporter.stats.get("rerun", [])}
    lines = []
    for nodeid in flaky:
        text = first_tries[nodeid].longreprtext.strip().splitlines() or ["no text of the failure"]
        errors = [line for line in text if line.startswith("E ")]
        lines.append(f"FLAKY {nodeid}: {(errors or text)[0].removeprefix('E').strip()}")
    if len(flaky) > MOST_FLAKY_TESTS:
        lines.append(
            f"The run fails: {len(flaky)} tests passed only on their second try, and at most {MOST_FLAKY_TESTS} may."
        )
    return lines


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Lists the flaky tests as the last lines of the run, where nobody who looks at its end can miss them."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    for line in _lines(reporter):
        reporter.write_line(line, yellow=True)
    _keep_first_tries(reporter, config.rootpath / FIRST_TRIES)


def _keep_first_tries(reporter: TerminalReporter, file: Path) -> None:
    """Writes the whole reports of all first tries that failed, logs included, into one file."""
    reports = reporter.stats.get("rerun", [])
    file.unlink(missing_ok=True)
    if not reports:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    texts = []
    for report in reports:
        sections = "".join(f"\n--- {name}\n{text}" for name, text in report.sections)
        texts.append(f"=== {report.nodeid} ({report.when})\n{report.longreprtext}{sections}\n")
    file.write_text("\n".join(texts))
    reporter.write_line(f"What failed on the first tries, in full: {file}")
