"""Each name of a journal step or a document that somebody reads is a name that somebody writes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.record import keys, steps

PACKAGE = Path(airflow_provider_kafka_migration.__file__).parent
#: Packages below the record: the journal has names of its own.
_BELOW = {"journal", "documents"}
#: Functions that journal the step that their caller names: ``StepTimer.start`` of the cutover, and those that restore.
_PASSED_ON = {"start", "_restore"}
#: Modules that journal steps from a table.
_TABLES = {Path("record/registry_settings.py")}
_PUTS = {"put", "put_new", "put_locked", "put_result"}

_TREES = {
    path.relative_to(PACKAGE): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in _BELOW
}


def _called(node: ast.AST) -> str:
    """The name of the function or method that a call calls; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _calls(names: set[str]) -> Iterator[tuple[str, ast.Call]]:
    for path, tree in _TREES.items():
        for node in ast.walk(tree):
            if _called(node) in names:
                assert isinstance(node, ast.Call)
                yield f"{path}:{node.lineno}", node


def _names(node: ast.AST, module: str) -> set[str]:
    """The names of ``steps`` or ``keys`` that an expression contains."""
    return {
        item.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == module
    }


def _constants(module: ModuleType) -> set[str]:
    return {name for name in vars(module) if name.isupper()}


def test_each_step_that_is_read_has_a_writer() -> None:
    written = {name for _, call in _calls({"step", "step_once"}) if call.args for name in _names(call.args[0], "steps")}
    written |= {name for _, call in _calls(_PASSED_ON) for name in _names(call, "steps")}
    written |= {name for path in _TABLES for name in _names(_TREES[path], "steps")}
    assert written == _constants(steps)


def test_no_step_is_named_by_its_text() -> None:
    """A name that is typed where it is read may be one that nobody writes."""
    texts = {
        place: ast.unparse(item)
        for place, call in _calls({"find_step", "steps", "step", "step_once", *_PASSED_ON})
        for item in call.args
        if isinstance(item, ast.Constant) and item.value in {getattr(steps, name) for name in _constants(steps)}
    }
    assert texts == {}
    direct = [
        place
        for place, call in _calls({"find_step", "steps", "step", "step_once"})
        if isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value).endswith("journal")
        and any(isinstance(item, ast.Constant) for item in call.args[:1])
    ]
    assert direct == []


def test_each_document_that_is_read_has_a_writer() -> None:
    written = {name for _, call in _calls({"put_result"}) for name in _names(call, "keys")}
    others = {
        name
        for path, tree in _TREES.items()
        if path != Path("record/record.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(_called(item) in _PUTS for item in ast.walk(node))
        for name in _names(node, "keys")
    }
    read = {name for _, call in _calls({"result", "_result", "stored_result"}) for name in _names(call, "keys")}
    assert len(read & _constants(keys)) > 5
    assert read & _constants(keys) <= written, "results"
    # Copiers write the progress of their jobs, which is below the record.
    assert _constants(keys) <= written | others


@pytest.mark.parametrize("module", [steps, keys], ids=["steps", "keys"])
def test_each_name_means_one_thing(module: ModuleType) -> None:
    texts = [getattr(module, name) for name in _constants(module)]
    assert len(set(texts)) == len(texts)
