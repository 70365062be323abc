"""Help, JSON, exit status and errors: the same for all commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import pytest
import typer
from typer.testing import CliRunner

from airflow_provider_kafka_migration import __version__
from airflow_provider_kafka_migration.cli.app import app
from airflow_provider_kafka_migration.cli.frame import (
    MEANINGS,
    Answer,
    DebugOption,
    ExitCode,
    JsonOption,
    answering,
    exit_code,
)
from airflow_provider_kafka_migration.errors import BrokerUnreachable, SpecInvalid, WaitsForOperator, Where


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all commands."""
    command = command or typer.main.get_command(app)
    for name, child in command.commands.items():
        if getattr(child, "commands", None):
            yield from commands(child, (*path, name))
        else:
            yield (*path, name)


ALL = list(commands())


def test_all_commands_are_there() -> None:
    assert {path[0] for path in ALL} >= {
        *("validate", "plan", "precheck", "run", "resume", "status", "journal", "offset-map", "verify-evidence"),
        *("rollback", "schema"),
    }
    assert {path for path in ALL if len(path) == 2} >= {
        ("journal", "show"),
        ("journal", "verify"),
        ("offset-map", "show"),
        ("offset-map", "translate"),
        ("offset-map", "check"),
    }


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_and_json(path: tuple[str, ...], invoke: Any) -> None:
    result = invoke(*path, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert "--debug" in result.stdout


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_says_how_it_is_used_when_it_is_used_wrongly(path: tuple[str, ...], invoke: Any) -> None:
    result = invoke(*path, "--no-such-option")
    assert result.exit_code == ExitCode.USAGE
    assert "Usage" in result.stderr


def test_version_and_exit_status_are_shown(invoke: Any) -> None:
    assert invoke("--version").stdout.strip() == f"kafka-migration {__version__}"
    shown = " ".join(invoke("--help").stdout.split())
    for code, meaning in MEANINGS.items():
        assert f"{int(code)} {meaning.split('`')[0].strip()}" in shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecInvalid("x"), ExitCode.FAILED),
        (BrokerUnreachable("x"), ExitCode.TRY_AGAIN),
        (WaitsForOperator("x"), ExitCode.WAITS),
    ],
    ids=["terminal", "transient", "waits"],
)
def test_exit_status_of_errors(error: Any, code: ExitCode) -> None:
    assert exit_code(error) is code


@dataclass(frozen=True)
class Speed:
    lanes: Annotated[int, typer.Option("--lanes")] = 4
    rate: Annotated[str | None, typer.Option("--rate")] = None


def test_commands_share_options_through_a_dataclass() -> None:
    small = typer.Typer()

    @small.command()
    @answering
    def command(name: str, *, speed: Speed) -> Answer:
        return Answer({"name": name, "lanes": speed.lanes, "rate": speed.rate})

    answers = [
        json.loads(CliRunner().invoke(small, arguments).stdout)
        for arguments in (["orders", "--json"], ["orders", "--rate", "1MB", "--lanes", "2", "--json"])
    ]
    assert answers == [
        {"ok": True, "name": "orders", "lanes": 4, "rate": None},
        {"ok": True, "name": "orders", "lanes": 2, "rate": "1MB"},
    ]
    assert CliRunner().invoke(small, ["orders", "--speed", "1"]).exit_code == ExitCode.USAGE


def _app_that_raises(error: BaseException) -> typer.Typer:
    small = typer.Typer()

    @small.command()
    @answering
    def command(*, json_output: JsonOption = False, debug: DebugOption = False) -> Answer:
        raise error

    return small


def test_errors_say_what_where_and_next_without_a_traceback() -> None:
    error = BrokerUnreachable(
        "no broker [of 3] answered",
        where=Where(cluster="source", broker="b1:9092"),
        next_step="check [the] address",
        details={"attempts": 3},
    )
    result = CliRunner().invoke(_app_that_raises(error), [])
    assert result.exit_code == ExitCode.TRY_AGAIN
    assert result.stdout == ""
    lines = [" ".join(line.split()) for line in result.stderr.splitlines()]
    assert lines == [
        "error [BROKER_UNREACHABLE] no broker [of 3] answered",
        "where cluster source, broker b1:9092",
        "next check [the] address",
    ]


def test_errors_as_json_have_the_details() -> None:
    error = BrokerUnreachable("no broker answered", where=Where(cluster="source"), details={"attempts": 3})
    result = CliRunner().invoke(_app_that_raises(error), ["--json"])
    answer = json.loads(result.stdout)
    assert answer["ok"] is False
    assert answer["error"]["code"] == "BROKER_UNREACHABLE"
    assert answer["error"]["kind"] == "transient"
    assert answer["error"]["details"] == {"attempts": 3}


def test_debug_shows_the_traceback() -> None:
    result = CliRunner().invoke(_app_that_raises(SpecInvalid("wrong")), ["--debug"])
    assert "Traceback" in result.stderr
    assert "_app_that_raises" in result.stderr or "command" in result.stderr


def test_unforeseen_errors_are_one_line_and_status_1() -> None:
    result = CliRunner().invoke(_app_that_raises(RuntimeError("first line\nsecond line")), [])
    assert result.exit_code == ExitCode.FAILED
    assert "unexpected RuntimeError: first line" in result.stderr
    assert "second line" not in result.stderr
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_is_status_130() -> None:
    assert CliRunner().invoke(_app_that_raises(KeyboardInterrupt()), []).exit_code == ExitCode.INTERRUPTED


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from airflow_provider_kafka_migration.cli.app import app\n"
        "heavy = {'airflow', 'pyspark', 'boto3', 'confluent_kafka', 'kafka', 'jinja2'} & set(sys.modules)\n"
        "print(sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_validate_lists_all_mistakes(invoke: Any, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("migration_id: X\nseed: {via: pigeon}\n", encoding="utf-8")
    result = invoke("validate", file)
    assert result.exit_code == ExitCode.FAILED
    for path in ("migration_id", "source", "target", "storage", "seed.via"):
        assert f"- {path}: " in result.stderr
    answer = json.loads(invoke("validate", file, "--json").stdout)
    assert {item["path"] for item in answer["error"]["details"]["mistakes"]} >= {"migration_id", "seed.via"}


def test_validate_accepts_a_good_spec(invoke: Any, spec_file: Path) -> None:
    assert invoke("validate", spec_file).exit_code == 0
    answer = json.loads(invoke("validate", spec_file, "--json").stdout)
    assert answer["ok"]
    assert answer["spec"]["seed"]["segment_max_bytes"] == 32 * 1024 * 1024


def test_schema_is_printed_and_written(invoke: Any, tmp_path: Path) -> None:
    printed = json.loads(invoke("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert invoke("schema", "--output", tmp_path / "schema.json").exit_code == 0
    assert json.loads((tmp_path / "schema.json").read_text(encoding="utf-8")) == printed
    assert invoke("schema", "--output", tmp_path / "no" / "folder.json").exit_code == ExitCode.FAILED
