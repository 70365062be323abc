"""The other end of the freeze webhook: it stops and starts producers with a switch, and keeps the order of requests.

A receiver has one set of producers. Several migrations may stop them; they run again when the last one has let go. A
freeze ends by ``unfreeze``, or at its deadline, after which no repetition of it is followed. All that has to survive a
restart is in one file, which is written before a switch is used.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.freeze_receiver import ReceiverState
from airflow_provider_kafka_migration.errors import StateUnusable, Where
from airflow_provider_kafka_migration.freeze.webhook import SIGNATURE_HEADER, signature
from airflow_provider_kafka_migration.spec import MIGRATION_ID_PATTERN

log = logging.getLogger(__name__)

#: How long a request waits for its command. The sender gives up after ten seconds, and asks again.
ANSWER_SECONDS = 9.0
#: Pauses between two attempts to start producers that nobody holds any more.
RETRY_SECONDS = (1.0, 5.0, 15.0, 30.0)
#: The longest time between two looks at the clock, which may be set meanwhile.
LOOK_SECONDS = 5.0

Action = Literal["freeze", "unfreeze"]
Answer = tuple[int, dict[str, Any]]


class SwitchFailed(Exception):
    """Producers could not be stopped or started. The text goes to the sender, so it quotes no output."""


@dataclass(frozen=True)
class Request:
    """One request of a migration.

    :param order: None: ``unfreeze`` of a person, who knows no number and must not be refused.
    :param free_in_seconds: how long the freeze may last, by the sender's clock; None: until ``unfreeze``.
    """

    migration_id: str
    action: Action
    order: int | None
    free_in_seconds: float | None = None
    deadline: str = ""


class Switch(Protocol):
    """Stops and starts the producers. Both calls may be repeated, and return when it is done."""

    def stop(self, request: Request) -> None:
        """Stop the producers; on return, none of them writes any more.

        :raises SwitchFailed: some may still write.
        """

    def start(self, request: Request) -> None:
        """Let the producers write again.

        :raises SwitchFailed: some may still stand.
        """


# -- commands ---------------------------------------------------------------------------------------------------------


class Commands:
    """A switch of two shell commands. Their output goes to the log.

    :param seconds: after this time a command is killed, with all processes that it has started.
    """

    def __init__(self, stop: str, start: str, seconds: float) -> None:
        self._stop, self._start, self._seconds = stop, start, seconds

    def stop(self, request: Request) -> None:
        """Run the command that stops the producers."""
        self._run("stop", self._stop, request)

    def start(self, request: Request) -> None:
        """Run the command that starts the producers."""
        self._run("start", self._start, request)

    def _run(self, name: str, command: str, request: Request) -> None:
        environment = {
            **os.environ,
            "KAFKA_MIGRATION_ACTION": request.action,
            "KAFKA_MIGRATION_ID": request.migration_id,
            "KAFKA_MIGRATION_DEADLINE": request.deadline,
        }
        # The command is that of whoever runs the receiver; nothing of a request is in it.
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise SwitchFailed(f"the {name} command cannot be started: {error.strerror}") from None
        reader = threading.Thread(target=_log_lines, args=(name, process), name="command-output", daemon=True)
        reader.start()
        try:
            status = process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise SwitchFailed(f"the {name} command was killed after {self._seconds:g} s") from None
        finally:
            # A process that the command has left behind keeps the pipe open.
            reader.join(1)
        if status != 0:
            raise SwitchFailed(f"the {name} command ended with status {status}")


def _log_lines(name: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        log.info("[%s] %s", name, line.rstrip())


# -- time -------------------------------------------------------------------------------------------------------------


def _passed() -> float:
    """Return the seconds since this machine has started, with those in which it slept, where it knows them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SteadyClock:
    """Seconds since 1970. Setting the machine's clock back keeps no freeze; setting it forward ends one.

    :param wall: the machine's clock.
    :param passed: seconds that only go up, whatever the clock is set to.
    """

    def __init__(self, wall: Callable[[], float] = time.time, passed: Callable[[], float] = _passed) -> None:
        self._wall, self._passed = wall, passed
        self._lock = threading.Lock()
        self._last = wall(), passed()
        self._now = self._last[0]

    def __call__(self) -> float:
        """Return the time."""
        with self._lock:
            last, self._last = self._last, (self._wall(), self._passed())
            self._now += max(self._last[0] - last[0], self._last[1] - last[1], 0.0)
            return self._now


