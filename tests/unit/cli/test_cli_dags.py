"""The DAG files for people who have installed the package with pip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_provider_kafka_migration.cli.app import app

DAGS = Path(__file__).parents[3] / "dags"


def _run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["dags", *arguments])
    return done.exit_code, done.output


def test_all_files_are_written_and_a_second_time_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "dags"
    for _ in range(2):
        code, told = _run(str(folder))
        assert code == 0, told
        for path in DAGS.glob("kafka_*.py"):
            assert (folder / path.name).read_bytes() == path.read_bytes()
    assert len(list(folder.iterdir())) == len(list(DAGS.glob("kafka_*.py"))) > 5


def test_one_file_is_two_lines_and_a_DAG(tmp_path: Path) -> None:
    code, told = _run(str(tmp_path), "--only", "kafka_migration", "--json")
    assert code == 0, told
    (written,) = json.loads(told)["written"]
    namespace: dict[str, object] = {}
    exec(compile(Path(written).read_text(), written, "exec"), namespace)
    assert getattr(namespace["dag"], "dag_id", "") == "kafka_migration"


@pytest.mark.parametrize(("more", "kept"), [([], True), (["--overwrite"], False)])
def test_what_a_person_has_changed_is_kept_unless_they_say_so(tmp_path: Path, more: list[str], kept: bool) -> None:
    mine = tmp_path / "kafka_migration.py"
    mine.write_text("# mine\n")
    code, told = _run(str(tmp_path), *more)
    assert (code != 0) == kept
    assert (mine.read_text() == "# mine\n") == kept
    assert len(list(tmp_path.iterdir())) == (1 if kept else len(list(DAGS.glob("kafka_*.py"))))
    assert "kafka_migration.py" in told


def test_an_unknown_name_is_told_with_the_known_ones(tmp_path: Path) -> None:
    code, told = _run(str(tmp_path / "new"), "--only", "kafka_migrator")
    assert code != 0
    assert "no DAG file kafka_migrator" in told
    assert "kafka_mirrors_from_yaml" in told
    assert not (tmp_path / "new").exists()
