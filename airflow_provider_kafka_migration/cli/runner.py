"""A whole migration from one process: the phases in order, the tail beside them, a stop where a person decides.

What Airflow's DAG does with tasks happens here with one background thread. Nothing is kept between two calls but the
journal: ``run`` and ``resume`` are the same, each phase says by itself whether it is done.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kafka_migration.approvals import answers, check, request
from airflow_provider_kafka_migration.documents.approval import (
    ApprovalAnswer,
    ApprovalFacts,
    ApprovalKind,
    Responder,
)
from airflow_provider_kafka_migration.errors import ApprovalRefused, Interrupted, Transient
from airflow_provider_kafka_migration.freeze import open_freeze
from airflow_provider_kafka_migration.freeze.open_freeze import Standing
from airflow_provider_kafka_migration.groups import commit
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.phases import freeze_limit
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.timing import iso
from airflow_provider_kafka_migration.state import State

log = logging.getLogger(__name__)

#: Pauses before a tail that has failed is started again; the first one again when it has run for long.
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_LONG_SECONDS = 300.0
#: The longest pause while producers stand still, and how often a pause looks whether they do.
_HURRIED_PAUSE_SECONDS = 2.0
_LOOK_SECONDS = 0.5
#: A tail that has journaled its end is over in a moment.
_TAIL_END_SECONDS = 30.0

#: Phases before anything runs beside them.
COPY = ("plan", "precheck", "topology_copy", "seed")
CUTOVER_TO_DRAIN = ("cutover.freeze", "cutover.sentinels", "cutover.final_drain")
CUTOVER_REST = ("cutover.snapshot_groups", "cutover.commit_groups", "cutover.floor_guard")
PROOF = ("validate", "evidence")

#: Where ``--until`` may stop.
STOPS = (*COPY, "drain_ready", *CUTOVER_TO_DRAIN, *CUTOVER_REST, *PROOF)

#: Those that wait, and look at the tail meanwhile.
_WAITING = frozenset({"drain_ready", "cutover.freeze", "cutover.sentinels", "cutover.final_drain"})

OnResult = Callable[[PhaseResult], None]


class _StopHere(Exception):
    """``--until`` is reached."""


@dataclass
class Outcome:
    """What a call has done.

    :param waiting: the approval that a person has to give next.
    """

    results: list[PhaseResult] = field(default_factory=list)
    waiting: ApprovalFacts | None = None


class Tail:
    """The tail in a thread of its own, beside the drain and the cutover.

    It is started again after failures that may pass, with growing pauses, for as long as it is wanted: who waits for it
    in a freeze keeps the freeze's limit.

    :param migration: opened for it alone; the same owner.
    :param stop: ends it early, without a failure.
    """

    def __init__(self, migration: Migration, stop: threading.Event) -> None:
        self._migration = migration
        self._stop = stop
        self._hurried = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self.result: PhaseResult | None = None
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)

    def __enter__(self) -> Tail:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """It may have ended by itself; if not, it stops after what is under way."""
        self._stop.set()
        self._thread.join()
        self._migration.close()

    def sleep(self, seconds: float) -> None:
        """Sleep, but wake up at once when the tail has failed: what waits for it would wait for ever.

        :raises MigrationError: why the tail failed.
        """
        self._ended.wait(seconds)
        self._raise()
        if self._ended.is_set():
            threading.Event().wait(seconds)

    def hurry(self) -> None:
        """Producers stand still: from now on it pauses only for moments."""
        self._hurried.set()

    def wait(self, seconds: float) -> PhaseResult | None:
        """Until it has ended by itself at its stop offsets; None: not within the time.

        :raises MigrationError: why it failed.
        """
        self._ended.wait(seconds)
        self._raise()
        return self.result

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self.result = self._run_again_and_again()
        except Interrupted as error:
            if not self._stop.is_set():
                self._error = error
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def _run_again_and_again(self) -> PhaseResult:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            began = time.monotonic()
            try:
                return self._migration.run("tail")
            except Interrupted:
                raise
            except Transient as error:
                if self._stop.is_set():
                    raise
                if time.monotonic() - began >= _LONG_SECONDS:
                    pause = _FIRST_PAUSE_SECONDS
                log.warning("The tail has ended and is started again in %.0f s: %s", pause, error)
            self._pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        """Wait, for a moment only in a freeze. A signal does not wake up who waits for the stop, so look often."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < seconds:
            if self._hurried.is_set() and waited >= _HURRIED_PAUSE_SECONDS:
                return
            if self._stop.wait(min(seconds - waited, _LOOK_SECONDS)):
                return


def _in_freeze(context: PhaseContext) -> bool:
    """Whether a cutover has begun and was not given up, per the journal."""
    found = open_freeze.read(context)
    return found is not None and found.standing is not Standing.GIVEN_UP


