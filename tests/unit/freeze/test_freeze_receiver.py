"""The receiver of freeze requests: order, deadlines, several migrations, restarts, switches that fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.documents.freeze_receiver import ReceiverState
from airflow_provider_kafka_migration.errors import FreezeFailed, StateUnusable
from airflow_provider_kafka_migration.freeze.receiver import Receiver, Request, StateFile, SwitchFailed
from airflow_provider_kafka_migration.freeze.receiver_http import ReceiverServer
from airflow_provider_kafka_migration.freeze.webhook import FreezeWebhook, signature
from harness.processes import wait_for

CASES = Path(__file__).parents[2] / "cases" / "freeze_receiver" / "v1"
NOW = datetime(2026, 4, 24, 10, 0, tzinfo=UTC)


class Producers:
    """A switch that remembers what was done. ``gate`` holds a command until it is set."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failures = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def _do(self, what: str) -> None:
        self.entered.set()
        assert self.gate.wait(120)
        if self.failures:
            self.failures -= 1
            self.done.append(f"{what} failed")
            raise SwitchFailed(f"the {what} command ended with status 1")
        self.done.append(what)

    def stop(self, request: Request) -> None:
        self._do("stop")

    def start(self, request: Request) -> None:
        self._do("start")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def body(action: str, order: int, *, name: str = "m1", seconds: float | None = 60) -> bytes:
    """A request as a migration sends it; ``seconds`` until its deadline, None: it has none."""
    deadline = None if seconds is None else (NOW + timedelta(seconds=seconds)).isoformat()
    times = {"deadline": deadline, "sent_at": NOW.isoformat()}
    return json.dumps({"migration_id": name, "action": action, "order": order, **times}).encode()


@pytest.fixture
def producers() -> Producers:
    return Producers()


@pytest.fixture
def clock() -> Clock:
    return Clock()


Open = Callable[..., Receiver]


@pytest.fixture
def opened(producers: Producers, clock: Clock, tmp_path: Path) -> Iterator[Open]:
    """Starts receivers with one state file."""
    found: list[Receiver] = []

    def make(secret: str | None = None, answer_seconds: float = 120) -> Receiver:
        receiver = Receiver(
            producers,
            StateFile(tmp_path / "state.json"),
            secret,
            answer_seconds=answer_seconds,
            look_seconds=0.02,
            clock=clock,
        )
        receiver.start()
        found.append(receiver)
        return receiver

    yield make
    producers.gate.set()
    for receiver in found:
        receiver.close()


def test_a_freeze_its_hold_and_its_end(opened: Open, producers: Producers, clock: Clock) -> None:
    receiver = opened()
    wanted = {"migration_id": "m1", "action": "freeze", "status": "done", "frozen": True}
    assert receiver.answer(body("freeze", 5), None) == (200, wanted)
    assert receiver.describe() == {"producers": "stopped", "held_by": {"m1": 60.0}, "must_start": False}
    assert receiver.answer(body("freeze", 6, seconds=None), None) == (200, {**wanted, "deadline": None})
    clock.now += 10_000
    assert receiver.describe()["held_by"] == {"m1": None}, "the deadline still counts"
    assert receiver.answer(body("unfreeze", 7), None)[0] == 200
    assert producers.done == ["stop", "stop", "start"]
    assert receiver.describe() == {"producers": "running", "held_by": {}, "must_start": False}


def test_a_request_that_was_overtaken_is_refused(opened: Open, producers: Producers) -> None:
    receiver = opened()
    assert receiver.answer(body("unfreeze", 9), None)[0] == 200
    assert receiver.answer(body("freeze", 8), None) == (409, {"error": "order 9 was followed already"})
    assert receiver.answer(body("freeze", 3, name="m2"), None)[0] == 200, "orders are those of one migration"
    assert producers.done == ["start", "stop"]


