"""The parts of run and resume that need no cluster: the tail's thread, runners that are stopped, status."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_provider_kafka_migration.cli import runner
from airflow_provider_kafka_migration.cli.frame import ExitCode, Stop, exit_code
from airflow_provider_kafka_migration.cli.progress import ProgressView
from airflow_provider_kafka_migration.cli.runner import Tail, WithoutAirflow, make_engine_of, references, spark_runner
from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.engines import submit
from airflow_provider_kafka_migration.engines.bound_process import kill_tree
from airflow_provider_kafka_migration.engines.submit import SubmitEngine
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    CopyFailed,
    EngineNeedsAirflow,
    EngineUnknown,
    ExecutorUnfit,
    Interrupted,
    SparkJobFailed,
    SpecInvalid,
    StorageUnavailable,
)
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.record.context import JobRef, PhaseResult, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import load_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore
from harness.processes import wait_for


class TailMigration:
    """A migration whose tail does what a test says."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.closed = False

    def run(self, phase: str) -> PhaseResult:
        assert phase == "tail"
        result: PhaseResult = self._run()
        return result

    def close(self) -> None:
        self.closed = True


def test_a_tail_that_fails_wakes_up_who_waits_for_it() -> None:
    def fail() -> PhaseResult:
        raise CopyFailed("two partitions")

    migration = TailMigration(fail)
    with Tail(migration, threading.Event()) as tail:  # type: ignore[arg-type]
        begun = time.monotonic()
        with pytest.raises(CopyFailed, match="two partitions"):
            tail.sleep(200)
        with pytest.raises(CopyFailed):
            tail.wait(200)
    assert time.monotonic() - begun < 100
    assert migration.closed


def test_a_tail_that_ends_by_itself_gives_its_result() -> None:
    result = PhaseResult("tail", "tail complete")
    with Tail(TailMigration(lambda: result), threading.Event()) as tail:  # type: ignore[arg-type]
        assert tail.wait(60) is result
        tail.sleep(0)


def test_leaving_stops_the_tail_without_an_error() -> None:
    stop = threading.Event()

    def until_stopped() -> PhaseResult:
        assert stop.wait(30)
        raise Interrupted("told to stop")

    with Tail(TailMigration(until_stopped), stop) as tail:  # type: ignore[arg-type]
        tail.sleep(0.01)
    assert stop.is_set()


def test_a_tail_that_is_interrupted_by_somebody_else_is_an_error() -> None:
    def interrupted() -> PhaseResult:
        raise Interrupted("not by us")

    with Tail(TailMigration(interrupted), threading.Event()) as tail, pytest.raises(Interrupted):  # type: ignore[arg-type]
        tail.wait(60)


def test_a_tail_whose_failure_may_pass_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that throttles for long, a Spark that goes away: whoever waits for the drain waits on."""
    monkeypatch.setattr(runner, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(runner, "_LONGEST_PAUSE_SECONDS", 0.05)
    tries: list[int] = []
    result = PhaseResult("tail", "tail complete")

    def works_at_last() -> PhaseResult:
        tries.append(1)
        if len(tries) < 8:
            raise StorageUnavailable("SlowDown")
        return result

    with Tail(TailMigration(works_at_last), threading.Event()) as tail:  # type: ignore[arg-type]
        deadline = time.monotonic() + 120
        while tail.result is None and time.monotonic() < deadline:
            tail.sleep(0.02)
        assert tail.wait(60) is result
    assert len(tries) == 8


@pytest.fixture
def fake_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script named spark-submit first on PATH, and gives the spec's connections."""
    for name in ("SOURCE", "TARGET"):
        monkeypatch.setenv(name, '{"bootstrap.servers": "a:1", "sasl.password": "s3cret"}')

    def install(script: str) -> None:
        binary = tmp_path / "bin" / "spark-submit"
        binary.parent.mkdir(exist_ok=True)
        binary.write_text(f"#!/bin/bash\n{script}\n")
        binary.chmod(0o755)
        monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")

    return install


