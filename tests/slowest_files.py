"""The end of a long run lists the files that took most of it, so that whoever adds the next one sees what it costs."""

from __future__ import annotations

from collections import defaultdict

import pytest
from _pytest.terminal import TerminalReporter

#: So many files are listed, of runs whose tests took longer than this in all.
SHOWN_FILES = 20
LONG_RUN_SECONDS = 300.0


def seconds_by_file(reporter: TerminalReporter) -> dict[str, float]:
    """Seconds of all tests of each file with their set-up and tear-down, the dearest file first."""
    found: dict[str, float] = defaultdict(float)
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                found[report.nodeid.split("::", 1)[0]] += report.duration
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Lists the slowest files of a long run; with workers, their times together are longer than the run was."""
    found = seconds_by_file(terminalreporter)
    total = sum(found.values())
    if total < LONG_RUN_SECONDS:
        return
    terminalreporter.section(f"slowest files of {total:.0f} s that all tests took together")
    for file, seconds in list(found.items())[:SHOWN_FILES]:
        terminalreporter.write_line(f"{seconds:7.1f} s {seconds / total:4.0%}  {file}")
