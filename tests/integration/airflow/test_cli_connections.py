"""The command line finds the connections that ``airflow connections add`` has written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.integration

# A process of its own: Airflow takes its database, and where it looks for connections, once per process.
_SCRIPT = """
import json
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from airflow.models import Connection
from airflow.models.base import Base
from airflow.configuration import conf

engine = create_engine(conf.get("database", "sql_alchemy_conn"))
tables = [Base.metadata.tables[name] for name in ("team", "connection") if name in Base.metadata.tables]
Base.metadata.create_all(engine, tables=tables)
with Session(engine) as session:
    session.add(Connection(conn_id="kafka_source", conn_type="kafka", extra='{"bootstrap.servers": "b1:9092"}'))
    session.commit()

from airflow_provider_kafka_migration.cli.session import resolver
print("FOUND " + json.dumps(resolver().mapping("kafka_source")))
"""


def test_plain_binary_finds_a_connection_of_the_database(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "_AIRFLOW_PROCESS_CONTEXT"}
    environment.update(
        AIRFLOW_HOME=str(tmp_path), AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{tmp_path / 'airflow.db'}"
    )
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert found, done.stderr[-2000:]
    assert json.loads(found[0].removeprefix("FOUND ")) == {"bootstrap.servers": "b1:9092"}


@pytest.mark.soak
def test_the_binary_s_stdout_is_the_json_alone(tmp_path: Path, minimal_spec: dict[str, Any]) -> None:
    """Airflow, which has the connection, makes the root logger write to stdout; and any library may print."""
    noisy = tmp_path / "noisy"
    noisy.mkdir()
    (noisy / "sitecustomize.py").write_text(
        "import socket\nresolve = socket.getaddrinfo\n"
        "def noisy(*given, **more):\n    print('a library prints', flush=True)\n    return resolve(*given, **more)\n"
        "socket.getaddrinfo = noisy\n"
    )
    spec = tmp_path / "migration.yaml"
    spec.write_text(yaml.safe_dump(minimal_spec), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "_AIRFLOW_PROCESS_CONTEXT"}
    connection = {
        "conn_type": "aws",
        "login": "key",
        "password": "secret",
        "extra": {"endpoint_url": "http://127.0.0.1:1", "region_name": "us-east-1"},
    }
    environment.update(AIRFLOW_HOME=str(tmp_path), AIRFLOW_CONN_AWS_S3=json.dumps(connection))
    environment["PYTHONPATH"] = os.pathsep.join([str(noisy), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    program = str(Path(sys.executable).with_name("kafka-migration"))
    done = subprocess.run(
        [program, "status", str(spec), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert json.loads(done.stdout)["error"]["code"] == "STORAGE_UNAVAILABLE", done.stderr[-2000:]
    assert "a library prints" in done.stderr