def test_producers_are_freed_at_the_deadline_and_a_late_repetition_is_refused(
    opened: Open, producers: Producers, clock: Clock
) -> None:
    receiver = opened()
    receiver.answer(body("freeze", 5), None)
    clock.now += 61
    wait_for("the start", lambda: producers.done == ["stop", "start"], 120)
    assert receiver.answer(body("freeze", 5), None)[0] == 409
    assert receiver.answer(body("freeze", 6), None)[0] == 200, "the next freeze is a new one"


def test_a_repetition_does_not_make_the_freeze_longer(opened: Open, clock: Clock) -> None:
    receiver = opened()
    receiver.answer(body("freeze", 5), None)
    clock.now += 50
    receiver.answer(body("freeze", 5), None)
    assert receiver.describe()["held_by"] == {"m1": 10.0}


def test_producers_run_when_the_last_migration_has_let_go(opened: Open, producers: Producers) -> None:
    receiver = opened()
    receiver.answer(body("freeze", 5, seconds=None), None)
    receiver.answer(body("freeze", 2, name="m2", seconds=None), None)
    status, answer = receiver.answer(body("unfreeze", 6), None)
    assert (status, answer["frozen"], answer["held_by"]) == (200, True, ["m2"])
    assert producers.done == ["stop", "stop"]
    assert receiver.answer(body("unfreeze", 3, name="m2"), None)[1]["frozen"] is False
    assert producers.done[-1] == "start"


def test_an_unfreeze_during_a_stop_starts_behind_it(opened: Open, producers: Producers) -> None:
    """The sender of the freeze learns that it is over, although its command ended well."""
    receiver = opened()
    producers.gate.clear()
    answers: dict[str, int] = {}

    def ask(name: str, raw: bytes) -> None:
        answers[name] = receiver.answer(raw, None)[0]

    first = threading.Thread(target=ask, args=("freeze", body("freeze", 5)))
    first.start()
    assert producers.entered.wait(120)
    second = threading.Thread(target=ask, args=("unfreeze", body("unfreeze", 6)))
    second.start()
    wait_for("the unfreeze is accepted", lambda: receiver.describe()["held_by"] == {}, 120)
    producers.gate.set()
    first.join(120)
    second.join(120)
    assert producers.done == ["stop", "start"]
    assert answers == {"freeze": 409, "unfreeze": 200}


def test_a_slow_command_answers_later(opened: Open, producers: Producers) -> None:
    """The sender asks again and joins the command that runs."""
    receiver = opened(answer_seconds=0.01)
    producers.gate.clear()
    assert receiver.answer(body("freeze", 5), None)[0] == 503
    assert receiver.answer(body("freeze", 5), None)[0] == 503
    producers.gate.set()
    wait_for("done", lambda: producers.done == ["stop"], 120)


def test_a_stop_that_fails_is_the_senders_to_repeat(opened: Open, producers: Producers) -> None:
    receiver = opened()
    producers.failures = 1
    assert receiver.answer(body("freeze", 5), None) == (500, {"error": "the stop command ended with status 1"})
    assert receiver.describe()["producers"] == "unknown"
    assert receiver.answer(body("freeze", 5), None)[0] == 200
    assert producers.done == ["stop failed", "stop"]


def test_a_start_that_fails_is_repeated_until_it_works(opened: Open, producers: Producers, clock: Clock) -> None:
    receiver = opened()
    receiver.answer(body("freeze", 5), None)
    producers.failures = 2
    assert receiver.answer(body("unfreeze", 6), None)[0] == 500
    for attempts in (3, 4):
        clock.now += 60
        wait_for("the next attempt", lambda count=attempts: len(producers.done) == count, 120)
    wait_for("the end of the attempt", lambda: not receiver.describe()["must_start"], 120)
    assert producers.done == ["stop", "start failed", "start failed", "start"]
    assert receiver.describe()["must_start"] is False


def test_a_restart_keeps_orders_holds_and_deadlines(opened: Open, producers: Producers, clock: Clock) -> None:
    opened().answer(body("freeze", 5), None)
    second = opened()
    assert second.answer(body("freeze", 4), None)[0] == 409
    assert second.describe()["held_by"] == {"m1": 60.0}
    clock.now += 61
    wait_for("freed", lambda: "start" in producers.done, 120)


