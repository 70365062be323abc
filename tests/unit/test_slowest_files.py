"""What the end of a long run says about its files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import slowest_files


def report(nodeid: str, when: Any, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("f", 1, "t"), {}, "passed", None, when, duration=seconds)


class Reporter(SimpleNamespace):
    """What the summary uses of pytest's reporter."""

    def section(self, title: str) -> None:
        self.lines.append(title)

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def summary(*reports: pytest.TestReport) -> list[str]:
    stats = {"passed": [item for item in reports if item.when == "call"]}
    stats[""] = [item for item in reports if item.when != "call"]
    stats["warnings"] = [SimpleNamespace(duration=1e6)]  # type: ignore[list-item]
    reporter = Reporter(stats=stats, lines=[])
    slowest_files.pytest_terminal_summary(reporter)  # type: ignore[arg-type]
    return list(reporter.lines)


def test_a_file_has_the_seconds_of_its_tests_and_their_fixtures() -> None:
    lines = summary(
        report("tests/a.py::test_one", "setup", 100.0),
        report("tests/a.py::test_one", "call", 50.0),
        report("tests/a.py::test_two[x::y]", "call", 50.0),
        report("tests/b.py::test_one", "call", 500.0),
        report("tests/b.py::test_one", "teardown", 100.0),
    )
    assert lines == [
        "slowest files of 800 s that all tests took together",
        "  600.0 s  75%  tests/b.py",
        "  200.0 s  25%  tests/a.py",
    ]


def test_a_short_run_lists_none_and_a_long_one_not_all() -> None:
    assert summary(report("tests/a.py::test_one", "call", 299.0)) == []
    many = [report(f"tests/{number}.py::test", "call", 100.0 + number) for number in range(50)]
    assert len(summary(*many)) == 1 + slowest_files.SHOWN_FILES
