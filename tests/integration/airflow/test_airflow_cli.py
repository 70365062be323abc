"""``airflow kafka-migration``: the same commands, and the connections of Airflow's database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.integration

# Airflow takes seconds to start, so it starts once; each command runs in a fork of that process, with a status and an
# output of its own. Of Airflow's database they need the connections only, and migrating all of it takes long.
_SCRIPT = """
import json, os, socket, sys
from airflow.__main__ import main
from airflow.cli.cli_parser import get_parser
from airflow.configuration import conf
from airflow.models import Connection
from airflow.models.base import Base
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

engine = create_engine(conf.get("database", "sql_alchemy_conn"))
tables = [Base.metadata.tables[name] for name in ("team", "connection") if name in Base.metadata.tables]
Base.metadata.create_all(engine, tables=tables)
extra = json.dumps({"endpoint_url": "http://127.0.0.1:1", "region_name": "us-east-1"})
with Session(engine) as session:
    session.add(Connection(conn_id="aws_s3", conn_type="aws", login="key", password="secret", extra=extra))
    session.commit()
engine.dispose()

get_parser()
statuses = {}
for name, words in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT), number)
        sys.argv = ["airflow", *words]
        resolve = socket.getaddrinfo
        socket.getaddrinfo = lambda *given, **more: (print("a library prints", flush=True), resolve(*given, **more))[1]
        sys.exit(main())
    statuses[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("STATUSES " + json.dumps(statuses))
"""

#: The ``airflow`` commands, in this order.
_COMMANDS = {
    "valid": ["kafka-migration", "validate", "good.yaml", "--json"],
    "invalid": ["kafka-migration", "validate", "bad.yaml"],
    "help": ["kafka-migration", "validate", "--help"],
    "status": ["kafka-migration", "status", "good.yaml", "--json"],
}


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, minimal_spec: dict[str, Any]) -> dict[str, Done]:
    """All commands, run one after the other, by the names of ``_COMMANDS``."""
    home = tmp_path_factory.mktemp("home")
    (home / "good.yaml").write_text(yaml.safe_dump(minimal_spec))
    (home / "bad.yaml").write_text(yaml.safe_dump({**minimal_spec, "colour": "red"}))
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "AIRFLOW_HOME": str(home)}
    env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{home / 'airflow.db'}"
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(_COMMANDS)],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    found = [line for line in ended.stdout.splitlines() if line.startswith("STATUSES ")]
    assert found, ended.stderr[-3000:]
    statuses = json.loads(found[0].removeprefix("STATUSES "))

    def text(name: str, kind: str) -> str:
        return Path(home, f"{name}.{kind}").read_text()

    return {name: Done(status, text(name, "out"), text(name, "err")) for name, status in statuses.items()}


def test_arguments_and_exit_status_are_handed_on(done: dict[str, Done]) -> None:
    valid, invalid = done["valid"], done["invalid"]
    assert valid.status == 0, valid.err
    assert '"ok": true' in valid.out
    assert invalid.status == 1
    assert "colour" in invalid.out + invalid.err


def test_help_of_a_command_is_the_command_s_own(done: dict[str, Done]) -> None:
    shown = done["help"]
    assert shown.status == 0, shown.err
    assert "kafka-migration validate" in shown.out


def test_connections_of_the_database_are_found(done: dict[str, Done]) -> None:
    shown = done["status"].out + done["status"].err
    # The connection was found and used: there is nobody at its address.
    assert "STORAGE_UNAVAILABLE" in shown, shown[-3000:]


def test_stdout_is_the_json_alone_although_airflow_logs_to_it(done: dict[str, Done]) -> None:
    """Airflow's root logger writes to stdout, and so may any library: here the one that resolves names."""
    status = done["status"]
    assert json.loads(status.out)["error"]["code"] == "STORAGE_UNAVAILABLE"
    assert "a library prints" in status.err
    assert "credentials retrieved" not in status.err, "that is said of each connection, again and again"
