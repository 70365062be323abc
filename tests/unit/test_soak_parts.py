"""`make soak` runs in parts: each long test is in exactly one of them, and each part has something to run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
# In two parts, so that this file does not find itself.
MARKER = "mark." + "soak"


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak_parts", ROOT / "scripts" / "soak.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def long_tests() -> list[str]:
    """The files with tests that only the soak runs."""
    found = [path for path in (ROOT / "tests").rglob("test_*.py") if MARKER in path.read_text(encoding="utf-8")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def test_each_long_test_is_in_one_part_and_each_part_has_one(soak: ModuleType) -> None:
    paths = {path: name for name, part in soak.PARTS.items() for path in part.paths}
    assert all((ROOT / path).exists() for path in paths)
    found = {
        file: [name for path, name in paths.items() if file == path or file.startswith(f"{path}/")]
        for file in long_tests()
    }
    assert {file: names for file, names in found.items() if len(names) != 1} == {}
    assert {name for names in found.values() for name in names} == set(paths.values())


def test_a_part_is_run_alone_and_help_runs_nothing(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: list[list[str]] = []

    def fake(command: list[str], **_: object) -> object:
        run.append(command)
        return type("Done", (), {"returncode": int("tests/e2e" in command)})()

    monkeypatch.setattr(soak.subprocess, "run", fake)
    monkeypatch.setenv("PYTEST_ARGS", "-x -k 'one or two'")
    assert soak.main(["help"]) == 0
    assert soak.main(["nothing"]) == 2
    assert run == []
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in soak.PARTS)

    assert soak.main(["airflow", "copy"]) == 1, "a part has failed"
    assert [command[1:5] for command in run] == [["-m", "pytest", "-m", "soak"]] * 2, "and the other one ran"
    assert run[0][-4:] == ["tests/integration/airflow", "-x", "-k", "one or two"]
    assert "airflow: FAILED (1)" in capsys.readouterr().out
    run.clear()
    monkeypatch.setattr(soak.subprocess, "run", lambda *_, **__: type("Done", (), {"returncode": 5})())
    assert soak.main(["copy"]) == 0, "its tests are not those that are wanted"
    monkeypatch.setenv("PYTEST_ARGS", "")
    assert soak.main(["copy"]) == 1, "a part that has no tests any more"
    monkeypatch.setattr(soak.subprocess, "run", fake)
    soak.main([])
    assert len(run) == len(soak.PARTS)
