"""The journal in memory: entries, and what they add up to. Pure: no I/O.

The same rules judge an entry before it is written and after it was read: see :meth:`Ledger.check` and
:meth:`Ledger.read`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_kafka_migration.documents.journal import (
    CLAIMED,
    CREATED,
    NO_HASH,
    RELEASED,
    JournalEntry,
    parse_entry,
)
from airflow_provider_kafka_migration.errors import JournalTampered, Where
from airflow_provider_kafka_migration.journal.claim import Claim, Owner, lost
from airflow_provider_kafka_migration.state import State, allowed, check_transition, walk_back

_FILE_NAME = re.compile(r"([0-9]{20})\.json")


def journal_prefix(migration_id: str) -> str:
    """Prefix of the keys of all entries."""
    return f"{migration_id}/journal/"


def entry_key(migration_id: str, seq: int) -> str:
    """Key of an entry: 20 digits, so that the order of keys is the order of entries."""
    return f"{journal_prefix(migration_id)}{seq:020d}.json"


def seq_of_key(migration_id: str, key: str) -> int | None:
    """The number of the entry with this key; ``None`` for any other object."""
    match = _FILE_NAME.fullmatch(key.removeprefix(journal_prefix(migration_id)))
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Problem:
    """Something wrong with a stored journal.

    :param kind: ``altered``, ``missing``, ``forked``, ``illegal`` or ``foreign``.
    """

    kind: str
    seq: int
    reason: str

    def error(self, migration_id: str) -> JournalTampered:
        """The error that names it."""
        return JournalTampered(
            f"journal entry {self.seq} is {self.kind}: {self.reason}",
            where=Where(migration_id=migration_id, path=entry_key(migration_id, self.seq)),
            next_step="stop using this migration; compare with a backup or the bucket's versions of the object, "
            "`kafka-migration journal verify` lists all that is wrong",
            details={"kind": self.kind, "seq": self.seq, "reason": self.reason},
        )


class Ledger:
    """All known entries of one migration, in order, and their sum."""

    def __init__(self, migration_id: str) -> None:
        self.migration_id = migration_id
        self.entries: list[JournalEntry] = []
        #: States gone through, one per transition (see :mod:`~..state`).
        self.history: list[State] = []
        #: Highest generation claimed so far; 0 before the first claim.
        self.generation = 0
        #: The claim in force; ``None`` if nobody has claimed, or the last holder has released.
        self.holder: Claim | None = None
        #: Owners from whom the migration was taken over, with the claim that did it, until they take it over again.
        self._ousted: list[tuple[Owner, Claim]] = []

    @property
    def tip(self) -> JournalEntry | None:
        """The last entry."""
        return self.entries[-1] if self.entries else None

    @property
    def tip_state(self) -> State | None:
        """The state the migration is in; ``None`` before the first entry."""
        return self.entries[-1].to_state if self.entries else None

    @property
    def failed_in(self) -> State | None:
        """For a failed migration: the state that failed and is to be entered again."""
        return walk_back(self.history) if self.tip_state is State.FAILED else None

    def check_state(self, to: State) -> None:
        """Raise :class:`IllegalTransition` unless ``tip_state -> to`` may be written."""
        if self.tip_state is not None:
            check_transition(self.tip_state, to, failed_in=self.failed_in, migration_id=self.migration_id)

    def check_claim(self, claim: Claim | None) -> None:
        """Raise :class:`ClaimLost` unless this claim is the one in force."""
        if claim is None or self.holder is None or self.holder.generation != claim.generation:
            raise lost(claim, self.holder, self.migration_id)

    def apply(self, entry: JournalEntry) -> None:
        """Add an entry that was judged before."""
        self.entries.append(entry)
        if not entry.is_step or len(self.entries) == 1:
            self.history.append(entry.to_state)
        if entry.step == CLAIMED:
            self._apply_claim(Claim.of_entry(entry))
        elif entry.step == RELEASED:
            self.holder = None

    def _apply_claim(self, claim: Claim) -> None:
        self._ousted = [item for item in self._ousted if not item[0].is_same(claim.owner)]
        if self.holder is not None and not self.holder.owner.is_same(claim.owner):
            self._ousted.append((self.holder.owner, claim))
        self.holder, self.generation = claim, claim.generation

    def ousted_by(self, owner: Owner) -> Claim | None:
        """The claim that took the migration over from this owner, who has not got it back since; None: none did."""
        return next((claim for former, claim in self._ousted if former.is_same(owner)), None)

    def read(self, seq: int, data: bytes | None) -> JournalEntry:
        """Judge and add the stored bytes of entry ``seq``, which must be the next one.

        :raises JournalTampered: naming the entry and what is wrong with it.
        :raises DocumentUnreadable: written by a later release.
        """
        judged = self.judge(seq, data)
        if isinstance(judged, Problem):
            raise judged.error(self.migration_id)
        self.apply(judged)
        return judged

    def judge(self, seq: int, data: bytes | None) -> JournalEntry | Problem:
        """The entry in stored bytes, or what is wrong with it as the successor of the entries known."""
        judged = self.judge_alone(seq, data)
        if isinstance(judged, Problem):
            return judged
        return self._judge_chain(judged) or self._judge_meaning(judged) or judged

    def judge_alone(self, seq: int, data: bytes | None) -> JournalEntry | Problem:
        """The entry in stored bytes, or what is wrong with it without a look at other entries."""
        if data is None:
            return Problem("missing", seq, "there is no such object, but there are later entries")
        try:
            entry, expected_hash = parse_entry(data, path=entry_key(self.migration_id, seq))
        except ValueError as error:
            return Problem("altered", seq, f"it cannot be read as one of our entries ({str(error)[:200]})")
        if entry.hash != expected_hash:
            return Problem("altered", seq, f"its content has the hash {expected_hash}, but it says {entry.hash}")
        if entry.migration_id != self.migration_id:
            return Problem("foreign", seq, f"it belongs to the migration {entry.migration_id!r}")
        if entry.seq != seq:
            return Problem("foreign", seq, f"it is entry {entry.seq} under another name")
        return entry

    def _judge_chain(self, entry: JournalEntry) -> Problem | None:
        previous = self.tip.hash if self.tip else NO_HASH
        if entry.prev_hash == previous:
            return None
        before = f"entry {entry.seq - 1} has {previous}" if self.tip else "it is the first one"
        return Problem("forked", entry.seq, f"it follows an entry with the hash {entry.prev_hash}, but {before}")

    def _judge_meaning(self, entry: JournalEntry) -> Problem | None:
        """No release of ours writes what is refused here, so somebody else did, and made the hashes fit."""
        if self.tip_state is None:
            first = (entry.from_state, entry.to_state, entry.step, entry.generation)
            if first != (State.PLANNED, State.PLANNED, CREATED, 0):
                return Problem("illegal", entry.seq, "a journal begins with planned, created")
            return None
        if entry.from_state is not self.tip_state:
            return Problem("illegal", entry.seq, f"it starts at {entry.from_state}, but the state is {self.tip_state}")
        if not allowed(entry.from_state, entry.to_state, failed_in=self.failed_in):
            return Problem("illegal", entry.seq, f"there is no transition {entry.from_state} -> {entry.to_state}")
        if entry.step == CLAIMED:
            good = entry.generation == self.generation + 1
        else:
            good = self.holder is not None and entry.generation == self.holder.generation
        if not good:
            return Problem("illegal", entry.seq, f"generation {entry.generation} did not hold the migration then")
        return None