def run_seed(spec_file: Path, tmp_path: Path, stop: Stop, end: JobEnd | None = None) -> None:
    """Run a seed on spark-submit as the phase does.

    :param end: what the driver writes about its end.
    """
    spec = load_spec(spec_file)
    store = LocalStore(tmp_path / "store")
    record = MigrationRecord(
        spec, Journal(store, spec.migration_id), store, store, store, now=lambda: datetime.now(UTC)
    )
    on_spark = spark_runner(spec, Resolver(), lambda _progress: None, stop, master="local[2,4]")
    job = JobRef("seed", "file:///x", f"{spec.migration_id}/jobs/seed.json")
    if end is None:
        on_spark.run(record, job, lambda: None)
        return
    make_job = on_spark.make_job

    @contextmanager
    def with_end(ref: JobRef, token: str) -> Iterator[Any]:
        with make_job(ref, token) as made:
            document = end.model_copy(update={"token": token})
            store.put(f"{spec.migration_id}/jobs/ends/{token}.json", document.canonical())
            yield made

    on_spark.make_job = with_end
    on_spark.run(record, job, lambda: None)


def test_a_stopped_spark_job_ends_with_all_that_it_started(
    spec_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_spark: Callable[[str], None]
) -> None:
    monkeypatch.setattr(submit, "kill_tree", partial(kill_tree, grace_seconds=0.5))
    stop = Stop()
    pids = tmp_path / "pids"
    # A driver with a child of its own, both deaf to SIGTERM.
    fake_spark(f"trap '' TERM; (trap '' TERM; sleep 300) & echo $$ $! > {pids}; wait")
    errors: list[BaseException] = []

    def run() -> None:
        try:
            run_seed(spec_file, tmp_path, stop)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not errors and (not pids.exists() or len(pids.read_text(encoding="utf-8").split()) < 2):
        time.sleep(0.02)
    stop.set()
    thread.join(120)
    assert [type(error) for error in errors] == [Interrupted]
    for pid in map(int, pids.read_text(encoding="utf-8").split()):
        try:
            # Killed is not gone: on a busy machine the kernel takes a moment.
            wait_for(f"the end of process {pid}", lambda pid=pid: not _is_alive(pid), 30, every_seconds=0.05)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise


