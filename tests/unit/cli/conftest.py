"""A migration in a folder, and a way to run commands on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from airflow_provider_kafka_migration.cli.app import app
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore

Invoke = Callable[..., Result]


@pytest.fixture
def invoke() -> Invoke:
    """Run ``kafka-migration`` with these arguments."""

    def run(*arguments: object, typed: str | None = None) -> Result:
        environment = {"COLUMNS": "200", "TERM": "dumb"}
        return CliRunner().invoke(app, [str(item) for item in arguments], input=typed, env=environment)

    return run


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    """A spec whose stores are folders."""
    file = tmp_path / "migration.yaml"
    spec = {
        "migration_id": "orders-1",
        "source": {"conn_id": "env:SOURCE"},
        "target": {"conn_id": "env:TARGET"},
        "storage": {"journal": f"file://{tmp_path}/journal", "evidence": f"file://{tmp_path}/evidence"},
    }
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return file


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal in that folder, as far as the seed, with a step."""
    made = Journal.create_or_open(
        LocalStore(str(tmp_path / "journal")),
        "orders-1",
        Fingerprint("source-id", "target-id"),
        owner=Owner("cli", "ann@desk", "ann"),
    )
    for state in (State.PRECHECK, State.TOPOLOGY_COPY, State.SEED):
        made.transition(state, f"{state} starts")
    made.step("seed_job", key="seed", details={"lanes": 4})
    return made
