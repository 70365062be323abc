"""The runbook's first page answers whoever is woken: each word that ``status`` has for producers is in its table."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.freeze.open_freeze import OpenFreeze, Standing
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt

PAGE = Path(__file__).parents[2] / "docs/runbook.md"
BEGAN = datetime(2026, 11, 21, 16, 0, tzinfo=UTC)


def rows() -> list[list[str]]:
    """The cells of the table of the first page."""
    section = PAGE.read_text(encoding="utf-8").split("## Producers cannot write")[1].split("\n## ")[0]
    return [re.split(r"\s*\|\s*", line[1:-1].strip(" ")) for line in section.splitlines() if line.startswith("| *")]


def phrases(cell: str) -> list[str]:
    """The words of *producers* in a row's first cell; what changes each time is left out."""
    words = re.findall(r"\*([^*]+)\*", cell)
    return [part.strip(" ,") for text in words for part in re.split(r"\.\.\.|\d+ \w+", text) if len(part) > 8]


@pytest.mark.parametrize("method", ["acl", "webhook", "manual"])
@pytest.mark.parametrize("request_number", [None, 1], ids=["migration", "mirror"])
@pytest.mark.parametrize("standing", list(Standing))
@pytest.mark.parametrize("seconds", [20, 200], ids=["in time", "overdue"])
def test_each_freeze_that_status_shows_has_a_row(
    standing: Standing, method: str, request_number: int | None, seconds: int
) -> None:
    attempt = FreezeAttempt(1, method, BEGAN, BEGAN + timedelta(seconds=60), BEGAN, request=request_number)
    freeze = OpenFreeze(attempt, standing, BEGAN + timedelta(seconds=seconds))
    said = freeze.lines("orders.yaml")[0]
    found = [row for row in rows() if any(phrase in said for phrase in phrases(row[0]))]
    assert found, said
    assert "which passed" not in said or any("which passed" in row[0] for row in found)


def test_each_row_says_what_to_do_for_each_method() -> None:
    found = rows()
    assert len(found) >= 10
    assert {len(row) for row in found} == {6}
    assert all(row[2].strip() for row in found)


def test_the_first_page_comes_first() -> None:
    assert re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[0] == "Producers cannot write"