# -- memory -----------------------------------------------------------------------------------------------------------


class StateFile:
    """The file with the state. It is replaced as a whole, so it is never half written.

    :raises StateUnusable: it cannot be read or written, or is no state of a receiver.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def lock(self) -> None:
        """Keep other processes from using the state, until this one ends."""
        place = self.path.with_name(f"{self.path.name}.lock")
        try:
            self._lock = os.open(place, os.O_WRONLY | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateUnusable(
                "another freeze receiver uses this state",
                where=Where(path=str(self.path)),
                next_step="end the other receiver, or give this one a file of its own",
            ) from None
        except OSError as error:
            raise self._unusable(f"cannot be locked: {error.strerror}") from None

    def read(self) -> ReceiverState:
        """Return the state; that of a new receiver if there is no file."""
        try:
            return ReceiverState.parse(self.path.read_bytes())
        except FileNotFoundError:
            return ReceiverState()
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror}") from None
        except ValidationError:
            raise self._unusable("is no state of a freeze receiver") from None

    def write(self, state: ReceiverState) -> None:
        """Replace the state, durably."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(state.canonical())
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._unusable(f"cannot be written: {error.strerror}") from None

    def _unusable(self, why: str) -> StateUnusable:
        return StateUnusable(
            f"the state of the freeze receiver {why}",
            where=Where(path=str(self.path)),
            next_step="give a file in a folder that the receiver may write to; if the file is damaged, look whether "
            "producers stand still, start them by hand if no cutover is going on, and remove the file",
        )


# -- receiver ---------------------------------------------------------------------------------------------------------


@dataclass
class _Job:
    request: Request
    done: threading.Event = field(default_factory=threading.Event)
    answer: Answer = (500, {"error": "not done"})


