"""The provider's info: valid for Airflow, complete, importable, and cheap."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
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
    shared = {"__init__", "base", "lineage", "spark_job"}
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


def test_airflow_lists_the_provider_with_its_plugin_and_command() -> None:
    """Airflow's own managers find everything, in a process of its own."""
    code = """
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
assert "airflow-provider-kafka-migration" in manager.providers
assert manager.hooks["kafka_migration"].hook_name == "Kafka cluster (migration)"
assert manager.hooks["kafka"].package_name == "apache-airflow-providers-apache-kafka", "that type stays theirs"
from airflow.cli.cli_parser import ALL_COMMANDS_DICT
assert "kafka-migration" in ALL_COMMANDS_DICT
from airflow import plugins_manager
plugins_manager.ensure_plugins_loaded()
assert not plugins_manager.get_import_errors(), plugins_manager.get_import_errors()
from airflow.sdk.configuration import conf
assert conf.get("kafka_migration", "progress_interval") == "5"
assert conf.get("kafka_migration", "object_url_template").count("{bucket}") == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("lazy", ["True", "False"])
def test_plugin_is_found_once(lazy: str) -> None:
    """Also where Airflow is told to load its providers at its start."""
    code = """
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
assert [plugin.name for plugin in plugins].count("kafka_migration") == 1
assert not [text for text in errors.values() if "kafka_migration" in text], errors
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "AIRFLOW__CORE__LAZY_DISCOVER_PROVIDERS": lazy},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]


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
