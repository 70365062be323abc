"""A command that leaves a freeze says so in its last lines, and ``status`` shows it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider_kafka_migration.cli import runner
from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.cli.runner import MigrationRunner, Outcome, Tail
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    CopyFailed,
    MigrationError,
    StorageUnavailable,
)
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import FORWARD, State
from airflow_provider_kafka_migration.storage.local import LocalStore

Invoke = Callable[..., Any]
METHODS = ["webhook", "manual", "acl"]


def freeze(journal: Journal, method: str = "webhook", *, limit_seconds: float = 60.0) -> None:
    """Into ``cutover``, with a freeze that was requested just now."""
    for state in FORWARD[FORWARD.index(State.SEED) + 1 : FORWARD.index(State.CUTOVER) + 1]:
        journal.transition(state, "test")
    now = datetime.now(UTC)
    details = {"method": method, "requested_at": iso(now), "deadline": iso(now + timedelta(seconds=limit_seconds))}
    journal.step(steps.FREEZE_REQUESTED, "1", details)


@pytest.mark.parametrize("method", METHODS)
def test_status_shows_an_open_freeze(invoke: Invoke, spec_file: Path, journal: Journal, method: str) -> None:
    assert json.loads(invoke("status", spec_file, "--json").stdout)["freeze"] is None
    freeze(journal, method)
    attempt = json.loads(invoke("status", spec_file, "--json").stdout)["freeze"]
    assert (attempt["method"], attempt["standing"], attempt["overdue"]) == (method, "frozen", False)
    assert attempt["since"] < attempt["deadline"]
    assert attempt["go_on"] == f"kafka-migration resume {spec_file}"
    shown = invoke("status", spec_file).stdout
    assert "producers are frozen" in shown
    for expected in (attempt["since"], attempt["deadline"], attempt["go_on"], attempt["lift"]):
        assert expected in shown
    assert ("tell the producers' owners" in shown) is (method == "manual"), "nobody else frees them"


def test_status_shows_an_overdue_freeze_one_without_end_and_ready(
    invoke: Invoke, spec_file: Path, journal: Journal
) -> None:
    freeze(journal, limit_seconds=-30)
    found = json.loads(invoke("status", spec_file, "--json").stdout)["freeze"]
    assert found["overdue"]
    assert "lift it: `kafka-migration resume" in " ".join(found["text"])
    assert "may free them by itself at the limit" in " ".join(found["text"])
    journal.step(steps.FREEZE_HELD, "1", {})
    assert "without a deadline: it frees them only when it gets" in invoke("status", spec_file).stdout
    journal.step(steps.READY, "1", {})
    found = json.loads(invoke("status", spec_file, "--json").stdout)["freeze"]
    assert (found["standing"], found["lift"]) == ("ready", f"kafka-migration abandon {spec_file}"), (
        "no limit frees them"
    )
    journal.transition(State.AWAITING_CLIENT_SWITCH, "test")
    found = json.loads(invoke("status", spec_file, "--json").stdout)["freeze"]
    assert (found["standing"], found["overdue"]) == ("switching", False)
    journal.step(steps.APPROVAL_SHOWN, "client_switch", {"code": "5e6f7a8b"})
    shown = " ".join(invoke("status", spec_file).stdout.split())
    assert f"`kafka-migration resume {spec_file} --approve 5e6f7a8b`" in shown, "with the code, beside the way out"
    assert f"`kafka-migration abandon {spec_file}`" in shown
    journal.step(steps.CLIENT_SWITCH_ACKNOWLEDGED)
    assert json.loads(invoke("status", spec_file, "--json").stdout)["freeze"] is None


def test_a_freeze_whose_lift_is_not_journaled_is_shown(invoke: Invoke, spec_file: Path, journal: Journal) -> None:
    freeze(journal)
    journal.transition(State.TAIL, "given up", from_states={State.CUTOVER})
    assert "does not say that producers are free again" in invoke("status", spec_file).stdout
    journal.step(steps.FREEZE_LIFTED, "1", {})
    assert json.loads(invoke("status", spec_file, "--json").stdout)["freeze"] is None


# -- last words ------------------------------------------------------------------------------------------------------


def ends_by(monkeypatch: pytest.MonkeyPatch, end: Callable[[], Outcome]) -> None:
    monkeypatch.setattr(MigrationRunner, "go", lambda *_: end())


def throws(error: BaseException) -> Callable[[], Outcome]:
    def end() -> Outcome:
        raise error

    return end


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BrokerUnreachable("the target is away", next_step="start it"), ExitCode.TRY_AGAIN),
        (CopyFailed("two partitions", next_step="heal them"), ExitCode.FAILED),
        (RuntimeError("a mistake"), ExitCode.FAILED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
    ids=["transient", "terminal", "unexpected", "Ctrl-C"],
)
def test_whatever_ends_a_command_in_a_freeze_its_last_lines_say_so(
    invoke: Invoke,
    spec_file: Path,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    error: BaseException,
    status: ExitCode,
) -> None:
    freeze(journal, method)
    ends_by(monkeypatch, throws(error))
    result = invoke("resume", spec_file)
    assert result.exit_code == status
    last = result.stderr[result.stderr.index("error") :].splitlines()
    start = next(number for number, line in enumerate(last) if "producers are frozen" in line)
    assert start > 0, "the error comes first"
    words = " ".join(last[start:])
    assert f"kafka-migration resume {spec_file}" in words
    assert f"kafka-migration rollback {spec_file}" in words
    assert ("tell the producers' owners" in words) is (method == "manual")
    answer = json.loads(invoke("resume", spec_file, "--json").stdout)
    assert answer["ok"] is False
    assert answer["freeze"]["method"] == method


def test_until_inside_the_cutover_says_so_after_the_answer(
    invoke: Invoke, spec_file: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(journal)
    ends_by(monkeypatch, Outcome)
    result = invoke("run", spec_file, "--until", "cutover.freeze")
    assert result.exit_code == ExitCode.OK
    assert "producers are frozen" in result.stderr
    answer = json.loads(invoke("run", spec_file, "--until", "cutover.freeze", "--json").stdout)
    assert answer["ok"] is True
    assert answer["freeze"]["standing"] == "frozen"


def test_with_traceback_the_last_lines_are_the_same(
    invoke: Invoke, spec_file: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(journal)
    ends_by(monkeypatch, throws(RuntimeError("a mistake")))
    result = invoke("run", spec_file, "--debug")
    assert result.exit_code == ExitCode.FAILED
    assert "Traceback" in result.stderr
    assert "producers are frozen" in result.stderr[result.stderr.index("a mistake") :]


def test_a_freeze_that_was_lifted_meanwhile_is_told_by_its_method(
    invoke: Invoke, spec_file: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(journal, "manual")

    def lifted() -> Outcome:
        journal.transition(State.TAIL, "lifted", from_states={State.CUTOVER})
        journal.step(steps.FREEZE_LIFTED, "1", {})
        raise CopyFailed("two partitions")

    ends_by(monkeypatch, lifted)
    result = invoke("resume", spec_file)
    last = result.stderr.splitlines()[-1]
    assert "freeze 1 was lifted" in last
    assert "they are still stopped: tell the producers' owners" in last
    ends_by(monkeypatch, throws(CopyFailed("two partitions")))
    assert "was lifted" not in invoke("resume", spec_file).stderr, "people hear of a lifted freeze a single time"


def test_a_journal_that_cannot_be_read_is_no_all_clear(
    invoke: Invoke, spec_file: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(journal)

    def end() -> Outcome:
        def away(*_: Any, **__: Any) -> Any:
            raise StorageUnavailable("the bucket does not answer")

        for name in ("get", "list"):
            monkeypatch.setattr(LocalStore, name, away)
        raise StorageUnavailable("the bucket does not answer")

    ends_by(monkeypatch, end)
    result = invoke("resume", spec_file)
    assert result.exit_code == ExitCode.TRY_AGAIN
    assert "it is unknown whether producers are frozen" in result.stderr
    assert f"kafka-migration status {spec_file}" in result.stderr.splitlines()[-1]


def test_without_a_freeze_nothing_is_added(
    invoke: Invoke, spec_file: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_by(monkeypatch, throws(CopyFailed("two partitions")))
    result = invoke("resume", spec_file)
    assert "frozen" not in result.stderr
    assert "freeze" not in json.loads(invoke("resume", spec_file, "--json").stdout)


_PROGRAM = """
import sys, time
from airflow_provider_kafka_migration.cli import runner
from airflow_provider_kafka_migration.cli.app import app