class Driver:
    """Drives one migration as far as it goes.

    :param migration: opened, in the name of the person.
    :param open_tail: opens the migration once more for the tail, with the event that stops it.
    :param open_guard: opens it once more for the thread that keeps the limit of a freeze.
    :param on_result: told of each phase that has ended.
    :param until: phase after which to stop.
    """

    def __init__(
        self,
        migration: Migration,
        open_tail: Callable[[], Tail],
        open_guard: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        *,
        person: str,
        on_result: OnResult,
        until: str | None = None,
    ) -> None:
        self._migration = migration
        self._open_tail = open_tail
        self._open_guard = open_guard
        self._person = person
        self._on_result = on_result
        self._until = until
        self._code: str | None = None
        self.outcome = Outcome()

    def go(self, code: str | None = None) -> Outcome:
        """Run what is left, up to the next approval without an answer.

        :param code: answers the first approval that is met.
        :raises MigrationError: what a phase met.
        """
        self._code = code
        with contextlib.suppress(_StopHere):
            self._go()
        return self.outcome

    def _go(self) -> None:
        # First of all, and without a cluster: a process that died in a freeze may have left producers stopped.
        with self._migration.reading() as context:
            is_overdue = freeze_limit.is_overdue(context)
            in_freeze = not is_overdue and _in_freeze(context)
        if is_overdue:
            self._migration.run("cutover.freeze_limit")
        if in_freeze and self._until in (*COPY, "drain_ready"):
            return
        if in_freeze:
            # The steps of the cutover wait for clusters that are away, and keep the limit; the phases before do not.
            self._bridge(in_freeze=True)
        else:
            for phase in COPY:
                self._run(phase)
            if not self._is_past(State.CUTOVER) and not self._bridge():
                return
        if not self._is_past(State.AWAITING_CLIENT_SWITCH) and not self._switch():
            return
        for phase in PROOF:
            self._run(phase)

    def _bridge(self, *, in_freeze: bool = False) -> bool:
        """From the tail's start to READY_FOR_CLIENT_SWITCH; False: a person is asked.

        :param in_freeze: producers are frozen already, so the drain was small and the cutover is approved.
        """
        with self._open_guard(), self._open_tail() as tail:
            if not in_freeze:
                self._run("drain_ready", tail)
                if not self._approved("cutover"):
                    return False
            tail.hurry()
            for phase in CUTOVER_TO_DRAIN:
                self._run(phase, tail)
            if self._migration.wait_for_tail(sleep=tail.sleep).details["ended"]:
                ended = tail.wait(_TAIL_END_SECONDS)
                if ended is not None:
                    self._note(ended)
            for phase in CUTOVER_REST:
                self._run(phase)
        return True

    def _switch(self) -> bool:
        """Offsets are refreshed, so that clients may move; False: a person is asked."""
        commit.sync_groups(self._migration.context)
        return self._approved("client_switch")

    def _run(self, phase: str, tail: Tail | None = None) -> None:
        options: dict[str, Any] = {"sleep": tail.sleep} if tail is not None and phase in _WAITING else {}
        self._note(self._migration.run(phase, **options))
        if phase == self._until:
            raise _StopHere

    def _note(self, result: PhaseResult) -> None:
        self.outcome.results.append(result)
        self._on_result(result)

    def _is_past(self, state: State) -> bool:
        journal = self._migration.context.journal
        journal.refresh()
        return journal.is_past(state)

    # -- approvals ----------------------------------------------------------------------------------------------------

    def _approved(self, kind: ApprovalKind) -> bool:
        """Whether people have agreed, with the code that was given where it answers this approval."""
        context = self._migration.context
        if answers.answered(context, kind) is not None or self._holds(kind):
            return True
        code, self._code = self._code, None
        if code is None:
            self.outcome.waiting = request.show(context, kind)
            return False
        facts = request.make_facts(context, kind)
        self._note(answers.answer(context, self._answer(facts, code)))
        if self._holds(kind) or answers.answered(context, kind) is not None:
            return True
        # The second person is to answer yet.
        self.outcome.waiting = request.show(context, kind)
        return False

    def _holds(self, kind: ApprovalKind) -> bool:
        """An approval that was given just now, and not acted upon because the process ended."""
        context = self._migration.context
        newer_than = check.lifted_at(context) if kind == "cutover" else None
        if not check.given(context, kind, newer_than=newer_than):
            return False
        try:
            check.require(context, kind, newer_than=newer_than)
        except ApprovalRefused:
            return False
        if kind == "client_switch":
            self._note(self._migration.run("client_switch"))
        return True

    def _answer(self, facts: ApprovalFacts, code: str) -> ApprovalAnswer:
        context = self._migration.context
        first = check.given(context, facts.kind)
        return ApprovalAnswer(
            migration_id=facts.migration_id,
            kind=facts.kind,
            decision="approve",
            code=code,
            responders=[Responder(user_id=self._person, user_name=self._person)],
            answered_at=iso(context.now()),
            body_shown=facts.body,
            facts_digest=facts.digest(),
            second=bool(context.spec.approvals.second_users and first),
        )
