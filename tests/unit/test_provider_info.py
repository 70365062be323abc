"""The provider's info: valid for Airflow, complete, importable, and cheap."""

from __future__ import annotations

import ast
import importlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.get_provider_info import get_provider_info

PACKAGE = Path(airflow_provider_kafka_migration.__file__).parent
INFO = get_provider_info()


def _import(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_info_is_valid_for_airflow() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def test_distribution_has_both_entry_points() -> None:
    points = {
        (point.group, point.name): point.value
        for point in metadata.distribution("airflow-provider-kafka-migration").entry_points
    }
    assert _import(points["apache_airflow_provider", "provider_info"].replace(":", ".")) is get_provider_info
    assert points["airflow.plugins", "kafka_migration"].endswith(":KafkaMigrationPlugin")


@pytest.mark.parametrize(
    "module",
    [
        module
        for kind in ("operators", "sensors", "hooks", "triggers")
        for item in INFO[kind]
        for module in item["python-modules"]
    ],
)
def test_named_modules_import(module: str) -> None:
    importlib.import_module(module)


@pytest.mark.parametrize(
    "path",
    [
        *INFO["extra-links"],
        *INFO["notifications"],
        *INFO["cli"],
        *(connection["hook-class-name"] for connection in INFO["connection-types"]),
    ],
)
def test_named_classes_import(path: str) -> None:
    assert callable(_import(path))


def test_every_operator_module_is_named() -> None:
    """A new operator that nobody named would not be shown by `airflow providers`."""
    shared = {"__init__", "base", "lineage", "settled", "spark_job"}
    for folder, kind in (("operators", "operators"), ("sensors", "sensors"), ("triggers", "triggers")):
        files = {path.stem for path in (PACKAGE / folder).glob("*.py")} - shared
        named = {module.rpartition(".")[2] for item in INFO[kind] for module in item["python-modules"]}
        assert named == files


def test_info_module_imports_nothing() -> None:
    """It runs in every Airflow process before the configuration is read."""
    tree = ast.parse((PACKAGE / "get_provider_info.py").read_text())
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {"__future__", "typing"}


def test_plugin_serves_no_web_application() -> None:
    """Airflow mounts applications of plugins without any log-in."""
    (point,) = metadata.entry_points(group="airflow.plugins", name="kafka_migration")
    plugin = point.load()
    assert not plugin.fastapi_apps
    assert not plugin.fastapi_root_middlewares
    assert not plugin.flask_blueprints
    assert {type(link).__name__ for link in plugin.operator_extra_links} == {
        path.rpartition(".")[2] for path in INFO["extra-links"]
    }
