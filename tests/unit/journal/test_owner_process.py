"""Two commands of one user are two owners; one that has died keeps nobody out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.errors import ClaimHeld, ClaimLost
from airflow_provider_kafka_migration.journal.entries import Claim, Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.owner_process import _FIRST_NAMESPACE, Life, OwnerProcess
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore

_FINGERPRINT = Fingerprint("source", "target")
_HOLDER = """
import sys
from airflow_provider_kafka_migration.journal.entries import Owner
from airflow_provider_kafka_migration.journal.entries import Fingerprint
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.owner_process import OwnerProcess
from airflow_provider_kafka_migration.storage.local import LocalStore
owner = Owner("cli", "ann@desk", "ann", OwnerProcess.of_this_process())
Journal.create_or_open(LocalStore(sys.argv[1]), "m1", Fingerprint("source", "target"), owner=owner)
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another command of the same user, which holds the migration."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        yield process
        process.kill()


def ann(process: OwnerProcess | None = None) -> Owner:
    return Owner("cli", "ann@desk", "ann", process or OwnerProcess.of_this_process())


def claimed(folder: Path, owner: Owner, *, takeover: bool = False) -> Journal:
    return Journal.create_or_open(LocalStore(str(folder)), "m1", _FINGERPRINT, owner=owner, takeover=takeover)


def test_a_second_command_waits_for_the_first_and_goes_on_when_it_is_dead(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(ClaimHeld, match=f"process {holder.pid} on .*, which still runs") as caught:
        claimed(tmp_path, ann())
    assert caught.value.details["process"]["life"] == "still runs"
    holder.kill()
    holder.wait(60)
    journal = claimed(tmp_path, ann())
    assert journal.generation == 2, "a new generation: what the dead one left behind is refused"
    tip = journal.tip
    assert tip is not None
    assert f"process {holder.pid}" in tip.reason
    assert tip.details["taken_over_from"]["generation"] == 1
    assert claimed(tmp_path, ann()).generation == 2, "the same process again changes nothing"
    assert journal.verify().is_good


def test_a_dead_command_keeps_its_claim_from_everybody_else(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait(60)
    for owner in (
        replace(ann(), identity="bob@desk"),
        Owner("dag_run", "dag/run", "plan"),
        replace(ann(), process=None),
    ):
        with pytest.raises(ClaimHeld, match="has ended"):
            claimed(tmp_path, owner)
    assert claimed(tmp_path, Owner("dag_run", "dag/run", "plan"), takeover=True).generation == 2


def test_a_command_that_was_thought_dead_writes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = OwnerProcess.of_this_process()
    former = claimed(tmp_path, ann(replace(me, started="long before")))
    claimed(tmp_path, ann())
    with pytest.raises(ClaimLost):
        former.transition(State.PRECHECK, "woke up")


def test_only_what_is_certain_counts() -> None:
    me = OwnerProcess.of_this_process()
    assert me.life() is Life.RUNS
    assert replace(me, started="another start").life() is Life.ENDED, "the pid was used again"
    assert replace(me, pid=2**22 + 1).life() is Life.ENDED
    assert replace(me, host="elsewhere").life() is Life.UNKNOWN
    assert replace(me, namespace="pid:[1]").life() is Life.UNKNOWN, "another container"
    assert replace(me, boot_id="").life() is Life.UNKNOWN
    assert replace(me, started="").life() is Life.UNKNOWN


def test_a_reboot_ends_a_process_but_another_machine_of_the_same_name_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "airflow_provider_kafka_migration.journal.owner_process"
    monkeypatch.setattr(f"{module}._machine_id", lambda: "machine")
    monkeypatch.setattr(f"{module}._namespace", lambda: _FIRST_NAMESPACE)
    before = replace(OwnerProcess.of_this_process(), boot_id="the boot before")
    assert before.life() is Life.ENDED
    assert replace(before, machine_id="another machine").life() is Life.UNKNOWN
    monkeypatch.setattr(f"{module}._machine_id", lambda: "")
    assert replace(before, machine_id="").life() is Life.UNKNOWN
    monkeypatch.setattr(f"{module}._machine_id", lambda: "machine")
    monkeypatch.setattr(f"{module}._namespace", lambda: "pid:[2]")
    assert replace(before, namespace="pid:[2]").life() is Life.UNKNOWN, "containers are cloned with their machine id"


def test_a_system_without_proc_asks_its_own_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on macOS: ``ps`` knows when a process started."""
    module = "airflow_provider_kafka_migration.journal.owner_process"
    monkeypatch.setattr(f"{module}._PROC", tmp_path)
    monkeypatch.setattr(f"{module}._boot_id", lambda: "this boot")
    me = OwnerProcess.of_this_process()
    assert me.started
    assert me.life() is Life.RUNS
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        started = replace(me, pid=other.pid, started=_ps(other.pid))
        assert started.life() is Life.RUNS
        other.kill()
    assert started.life() is Life.ENDED


def _ps(pid: int) -> str:
    from airflow_provider_kafka_migration.journal import owner_process

    return owner_process._started(pid)


def test_a_claim_keeps_its_process(tmp_path: Path) -> None:
    journal = claimed(tmp_path, ann())
    found = Journal(LocalStore(str(tmp_path)), "m1").current_claim
    assert found == Claim(ann(), 1, journal.entries()[-1].at)
    assert OwnerProcess.of_details(None) is None


def test_a_claim_of_an_older_release_names_no_process_and_is_held(tmp_path: Path) -> None:
    claimed(tmp_path, Owner("cli", "ann@desk", "ann"))
    with pytest.raises(ClaimHeld):
        claimed(tmp_path, ann())
