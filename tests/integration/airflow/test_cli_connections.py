"""The command line finds the connections that ``airflow connections add`` has written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert found, done.stderr[-2000:]
    assert json.loads(found[0].removeprefix("FOUND ")) == {"bootstrap.servers": "b1:9092"}
