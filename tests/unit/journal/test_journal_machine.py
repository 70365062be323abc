"""Any sequence of transitions, failures, takeovers and crashes: no illegal entry, no lost state, no lost entry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from journal_support import ALICE, BOB, FINGERPRINT, Ticking, go_to

from airflow_provider_kafka_migration.errors import (
    ClaimHeld,
    ClaimLost,
    IllegalTransition,
    MigrationError,
    ObjectExists,
)
from airflow_provider_kafka_migration.journal import Journal, Owner, verify_journal
from airflow_provider_kafka_migration.state import FORWARD, State, resume_state
from airflow_provider_kafka_migration.storage.base import ObjectInfo

pytestmark = pytest.mark.slow

#: Written out again, so that a mistake in the state machine's own table shows.
LEGAL = {
    ("planned", "precheck"),
    ("precheck", "topology_copy"),
    ("topology_copy", "seed"),
    ("seed", "tail"),
    ("tail", "drain_ready"),
    ("drain_ready", "cutover"),
    ("drain_ready", "tail"),
    ("cutover", "awaiting_client_switch"),
    ("cutover", "tail"),
    ("awaiting_client_switch", "validating"),
    ("validating", "finalized"),
}
BEFORE_CUTOVER = {"planned", "precheck", "topology_copy", "seed", "tail", "drain_ready"}
#: Where people can abandon it, which whoever does it has to name.
ABANDONED_FROM = {"cutover", "awaiting_client_switch"}
TERMINAL = {"finalized", "rolled_back"}
OWNERS = [ALICE, BOB]


class Crash(BaseException):
    """SIGKILL: nothing of the process runs after it."""


class CrashingStore:
    """A store in memory that can kill its user before or after the next write."""

    uri = "memory:"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.crash: str | None = None

    def _write(self, write: Callable[[], None]) -> None:
        crash, self.crash = self.crash, None
        if crash == "before":
            raise Crash
        write()
        if crash == "after":
            raise Crash

    def put_new(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise ObjectExists("taken")
        self._write(lambda: self.objects.__setitem__(key, data))

    def put(self, key: str, data: bytes) -> None:
        self._write(lambda: self.objects.__setitem__(key, data))

    def put_locked(self, key: str, data: bytes, retain_until: Any, *, new: bool = False) -> bool:
        raise NotImplementedError

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        keys = sorted(key for key in self.objects if key.startswith(prefix) and (not start_after or key > start_after))
        return iter([ObjectInfo(key, len(self.objects[key])) for key in keys])


class JournalMachine(RuleBasedStateMachine):
    """Processes of two owners on one migration; each has a journal of its own, and dies at any write."""

    processes = Bundle("processes")

    @initialize(target=processes, state=st.sampled_from(FORWARD[:-1]))
    def begin(self, state: State) -> Journal:
        """A migration that has come as far as ``state``."""
        self.store = CrashingStore()
        self.seen: list[bytes] = []
        #: What a caller was told has happened must stay true.
        self.promised: dict[int, str] = {}
        #: entries whose writer has named the states from which it may go
        self.named: set[int] = set()
        journal = Journal.create_or_open(self.store, "m1", FINGERPRINT, owner=ALICE, clock=Ticking())
        go_to(journal, state)
        return journal

    # ---- what processes do

    @rule(target=processes, owner=st.sampled_from(OWNERS), takeover=st.booleans())
    def start(self, owner: Owner, takeover: bool) -> Journal | None:
        holder = self.holder()

        def act() -> Journal:
            return Journal.create_or_open(
                self.store, "m1", FINGERPRINT, owner=owner, takeover=takeover, clock=Ticking()
            )

        journal = self.run(act)
        if isinstance(journal, ClaimHeld):
            assert not takeover
            assert holder not in (None, (owner.kind, owner.identity))
            return None
        if isinstance(journal, ClaimLost):
            assert not takeover
            assert (owner.kind, owner.identity) in self.ousted()
            return None
        assert isinstance(journal, Journal | Crash), journal
        return journal if isinstance(journal, Journal) else None

    @rule(journal=processes, to=st.sampled_from(list(State)), named=st.booleans())
    def go(self, journal: Journal | None, to: State, named: bool) -> None:
        if journal is None:
            return
        before = self.entries()
        sources = list(State) if named else None
        entry = self.run(lambda: journal.transition(to, "go", from_states=sources))
        if named:
            self.named |= set(range(len(before), len(self.entries())))
        if not isinstance(entry, Exception | Crash):
            assert self.entries()[-1]["to"] == to.value
        elif not isinstance(entry, Crash):
            assert self.entries() == before
            assert isinstance(entry, IllegalTransition | ClaimLost)

    @rule(journal=processes)
    def go_on(self, journal: Journal | None) -> None:
        """What a well-behaved process does; else random walks never get far."""
        if journal is None:
            return
        state = journal.resume().state
        following = {
            source: to for source, to in LEGAL if (source, to) not in {("drain_ready", "tail"), ("cutover", "tail")}
        }
        wanted = state.value if journal.tip_state is State.FAILED else following.get(state.value)
        if wanted is not None:
            entry = self.run(lambda: journal.transition(State(wanted), "go on"))
            assert not isinstance(entry, IllegalTransition)

    @rule(journal=processes, sure=st.integers(0, 3))
    def abort(self, journal: Journal | None, sure: int) -> None:
        """Too late is tried more often, since a rollback in time ends the run."""
        if journal is not None and (sure == 0 or journal.is_past(State.DRAIN_READY)):
            self.run(lambda: journal.transition(State.ROLLED_BACK, "abort"))

    @rule(journal=processes, key=st.sampled_from("abc"), once=st.booleans())
    def step(self, journal: Journal | None, key: str, once: bool) -> None:
        if journal is None:
            return
        entry = self.run(lambda: (journal.step_once if once else journal.step)("done", key))
        assert isinstance(entry, Crash | ClaimLost | IllegalTransition) or entry.step_key == key

    @rule(journal=processes)
    def fail(self, journal: Journal | None) -> None:
        if journal is None:
            return
        before = self.entries()
        entry = self.run(lambda: journal.fail(RuntimeError("x")))
        assert not isinstance(entry, Exception)
        if entry is None:
            assert self.entries() == before

    @rule(journal=processes)
    def release(self, journal: Journal | None) -> None:
        if journal is not None:
            assert not isinstance(self.run(journal.release), Exception)

    @rule(journal=processes)
    def look(self, journal: Journal | None) -> None:
        """Some processes know more than others."""
        if journal is not None:
            journal.refresh()

    @rule(journal=consumes(processes))
    def die(self, journal: Journal | None) -> None:
        pass

    @precondition(lambda self: self.store.crash is None)
    @rule(when=st.sampled_from(["before", "after"]))
    def crash_at_the_next_write(self, when: str) -> None:
        self.store.crash = when

    def run(self, act: Callable[[], Any]) -> Any:
        try:
            found = act()
        except Crash as crash:
            return crash
        except MigrationError as error:
            return error
        if hasattr(found, "seq"):
            self.promised[found.seq] = found.hash
        return found

    # ---- what must hold after each of them

    def entries(self) -> list[dict[str, Any]]:
        keys = sorted(key for key in self.store.objects if "/journal/" in key)
        return [json.loads(self.store.objects[key]) for key in keys]

    def holder(self) -> tuple[str, str] | None:
        for entry in reversed(self.entries()):
            if entry["step"] == "released":
                return None
            if entry["step"] == "claimed":
                return (entry["details"]["owner"]["kind"], entry["details"]["owner"]["identity"])
        return None

    def ousted(self) -> set[tuple[str, str]]:
        """Owners whose migration was taken over, and who have not taken it back since."""
        found: set[tuple[str, str]] = set()
        holder = None
        for entry in self.entries():
            if entry["step"] == "released":
                holder = None
            elif entry["step"] == "claimed":
                owner = (entry["details"]["owner"]["kind"], entry["details"]["owner"]["identity"])
                found.discard(owner)
                if holder not in (None, owner):
                    found.add(holder)
                holder = owner
        return found

    @invariant()
    def nothing_written_is_ever_changed_or_lost(self) -> None:
        keys = sorted(key for key in self.store.objects if "/journal/" in key)
        data = [self.store.objects[key] for key in keys]
        assert data[: len(self.seen)] == self.seen
        self.seen = data
        hashes = [entry["hash"] for entry in self.entries()]
        for seq, promised in self.promised.items():
            assert hashes[seq] == promised

    @invariant()
    def every_entry_is_legal(self) -> None:
        state, failed_in, generation, held = "planned", "", 0, False
        for number, entry in enumerate(self.entries()):
            assert entry["seq"] == number
            assert entry["from"] == state
            assert state not in TERMINAL, "something follows the end"
            to = entry["to"]
            if to != state:
                ended_from = BEFORE_CUTOVER | (ABANDONED_FROM if number in self.named else set())
                good = (
                    (state, to) in LEGAL
                    or (to == "failed" and state != "failed")
                    or (to == "rolled_back" and state in ended_from)
                    or (state == "failed" and (to == failed_in or (to == "rolled_back" and failed_in in ended_from)))
                )
                assert good, f"{state} -> {to}"
            if entry["step"] == "claimed":
                generation, held = generation + 1, True
            elif number > 0:
                assert held, "written by who does not hold it"
            assert entry["generation"] == generation
            held = held and entry["step"] != "released"
            if to == "failed" and state != "failed":
                failed_in = state
            state = to

    @invariant()
    def no_crash_loses_the_state(self) -> None:
        entries = self.entries()
        if not entries:
            return
        fresh = Journal(self.store, "m1")
        states = [entry["to"] for entry in entries if entry["to"] != "failed"]
        resume = fresh.resume()
        assert resume == resume_state(fresh.history)
        if entries[-1]["to"] == "failed":
            assert (resume.action, resume.state.value) == ("reenter", states[-1])
        else:
            assert resume.state.value == entries[-1]["to"]

    @invariant()
    def it_verifies(self) -> None:
        assert verify_journal(self.store, "m1").is_good


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=30)
