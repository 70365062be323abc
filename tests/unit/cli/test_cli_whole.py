"""Nothing that a command says is cut: on terminals and pipes of any width, in Markdown, lists and tables."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.table import Table

from airflow_provider_kafka_migration.cli.frame import Markdown, print_whole
from tests.unit.pages import test_rendering as pages

LONG = "a" * 300
PAGES = {name: pages._page(name, "orders") for name in ("cutover", "client_switch")}


def printed(item: object, *, width: int, terminal: bool) -> str:
    """What a console of this width shows, without the white space that folding adds or takes."""
    file = io.StringIO()
    print_whole(Console(file=file, width=width, force_terminal=terminal, color_system=None, soft_wrap=True), item)
    return file.getvalue()


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("width", [20, 80, 120, 300])
@pytest.mark.parametrize("page", PAGES)
def test_no_word_of_an_approval_is_cut(page: str, width: int, *, terminal: bool) -> None:
    shown = re.sub(r"\s", "", printed(Markdown(PAGES[page]), width=width, terminal=terminal))
    wanted = re.sub(r"[*`#|]|\\", "", PAGES[page])
    at = 0
    for sentence in re.findall(r"^\d\. (.+)$", wanted, re.MULTILINE):
        text = re.sub(r"\s", "", sentence)
        assert text in shown[at:], sentence
        at = shown.index(text, at)
    assert at, "there are steps"


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_lists_tables_and_code_with_long_names_are_whole(width: int, *, terminal: bool) -> None:
    text = f"- one {LONG} end1\n\n| topic | lag |\n|---|---|\n| {LONG} | end2 |\n\n```\nrun {LONG} end3\n```\n"
    shown = re.sub(r"[\s]", "", printed(Markdown(text), width=width, terminal=terminal))
    assert shown.count("a") == 3 * len(LONG) + len("lag") - 2
    assert all(f"end{number}" in shown for number in (1, 2, 3))


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_a_table_keeps_long_names_whole(*, terminal: bool) -> None:
    table = Table("topic", "lag", box=None, pad_edge=False)
    table.add_row(LONG, "12")
    table.add_row("orders", "34")
    shown = printed(table, width=60, terminal=terminal)
    assert "…" not in shown
    assert shown.count("a") == len(LONG) + 1
    assert "12" in shown


def test_one_long_name_does_not_widen_the_other_rows_of_a_pipe() -> None:
    table = Table("topic", "lag", "state", box=None, pad_edge=False)
    table.add_row(LONG, "12", "[red]bad[/]")
    table.add_row("orders", "34", r"\[good]")
    lines = printed(table, width=80, terminal=False).splitlines()
    assert lines[1].split() == [LONG, "12", "bad"]
    assert lines[2].split() == ["orders", "34", "[good]"]
    assert max(len(lines[0]), len(lines[2])) < 60
    assert lines[0].index("lag") == lines[2].index("34")
