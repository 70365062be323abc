"""``status`` for whoever is woken: since when, how far behind, where producers write, and what to type next."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.owner_process import OwnerProcess
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import FORWARD, State
from airflow_provider_kafka_migration.storage.local import LocalStore

CLI = Owner("cli", "ann@desk", "ann")
AIRFLOW = Owner("dag_run", "orders/manual__1", "tail")


def at(tmp_path: Path, state: State, owner: Owner = CLI) -> Journal:
    """A journal that has come to this state."""
    store = LocalStore(str(tmp_path / "journal"))
    made = Journal.create_or_open(store, "orders-1", Fingerprint("source-id", "target-id"), owner=owner)
    for item in FORWARD[1 : FORWARD.index(state) + 1]:
        made.transition(item, f"{item} starts")
    return made


def says(tmp_path: Path, job: str, *lags: int, seconds_ago: float = 4.0, **fields: Any) -> None:
    """What a driver has written last."""
    rows = [{"topic": "orders", "partition": number, "lag": lag} for number, lag in enumerate(lags)]
    written = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    document = {
        "migration_id": "orders-1", "job": job, "generation": 1, "run": "a", "seconds": 10.0, "records": 500,
        "records_per_second": 50.0, "copied_bytes": 1000, "total_bytes": 4000, "partitions_done": 1,
        "partitions_total": len(rows), "partitions": rows, "at": written.isoformat(), **fields,
    }  # fmt: skip
    LocalStore(tmp_path / "journal").put(f"orders-1/progress/{job}.json", json.dumps(document).encode())


def shown(invoke: Any, *arguments: object) -> str:
    """What status prints, with single spaces."""
    return " ".join(invoke("status", *arguments).stdout.split())


def test_it_says_since_when_and_how_long_each_phase_took(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    at(tmp_path, State.SEED)
    text = shown(invoke, spec_file)
    assert "state seed, since 20" in text
    assert " ago)" in text
    assert "phases planned " in text
    assert "topology_copy " in text
    assert "held by cli ann@desk since" in text
    assert f"if no command runs it: `kafka-migration resume {spec_file}` continues where it stopped" in text
    assert "producers write to the source; this migration stops none at present" in text


def test_the_command_that_answers_an_approval_is_written_out(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    journal = at(tmp_path, State.DRAIN_READY)
    before = shown(invoke, spec_file)
    assert f"to read what will happen, and the code: `kafka-migration resume {spec_file}`" in before
    journal.step(steps.APPROVAL_SHOWN, key="cutover", details={"code": "1a2b3c4d"})
    result = invoke("status", spec_file)
    assert result.exit_code == ExitCode.WAITS
    text = " ".join(result.stdout.split())
    assert f"a person approves the cutover: `kafka-migration resume {spec_file} --approve 1a2b3c4d`" in text
    assert f"to give up and end the migration: `kafka-migration rollback {spec_file}`" in text
    data = json.loads(invoke("status", spec_file, "--json").stdout)
    assert data["approval"]["code"] == "1a2b3c4d"
    assert data["next"][0].endswith(f"resume {spec_file} --approve 1a2b3c4d`")


def test_the_code_of_an_earlier_visit_is_not_shown(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    journal = at(tmp_path, State.DRAIN_READY)
    journal.step(steps.APPROVAL_SHOWN, key="cutover", details={"code": "1a2b3c4d"})
    for state in (State.FAILED, State.DRAIN_READY):
        journal.transition(state, "again")
    assert "1a2b3c4d" not in shown(invoke, spec_file)


def test_a_migration_of_airflow_is_answered_there(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    journal = at(tmp_path, State.AWAITING_CLIENT_SWITCH, AIRFLOW)
    journal.step(steps.APPROVAL_SHOWN, key="client_switch", details={"code": "5e6f7a8b"})
    text = shown(invoke, spec_file)
    assert "in Airflow: Required Actions, task approve_client_switch, with the code 5e6f7a8b" in text
    assert f"`kafka-migration resume {spec_file} --takeover`" in text
    assert "held by dag_run orders/manual__1" in text


@pytest.mark.parametrize("owner", [CLI, AIRFLOW])
def test_in_a_freeze_that_airflow_runs_the_commands_need_a_takeover(
    invoke: Any, spec_file: Path, tmp_path: Path, owner: Owner
) -> None:
    journal = at(tmp_path, State.CUTOVER, owner)
    now = datetime.now(UTC)
    details = {"method": "webhook", "requested_at": iso(now), "deadline": iso(now + timedelta(minutes=1))}
    journal.step(steps.FREEZE_REQUESTED, "1", details)
    text = shown(invoke, spec_file)
    assert f"`kafka-migration rollback {spec_file}`" in text
    assert ("a run in Airflow holds the migration" in text) is (owner is AIRFLOW)


def test_it_says_whether_the_holder_still_runs(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    here = OwnerProcess.of_this_process()
    at(tmp_path, State.SEED, Owner("cli", "ann@desk", "ann", here))
    assert "; its process runs" in shown(invoke, spec_file)
    journal = Journal(LocalStore(str(tmp_path / "journal")), "orders-1")
    gone = replace(here, pid=2**22 + 1)
    journal.claim(Owner("cli", "ann@desk", "ann", gone), takeover=True)
    assert "; its process has ended" in shown(invoke, spec_file)


def test_the_lag_of_a_tail_has_its_age_and_its_worst_partition(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    at(tmp_path, State.TAIL)
    says(tmp_path, "tail", 0, 330)
    text = shown(invoke, spec_file)
    assert "copied lag 330 records in 1 of 2 partitions, the largest 330 at orders-1, 500 records" in text
    assert re.search(r"; reported [\d.]+ \w+ .*ago", text)
    assert "%" not in text


@pytest.mark.parametrize("content", [b"{}", b'{"records": 5}', b'{"records": "x", "partitions": 3}'])
def test_a_damaged_report_hides_nothing_else(invoke: Any, spec_file: Path, tmp_path: Path, content: bytes) -> None:
    at(tmp_path, State.SEED)
    LocalStore(tmp_path / "journal").put("orders-1/progress/seed.json", content)
    assert "state seed, since" in shown(invoke, spec_file)


def test_figures_as_they_were_written_are_for_those_who_ask(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    at(tmp_path, State.SEED)
    says(tmp_path, "seed", -1, source_throttled_seconds=0.0)
    assert "1 of 1 partitions, 500 records" in shown(invoke, spec_file)
    assert "source_throttled_seconds" not in shown(invoke, spec_file)
    assert "generation" not in shown(invoke, spec_file)
    assert "source_throttled_seconds 0.0" in shown(invoke, spec_file, "-v")
    assert "entries, generation" in shown(invoke, spec_file, "--verbose")
    assert json.loads(invoke("status", spec_file, "--json").stdout)["progress"]["seed"]["copied_bytes"] == 1000


@pytest.mark.parametrize("state", [State.TAIL, State.VALIDATING])
def test_a_failure_says_what_to_do_and_why_it_failed(
    invoke: Any, spec_file: Path, tmp_path: Path, state: State
) -> None:
    at(tmp_path, state).transition(State.FAILED, "the disk of broker 3 is full")
    text = shown(invoke, spec_file)
    assert f"state failed, failed in {state}, since" in text
    assert "the disk of broker 3 is full" in text
    assert f"{state} has failed: correct what the last line says" in text
    assert f"`kafka-migration resume {spec_file}`" in text


def test_the_end_says_how_to_verify_and_how_to_go_back(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    at(tmp_path, State.FINALIZED)
    text = shown(invoke, spec_file)
    place = f"file://{tmp_path}/evidence/orders-1/evidence.json"
    assert f"`kafka-migration verify-evidence {place} --public-key KEY`" in text
    assert "kafka-migration way-back plan" in text
    assert "producers write to the target" in text
    assert "finalized 0 s" not in text, "an end lasts for ever"


def test_before_the_first_run(invoke: Any, spec_file: Path) -> None:
    text = shown(invoke, spec_file)
    assert "state not started" in text
    assert f"`kafka-migration precheck {spec_file}` checks both clusters; `kafka-migration run {spec_file}`" in text
