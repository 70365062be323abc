"""Signals: a command ends in order, says so, and has the status that a shell expects; a second one ends it at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.cli.frame import Ending, ExitCode, Stop, listening

#: A command whose job looks at its Stop, and one whose job is deaf; both say when they have begun.
_PROGRAM = """
import sys, time
import typer
from airflow_provider_kafka_migration.cli.frame import Stop
from airflow_provider_kafka_migration.cli.frame import Answer, answering
from airflow_provider_kafka_migration.errors import Interrupted

app = typer.Typer()

@app.command()
@answering
def job(*, json_output: bool = False, debug: bool = False):
    stop = Stop()
    with stop.heeded():
        print("begun", file=sys.stderr, flush=True)
        while not stop.wait(0.05):
            continue
        print("finished what was under way", file=sys.stderr, flush=True)
        raise Interrupted("backup was told to stop")

@app.command()
@answering
def look(*, json_output: bool = False, debug: bool = False):
    try:
        print("begun", file=sys.stderr, flush=True)
        time.sleep(60)
    finally:
        print("closed", file=sys.stderr, flush=True)
    return Answer({})

@app.command()
@answering
def deaf(*, json_output: bool = False, debug: bool = False):
    with Stop().heeded():
        print("begun", file=sys.stderr, flush=True)
        time.sleep(60)
    return Answer({})

app()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start one of the commands and wait until it has begun."""
    file = tmp_path / "program.py"
    file.write_text(_PROGRAM, encoding="utf-8")
    begun: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(file), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Tests that run in a shell's background were started with SIGINT ignored, and would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        begun.append(process)
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        return process

    yield run
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("number", "status", "name"),
    [(signal.SIGTERM, ExitCode.TERMINATED, "SIGTERM"), (signal.SIGINT, ExitCode.INTERRUPTED, "Ctrl-C")],
    ids=["SIGTERM", "SIGINT"],
)
def test_a_command_ends_in_order_when_it_is_told_to(
    start: Start, number: signal.Signals, status: ExitCode, name: str
) -> None:
    process = start("look", "--json-output")
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (status, "closed\n")
    error = json.loads(out)["error"]
    assert error["code"] == "INTERRUPTED"
    assert error["what"] == f"stopped by {name}"


def test_a_job_that_looks_for_it_is_not_torn(start: Start) -> None:
    process = start("job")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == ExitCode.TERMINATED
    assert err.startswith("finished what was under way\n")
    assert "backup was told to stop" in err
    assert "Traceback" not in err


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    process = start("deaf")
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == ExitCode.INTERRUPTED


def test_a_job_that_ended_before_it_noticed_is_followed_by_nothing() -> None:
    with listening() as ending:
        with pytest.raises(KeyboardInterrupt):
            _heed(Stop())
        assert ending.number == signal.SIGTERM


def _heed(stop: Stop) -> None:
    with stop.heeded():
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        while not stop.is_set():
            time.sleep(0.01)


def test_a_stop_of_its_own_stops_nothing_else() -> None:
    ending = Ending()
    one, other = Stop(ending), Stop(ending)
    one.set()
    assert one.wait(120)
    assert not other.wait(0)
    ending.number = signal.SIGINT
    assert other.wait(0)


def test_handlers_are_put_back_and_other_threads_have_none() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with listening() as ending:
        assert signal.getsignal(signal.SIGTERM) == ending.handle
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    seen: list[object] = []

    def elsewhere() -> None:
        with listening(), Stop().heeded():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(120)
    assert seen == [before[1]]


def test_what_a_shell_ignores_stays_ignored() -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening() as ending:
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == ending.handle
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)
