"""``kafka-migration freeze-receiver`` as a process, with a real producer that its commands stop and start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import FreezeFailed
from airflow_provider_kafka_migration.freeze.webhook import FreezeWebhook
from harness.processes import wait_for

pytestmark = pytest.mark.slow

SECRET = "a secret of both sides"
START = """
test -f pid && kill -0 $(cat pid) 2>/dev/null && exit 0
nohup sh -c 'while true; do echo x >> written; sleep 0.02; done' >/dev/null 2>&1 &
echo $! > pid
"""
STOP = """
test -f pid || exit 0
kill $(cat pid) 2>/dev/null
while kill -0 $(cat pid) 2>/dev/null; do sleep 0.02; done
"""


class Place:
    """A folder with a producer and its two commands, and a receiver that can be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "start.sh").write_text(START)
        (folder / "stop.sh").write_text(STOP)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "receiver.log"
        self.commands = ("sh stop.sh", "sh start.sh")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def serve(self) -> None:
        code = "from airflow_provider_kafka_migration.cli.app import app; app()"
        stop, start = self.commands
        command = [sys.executable, "-c", code, "freeze-receiver", "--stop", stop, "--start", start]
        command += ["--state", "state.json", "--listen", f"127.0.0.1:{self.port}", "--secret", "env:SECRET_OF_BOTH"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stderr=log, stdout=log, env={**os.environ, "SECRET_OF_BOTH": SECRET}
            )
        wait_for("the receiver", lambda: self.state() is not None, 120)

    def state(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(self.url, timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return None

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(120)

    def written(self) -> int:
        path = self.folder / "written"
        return path.stat().st_size if path.exists() else 0

    def writes(self) -> None:
        before = self.written()
        wait_for("a record", lambda: self.written() > before, 120)

    def alive(self) -> bool:
        """Whether the producer's process is there."""
        path = self.folder / "pid"
        return path.exists() and subprocess.run(["kill", "-0", path.read_text().strip()], check=False).returncode == 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    if found.process is not None and found.process.poll() is None:
        found.end(signal.SIGKILL)
    subprocess.run(["sh", "stop.sh"], cwd=tmp_path, check=False)


@pytest.fixture
def ask(place: Place) -> Callable[..., Any]:
    client = FreezeWebhook(place.url, SECRET, request_seconds=60, sleep=lambda _: None)

    def send(action: Any, order: int, seconds: float = 600) -> Any:
        now = datetime.now(UTC)
        return client.call("m1", action, now=now, deadline=now + timedelta(seconds=seconds), order=order).body

    return send


def test_a_receiver_killed_in_a_hold_goes_on_with_it(place: Place, ask: Callable[..., Any]) -> None:
    subprocess.run(["sh", "start.sh"], cwd=place.folder, check=True)
    place.serve()
    place.writes()
    ask("freeze", 1)
    assert not place.alive()
    FreezeWebhook(place.url, SECRET, request_seconds=60).hold("m1", now=datetime.now(UTC), order=2)
    place.end(signal.SIGKILL)
    place.serve()
    with pytest.raises(FreezeFailed, match="later request"):
        ask("freeze", 1)
    assert not place.alive()
    state = place.state()
    assert state is not None
    assert state["held_by"] == {"m1": None}
    ask("unfreeze", 3)
    place.writes()
    assert place.end(signal.SIGTERM) == 143
    assert SECRET not in place.log.read_text()
    assert place.alive(), "the end of the receiver ended the producer"


def test_a_deadline_that_passed_while_the_receiver_was_dead(place: Place, ask: Callable[..., Any]) -> None:
    place.serve()
    ask("freeze", 1)
    place.end(signal.SIGKILL)
    state = json.loads((place.folder / "state.json").read_text())
    state["holders"]["m1"] -= 3600
    (place.folder / "state.json").write_text(json.dumps(state))
    place.serve()
    place.writes()


def test_a_failing_command_is_named_without_its_output(place: Place, ask: Callable[..., Any]) -> None:
    place.commands = ("echo the password is hunter2; exit 3", "true")
    place.serve()
    with pytest.raises(FreezeFailed) as caught:
        ask("freeze", 1)
    assert "500" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "[stop] the password is hunter2" in place.log.read_text()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--listen", "0.0.0.0:0"], "could stop the producers"),
        (["--listen", "8099"], "is not HOST:PORT"),
        (["--certificate", "none.pem"], "the certificate cannot be used"),
        (["--secret", "env:NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set"),
        (["--listen", "192.0.2.1:80", "--secret", "env:HOME"], "cannot listen on 192.0.2.1:80"),
    ],
)
def test_a_wrong_command_line_is_named(options: list[str], why: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from airflow_provider_kafka_migration.cli.app import app

    command = ["freeze-receiver", "--stop", "true", "--start", "true", "--state", str(tmp_path / "state"), *options]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert why in " ".join(result.stderr.split())
