"""The findings of the precheck in a terminal, and what they are about."""

from __future__ import annotations

import io

from rich.console import Console

from airflow_provider_kafka_migration.cli.plan import _findings
from airflow_provider_kafka_migration.pages import rendering
from airflow_provider_kafka_migration.record.finding_codes import finding


def shown(*found: object) -> str:
    console = Console(width=400, file=io.StringIO(), record=True)
    for part in _findings([item.model_dump(mode="json") for item in found], "done", passed=True).text:  # type: ignore[attr-defined]
        console.print(part)
    return console.export_text()


def test_a_finding_says_what_it_is_about() -> None:
    text = shown(
        finding("W074", "not in groups.include; it has offsets in orders", subject="new\nline"),
        finding("W071", "its type is share", subject="[bold]a"),
        finding("B002", "both have the cluster id x"),
    )
    assert "new\nline: not in groups.include" in text or ("new" in text and "line: not in groups.include" in text)
    assert "[bold]a: its type is share" in text
    assert " both have the cluster id x" in text


def test_the_advice_is_for_a_person_at_a_terminal() -> None:
    text = shown(finding("B001", "x: no answer"), finding("B131", "it is old"), finding("W141", "x"))
    assert "clear " not in text
    assert text.count("run the command again") == 3


def test_pages_say_what_a_finding_is_about() -> None:
    item = finding("W074", "it has offsets in orders", subject="billing").model_dump(mode="json")
    seen = rendering._environment("md").from_string("{{ item | seen }}").render(item=item)
    assert seen == "billing: it has offsets in orders"
