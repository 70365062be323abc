"""Each name of a journal step or a document that somebody reads is a name that somebody writes."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.record import keys, steps

pytestmark = pytest.mark.slow

PACKAGE = Path(airflow_provider_kafka_migration.__file__).parent
#: Packages below the record: the journal has names of its own.
_BELOW = {"journal", "documents"}
#: What journals the step that its caller names: ``StepTimer.start`` of the cutover, those that restore, ``OwnWrites``,
#: and ``_step_while_open`` of what the migration gives on the target.
_PASSED_ON = {"OwnWrites", "start", "_restore", "_step_while_open"}
#: Modules that journal steps from a table.
_TABLES = {Path("record/registry_settings.py")}
_PUTS = {"put", "put_new", "put_locked", "put_result"}


def _called(node: ast.AST) -> str:
    """The name of the function or method that a call calls; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


class _Package:
    """What these tests look at: the package is parsed and walked once, because that takes seconds."""

    def __init__(self) -> None:
        self.trees: dict[Path, ast.Module] = {}
        self.functions: list[tuple[Path, ast.FunctionDef]] = []
        self._calls: dict[str, list[tuple[str, ast.Call]]] = {}
        for file in sorted(PACKAGE.rglob("*.py")):
            path = file.relative_to(PACKAGE)
            if path.parts[0] not in _BELOW:
                self.trees[path] = ast.parse(file.read_text())
                self._add(path)

    def _add(self, path: Path) -> None:
        for node in ast.walk(self.trees[path]):
            if isinstance(node, ast.FunctionDef):
                self.functions.append((path, node))
            elif isinstance(node, ast.Call):
                self._calls.setdefault(_called(node), []).append((f"{path}:{node.lineno}", node))

    def calls(self, names: set[str]) -> list[tuple[str, ast.Call]]:
        """(place, call) of each call of a function or method of one of these names."""
        return [call for name in sorted(names) for call in self._calls.get(name, [])]


@pytest.fixture(scope="module")
def package() -> Iterator[_Package]:
    """The modules of the package; their garbage is collected once, and not after every few hundred nodes."""
    gc.disable()
    try:
        yield _Package()
    finally:
        gc.enable()


def _names(node: ast.AST, module: str) -> set[str]:
    """The names of ``steps`` or ``keys`` that an expression contains."""
    return {
        item.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == module
    }


def _constants(module: ModuleType) -> set[str]:
    return {name for name in vars(module) if name.isupper()}


def test_each_step_that_is_read_has_a_writer(package: _Package) -> None:
    written = {
        name for _, call in package.calls({"step", "step_once"}) if call.args for name in _names(call.args[0], "steps")
    }
    written |= {name for _, call in package.calls(_PASSED_ON) for name in _names(call, "steps")}
    written |= {name for path in _TABLES for name in _names(package.trees[path], "steps")}
    assert written == _constants(steps)


def test_no_step_is_named_by_its_text(package: _Package) -> None:
    """A name that is typed where it is read may be one that nobody writes."""
    texts = {
        place: ast.unparse(item)
        for place, call in package.calls({"find_step", "steps", "step", "step_once", *_PASSED_ON})
        for item in call.args
        if isinstance(item, ast.Constant) and item.value in {getattr(steps, name) for name in _constants(steps)}
    }
    assert texts == {}
    direct = [
        place
        for place, call in package.calls({"find_step", "steps", "step", "step_once"})
        if isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value).endswith("journal")
        and any(isinstance(item, ast.Constant) for item in call.args[:1])
    ]
    assert direct == []


def test_each_document_that_is_read_has_a_writer(package: _Package) -> None:
    # A round of the group sync writes the result whose name its caller gives.
    writers = {"put_result", "sync_groups_once"}
    written = {name for _, call in package.calls(writers) for name in _names(call, "keys")}
    # Passes that store a report name it in their class.
    written |= {
        name
        for tree in package.trees.values()
        if "put_result(self.result" in ast.unparse(tree)
        for item in ast.walk(tree)
        if isinstance(item, ast.ClassDef)
        for line in item.body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "result"
        for name in _names(line, "keys")
    }
    others = {
        name
        for path, node in package.functions
        if path != Path("record/record.py") and any(_called(item) in _PUTS for item in ast.walk(node))
        for name in _names(node, "keys")
    }
    read = {name for _, call in package.calls({"result", "_result", "stored_result"}) for name in _names(call, "keys")}
    assert len(read & _constants(keys)) > 5
    assert read & _constants(keys) <= written, "results"
    # Copiers write the progress of their jobs, which is below the record.
    assert _constants(keys) <= written | others


@pytest.mark.parametrize("module", [steps, keys], ids=["steps", "keys"])
def test_each_name_means_one_thing(module: ModuleType) -> None:
    texts = [getattr(module, name) for name in _constants(module)]
    assert len(set(texts)) == len(texts)
