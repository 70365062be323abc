"""The journal of a migration: the authority over what has happened and who may go on.

Entries are create-only objects, numbered without gaps. Whoever creates entry N has read all entries before it, and
the store lets exactly one writer create it: so appending is a compare-and-append on the whole history, without locks.
A writer that lost the race reads what was written and decides again.

Several processes of one owner use a journal at the same time (the tasks of a DAG run). Each has its own
:class:`Journal`; one object may also be shared by threads.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import Any

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
from airflow_provider_kafka_migration.state import FORWARD, Resume, State, position, resume_state
from airflow_provider_kafka_migration.storage.base import ObjectStore

# -- failure ----------------------------------------------------------------------------------------------------------
#
# A failure as the journal keeps it: enough to act on, and no secret.


#: A reason is a sentence for people; whole listings are in the details.
MAX_REASON_CHARACTERS = 2000


def describe_failure(error: BaseException) -> tuple[str, dict[str, Any]]:
    """Reason and details of a ``failed`` entry.

    Our own errors are made to be shown. The text of any other exception may quote what it failed on, a connection's
    settings for instance; so only its kind and place are kept, and the text is left to the task's log.
    """
    if isinstance(error, MigrationError):
        return str(error)[:MAX_REASON_CHARACTERS], {"error": error.as_dict()}
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    return f"{kind}{place}; its text is in the task's log", {"error": {"code": kind, "kind": "unexpected"}}


# -- journal ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Journal:
    """One migration's journal. The constructor does no I/O; what is there is read at the first use.

    Properties tell what is known since the last look; :meth:`refresh` looks again. All writing is decided on what the
    store has at that moment, and refused unless this object holds the migration (:meth:`claim`, :meth:`adopt`).

    :param clock: gives the ``at`` of entries; it decides nothing.
    :param sleep: how to wait after a lost race (seconds).
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
        takeover: bool = False,
        reason: str = "migration created",
        details: Mapping[str, Any] | None = None,
        clock: Clock = utc_now,
    ) -> Journal:
        """The journal, created if it is not there, its fingerprint checked, and claimed for ``owner``.

        :param details: more for the first entry, beside the fingerprint; used only if it is created here.
        :raises FingerprintChanged: the migration was started with other clusters, buckets or prefixes.
        :raises ClaimHeld: another owner holds it.
        :raises JournalTampered: an entry was altered, is missing, or does not follow the one before it.
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
        """Read the entries that were written since the last look.

        :raises JournalTampered: an entry was altered, is missing, or does not follow the one before it.
        """
        self._log.refresh()

    def entries(self) -> tuple[JournalEntry, ...]:
        """All entries known, in order."""
        with self._log.lock:
            return tuple(self._log.ledger.entries)

    @property
    def exists(self) -> bool:
        """There is at least one entry."""
        return self.tip is not None

    @property
    def tip(self) -> JournalEntry | None:
        """The last entry known."""
        with self._log.lock:
            return self._log.ledger.tip

    @property
    def tip_state(self) -> State | None:
        """The state the migration is in; ``None`` if there is no journal yet."""
        with self._log.lock:
            return self._log.ledger.tip_state

    @property
    def working_state(self) -> State | None:
        """The state the migration is in; if it failed, the state that failed."""
        with self._log.lock:
            return self._log.ledger.failed_in or self._log.ledger.tip_state

    @property
    def history(self) -> tuple[State, ...]:
        """States gone through, one per transition."""
        with self._log.lock:
            return tuple(self._log.ledger.history)

    @property
    def current_claim(self) -> Claim | None:
        """The claim in force, whoever has it."""
        with self._log.lock:
            return self._log.ledger.holder

    @property
    def generation(self) -> int:
        """Generation of this object's own claim; 0 without one."""
        return self._claim.generation if self._claim else 0

    def is_past(self, state: State) -> bool:
        """The migration has gone on beyond a state of the forward path: the work of that state is done."""
        working = self.working_state
        here = position(working) if working else None
        there = position(state)
        return here is not None and there is not None and here > there

    def resume(self) -> Resume:
        """What resuming means now; reads the journal first."""
        self.refresh()
        return resume_state(self.history)

    def steps(self, name: str | None = None, key: str | None = None) -> list[JournalEntry]:
        """Steps of all phases in order, or those of a name, or of a name and a key."""
        return [
            entry
            for entry in self.entries()
            if entry.step is not None and name in (None, entry.step) and key in (None, entry.step_key)
        ]

    def find_step(self, name: str, key: str | None = None) -> JournalEntry | None:
        """The last known step of that name (and key)."""
        found = self.steps(name, key)
        return found[-1] if found else None

    def check_fingerprint(self, fingerprint: Fingerprint) -> None:
        """Raise :class:`FingerprintChanged` unless the migration was started with this one."""
        entries = self.entries()
        if entries:
            fingerprint.check(entries[0].details.get("fingerprint", {}), migration_id=self.migration_id)

    def verify(self) -> VerifyReport:
        """Read everything again and check it; see :func:`~.view.verify_journal`.

        :raises JournalTampered: naming the first problem; all are in ``details["problems"]``.
        """
        report = verify_journal(self.store, self.migration_id)
        report.raise_for_problems()
        return report

    # ---- claims

    def claim(self, owner: Owner, *, takeover: bool = False) -> Claim:
        """Hold the migration. The same owner again (cleared tasks, other processes of the run) changes nothing.

        A command claims a new generation if the same user ran the former one on this host and it has ended, so that
        what the dead one may have left behind (a Spark driver) is refused.

        In a finalized or rolled back migration there is nothing to hold: no entry is written, and later appends
        are refused as illegal transitions.

        :param takeover: end another owner's claim; its next write is refused.
        :raises ClaimHeld: another owner holds it; says who and since when.
        :raises ClaimLost: it was taken over from this owner before. That nobody holds it now changes nothing: whoever
            took it over wanted this owner to stop.
        :raises JournalTampered: also if ``journal.jsonl`` names entries that are gone.
        """
        self._view.check(self._log)
        granted: list[Claim] = []

        def decide(ledger: Ledger) -> Draft | JournalEntry:
            granted.clear()
            tip, holder = tip_of(ledger), ledger.holder
            if holder is not None and holder.owner.is_same(owner):
                granted.append(holder)
                return tip
            if tip.to_state.is_terminal:
                granted.append(Claim(owner, ledger.generation, tip.at))
                return tip
            follows = holder is not None and owner.follows(holder.owner)
            if holder is not None and not takeover and not follows:
                raise held_by_another(holder, self.migration_id)
            ousted_by = ledger.ousted_by(owner)
            if ousted_by is not None and not takeover:
                raise taken_over_before(owner, ousted_by, self.migration_id)
            generation = ledger.generation + 1
            reason = _claim_reason(holder, owner, follows=follows)
            details = Claim(owner, generation, "").as_details(takeover_from=holder)
            return Draft(tip.to_state, reason, owner.actor, generation, CLAIMED, None, details)

        entry = self._log.append(decide)
        claim = granted[0] if granted else Claim.of_entry(entry)
        # Who acts may differ from who claimed: another task, or another person at the same terminal.
        self._claim = Claim(owner, claim.generation, claim.since)
        self._view.write_if_stale(self._log)
        return self._claim

    def adopt(self, generation: int, *, actor: str) -> Claim:
        """Go on under a claim made by another process of the same owner, known by its generation (a Spark driver).

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
        """Let go, so that another owner may claim without a takeover. Nothing happens if this one does not hold."""
        try:
            self._append(lambda ledger: self._draft(ledger, tip_of(ledger).to_state, reason, RELEASED))
        except (ClaimLost, IllegalTransition):
            log.info("nothing to release: the claim has ended already")
        self._claim = None

    def holds(self) -> bool:
        """Whether this journal's claim is in force; reads the journal first."""
        try:
            self.check_holds()
        except ClaimLost:
            return False
        return True

    def check_holds(self, *, only_in: Collection[State] | None = None) -> None:
        """To be called before a write to a cluster; reads the journal first.

        :param only_in: states in which the caller may write. A driver that was thought dead may wake up under a
            claim that is still in force, when the migration has long moved on.
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
        """Go to a state. If the migration is there already, nothing is written; the entry that led there is returned.

        :param from_states: states from which this caller may go there; by default the one before it on the forward
            path, and ``failed`` if ``to`` is what failed. Ways back (to tail) have to be named, so that a task that
            was thought dead cannot undo a cutover.
        :param unless_step: name and key of a step: once it is journaled, this transition comes too late.
        :raises PhaseOver: that step is there.
        :raises IllegalTransition: the state machine, or ``from_states``, does not allow it.
        :raises ClaimLost: this journal does not hold the migration.
        """
        sources = _usual_sources(to) if from_states is None else frozenset(from_states)

        def decide(ledger: Ledger) -> Draft | JournalEntry:
            tip = tip_of(ledger)
            if tip.to_state is to:
                return next(entry for entry in reversed(ledger.entries) if not entry.is_step or entry.seq == 0)
            draft = self._draft(ledger, to, reason, details=details)
            if tip.to_state not in sources:
                raise IllegalTransition(
                    f"going from {tip.to_state} to {to} was not asked for",
                    where=Where(migration_id=self.migration_id, phase=tip.to_state.value),
                    next_step="the migration has moved on: clear this task, and it will act on the present state",
                    details={"from": tip.to_state.value, "to": to.value},
                )
            if unless_step is not None and any((e.step, e.step_key) == unless_step for e in ledger.entries):
                raise PhaseOver(
                    f"{unless_step[0]} is journaled: it is too late to go to {to}",
                    where=Where(migration_id=self.migration_id, phase=tip.to_state.value),
                    next_step="none: the migration has gone on",
                )
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
    ) -> JournalEntry:
        """Record something done inside the present state. Concurrent steps of one owner never exclude each other.

        :param only_in: states in which the step makes sense.
        :raises ClaimLost: this journal does not hold the migration.
        :raises PhaseOver: the migration is in none of these states.
        :raises IllegalTransition: the migration has ended.
        """
        return self._append(lambda ledger: self._step(ledger, name, key, details, reason, only_in))

    def step_once(
        self,
        name: str,
        key: str | None = None,
        details: Mapping[str, Any] | None = None,
        *,
        reason: str | None = None,
        only_in: Collection[State] | None = None,
    ) -> JournalEntry:
        """As :meth:`step`, but if there is a step of that name and key already, return that one, with its details."""

        def decide(ledger: Ledger) -> Draft | JournalEntry:
            for entry in ledger.entries:
                if (entry.step, entry.step_key) == (name, key):
                    return entry
            return self._step(ledger, name, key, details, reason, only_in)

        return self._append(decide)

    def fail(self, error: BaseException, *, only_in: Collection[State] | None = None) -> JournalEntry | None:
        """Record a failure. It is meant for exception handlers, so it never hides the error behind another one.

        Where the migration has ended, is held by another owner or is not in ``only_in``, or the store does not work,
        nothing is written, that is logged, and ``None`` is returned. In a migration that has failed already it becomes
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
        """Bring ``journal.jsonl`` up to date. A failure is logged only: it is a view, and the next append heals it."""
        self._view.write(self._log)

    def close(self) -> None:
        """Nothing more is appended here: bring ``journal.jsonl`` up to date if the last steps are not in it."""
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
        """An entry, if it is legal and this journal holds the migration."""
        if tip_of(ledger).to_state.is_terminal:
            ledger.check_state(to)
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

    def _check_only_in(self, ledger: Ledger, only_in: Collection[State] | None) -> None:
        state = ledger.tip_state
        if only_in is None or state in only_in:
            return
        raise PhaseOver(
            f"this may be done in {', '.join(sorted(only_in))} only, the migration is in {state}",
            where=Where(migration_id=self.migration_id, phase=state.value if state else None),
            next_step="stop; nothing was written. If it is still wanted, clear the task: it acts on the present state",
        )


def _claim_reason(holder: Claim | None, owner: Owner, *, follows: bool) -> str:
    if holder is None:
        return f"claimed by {owner}"
    if follows:
        return f"claimed again by {owner}: {holder.owner.process} has ended"
    return f"taken over from {holder.owner} by {owner}"


def _usual_sources(to: State) -> frozenset[State]:
    index = position(to)
    if index is None:
        # rolled_back and failed: the state machine alone decides.
        return frozenset(State)
    return frozenset({State.FAILED, *FORWARD[max(0, index - 1) : index]})
