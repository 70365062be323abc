"""What the command line advises: commands to run, never tasks to clear."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.cli.frame import Answer, answering, next_step_for, speak_of_mirror
from airflow_provider_kafka_migration.errors import CopyFailed

PACKAGE = Path(airflow_provider_kafka_migration.__file__).parent
RESUME = "run `kafka-migration resume FILE`"
#: Pages and texts that only Airflow shows.
AIRFLOW_ONLY = (
    "task_docs.py",
    "plan_documents.py",
    "operators/",
    "hooks/",
    "sensors/",
    "triggers/",
    "dag.py",
    "phase_table.py",
)


def next_steps() -> Iterator[tuple[str, str]]:
    """(place, text) of each advice of the core that speaks of clearing something."""
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        if name.startswith(AIRFLOW_ONLY) or name.endswith(AIRFLOW_ONLY):
            continue
        source = file.read_text(encoding="utf-8")
        # Parsing is slow: only what has such a text, on one line or on two, can have such advice.
        if not re.search(r"\bclear(?! last)[ \"']", source):
            continue
        nodes = list(ast.walk(ast.parse(source)))
        docstrings = {
            id(node.body[0].value)
            for node in nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if id(node) in docstrings or id(node) in inside:
                continue
            text = _text(node)
            if text and re.search(r"\bclear (?!last)", text):
                yield f"{name}:{node.lineno}", text  # type: ignore[attr-defined]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "seed" for part in node.values)
    return ""


def test_no_advice_of_the_core_speaks_of_tasks_on_the_command_line() -> None:
    found = list(next_steps())
    assert len(found) > 40, "the texts were not found"
    left = {place: shown for place, text in found if re.search(r"\bclear\b", shown := next_step_for("run", text))}
    assert left == {}


@pytest.mark.parametrize(
    ("command", "text", "shown"),
    [
        ("run", "check the network; then clear the task", f"check the network; then {RESUME}"),
        (
            "resume",
            "clear tail: it goes on from the target's log ends",
            f"{RESUME}: it goes on from the target's log ends",
        ),
        ("run", "clear drain_ready and what follows it: it asks again", f"{RESUME}: it asks again"),
        ("precheck", "drop it; then clear precheck", "drop it; then run the command again"),
        (
            "run",
            "wait until the broker is back; then clear the task; then clear the task: it goes on from there",
            f"wait until the broker is back; then {RESUME}: it goes on from there",
        ),
        (
            "run",
            "stop; to continue nevertheless, start a new run with takeover (CLI: --takeover)",
            f"stop; to continue nevertheless, {RESUME} with --takeover",
        ),
        ("run", "clear the task that writes it (seed or tail)", RESUME),
        ("run", "clear topology_copy, then this task", RESUME),
        ("run", "make the error clear to its owner", "make the error clear to its owner"),
    ],
)
def test_advice(command: str, text: str, shown: str) -> None:
    assert next_step_for(command, text) == shown


def test_an_error_of_a_mirror_names_the_commands_of_mirrors() -> None:
    """``kafka-migration resume`` refuses a mirror, and ``mirror resume`` ends a pause."""

    def shown() -> list[str]:
        speak_of_mirror()
        texts = (
            "start the broker; then clear the task",
            "see `kafka-migration status FILE`; kafka-migration mirror resume",
        )
        return [next_step_for("run", text) for text in texts]

    assert copy_context().run(shown) == [
        "start the broker; then run `kafka-migration mirror run FILE`",
        "see `kafka-migration mirror status FILE`; kafka-migration mirror resume",
    ]


def test_an_error_is_shown_in_these_words(capsys: Any) -> None:
    @answering
    def run(*, json_output: bool = False, debug: bool = False) -> Answer:
        raise CopyFailed("3 partitions failed", next_step="start the broker; then clear the task")

    for as_json in (False, True):
        with pytest.raises(BaseException, match="1"):
            run(json_output=as_json)
        shown = capsys.readouterr()
        assert "clear" not in shown.out + shown.err
        assert "kafka-migration resume FILE" in shown.out + shown.err


def shown_for(file: Path, text: str, *, as_error: bool, before: Any = lambda: None) -> str:
    """What a command that was given this spec prints of a text."""

    def demo(file: Annotated[Path, typer.Argument()]) -> Answer:
        before()
        if as_error:
            raise CopyFailed("it failed", next_step=text)
        return Answer({}, [text])

    app = typer.Typer()
    app.command("demo")(answering(demo))
    result = CliRunner().invoke(app, [str(file)], env={"COLUMNS": "200", "TERM": "dumb"})
    return " ".join((result.stderr if as_error else result.stdout).split())


@pytest.mark.parametrize("as_error", [True, False], ids=["error", "answer"])
def test_commands_name_the_spec_that_was_given(*, as_error: bool) -> None:
    file = Path("my specs/a[1].yaml")
    text = shown_for(
        file, "kafka-migration resume FILE --approve 12ab; kafka-migration schemas plan FILE", as_error=as_error
    )
    assert "kafka-migration resume 'my specs/a[1].yaml' --approve 12ab" in text
    assert "kafka-migration schemas plan 'my specs/a[1].yaml'" in text
    mirror = shown_for(file, "kafka-migration resume FILE", as_error=as_error, before=speak_of_mirror)
    assert "kafka-migration mirror run 'my specs/a[1].yaml'" in mirror


@pytest.mark.parametrize(
    "text",
    [
        "`kafka-migration way-back keep FILE`",
        "run `kafka-migration sealing-key FILE`",
        "kafka-migration run FILE, where FILE is the first migration's spec",
    ],
)
def test_commands_for_another_file_keep_its_name(text: str) -> None:
    assert text in shown_for(Path("a.yaml"), text, as_error=True)
