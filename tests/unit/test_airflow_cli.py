"""``airflow kafka-migration``: the same commands, and the connections of Airflow's database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

AIRFLOW = Path(sys.executable).with_name("airflow")


def _run(*words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    if home is not None:
        database = f"sqlite:///{home / 'airflow.db'}"
        env |= {"AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database}
    return subprocess.run([str(AIRFLOW), *words], env=env, capture_output=True, text=True, check=False, timeout=240)


def test_arguments_and_exit_status_are_handed_on(tmp_path: Path, minimal_spec: dict[str, Any]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(yaml.safe_dump(minimal_spec))
    bad.write_text(yaml.safe_dump({**minimal_spec, "colour": "red"}))
    done = _run("kafka-migration", "validate", str(good), "--json")
    assert done.returncode == 0, done.stderr
    assert '"ok": true' in done.stdout
    done = _run("kafka-migration", "validate", str(bad))
    assert done.returncode == 1
    assert "colour" in done.stdout + done.stderr


def test_help_of_a_command_is_the_command_s_own() -> None:
    done = _run("kafka-migration", "validate", "--help")
    assert done.returncode == 0, done.stderr
    assert "kafka-migration validate" in done.stdout


@pytest.mark.timeout(600)
def test_connections_of_the_database_are_found(tmp_path: Path, minimal_spec: dict[str, Any]) -> None:
    done = _run("db", "migrate", home=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    extra = json.dumps({"endpoint_url": "http://127.0.0.1:1", "region_name": "us-east-1"})
    words = ["connections", "add", "aws_s3", "--conn-type", "aws", "--conn-login", "key", "--conn-password", "secret"]
    done = _run(*words, "--conn-extra", extra, home=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(minimal_spec))
    done = _run("kafka-migration", "status", str(file), "--json", home=tmp_path)
    shown = done.stdout + done.stderr
    # The connection was found and used: there is nobody at its address.
    assert "STORAGE_UNAVAILABLE" in shown, shown[-3000:]
