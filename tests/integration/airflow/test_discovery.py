"""Airflow finds the provider, its plugin and its command by itself, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

_PLUGIN_IS_FOUND_ONCE = """
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
assert [plugin.name for plugin in plugins].count("kafka_migration") == 1
assert not [text for text in errors.values() if "kafka_migration" in text], errors
"""

_EVERYTHING_IS_LISTED = """
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
assert "airflow-provider-kafka-migration" in manager.providers
assert manager.hooks["kafka_migration"].hook_name == "Kafka cluster (migration)"
assert manager.hooks["kafka"].package_name == "apache-airflow-providers-apache-kafka", "that type stays theirs"
from airflow.cli.cli_parser import ALL_COMMANDS_DICT
assert "kafka-migration" in ALL_COMMANDS_DICT
plugins_manager.ensure_plugins_loaded()
assert not plugins_manager.get_import_errors(), plugins_manager.get_import_errors()
from airflow.sdk.configuration import conf
assert conf.get("kafka_migration", "progress_interval") == "5"
assert conf.get("kafka_migration", "object_url_template") == ""
"""


def _run(code: str, *, lazy: bool) -> None:
    """Runs code in a process whose Airflow loads its providers when they are needed, or at its start."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "AIRFLOW__CORE__LAZY_DISCOVER_PROVIDERS": str(lazy)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_airflow_lists_the_provider_with_its_plugin_and_command() -> None:
    _run(_PLUGIN_IS_FOUND_ONCE + _EVERYTHING_IS_LISTED, lazy=True)


@pytest.mark.soak
def test_plugin_is_found_once_where_providers_are_loaded_at_the_start() -> None:
    _run(_PLUGIN_IS_FOUND_ONCE, lazy=False)