def _is_alive(pid: int) -> bool:
    """False for a process that is gone or a zombie."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def test_a_failed_spark_job_says_its_last_words(
    spec_file: Path, tmp_path: Path, fake_spark: Callable[[str], None]
) -> None:
    fake_spark("echo one; echo the reason; exit 3")
    with pytest.raises(SparkJobFailed, match=r"status 3: the reason") as caught:
        run_seed(spec_file, tmp_path, Stop())
    assert caught.value.details["log"] == ["one", "the reason"]
    assert exit_code(caught.value) is ExitCode.TRY_AGAIN


_WARNING = "echo '26/11/27 00:03:45 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address'"


@pytest.mark.parametrize(
    ("end", "what"),
    [
        ("kill -9 $$", "was killed by SIGKILL"),
        ("exit 137", "was killed by SIGKILL"),
        ("kill -15 $$", "was killed by SIGTERM"),
        ("exit 1", "ended with status 1, with no error in its output"),
    ],
)
def test_a_killed_driver_is_not_explained_by_a_warning(
    spec_file: Path, tmp_path: Path, fake_spark: Callable[[str], None], end: str, what: str
) -> None:
    fake_spark(f"{_WARNING}; {end}")
    with pytest.raises(SparkJobFailed) as caught:
        run_seed(spec_file, tmp_path, Stop())
    assert what in caught.value.what
    assert "SPARK_LOCAL_IP" not in caught.value.what
    assert caught.value.next_step.startswith("look for a lack of memory first")
    assert "SPARK_LOCAL_IP" in caught.value.details["log"][0]
    assert exit_code(caught.value) is ExitCode.TRY_AGAIN


@pytest.mark.parametrize("by", ["document", "last line"])
def test_a_terminal_error_of_the_driver_is_no_reason_to_try_again(
    spec_file: Path, tmp_path: Path, fake_spark: Callable[[str], None], by: str
) -> None:
    error = ExecutorUnfit("an executor's Python lacks kafka", next_step="install it")
    if by == "document":
        fake_spark("echo 'a JVM says goodbye'; exit 1")
        end = JobEnd.of("t", error)
    else:
        fake_spark('echo "[EXECUTOR_UNFIT] an executor\'s Python lacks kafka. Next: install it"; exit 1')
        end = None
    with pytest.raises(ExecutorUnfit, match="lacks kafka") as caught:
        run_seed(spec_file, tmp_path, Stop(), end)
    assert caught.value.next_step == "install it"
    assert exit_code(caught.value) is ExitCode.FAILED


@pytest.mark.parametrize(("master", "is_shipped"), [("local[2,4]", False), ("spark://127.0.0.1:7077", True)])
def test_the_spark_command_line_holds_no_secret_and_ships_the_code(
    spec_file: Path, fake_spark: Callable[[str], None], *, master: str, is_shipped: bool
) -> None:
    fake_spark("exit 0")
    spec = load_spec(spec_file)
    assert references(spec, Resolver())["source"]["sasl.password"] == "s3cret"
    on_spark = spark_runner(spec, Resolver(), lambda _progress: None, Stop(), master=master)
    assert isinstance(on_spark.engine, SubmitEngine)
    with on_spark.make_job(JobRef("backup", "file:///x", "k/jobs/backup.json"), "backup-1") as job:
        command = on_spark.engine.command(job)
        zips = [part for part in command if part.endswith(".zip")]
        assert all(Path(part).exists() for part in zips)
    assert "s3cret" not in " ".join(command)
    assert command[command.index("--master") + 1] == master
    assert any(part.endswith("spark_jobs/tail.py") for part in command)
    assert command[-2:] == ["--token", "backup-1"]
    assert "spark.speculation=false" in command
    assert bool(zips) == is_shipped


def test_an_engine_of_the_spec_takes_no_master(spec_file: Path) -> None:
    spec = load_spec(spec_file)
    other = spec.model_copy(update={"spark": spec.spark.model_copy(update={"engine": "elsewhere"})})
    with pytest.raises(SpecInvalid, match="--master belongs to spark-submit"):
        make_engine_of(other, "local[4,4]")
    with pytest.raises(EngineUnknown, match=r"there is no Spark engine 'elsewhere'; installed are .*submit"):
        make_engine_of(other, None)


class NeedsAirflow:
    """An engine whose connection only Airflow has."""

    name = "needs-airflow"
    detached = True

    def submit(self, _job: Any) -> str:
        raise AirflowNotFoundException("the conn_id `x` isn't defined; s3cret")


def test_an_engine_that_needs_airflow_says_so() -> None:
    engine: Any = NeedsAirflow()
    with pytest.raises(EngineNeedsAirflow, match="needs-airflow cannot be used here") as caught:
        WithoutAirflow(engine).submit(None)  # type: ignore[arg-type]
    assert "s3cret" not in str(caught.value)


def test_status_tells_where_a_migration_stands(invoke: Any, spec_file: Path, journal: Journal) -> None:
    result = invoke("status", spec_file)
    assert result.exit_code == ExitCode.OK
    assert "if no command runs it" in result.stdout
    assert "ann@desk" in result.stdout


def test_status_names_partitions_that_are_not_copied(invoke: Any, spec_file: Path, journal: Journal) -> None:
    store = LocalStore(spec_file.parent / "journal")
    trouble = {
        "topic": "orders",
        "partition": 3,
        "state": "stuck",
        "seconds": 130.2,
        "code": "BROKER_UNREACHABLE",
        "what": "no broker answers",
        "next_step": "start it",
    }
    failed = {**trouble, "partition": 1, "state": "failed", "code": "FOREIGN_DATA", "what": "not ours"}
    document = {"records": 5, "partitions_failed": 1, "partitions_stuck": 1, "troubles": [failed, trouble]}
    store.put(f"{load_spec(spec_file).migration_id}/progress/tail.json", json.dumps(document).encode())
    shown = " ".join(invoke("status", spec_file, "-v").stdout.split())
    assert "partitions_failed 1, partitions_stuck 1" in shown
    assert "FAILED for 130 s: [FOREIGN_DATA] not ours. Next: start it" in shown
    assert "stuck, retrying for 130 s: [BROKER_UNREACHABLE] no broker answers. Next: start it" in shown
    answer = json.loads(invoke("status", spec_file, "--json").stdout)
    assert answer["progress"]["tail"]["troubles"] == [failed, trouble]


def test_status_names_a_tail_that_is_not_heard_from(
    invoke: Any, spec_file: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Migration, "_sleep", staticmethod(lambda _: None))
    assert json.loads(invoke("status", spec_file, "--json").stdout)["tail_silence"] == ""
    journal.transition(State.TAIL, "tail starts")
    assert "the tail has not reported yet: check that it runs" in " ".join(invoke("status", spec_file).stdout.split())
    document = {"generation": journal.generation, "run": "a", "seconds": 5, "at": "2026-01-01T00:00:00.000Z"}
    store = LocalStore(spec_file.parent / "journal")
    store.put(f"{load_spec(spec_file).migration_id}/progress/tail.json", json.dumps(document).encode())
    answer = json.loads(invoke("status", spec_file, "--json").stdout)
    assert "not been heard from since 2026-01-01T00:00:00.000Z by its own clock" in answer["tail_silence"]


def test_status_is_10_when_an_operator_is_waited_for(invoke: Any, spec_file: Path, journal: Journal) -> None:
    journal.transition(State.TAIL, "tail starts")
    journal.transition(State.DRAIN_READY, "lags are small")
    assert invoke("status", spec_file).exit_code == ExitCode.WAITS


def test_status_of_a_migration_that_never_ran(invoke: Any, spec_file: Path) -> None:
    result = invoke("status", spec_file)
    assert result.exit_code == ExitCode.OK
    assert "not started" in result.stdout


def test_resume_never_starts_a_migration(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    result = invoke("resume", spec_file)
    assert result.exit_code == ExitCode.FAILED
    assert "there is no migration to resume" in result.stderr
    assert not (tmp_path / "journal").exists()


def test_run_says_which_connection_is_missing(invoke: Any, spec_file: Path) -> None:
    result = invoke("run", spec_file)
    assert result.exit_code == ExitCode.FAILED
    assert "the environment variable SOURCE is not set" in result.stderr
    assert "Traceback" not in result.stderr


def test_run_until_an_unknown_phase_is_a_usage_error(invoke: Any, spec_file: Path) -> None:
    result = invoke("run", spec_file, "--until", "lunch")
    assert result.exit_code == ExitCode.USAGE
    assert "topology_copy" in result.stderr


@pytest.mark.parametrize("typed", ["", "y\n"])
def test_rollback_asks_for_a_code_first(invoke: Any, spec_file: Path, journal: Journal, typed: str) -> None:
    entries = len(journal.entries())
    result = invoke("rollback", spec_file, typed=typed)
    assert result.exit_code != ExitCode.OK
    assert "Roll back orders-1 (" in result.stderr
    assert re.search(r"Type [0-9a-f]{8} to roll it back", result.stderr)
    journal.refresh()
    assert len(journal.entries()) == entries


def test_an_unreadable_connection_is_never_quoted(
    invoke: Any, spec_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE", "s3cret")
    monkeypatch.setenv("TARGET", "{}")
    result = invoke("run", spec_file, "--json")
    assert result.exit_code == ExitCode.FAILED
    assert "s3cret" not in result.stdout + result.stderr
    assert ConnectionInvalid.code in result.stdout


def test_progress_is_quiet_with_json_and_sparse_without_a_terminal() -> None:
    import io

    from rich.console import Console

    for quiet, lines in ((True, 0), (False, 2)):
        out = io.StringIO()
        with ProgressView(Console(file=out), quiet=quiet) as view:
            for number in range(50):
                view.show(Progress("seed", f"{number} [of] 50", done=number, total=50))
            view.done(PhaseResult("seed", "seed complete"))
        assert len(out.getvalue().splitlines()) == lines