class Receiver:
    """Follows requests, one at a time. Start it before the first request; close it at the end.

    :param secret: requests must be signed with it; None: they are not signed.
    :param clock: seconds since 1970; None: a :class:`SteadyClock`.
    """

    def __init__(
        self,
        switch: Switch,
        memory: StateFile,
        secret: str | None = None,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._switch, self._memory, self._secret = switch, memory, secret
        self._answer_seconds, self._look_seconds = answer_seconds, look_seconds
        self._clock = SteadyClock() if clock is None else clock
        self._state = memory.read()
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._working: _Job | None = None
        self._closed = False
        self._failures, self._retry_at = 0, 0.0
        self._thread = threading.Thread(target=self._work, name="producer-switch", daemon=True)

    def start(self) -> None:
        """Begin to follow requests, and deadlines that were stored.

        :raises StateUnusable: nothing can be remembered, and nobody is held.
        """
        try:
            self._memory.write(self._state)
        except StateUnusable as error:
            if not self._state.holders and not self._state.must_start:
                raise
            # Producers are freed all the same.
            log.error("%s", error)
        self._thread.start()

    def close(self) -> None:
        """Wait for a running command, and stop. The producers stay as they are."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def describe(self) -> dict[str, Any]:
        """Return how the producers are, and who holds them: for people and health checks."""
        with self._changed:
            state = self._state
            return {
                "producers": state.producers,
                "held_by": {
                    name: None if at is None else round(max(at - self._clock(), 0), 1)
                    for name, at in sorted(state.holders.items())
                },
                "must_start": state.must_start,
            }

    def answer(self, raw: bytes, given_signature: str | None) -> Answer:
        """Follow a request and return the HTTP status and body of the answer.

        :param raw: the body as it came; see docs/cutover.md.
        """
        if self._secret is not None:
            expected = signature(raw, self._secret).encode()
            if not hmac.compare_digest(expected, (given_signature or "").encode("utf-8", "replace")):
                return 401, {"error": f"the header {SIGNATURE_HEADER} is missing or wrong"}
        try:
            request = parse_request(raw)
        except ValueError as error:
            return 400, {"error": str(error)}
        with self._changed:
            refusal = self._accept(request)
            if refusal is not None:
                return refusal
            job = self._job_of(request)
            self._changed.notify_all()
        if job.done.wait(self._answer_seconds):
            return job.answer
        return 503, {"error": f"{request.action} is not done yet: ask again"}

    def _accept(self, request: Request) -> Answer | None:
        """Take a request into the state; return the answer that refuses it."""
        state, name = self._state, request.migration_id
        last = state.orders.get(name, 0)
        order = last if request.order is None else request.order
        if order < last:
            return 409, {"error": f"order {last} was followed already"}
        if request.action == "freeze" and order <= state.expired.get(name, -1):
            return 409, {"error": "this freeze is over: its deadline has passed, or a person has freed the producers"}
        holders = dict(state.holders)
        if request.action == "freeze":
            holders[name] = self._free_at(request)
        else:
            holders.pop(name, None)
        update = {
            "orders": {**state.orders, name: order},
            "expired": {**state.expired, name: last} if request.order is None else state.expired,
            "holders": holders,
            "must_start": (state.must_start or request.action == "unfreeze") and not holders,
        }
        try:
            self._keep(**update)
        except StateUnusable as error:
            if request.action == "freeze":
                self._state = state
                return 500, {"error": error.what}
            # Producers are freed all the same.
            log.error("%s", error)
        return None

    def _free_at(self, request: Request) -> float | None:
        if request.free_in_seconds is None:
            return None
        at = self._clock() + request.free_in_seconds
        held = self._state.holders.get(request.migration_id)
        # A repeated request does not make the freeze longer.
        is_repeated = request.order == self._state.orders.get(request.migration_id)
        return min(at, held) if is_repeated and held is not None else at

    def _job_of(self, request: Request) -> _Job:
        """Return the job of a repeated request that is not done yet, else a new one."""
        waiting = [*self._jobs, *([self._working] if self._working is not None else [])]
        for job in waiting:
            same = (job.request.migration_id, job.request.order, job.request.action)
            is_hold = request.free_in_seconds is None
            if same == (request.migration_id, request.order, request.action) and is_hold == (
                job.request.free_in_seconds is None
            ):
                return job
        job = _Job(request)
        self._jobs.append(job)
        return job

    def _keep(self, **update: Any) -> None:
        """Change the state in memory, then in the file."""
        self._state = self._state.model_copy(update=update)
        self._memory.write(self._state)

    # -- the thread that uses the switch ------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                job = self._take()
                self._working = job
            if job is None:
                return
            job.answer = self._carry_out(job.request)
            with self._changed:
                self._working = None
            job.done.set()

    def _take(self) -> _Job | None:
        """Wait for a request, a deadline, or the next attempt to start producers; None: closed."""
        while not self._closed:
            now = self._clock()
            self._let_go(now)
            if self._jobs:
                return self._jobs.popleft()
            if self._state.must_start and now >= self._retry_at:
                return _Job(Request("", "unfreeze", 0))
            times = [at for at in self._state.holders.values() if at is not None]
            times += [self._retry_at] if self._state.must_start else []
            until_next = min(times, default=now + self._look_seconds) - now
            self._changed.wait(min(max(until_next, 0.01), self._look_seconds))
        return None

    def _let_go(self, now: float) -> None:
        """End the freezes whose deadline has passed."""
        over = [name for name, at in self._state.holders.items() if at is not None and at <= now]
        if not over:
            return
        holders = {name: at for name, at in self._state.holders.items() if name not in over}
        expired = {**self._state.expired, **{name: self._state.orders.get(name, 0) for name in over}}
        log.warning("The deadline of %s has passed: the producers are freed", ", ".join(sorted(over)))
        try:
            self._keep(holders=holders, expired=expired, must_start=not holders)
        except StateUnusable as error:
            log.error("%s", error)

    def _carry_out(self, request: Request) -> Answer:
        name = request.migration_id
        with self._changed:
            if request.action == "freeze" and not self._still_wanted(request):
                return 409, {"error": "a later request, or its deadline, has ended this freeze"}
            holders = sorted(self._state.holders)
            if request.action == "unfreeze" and holders:
                log.info("%s lets go; %s still holds the producers", name, ", ".join(holders))
                return self._done(request, holders)
            self._keep_if_possible(producers="unknown")
        log.info("%s for %s", "Stopping producers" if request.action == "freeze" else "Starting producers", name or "-")
        try:
            (self._switch.stop if request.action == "freeze" else self._switch.start)(request)
        except SwitchFailed as error:
            log.error("%s", error)
            return self._failed(request, str(error))
        except Exception:
            log.exception("%s of %s failed", request.action, name or "-")
            return self._failed(request, "the receiver failed: see its log")
        with self._changed:
            if request.action == "unfreeze":
                self._failures, self._retry_at = 0, 0.0
                self._keep_if_possible(producers="running", must_start=False)
                return self._done(request, sorted(self._state.holders))
            self._keep_if_possible(producers="stopped")
            if not self._still_wanted(request):
                return 409, {"error": "a later request, or its deadline, has ended this freeze"}
            return self._done(request, [])

    def _failed(self, request: Request, why: str) -> Answer:
        """Plan the next attempt to start producers; to stop them is for the sender to repeat."""
        with self._changed:
            if request.action == "unfreeze":
                pause = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
                self._failures, self._retry_at = self._failures + 1, self._clock() + pause
        return 500, {"error": why}

    def _still_wanted(self, request: Request) -> bool:
        name = request.migration_id
        return name in self._state.holders and self._state.orders.get(name, 0) == request.order

    def _keep_if_possible(self, **update: Any) -> None:
        try:
            self._keep(**update)
        except StateUnusable as error:
            log.error("%s", error)

    @staticmethod
    def _done(request: Request, holders: list[str]) -> Answer:
        body: dict[str, Any] = {
            "migration_id": request.migration_id,
            "action": request.action,
            "status": "done",
            "frozen": request.action == "freeze" or bool(holders),
        }
        if request.action == "freeze" and request.free_in_seconds is None:
            body["deadline"] = None
        if holders:
            body["held_by"] = holders
        return 200, body


def parse_request(raw: bytes) -> Request:
    """Read a request.

    :raises ValueError: it is not one; the text says why.
    """
    body = _json_object(raw)
    name, action = body.get("migration_id"), body.get("action")
    if not isinstance(name, str) or not re.fullmatch(MIGRATION_ID_PATTERN.rstrip("$"), name):
        raise ValueError("migration_id is missing, or is none that a migration has")
    if action not in ("freeze", "unfreeze"):
        raise ValueError("action is neither freeze nor unfreeze")
    if action == "unfreeze" and "order" not in body:
        return Request(name, "unfreeze", None)
    order = body.get("order", 0)
    if not isinstance(order, int) or isinstance(order, bool) or order < 0:
        raise ValueError("order is not a number from 0 on")
    if action == "unfreeze":
        return Request(name, "unfreeze", order)
    if "deadline" not in body:
        raise ValueError("deadline is missing; null means: until unfreeze")
    deadline = body["deadline"]
    if deadline is None:
        return Request(name, "freeze", order)
    # The difference of two times of the sender does not depend on this machine's clock.
    until = _time(deadline, "deadline")
    seconds = (until - _time(body.get("sent_at"), "sent_at")).total_seconds()
    if seconds <= 0:
        raise ValueError("the deadline had passed when the request was sent")
    return Request(name, "freeze", order, seconds, until.isoformat())


def _json_object(raw: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, Mapping):
        raise ValueError("the body is not a JSON object")
    return body


def _time(value: Any, name: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is not a time in ISO 8601") from None
    if found.tzinfo is None:
        raise ValueError(f"{name} has no time zone")
    return found