def test_a_receiver_that_died_before_the_start_starts(opened: Open, producers: Producers, tmp_path: Path) -> None:
    StateFile(tmp_path / "state.json").write(ReceiverState(orders={"m1": 6}, must_start=True))
    opened()
    wait_for("the start", lambda: producers.done == ["start"], 120)


def test_without_a_place_to_remember_producers_are_freed_but_not_stopped(
    opened: Open, producers: Producers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = opened()
    receiver.answer(body("freeze", 5), None)

    def full(self: StateFile, state: ReceiverState) -> None:
        raise StateUnusable("no space left on device")

    monkeypatch.setattr(StateFile, "write", full)
    assert receiver.answer(body("freeze", 7), None) == (500, {"error": "no space left on device"})
    assert receiver.answer(body("unfreeze", 6), None)[0] == 200
    assert producers.done == ["stop", "start"]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"x", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "migration_id"),
        (body("drain", 1), "action"),
        (body("freeze", -1), "order"),
        (body("freeze", 1, seconds=0), "had passed"),
        (b'{"migration_id": "m", "action": "freeze", "order": 1}', "deadline is missing"),
        (b'{"migration_id": "m", "action": "freeze", "order": 1, "deadline": "soon"}', "not a time"),
        (
            b'{"migration_id": "m", "action": "freeze", "deadline": "2026-01-01T00:00:00", "sent_at": "2026-01-01"}',
            "no time zone",
        ),
    ],
)
def test_what_is_no_request_is_refused(opened: Open, producers: Producers, raw: bytes, why: str) -> None:
    status, answer = opened().answer(raw, None)
    assert status == 400
    assert why in answer["error"]
    assert producers.done == []


def test_requests_must_be_signed(opened: Open, producers: Producers) -> None:
    receiver = opened("s3cret")
    raw = body("freeze", 5)
    for wrong in (None, "", "sha256=00", signature(raw, "other"), "sha256=ä"):
        assert receiver.answer(raw, wrong)[0] == 401
    assert producers.done == []
    assert receiver.answer(raw, signature(raw, "s3cret"))[0] == 200


def test_the_client_of_a_migration_understands_it(opened: Open, producers: Producers) -> None:
    """Over HTTP, signed, with a hold, and with a request that comes too late."""
    server = ReceiverServer(opened("s"), "127.0.0.1", 0, secret="s")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        client = FreezeWebhook(server.url, "s", request_seconds=120, sleep=lambda _: None)
        later = NOW + timedelta(seconds=60)
        assert client.call("m1", "freeze", now=NOW, deadline=later, order=1).body["frozen"] is True
        client.hold("m1", now=NOW, order=2)
        assert client.call("m1", "unfreeze", now=NOW, deadline=later, order=3).body["frozen"] is False
        with pytest.raises(FreezeFailed, match="later request"):
            client.call("m1", "freeze", now=NOW, deadline=later, order=1)
        with pytest.raises(FreezeFailed, match="401"):
            FreezeWebhook(server.url, "wrong", sleep=lambda _: None).hold("m1", now=NOW, order=4)
    finally:
        server.shutdown()
        server.server_close()
    assert producers.done == ["stop", "stop", "start"]


def test_a_damaged_state_is_named_and_two_receivers_do_not_share_one(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("{")
    with pytest.raises(StateUnusable, match="no state of a freeze receiver"):
        StateFile(path).read()
    first, second = StateFile(path), StateFile(path)
    first.lock()
    with pytest.raises(StateUnusable, match="another freeze receiver"):
        second.lock()


def test_states_of_earlier_versions_can_be_read() -> None:
    for case in sorted(CASES.glob("*.json")):
        state = ReceiverState.parse(case.read_bytes())
        assert state.canonical() == case.read_bytes().strip(), case.name
        assert state.holders
