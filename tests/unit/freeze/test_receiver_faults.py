"""What a receiver of freeze requests outlives: odd requests, machines that start no process, clocks that are set."""

from __future__ import annotations

import errno
import http.client
import json
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from airflow_provider_kafka_migration.documents.freeze_receiver import ReceiverState
from airflow_provider_kafka_migration.errors import ConnectionInvalid, StateUnusable
from airflow_provider_kafka_migration.freeze import by_hand
from airflow_provider_kafka_migration.freeze.receiver import (
    Commands,
    Receiver,
    Request,
    StateFile,
    SteadyClock,
    parse_request,
)
from airflow_provider_kafka_migration.freeze.receiver_http import ReceiverServer
from airflow_provider_kafka_migration.spec import parse_spec
from harness.certificates import Authority
from harness.processes import wait_for


class Time:
    """A wall clock and time as it passes, both set by hand."""

    def __init__(self) -> None:
        self.wall, self.passed = 1000.0, 0.0

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall, lambda: self.passed)


class Producers:
    """A switch whose start can raise."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.error: Exception | None = None
        self.starts = 0

    def stop(self, request: Request) -> None:
        self.done.append("stop")

    def start(self, request: Request) -> None:
        self.starts += 1
        if self.error is not None:
            raise self.error
        self.done.append("start")


@pytest.fixture
def producers() -> Producers:
    return Producers()


@pytest.fixture
def times() -> Time:
    return Time()


@pytest.fixture
def receiver(producers: Producers, times: Time, tmp_path: Path) -> Iterator[Receiver]:
    found = Receiver(
        producers,
        StateFile(tmp_path / "state.json"),
        answer_seconds=120,
        look_seconds=0.02,
        clock=times.clock(),
    )
    found.start()
    yield found
    found.close()


def body(action: str, order: int, **fields: Any) -> bytes:
    """A request of m1; a freeze may last for a minute."""
    wanted = {"deadline": "2026-04-24T10:01:00+00:00", "sent_at": "2026-04-24T10:00:00+00:00"}
    return json.dumps({"migration_id": "m1", "action": action, "order": order, **wanted, **fields}).encode()


@pytest.mark.parametrize("name", ["m\x00", "m\ud800", "m 1", "../m", "M1", "m\n"])
def test_an_id_that_no_migration_has_is_refused(
    receiver: Receiver, producers: Producers, times: Time, name: str
) -> None:
    """It could be written into no file and no environment, and then nobody would free producers any more."""
    assert receiver.answer(body("freeze", 5), None)[0] == 200
    assert receiver.answer(body("freeze", 1, migration_id=name), None)[0] == 400
    times.passed += 61
    wait_for("the end of the freeze", lambda: producers.done == ["stop", "start"], 120)


@pytest.mark.parametrize("raw", [b"[" * 60_000, b"{" + b'"a":{' * 10_000])
def test_json_without_an_end_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        parse_request(raw)


def test_a_command_gets_the_deadline_as_every_program_reads_it() -> None:
    found = parse_request(body("freeze", 1, deadline="2026-04-24\x0010:01:00+00:00"))
    assert found.deadline == "2026-04-24T10:01:00+00:00"


@pytest.mark.parametrize("seconds", [60, None], ids=["freeze", "hold"])
def test_a_person_frees_producers_by_hand(receiver: Receiver, producers: Producers, seconds: int | None) -> None:
    """With what errors and notifications advise: it has no order."""
    assert receiver.answer(body("freeze", 57), None)[0] == 200
    if seconds is None:
        assert receiver.answer(body("freeze", 58, deadline=None), None)[0] == 200
    spec = {"migration_id": "m1", "source": {"conn_id": "a"}, "target": {"conn_id": "b"}}
    spec |= {"storage": {"journal": "s3://bucket/journal"}}
    advice = by_hand.instructions(parse_spec(spec), method="webhook", deadline=None, acls=[])
    (given,) = re.findall(r"POST (\{.*?\})", advice)
    status, answer = receiver.answer(given.encode(), None)
    assert (status, answer["frozen"]) == (200, False)
    assert producers.done[-1] == "start"
    assert receiver.answer(body("freeze", 57 if seconds else 58), None)[0] == 409, "a late repetition"
    assert receiver.answer(body("unfreeze", 59), None)[0] == 200
    assert receiver.answer(body("freeze", 60), None)[0] == 200


def test_a_start_that_fails_in_an_unknown_way_is_repeated_after_a_pause(
    receiver: Receiver, producers: Producers, times: Time
) -> None:
    receiver.answer(body("freeze", 5), None)
    producers.error = RuntimeError("nobody knows")
    assert receiver.answer(body("unfreeze", 6), None)[0] == 500
    looked = threading.Event()
    for _ in range(10):
        looked.wait(0.02)
    assert producers.starts == 1, "it waits before it tries again"
    producers.error = None
    times.passed += 60
    wait_for("the start", lambda: producers.done == ["stop", "start"], 120)


def test_a_machine_that_can_start_no_process_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    receiver = Receiver(Commands("true", "true", 60), StateFile(tmp_path / "state.json"), answer_seconds=120)
    receiver.start()
    try:
        monkeypatch.setattr(subprocess, "Popen", refuse)
        wanted = {"error": "the stop command cannot be started: Resource temporarily unavailable"}
        assert receiver.answer(body("freeze", 5), None) == (500, wanted)
        monkeypatch.undo()
        assert receiver.answer(body("freeze", 5), None)[0] == 200
    finally:
        receiver.close()


def test_a_receiver_that_starts_on_a_full_disk_frees_whom_it_holds(
    producers: Producers, times: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one does not start: it could not remember what it is asked."""
    held, new = StateFile(tmp_path / "state.json"), StateFile(tmp_path / "new.json")
    held.write(ReceiverState(orders={"m1": 5}, holders={"m1": 900.0}))

    def full(self: StateFile, state: ReceiverState) -> None:
        raise StateUnusable("no space left on device")

    monkeypatch.setattr(StateFile, "write", full)
    with pytest.raises(StateUnusable):
        Receiver(producers, new).start()
    receiver = Receiver(producers, held, look_seconds=0.02, clock=times.clock())
    receiver.start()
    try:
        wait_for("the start", lambda: producers.done == ["start"], 120)
    finally:
        receiver.close()


