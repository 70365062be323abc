"""The journal of a migration: the authority on what has happened and who may continue.

Entries are create-only objects, numbered without gaps. The writer of entry N has read all earlier entries, and the
store lets exactly one writer create it: so appending is a compare-and-append on the whole history, without locks.
A writer that lost the race reads the new entries and decides again.

Several processes of one owner use a journal at the same time (the tasks of a DAG run). Each has its own
:class:`Journal`; threads may share one.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from airflow_provider_kafka_migration.documents.journal import CLAIMED, FAILED_AGAIN, RELEASED, JournalEntry
from airflow_provider_kafka_migration.errors import (
    ClaimLost,
    IllegalTransition,
    MigrationError,
    PhaseOver,
    StorageRefused,
    Where,
)
from airflow_provider_kafka_migration.journal.entries import (
    Claim,
    Clock,
    Draft,
    EntryLog,
    Fingerprint,
    Ledger,
    Owner,
    held_by_another,
    taken_over_before,
    tip_of,
    utc_now,
)
from airflow_provider_kafka_migration.journal.view import VerifyReport, View, verify_journal
from airflow_provider_kafka_migration.state import (
    FORWARD,
    REOPENED,
    ROLLBACK_FROM,
    Resume,
    State,
    no_rollback_from,
    position,
    resume_state,
)
from airflow_provider_kafka_migration.storage.base import ObjectStore

# -- failure ----------------------------------------------------------------------------------------------------------
#
# A failure as the journal stores it: enough to act on, and no secret.


#: A reason is a sentence for people; the details hold whole listings.
MAX_REASON_CHARACTERS = 2000


def describe_failure(error: BaseException) -> tuple[str, dict[str, Any]]:
    """Return the reason and the details of a ``failed`` entry.

    Our own errors are safe to show. The text of any other exception may quote its input, for instance the settings of a
    connection; so the journal stores only its kind and place, and the text is left to the task's log.
    """
    if isinstance(error, MigrationError):
        return str(error)[:MAX_REASON_CHARACTERS], {"error": error.as_dict()}
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    return f"{kind}{place}; its text is in the task's log", {"error": {"code": kind, "kind": "unexpected"}}


# -- journal ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

#: Whether a claim may end another owner's.
Takeover = bool | Literal["once"]

_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Journal:
    """One migration's journal. The constructor does no I/O; the entries are read at the first use.

    Properties return what was known at the last refresh; :meth:`refresh` reads again. Every write is decided on the
    current content of the store, and refused unless this object holds the migration (:meth:`claim`, :meth:`adopt`).

    :param clock: provides the ``at`` of entries; no decision depends on it.
    :param sleep: waits after a lost race (seconds).
    """

    def __init__(
        self,
        store: ObjectStore,
        migration_id: str,
        *,
        clock: Clock = utc_now,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not _ID_PATTERN.fullmatch(migration_id):
            raise StorageRefused(
                f"not a usable migration_id: {migration_id[:200]!r}",
                next_step="use letters, digits and . _ -, beginning with a letter or digit",
            )
        self.store = store
        self.migration_id = migration_id
        self._log = EntryLog(store, migration_id, clock, sleep)
        self._view = View(store, migration_id)
        self._claim: Claim | None = None

    @classmethod
    def create_or_open(
        cls,
        store: ObjectStore,
        migration_id: str,
        fingerprint: Fingerprint,
        *,
        owner: Owner,
        takeover: Takeover = False,
        reason: str = "migration created",
        details: Mapping[str, Any] | None = None,
        clock: Clock = utc_now,
    ) -> Journal:
        """Open the journal, create it if missing, check its fingerprint, and claim it for ``owner``.

        :param details: additional details for the first entry; used only if this call creates it.
        :raises FingerprintChanged: the migration was started with other clusters, buckets or prefixes.
        :raises ClaimHeld: another owner holds it.
        :raises JournalTampered: an entry was altered, is missing, or does not follow its predecessor.
        """
        journal = cls(store, migration_id, clock=clock)
        if not journal.exists:
            first = {**(details or {}), "fingerprint": fingerprint.as_details()}
            journal._log.create(reason=reason, actor=owner.actor, details=first)
        journal.check_fingerprint(fingerprint)
        journal.claim(owner, takeover=takeover)
        return journal

    # ---- reading

    def refresh(self) -> None:
        """Read the entries that were written since the last refresh.

        :raises JournalTampered: an entry was altered, is missing, or does not follow its predecessor.
        """
        self._log.refresh()

    def entries(self) -> tuple[JournalEntry, ...]:
        """Return all known entries, in order."""
        with self._log.lock:
            return tuple(self._log.ledger.entries)

    @property
    def exists(self) -> bool:
        """Whether there is at least one entry."""
        return self.tip is not None

    @property
    def tip(self) -> JournalEntry | None:
        """The last known entry."""
        with self._log.lock:
            return self._log.ledger.tip

    @property
    def tip_state(self) -> State | None:
        """The current state of the migration; ``None`` if there is no journal yet."""
        with self._log.lock:
            return self._log.ledger.tip_state

    @property
    def working_state(self) -> State | None:
        """The current state of the migration; if it failed, the state that failed."""
        with self._log.lock:
            return self._log.ledger.failed_in or self._log.ledger.tip_state

    @property
    def history(self) -> tuple[State, ...]:
        """States passed through, one per transition."""
        with self._log.lock:
            return tuple(self._log.ledger.history)

    @property
    def is_closed(self) -> bool:
        """Whether the migration has ended, so that nothing may be journaled any more."""
        with self._log.lock:
            return self._log.ledger.is_closed

    @property
    def current_claim(self) -> Claim | None:
        """The claim in force, regardless of its owner."""
        with self._log.lock:
            return self._log.ledger.holder

    @property
    def generation(self) -> int:
        """Generation of this object's own claim; 0 without one."""
        return self._claim.generation if self._claim else 0

    @property
    def actor(self) -> str:
        """Who acts through this object; empty without a claim."""
        return self._claim.owner.actor if self._claim else ""

    def is_past(self, state: State) -> bool:
        """Return whether the migration is past a state of the forward path, so that state's work is done."""
        working = self.working_state
        here = position(working) if working else None
        there = position(state)
        return here is not None and there is not None and here > there

    def resume(self) -> Resume:
        """Read the journal and return what to do when resuming now."""
        self.refresh()
        return resume_state(self.history)

    def steps(self, name: str | None = None, key: str | None = None) -> list[JournalEntry]:
        """Return the steps of all phases in order, optionally only those with a name, or a name and a key."""
        return [
            entry
            for entry in self.entries()
            if entry.step is not None and name in (None, entry.step) and key in (None, entry.step_key)
        ]

    def find_step(self, name: str, key: str | None = None) -> JournalEntry | None:
        """Return the last known step with that name (and key)."""
        found = self.steps(name, key)
        return found[-1] if found else None

    def check_fingerprint(self, fingerprint: Fingerprint) -> None:
        """Raise :class:`FingerprintChanged` unless the migration was started with this fingerprint."""
        entries = self.entries()
        if entries:
            fingerprint.check(entries[0].details.get("fingerprint", {}), migration_id=self.migration_id)

    def verify(self) -> VerifyReport:
        """Read all entries again and check them; see :func:`~.view.verify_journal`.

        :raises JournalTampered: naming the first problem; ``details["problems"]`` lists all.
        """
        report = verify_journal(self.store, self.migration_id)
        report.raise_for_problems()
        return report

    # ---- claims

    def claim(self, owner: Owner, *, takeover: Takeover = False, reopen: bool = False) -> Claim:
        """Claim the migration. A claim by the same owner (cleared tasks, other processes of the run) changes nothing.

        A command claims a new generation if the same user ran the former one on this host and it has ended, so that
        anything the dead command left running (a Spark driver) is refused.

        What has ended cannot be held: no entry is written, and later appends are refused as illegal transitions.

        :param takeover: end another owner's claim; its next write is refused. "once": only if this owner has never
            held the migration. A setting that stays would otherwise take over again whenever it is ousted.
        :param reopen: hold a promoted mirror, too, to abandon it. Until the claim is released, or the mirror has ended,
            entries may follow. Claims from before its promotion are over.
        :raises ClaimHeld: another owner holds it; the error names the owner and the time of its claim.
        :raises ClaimLost: it was taken over from this owner before. This holds even if it has no holder now: the
            takeover was meant to stop this owner.
        :raises JournalTampered: also if ``journal.jsonl`` names entries that no longer exist.
        :raises StorageRefused: the store overwrites an object despite a create-only put.
        """
        self._view.check(self._log)
        self._log.check_create_only()
        granted: list[Claim] = []

        def decide(ledger: Ledger) -> Draft | JournalEntry:
            granted.clear()
            tip, holder = tip_of(ledger), ledger.holder
            if ledger.is_closed and reopen and tip.to_state in REOPENED:
                holder = None
            elif tip.to_state.is_terminal and not (reopen and ledger.is_reopened):
                granted.append(Claim(owner, 0 if ledger.is_reopened else ledger.generation, tip.at))
                return tip
            if holder is not None and holder.owner.is_same(owner):
                granted.append(holder)
                return tip
            follows = holder is not None and owner.follows(holder.owner)
            used = takeover == "once" and ledger.has_claimed(owner)
            may_take_over = bool(takeover) and not used
            if holder is not None and not may_take_over and not follows:
                raise held_by_another(holder, self.migration_id, owner, used=used)
            ousted_by = ledger.ousted_by(owner)
            if ousted_by is not None and not may_take_over:
                raise taken_over_before(owner, ousted_by, self.migration_id, used=used)
            generation = ledger.generation + 1
            reason = _claim_reason(holder, owner, follows=follows)
            details = Claim(owner, generation, "").as_details(takeover_from=holder)
            return Draft(tip.to_state, reason, owner.actor, generation, CLAIMED, None, details)

        entry = self._log.append(decide)
        claim = granted[0] if granted else Claim.of_entry(entry)
        # The actor may differ from the one that claimed: another task, or another person at the same terminal.
        self._claim = Claim(owner, claim.generation, claim.since)
        self._view.write_if_stale(self._log)
        return self._claim

    def adopt(self, generation: int, *, actor: str) -> Claim:
        """Use a claim that another process of the same owner made, identified by its generation (in a Spark driver).

        :raises ClaimLost: it is not the claim in force.
        """
        self.refresh()
        with self._log.lock:
            ledger = self._log.ledger
            ledger.check_claim(Claim(Owner("process", actor, actor), generation, ""))
            assert ledger.holder is not None
            owner = Owner(ledger.holder.owner.kind, ledger.holder.owner.identity, actor)
            self._claim = Claim(owner, generation, ledger.holder.since)
            return self._claim

    def release(self, reason: str = "released") -> None:
        """Release the claim, so that another owner may claim without a takeover. Without a claim, do nothing."""
        try:
            self._append(lambda ledger: self._draft(ledger, tip_of(ledger).to_state, reason, RELEASED))
        except (ClaimLost, IllegalTransition):
            log.info("nothing to release: the claim has already ended")
        self._claim = None

    def holds(self) -> bool:
        """Read the journal and return whether this object's claim is in force."""
        try:
            self.check_holds()
        except ClaimLost:
            return False
        return True

    def check_holds(self, *, only_in: Collection[State] | None = None) -> None:
        """Read the journal and check the claim. Call this before a write to a cluster.

        :param only_in: states in which the caller may write. A driver that was presumed dead may wake up under a
            claim that is still in force, long after the migration has moved on. As in :meth:`step`.
        :raises ClaimLost: another owner has taken over, or the claim was released.
        :raises PhaseOver: the migration is in none of these states.
        """
        self.refresh()
        with self._log.lock:
            self._log.ledger.check_claim(self._claim)
            self._check_only_in(self._log.ledger, only_in)

    # ---- writing

    def transition(
        self,
        to: State,
        reason: str,
        details: Mapping[str, Any] | None = None,
        *,
        from_states: Collection[State] | None = None,
        unless_step: tuple[str, str | None] | None = None,
    ) -> JournalEntry:
        """Go to a state. If the migration is already there, write nothing and return the entry that led there.

        :param from_states: states from which this caller may go there; by default the preceding one on the forward
            path, and ``failed`` if ``to`` is the state that failed; for ``rolled_back`` those before the cutover.
            Backward transitions (to tail) must be named, so
            that a task that was presumed dead cannot undo a cutover.
        :param unless_step: name and key of a step: once it is journaled, this transition comes too late.
        :raises PhaseOver: that step is journaled.
        :raises IllegalTransition: the state machine, or ``from_states``, does not allow it.
        :raises ClaimLost: this journal does not hold the migration.
        """
        sources = _usual_sources(to) if from_states is None else frozenset(from_states)

        def decide(ledger: Ledger) -> Draft | JournalEntry:
            tip = tip_of(ledger)
            if tip.to_state is to:
                return next(entry for entry in reversed(ledger.entries) if not entry.is_step or entry.seq == 0)
            draft = self._draft(ledger, to, reason, details=details)
            # A failed migration ends from the state that has failed.
            place = ledger.failed_in if to is State.ROLLED_BACK else None
            if (place or tip.to_state) not in sources:
                raise IllegalTransition(
                    f"this task may not move the migration from {tip.to_state} to {to}",
                    where=Where(migration_id=self.migration_id, phase=tip.to_state.value),
                    next_step=no_rollback_from(place or tip.to_state)
                    if to is State.ROLLED_BACK
                    else "the migration has moved on: clear this task, and it acts on the current state",
                    details={"from": tip.to_state.value, "to": to.value},
                )
            self._check_unless(ledger, unless_step, f"to go to {to}")
            return draft

        return self._append(decide)

    def step(
        self,
        name: str,
        key: str | None = None,
        details: Mapping[str, Any] | None = None,
        *,
        reason: str | None = None,
        only_in: Collection[State] | None = None,
        unless_step: tuple[str, str | None] | None = None,
    ) -> JournalEntry:
        """Record a step inside the current state. Concurrent steps of one owner never exclude each other.

        :param only_in: states in which the step is allowed; with ``failed``, also once it has failed in one of them.
        :param unless_step: name and key of another step: once that is journaled, this one comes too late.
        :raises ClaimLost: this journal does not hold the migration.
        :raises PhaseOver: the migration is in none of these states, or the other step is journaled.
        :raises IllegalTransition: the migration has ended.
        """

        def decide(ledger: Ledger) -> Draft:
            draft = self._step(ledger, name, key, details, reason, only_in)
            self._check_unless(ledger, unless_step, f"for {name}")
            return draft

        return self._append(decide)

    def step_once(
        self,
        name: str,
        key: str | None = None,
        details: Mapping[str, Any] | None = None,
        *,
        reason: str | None = None,
        only_in: Collection[State] | None = None,
        unless_step: tuple[str, str | None] | None = None,
        again_after: str | None = None,
    ) -> JournalEntry:
        """Record a step like :meth:`step`, unless one with that name and key exists: then return that entry.

        :param again_after: name of a step of the same key: one that it follows does not count.
        """

        def decide(ledger: Ledger) -> Draft | JournalEntry:
            for entry in reversed(ledger.entries):
                # A transition is no step, and has neither a name nor a key.
                if again_after is not None and (entry.step, entry.step_key) == (again_after, key):
                    break
                if (entry.step, entry.step_key) == (name, key):
                    return entry
            draft = self._step(ledger, name, key, details, reason, only_in)
            self._check_unless(ledger, unless_step, f"for {name}")
            return draft

        return self._append(decide)

    def fail(self, error: BaseException, *, only_in: Collection[State] | None = None) -> JournalEntry | None:
        """Record a failure. It is meant for exception handlers, so it never hides the error behind another one.

        If the migration has ended, is held by another owner or is not in ``only_in``, or if the store does not work,
        it writes nothing, logs that, and returns ``None``. In a migration that has already failed, the failure becomes
        a step.
        """
        reason, details = describe_failure(error)

        def decide(ledger: Ledger) -> Draft | JournalEntry:
            again = FAILED_AGAIN if ledger.tip_state is State.FAILED else None
            draft = self._draft(ledger, State.FAILED, reason, again, details=details)
            self._check_only_in(ledger, only_in)
            return draft

        try:
            return self._append(decide)
        except MigrationError as refusal:
            log.warning("the failure is not journaled: %s", refusal)
            return None

    def materialise(self) -> None:
        """Update ``journal.jsonl``. A failure is only logged: the file is a view, and the next append rewrites it."""
        self._view.write(self._log)

    def close(self) -> None:
        """End appending through this object: update ``journal.jsonl`` if it lacks the last steps."""
        self._view.catch_up(self._log)

    # ---- how

    def _append(self, decide: Callable[[Ledger], Draft | JournalEntry]) -> JournalEntry:
        known = len(self.entries())
        entry = self._log.append(decide)
        if entry.seq >= known:
            self._view.after(entry, self._log)
        return entry

    def _draft(
        self,
        ledger: Ledger,
        to: State,
        reason: str,
        step: str | None = None,
        step_key: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Draft:
        """Return an entry, if it is legal and this object holds the migration."""
        ledger.check_open(to)
        ledger.check_claim(self._claim)
        assert self._claim is not None
        ledger.check_state(to)
        return Draft(to, reason, self._claim.owner.actor, self._claim.generation, step, step_key, details or {})

    def _step(
        self,
        ledger: Ledger,
        name: str,
        key: str | None,
        details: Mapping[str, Any] | None,
        reason: str | None,
        only_in: Collection[State] | None,
    ) -> Draft:
        text = reason or (f"{name}: {key}" if key else name)
        draft = self._draft(ledger, tip_of(ledger).to_state, text, name, key, details)
        self._check_only_in(ledger, only_in)
        return draft

    def _check_unless(self, ledger: Ledger, unless_step: tuple[str, str | None] | None, what: str) -> None:
        if unless_step is None or not any((entry.step, entry.step_key) == unless_step for entry in ledger.entries):
            return
        state = ledger.tip_state
        raise PhaseOver(
            f"{unless_step[0]} is journaled: it is too late {what}",
            where=Where(migration_id=self.migration_id, phase=state.value if state else None),
            next_step="none: the migration has moved on",
        )

    def _check_only_in(self, ledger: Ledger, only_in: Collection[State] | None) -> None:
        state = ledger.tip_state
        if only_in is None:
            return
        if (ledger.failed_in if State.FAILED in only_in and state is State.FAILED else state) in only_in:
            return
        raise PhaseOver(
            f"this may be done only in {', '.join(sorted(only_in))}, but the migration is in {state}",
            where=Where(migration_id=self.migration_id, phase=state.value if state else None),
            next_step="stop: nothing more may be changed here. If still needed, clear the task: it acts on the current "
            "state",
        )


def _claim_reason(holder: Claim | None, owner: Owner, *, follows: bool) -> str:
    if holder is None:
        return f"claimed by {owner}"
    if follows:
        return f"claimed again by {owner}: {holder.owner.process} has ended"
    return f"taken over from {holder.owner} by {owner}"


def _usual_sources(to: State) -> frozenset[State]:
    index = position(to)
    if to is State.ROLLED_BACK:
        return frozenset(ROLLBACK_FROM)
    if index is None:
        # For the others the state machine alone decides.
        return frozenset(State)
    return frozenset({State.FAILED, *FORWARD[max(0, index - 1) : index]})