def go(*_):
    print("begun", file=sys.stderr, flush=True)
    time.sleep(300)

runner.MigrationRunner.go = go
app()
"""


@pytest.mark.slow
def test_a_real_signal_in_a_freeze(spec_file: Path, journal: Journal, tmp_path: Path) -> None:
    freeze(journal, "acl")
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "resume", str(spec_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "300", "HOME": str(tmp_path)},
    )
    try:
        assert process.stderr is not None
        while process.stderr.readline() != "begun\n":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == ExitCode.TERMINATED
    assert err.index("stopped by SIGTERM") < err.index("producers are frozen")
    assert f"`kafka-migration rollback {spec_file}`" in err.splitlines()[-1]


# -- the tail and the driver -----------------------------------------------------------------------------------------


class Frozen:
    """Stands for a migration in a freeze: notes the phases that it is asked to run."""

    def __init__(self, journal: Journal, tail: Callable[[], PhaseResult]) -> None:
        self.ran: list[str] = []
        self._journal = journal
        self._tail = tail
        self.context = self
        nothing: Any = None
        self.record = MigrationRecord(nothing, journal, journal.store, nothing, nothing, now=self.now)

    @property
    def journal(self) -> Journal:
        return self._journal

    def reading(self) -> Any:
        from contextlib import nullcontext

        return nullcontext(self)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def run(self, phase: str, **_: Any) -> PhaseResult:
        if phase == "tail":
            return self._tail()
        self.ran.append(phase)
        return PhaseResult(phase, "done")

    def wait_for_tail(self, *, sleep: Callable[[float], None]) -> PhaseResult:
        self.ran.append("wait")
        for _ in range(3):
            sleep(0.01)
        return PhaseResult("cutover", "the tail has ended", {"ended": True})

    def close(self) -> None:
        return None


def driven(migration: Frozen, *, until: str, code: str | None = None) -> tuple[Outcome, list[PhaseResult]]:
    shown: list[PhaseResult] = []
    opened: Any = migration
    driver = MigrationRunner(
        opened, lambda: Tail(opened, threading.Event()), person="ann", on_result=shown.append, until=until
    )
    return driver.go(code), shown


def test_resume_in_a_freeze_goes_straight_to_the_steps_that_wait_for_clusters(journal: Journal) -> None:
    """Planning or the drain would end the command at the first cluster that is away, with producers frozen."""
    freeze(journal)
    migration = Frozen(journal, lambda: PhaseResult("tail", "tail complete"))
    _, shown = driven(migration, until="cutover.floor_guard")
    assert migration.ran == [
        "cutover.freeze",
        "cutover.sentinels",
        "cutover.final_drain",
        "wait",
        "cutover.snapshot_groups",
        "cutover.commit_groups",
        "cutover.floor_guard",
    ]
    assert "tail" in [item.phase for item in shown]


@pytest.mark.parametrize(("method", "seconds"), [("manual", 0.0), ("webhook", 3600.0), ("acl", 3600.0)])
def test_a_tail_that_has_to_catch_up_does_not_make_the_answer_too_old(
    monkeypatch: pytest.MonkeyPatch, method: str, seconds: float
) -> None:
    """Only who stops producers by hand has stopped them when the command starts."""
    monkeypatch.setattr(runner.check, "given", lambda *_: [])
    begun = datetime(2026, 4, 24, tzinfo=UTC)
    sections: Any = SimpleNamespace(cutover=SimpleNamespace(freeze=method), approvals=SimpleNamespace(second_users=[]))
    context = SimpleNamespace(spec=sections, now=lambda: begun + timedelta(hours=1))
    migration: Any = SimpleNamespace(context=context)
    driver = MigrationRunner(migration, Mock(), person="ann", on_result=Mock())
    driver._answered_at = begun
    facts: Any = SimpleNamespace(migration_id="orders-1", kind="cutover", body="", digest=lambda: "")
    assert driver._answer(facts, "1a2b3c4d").answered_at == iso(begun + timedelta(seconds=seconds))


@pytest.mark.parametrize("code", [None, "0123abcd"])
def test_the_window_of_the_drain_is_not_waited_for_again_once_the_code_is_typed(
    journal: Journal, code: str | None
) -> None:
    """Producers may be stopped by hand by then."""
    for state in FORWARD[FORWARD.index(State.SEED) + 1 : FORWARD.index(State.CUTOVER)]:
        journal.transition(state, "test")
    journal.step("drain_ready", key="2026-04-24T10:40:00.000Z", details={})
    options: dict[str, Any] = {}

    class Waiting(Frozen):
        def run(self, phase: str, **given: Any) -> PhaseResult:
            options[phase] = given
            return super().run(phase)

    driven(Waiting(journal, lambda: PhaseResult("tail", "stopped")), until="drain_ready", code=code)
    options["drain_ready"].pop("sleep")
    event = {"stable_since": "2026-04-24T10:40:00.000Z"}
    assert options["drain_ready"] == ({} if code is None else {"event": event})


@pytest.mark.parametrize("until", ["seed", "drain_ready"])
def test_until_a_phase_before_the_freeze_runs_nothing_behind_it(journal: Journal, until: str) -> None:
    freeze(journal)
    migration = Frozen(journal, lambda: PhaseResult("tail", "tail complete"))
    driven(migration, until=until)
    assert migration.ran == []


def test_a_tail_that_fails_for_a_moment_does_not_end_the_command_in_a_freeze(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(runner, "_LONGEST_PAUSE_SECONDS", 0.02)
    freeze(journal)
    tries: list[int] = []

    def tail() -> PhaseResult:
        tries.append(1)
        if len(tries) < 5:
            raise StorageUnavailable("SlowDown")
        return PhaseResult("tail", "tail complete")

    _, shown = driven(Frozen(journal, tail), until="cutover.floor_guard")
    assert len(tries) == 5
    assert shown[-1].phase == "cutover.floor_guard"


def test_a_tail_that_failed_for_good_ends_it(journal: Journal) -> None:
    freeze(journal)

    def tail() -> PhaseResult:
        raise CopyFailed("two partitions")

    with pytest.raises(MigrationError, match="two partitions"):
        driven(Frozen(journal, tail), until="cutover.floor_guard")


def test_in_a_freeze_a_long_pause_of_the_tail_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(runner, "_LONGEST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(runner, "_HURRIED_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(runner, "_LOOK_SECONDS", 0.01)
    failed = threading.Event()
    result = PhaseResult("tail", "tail complete")

    class Once:
        def run(self, _: str) -> PhaseResult:
            if failed.is_set():
                return result
            failed.set()
            raise StorageUnavailable("SlowDown")

        def close(self) -> None:
            return None

    opened: Any = Once()
    with Tail(opened, threading.Event()) as tail:
        assert failed.wait(60)
        tail.hurry()
        assert tail.wait(60) is result