def test_a_key_with_a_password_is_named_and_asks_no_terminal(receiver: Receiver, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    locked = serialization.BestAvailableEncryption(b"hunter2")
    file = tmp_path / "key.pem"
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    authority = Authority(tmp_path)
    authority.create()
    with pytest.raises(ConnectionInvalid, match="cannot be used") as caught:
        ReceiverServer(receiver, "127.0.0.1", 0, certificate=authority.certificate, private_key=file)
    assert "without a password" in caught.value.next_step


def test_a_client_that_hangs_in_its_handshake_holds_up_no_other(receiver: Receiver, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.create()
    pair = authority.server()
    server = ReceiverServer(receiver, "127.0.0.1", 0, certificate=pair.certificate, private_key=pair.key)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", server.server_port)):
            trusted = ssl.create_default_context(cafile=str(authority.certificate))
            client = http.client.HTTPSConnection("127.0.0.1", server.server_port, timeout=120, context=trusted)
            client.request("POST", "/", body("unfreeze", 1))
            assert client.getresponse().status == 200
            client.close()
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("jump", [-3600.0, 0.0, 61.0])
def test_a_clock_that_is_set_makes_no_freeze_longer(
    receiver: Receiver, producers: Producers, times: Time, jump: float
) -> None:
    receiver.answer(body("freeze", 5), None)
    times.wall += jump
    times.passed += 0 if jump > 0 else 61
    wait_for("the end of the freeze", lambda: producers.done == ["stop", "start"], 120)


def test_a_clock_that_is_set_back_delays_no_further_attempt(
    receiver: Receiver, producers: Producers, times: Time
) -> None:
    receiver.answer(body("freeze", 5), None)
    producers.error = RuntimeError("nobody knows")
    receiver.answer(body("unfreeze", 6), None)
    producers.error = None
    times.wall -= 3600
    times.passed += 2
    wait_for("the start", lambda: producers.done == ["stop", "start"], 120)
