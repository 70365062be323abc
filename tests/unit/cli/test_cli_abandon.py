"""``abandon``: shown first, then done with its code, without either cluster; and what ``status`` says until then."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_cli_freeze import freeze

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.times import iso
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


# -- mirrors ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mirror_file(tmp_path: Path) -> Path:
    file = tmp_path / "a-to-b.yaml"
    spec = {
        "kind": "mirror",
        "migration_id": "a-to-b",
        "mirror": {"source_alias": "A", "target_alias": "B"},
        "cutover": {"freeze": "acl"},
        "source": {"conn_id": "env:SOURCE"},
        "target": {"conn_id": "env:TARGET"},
        "storage": {"journal": f"file://{tmp_path}/journal", "evidence": f"file://{tmp_path}/evidence"},
    }
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return file


@pytest.fixture
def promoted(tmp_path: Path, mirror_file: Path) -> Journal:
    """The journal of a promoted mirror; nobody has released it, as a run in Airflow does not. No cluster answers."""
    storage = load_spec(mirror_file).storage
    locations = {
        "journal": storage.journal,
        "archive": storage.archive_location,
        "evidence": storage.evidence_location,
    }
    made = Journal.create_or_open(
        LocalStore(str(tmp_path / "journal")),
        "a-to-b",
        Fingerprint.of_locations("source-id", "target-id", locations),
        owner=Owner("dag_run", "mirror/manual__1", "mirror"),
        details={"kind": "mirror"},
    )
    for state in (State.PRECHECK, State.TOPOLOGY_COPY, State.SEED, State.TAIL):
        made.transition(state, f"{state} starts")
    now = datetime.now(UTC)
    details = {"method": "acl", "requested_at": iso(now), "deadline": iso(now), "request": 1}
    made.step(steps.FREEZE_REQUESTED, "1", details)
    made.step(steps.PROMOTED, None, {"source_gone": False})
    made.transition(State.PROMOTED, "promoted by ann", from_states={State.TAIL})
    return made


def test_a_promoted_mirror_is_abandoned_by_its_own_command(
    invoke: Invoke, mirror_file: Path, promoted: Journal
) -> None:
    shown = json.loads(invoke("mirror", "status", mirror_file, "--json").stdout)
    assert shown["freeze"]["lift"] == f"kafka-migration mirror abandon {mirror_file}"
    found = invoke("mirror", "abandon", mirror_file)
    assert found.exit_code == ExitCode.WAITS
    waiting = json.loads(invoke("mirror", "abandon", mirror_file, "--json").stdout)["waiting"]
    typed = f"kafka-migration mirror abandon {mirror_file} --approve {waiting['code']} --target-unread"
    assert f"waits for an operator: {typed}\n" in found.stdout, "no takeover: the run's claim ended with the promotion"
    assert "the mirror ends" in found.stdout
    count = len(promoted.entries())
    refused = invoke("mirror", "abandon", mirror_file, "--approve", "00000000", "--target-unread")
    assert "does not abandon the mirror" in refused.stderr
    promoted.refresh()
    assert len(promoted.entries()) == count, "who may not abandon it does not open its journal"
    done = invoke("mirror", "abandon", mirror_file, "--approve", waiting["code"], "--target-unread", "--json")
    assert state_of(promoted) is State.ENDED, done.stdout
    assert done.exit_code == ExitCode.OK
    data = json.loads(invoke("mirror", "status", mirror_file, "--json").stdout)
    assert (data["state"], data["freeze"]) == ("ended", None)
    assert "adopt.from: comparison" in data["next"][0]
    again = json.loads(invoke("mirror", "abandon", mirror_file, "--json").stdout)
    assert "abandoned already" in again["summary"]


def test_the_second_of_two_people_needs_no_takeover_either(
    invoke: Invoke, mirror_file: Path, promoted: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = yaml.safe_load(mirror_file.read_text(encoding="utf-8"))
    spec["approvals"] = {"second_users": ["bob"]}
    mirror_file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    code = json.loads(invoke("mirror", "abandon", mirror_file, "--json").stdout)["waiting"]["code"]
    typed = ["mirror", "abandon", mirror_file, "--approve", code, "--target-unread"]
    as_person(monkeypatch, "ann")
    first = invoke(*typed)
    assert first.exit_code == ExitCode.WAITS
    assert "a second person has to, too" in first.stdout
    assert state_of(promoted) is State.PROMOTED
    as_person(monkeypatch, "bob")
    last = invoke(*typed)
    assert last.exit_code == ExitCode.OK, last.stderr
    assert state_of(promoted) is State.ENDED


def as_person(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in ("cli.abandon.person", "cli.session.person"):
        monkeypatch.setattr(f"airflow_provider_kafka_migration.{module}", lambda: name)
