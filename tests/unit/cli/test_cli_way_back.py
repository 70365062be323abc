"""``way-back``: what it answers before there is one, and that all its texts name its own commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.cli import frame
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.state import FORWARD, State
from airflow_provider_kafka_migration.storage.local import LocalStore

COMMANDS = ("plan", "run", "resume", "status", "return", "keep", "leave-out")


def _journal(folder: Path, name: str, state: State) -> Journal:
    made = Journal.create_or_open(
        LocalStore(str(folder / "journal")),
        name,
        Fingerprint("source-id", "target-id"),
        owner=Owner("cli", "ann@desk", "ann"),
    )
    for item in FORWARD[1 : FORWARD.index(state) + 1]:
        made.transition(item, f"{item} starts")
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_there_is_no_way_back_before_the_switch(invoke: Any, spec_file: Path, tmp_path: Path, command: str) -> None:
    _journal(tmp_path, "orders-1", State.TAIL)
    topics = ["orders"] if command == "leave-out" else []
    found = invoke("way-back", command, spec_file, *topics, "--json")
    assert found.exit_code == 1
    error = json.loads(found.stdout)["error"]
    assert "no way back yet: the migration is in state tail" in error["what"]
    assert f"`kafka-migration rollback {spec_file}` abandons the migration" in error["next_step"], (
        "the first migration's"
    )


def test_a_migration_that_does_not_exist(invoke: Any, spec_file: Path) -> None:
    found = invoke("way-back", "status", spec_file)
    assert found.exit_code == 1
    assert "not started" in found.output
    assert "check migration_id" in found.output


def test_texts_name_the_commands_of_the_way_back() -> None:
    text = (
        "run `kafka-migration resume FILE`, or `kafka-migration rollback FILE`; `kafka-migration status FILE` shows it"
    )
    assert frame.commands_in(text) == text
    token = frame._spoken_of.set(None)
    try:
        frame.speak_of_way_back()
        assert frame.commands_in(text) == (
            "run `kafka-migration way-back resume FILE`, or `kafka-migration way-back keep FILE`; "
            "`kafka-migration way-back status FILE` shows it"
        )
        assert frame.commands_in("kafka-migration verify-evidence X") == "kafka-migration verify-evidence X"
    finally:
        frame._spoken_of.reset(token)
