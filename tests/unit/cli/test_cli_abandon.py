"""``abandon``: shown first, then done with its code, without either cluster; and what ``status`` says until then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cli_freeze import freeze

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.spec import load_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore

Invoke = Callable[..., Any]


@pytest.fixture
def journal(tmp_path: Path, spec_file: Path) -> Journal:
    """The journal of that spec, with its own fingerprint: what ends a migration compares it."""
    storage = load_spec(spec_file).storage
    locations = {
        "journal": storage.journal,
        "archive": storage.archive_location,
        "evidence": storage.evidence_location,
    }
    made = Journal.create_or_open(
        LocalStore(str(tmp_path / "journal")),
        "orders-1",
        Fingerprint.of_locations("source-id", "target-id", locations),
        owner=Owner("cli", "ann@desk", "ann"),
    )
    for state in (State.PRECHECK, State.TOPOLOGY_COPY, State.SEED):
        made.transition(state, f"{state} starts")
    return made


@pytest.fixture
def switching(journal: Journal) -> Journal:
    """Clients were told to switch; nothing but the journal answers."""
    freeze(journal, "manual")
    journal.step(steps.READY, "1", {})
    journal.transition(State.AWAITING_CLIENT_SWITCH, "ready")
    journal.release()
    return journal


def state_of(journal: Journal) -> State | None:
    journal.refresh()
    return journal.tip_state


def test_it_shows_the_code_and_what_is_not_known(invoke: Invoke, spec_file: Path, switching: Journal) -> None:
    found = invoke("abandon", spec_file)
    assert found.exit_code == ExitCode.WAITS
    waiting = json.loads(invoke("abandon", spec_file, "--json").stdout)["waiting"]
    assert f"kafka-migration abandon {spec_file} --approve {waiting['code']} --target-unread" in found.stdout
    assert "not checked target: offset-map.json is missing" in found.stdout
    assert "stopped by hand, so they are still stopped" in found.stdout
    assert state_of(switching) is State.AWAITING_CLIENT_SWITCH
    assert switching.current_claim is None, "who only looks claims nothing"


def test_the_command_takes_over_from_a_run_that_waits_in_airflow(
    invoke: Invoke, spec_file: Path, switching: Journal
) -> None:
    switching.claim(Owner("dag_run", "orders/manual__1", "approve_client_switch"), takeover=True)
    waiting = json.loads(invoke("abandon", spec_file, "--json").stdout)["waiting"]
    typed = ["abandon", spec_file, "--approve", waiting["code"], "--target-unread"]
    assert f"--approve {waiting['code']} --target-unread --takeover" in invoke("abandon", spec_file).stdout
    assert "CLAIM_HELD" in invoke(*typed).stderr
    invoke(*typed, "--takeover")
    assert state_of(switching) is State.ROLLED_BACK


def test_a_wrong_code_and_a_missing_word_are_refused_without_a_claim(
    invoke: Invoke, spec_file: Path, switching: Journal
) -> None:
    code = json.loads(invoke("abandon", spec_file, "--json").stdout)["waiting"]["code"]
    for given, word, why in (("00000000", True, "does not abandon"), (code, False, "not known whether clients")):
        options = ["--target-unread"] if word else []
        found = invoke("abandon", spec_file, "--approve", given, *options, "--json")
        assert found.exit_code == ExitCode.FAILED
        assert why in json.loads(found.stdout)["error"]["what"]
    assert state_of(switching) is State.AWAITING_CLIENT_SWITCH
    assert switching.current_claim is None


def test_with_its_code_it_ends_the_migration(invoke: Invoke, spec_file: Path, switching: Journal) -> None:
    code = json.loads(invoke("abandon", spec_file, "--json").stdout)["waiting"]["code"]
    found = invoke("abandon", spec_file, "--approve", code, "--target-unread", "--json")
    assert state_of(switching) is State.ROLLED_BACK
    assert "abandoned in awaiting_client_switch" in json.loads(found.stdout)["summary"]
    [entry] = switching.steps(steps.ABANDONED)
    assert entry.details["target_unread_accepted"]
    assert switching.find_step(steps.FREEZE_LIFTED, "1") is not None
    again = invoke("abandon", spec_file, "--json")
    assert "rolled back already" in json.loads(again.stdout)["summary"]


def test_status_speaks_of_producers_until_the_switch_is_acknowledged(
    invoke: Invoke, spec_file: Path, switching: Journal
) -> None:
    found = json.loads(invoke("status", spec_file, "--json").stdout)["freeze"]
    assert (found["standing"], found["lift"]) == ("switching", f"kafka-migration abandon {spec_file}")
    shown = invoke("status", spec_file).stdout
    assert f"producers are stopped on the source (stopped by hand) since {found['since']}" in shown
    assert f"kafka-migration abandon {spec_file}" in shown
    rolled_back = invoke("rollback", spec_file, "--json", "--yes")
    assert f"kafka-migration abandon {spec_file}" in json.loads(rolled_back.stdout)["error"]["next_step"]


def test_what_did_not_come_to_its_end_is_the_next_thing_to_do(
    invoke: Invoke, spec_file: Path, journal: Journal
) -> None:
    freeze(journal, "manual")
    journal.step(steps.READY, "1", {})
    journal.step(steps.ABANDONED, None, {})
    found = json.loads(invoke("status", spec_file, "--json").stdout)
    assert found["freeze"]["standing"] == "abandoned"
    assert f"kafka-migration abandon {spec_file}" in found["resume"]["why"]


def test_before_ready_it_names_the_rollback(invoke: Invoke, spec_file: Path, journal: Journal) -> None:
    freeze(journal, "manual")
    found = invoke("abandon", spec_file, "--json")
    assert found.exit_code == ExitCode.FAILED
    assert f"kafka-migration rollback {spec_file}" in json.loads(found.stdout)["error"]["next_step"]
