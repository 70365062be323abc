"""``kafka-migration mirror status``: what it shows of a mirror in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore

Invoke = Callable[..., Result]

_TROUBLES = [
    {
        "topic": "orders",
        "partition": 1,
        "state": "failed",
        "seconds": 61.0,
        "code": "SOURCE_GAP",
        "what": "records are missing",
        "next_step": "find them",
    },
    {"topic": "refunds", "partition": 0, "state": "stuck", "seconds": 7.0, "code": "BROKER_BUSY", "what": "no answer"},
]


@pytest.fixture
def mirror_file(tmp_path: Path) -> Path:
    """A mirror that mirrors, and whose copiers have reported two partitions in trouble."""
    store = LocalStore(str(tmp_path / "journal"))
    journal = Journal.create_or_open(
        store,
        "a-to-b",
        Fingerprint("source-id", "target-id"),
        owner=Owner("cli", "ann@desk", "ann"),
        details={"kind": "mirror"},
    )
    for state in (State.PRECHECK, State.TOPOLOGY_COPY, State.SEED, State.TAIL):
        journal.transition(state, f"{state} starts")
    progress = {
        "generation": journal.generation,
        "at": "2026-04-24T10:40:00Z",
        "partitions_failed": 1,
        "partitions_stuck": 1,
        "stuck_seconds": 7.0,
        "troubles": _TROUBLES,
        "partitions": [],
    }
    store.put("a-to-b/progress/tail.json", json.dumps(progress).encode())
    file = tmp_path / "a-to-b.yaml"
    spec = {
        "kind": "mirror",
        "migration_id": "a-to-b",
        "mirror": {"source_alias": "A", "target_alias": "B"},
        "source": {"conn_id": "env:SOURCE"},
        "target": {"conn_id": "env:TARGET"},
        "storage": {"journal": f"file://{tmp_path}/journal"},
    }
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return file


def test_status_shows_partitions_that_are_not_copied(invoke: Invoke, mirror_file: Path) -> None:
    result = invoke("mirror", "status", mirror_file)
    assert result.exit_code == ExitCode.OK, result.output
    shown = " ".join(result.output.split())
    assert "tail orders-1 FAILED for 61 s: [SOURCE_GAP] records are missing. Next: find them" in shown
    assert "tail refunds-0 stuck, retrying for 7 s: [BROKER_BUSY] no answer" in shown
