"""``kafka-migration release``: without clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.cli.migrate import cli_owner
from airflow_provider_kafka_migration.errors import ClaimLost
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.lanes.slices import ClaimNotice, claim_key
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore


def reread(journal: Journal) -> Journal:
    return Journal(journal.store, journal.migration_id)


def test_what_this_user_holds_is_released_and_the_state_stays(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    mine = Journal.create_or_open(
        LocalStore(str(tmp_path / "journal")), "orders-1", Fingerprint("s", "t"), owner=cli_owner()
    )
    mine.transition(State.PRECHECK, "precheck starts")
    result = invoke("release", spec_file, "--reason", "the DAG goes on", "--json")
    assert result.exit_code == ExitCode.OK, result.output
    assert json.loads(result.stdout)["released"] == str(cli_owner())
    found = reread(mine)
    assert found.current_claim is None
    assert found.tip_state is State.PRECHECK
    tip = found.tip
    assert tip is not None
    assert tip.reason == "the DAG goes on"
    found.claim(Owner("dag_run", "dag/run", "plan"))
    assert found.holds(), "no takeover is needed"


def test_what_somebody_else_holds_needs_a_takeover(invoke: Any, spec_file: Path, journal: Journal) -> None:
    entries = len(journal.entries())
    refused = invoke("release", spec_file, "--json")
    assert refused.exit_code == ExitCode.FAILED
    assert json.loads(refused.stdout)["error"]["code"] == "CLAIM_HELD"
    assert len(reread(journal).entries()) == entries
    assert invoke("release", spec_file, "--takeover").exit_code == ExitCode.OK
    with pytest.raises(ClaimLost):
        journal.step("woke up")
    notice = ClaimNotice.parse(journal.store.get(claim_key("orders-1")) or b"")
    assert notice.generation == 2, "copiers of the former owner stop, too"


def test_who_lost_it_by_a_takeover_does_not_come_back_by_itself(invoke: Any, spec_file: Path, journal: Journal) -> None:
    """The next task of the former run, or the next part of the former process: nobody holds it, and it still stops."""
    former = Owner("cli", "ann@desk", "ann")
    assert invoke("release", spec_file, "--takeover").exit_code == ExitCode.OK
    entries = len(reread(journal).entries())
    for _ in range(2):
        with pytest.raises(
            ClaimLost, match=r"cli ann@desk has lost the migration to cli .*may not claim it again"
        ) as caught:
            reread(journal).claim(former)
        assert "takeover" in caught.value.next_step
    assert len(reread(journal).entries()) == entries

    other = reread(journal)
    other.claim(Owner("dag_run", "dag/next", "plan"))
    other.release()
    with pytest.raises(ClaimLost):
        reread(journal).claim(former)
    reread(journal).claim(former, takeover=True)
    assert reread(journal).claim(former).generation == 4
    reread(journal).claim(Owner("dag_run", "dag/next", "plan"), takeover=True)


def test_who_released_it_may_claim_it_again(journal: Journal) -> None:
    former = Owner("cli", "ann@desk", "ann")
    journal.release()
    other = reread(journal)
    other.claim(Owner("dag_run", "dag/run", "plan"))
    other.release()
    assert reread(journal).claim(former).generation == 3


def test_nothing_is_written_where_nobody_holds(invoke: Any, spec_file: Path, journal: Journal) -> None:
    journal.release()
    entries = len(journal.entries())
    result = invoke("release", spec_file)
    assert result.exit_code == ExitCode.OK
    assert "the migration has no holder" in result.stdout
    assert len(reread(journal).entries()) == entries


def test_there_must_be_a_migration(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    result = invoke("release", spec_file)
    assert result.exit_code == ExitCode.FAILED
    assert "no journal" in result.stderr
    assert not (tmp_path / "journal").exists()
