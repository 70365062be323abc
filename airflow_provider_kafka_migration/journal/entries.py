"""Journal entries in the store: how they are read, and the compare-and-append that writes them."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.journal import (
    CLAIMED,
    CREATED,
    NO_HASH,
    RELEASED,
    JournalEntry,
    parse_entry,
    seal,
)
from airflow_provider_kafka_migration.errors import (
    ClaimHeld,
    ClaimLost,
    FingerprintChanged,
    IllegalTransition,
    JournalConflict,
    JournalTampered,
    MigrationError,
    ObjectExists,
    StorageRefused,
    Where,
)
from airflow_provider_kafka_migration.journal.owner_process import Life, OwnerProcess
from airflow_provider_kafka_migration.state import (
    COURSES,
    MIGRATION,
    REOPENED,
    Course,
    State,
    allowed,
    check_transition,
    illegal_transition,
    walk_back,
)
from airflow_provider_kafka_migration.storage.base import ObjectStore

# -- claim ------------------------------------------------------------------------------------------------------------
#
# Who may write to a migration: one run of the DAG, or one CLI command, at a time.
#
# A claim is a journal entry with the next *generation*; the last claim wins. Every entry carries the generation of its
# writer, and only a writer that has read all earlier entries can create the next one: so a superseded holder can no
# longer append, whatever it believes. A claim has no time limit. It ends by a release, by the end of the migration, by
# a takeover that a person requested, or when the same user on the same host starts a command after the holding one has
# ended. After a takeover the former holder needs a takeover itself, even if the migration has no holder any more.


@dataclass(frozen=True)
class Owner:
    """An owner that can hold a migration.

    :param kind: ``dag_run`` or ``cli``.
    :param identity: what stays the same when tasks of the run are cleared or retried: the DAG and run id, or the
        user and host of the CLI.
    :param actor: who acts, for the journal: a user, a task or a program. It does not distinguish owners.
    :param process: the CLI process: two commands of one user are two owners. ``None`` for DAG runs, whose tasks run
        in many processes.
    :param installation: which Airflow a DAG run belongs to: two of them may have runs of the same id. Empty: not
        known, as in journals of earlier releases; then the other fields decide.
    """

    kind: str
    identity: str
    actor: str
    process: OwnerProcess | None = None
    installation: str = ""

    def is_same(self, other: Owner) -> bool:
        """Return whether the other is the same run, regardless of the actor; for the CLI, the same process."""
        if (self.kind, self.identity, self.process) != (other.kind, other.identity, other.process):
            return False
        return self.installation == other.installation or not (self.installation and other.installation)

    def follows(self, other: Owner) -> bool:
        """Return whether this is a command of the other's user and host, after the other's process surely ended."""
        if (self.kind, self.identity) != (other.kind, other.identity) or self.process is None:
            return False
        return other.process is not None and other.process.life() is Life.ENDED

    def as_details(self) -> dict[str, Any]:
        """Return the details for a journal entry."""
        details: dict[str, Any] = {"kind": self.kind, "identity": self.identity, "actor": self.actor}
        if self.process is not None:
            details["process"] = self.process.as_details()
        if self.installation:
            details["installation"] = self.installation
        return details

    def __str__(self) -> str:
        return f"{self.kind} {self.identity}"


@dataclass(frozen=True)
class Claim:
    """An owner's right to write, from ``since`` (UTC, ISO 8601) until a later generation."""

    owner: Owner
    generation: int
    since: str

    @classmethod
    def of_entry(cls, entry: JournalEntry) -> Claim:
        """Return the claim that a ``claimed`` entry made."""
        if entry.step != CLAIMED:
            raise ValueError(f"entry {entry.seq} is not a claim")
        owner = entry.details["owner"]
        process = OwnerProcess.of_details(owner.get("process"))
        found = Owner(owner["kind"], owner["identity"], owner["actor"], process, owner.get("installation", ""))
        return cls(found, entry.generation, entry.at)

    def as_details(self, *, takeover_from: Claim | None) -> dict[str, Any]:
        """Return the details of a ``claimed`` entry."""
        details: dict[str, Any] = {"owner": self.owner.as_details()}
        if takeover_from is not None:
            details["taken_over_from"] = {
                "kind": takeover_from.owner.kind,
                "identity": takeover_from.owner.identity,
                "generation": takeover_from.generation,
            }
        return details


#: How a person decides that another owner's claim ends. A run takes over only once, so clearing one does not help.
_TAKE_OVER = "start a new run with takeover (CLI: --takeover)"
#: The Variable whose value tells an Airflow from others.
_VARIABLE = "kafka_migration_installation_id"
#: Added for an owner that has no takeover left.
_USED = ". The takeover of this run has been used: each is one decision"


def held_by_another(holder: Claim, migration_id: str, owner: Owner, *, used: bool = False) -> ClaimHeld:
    """Return the error for a claim on a migration that another owner holds.

    :param used: whether the owner wanted to take over, and has held the migration before.
    """
    process = holder.owner.process
    life = None if process is None else process.life()
    which = "" if process is None else f", {process}, which {life}"
    ended = "its process has ended and no longer acts: kafka-migration release FILE --takeover releases the migration"
    is_elsewhere = holder.owner.identity == owner.identity and bool(holder.owner.installation)
    other = " in another Airflow" if is_elsewhere else ""
    same = f". If it is this Airflow, set its Variable back: {_VARIABLE}={holder.owner.installation}"
    return ClaimHeld(
        f"the migration is held by {holder.owner}{other} (acting: {holder.owner.actor}{which}) since {holder.since}",
        where=Where(migration_id=migration_id),
        next_step=(
            ended if life is Life.ENDED else "let it end, or have its owner release it (kafka-migration release FILE)"
        )
        + f"; if it is dead or must stop, {_TAKE_OVER}: its next write is then refused"
        + (_USED if used else "")
        + (same if is_elsewhere else ""),
        details={
            "kind": holder.owner.kind,
            "identity": holder.owner.identity,
            "actor": holder.owner.actor,
            "since": holder.since,
            "generation": holder.generation,
            "installation": holder.owner.installation,
            "process": None if process is None else {**process.as_details(), "life": str(life)},
        },
    )


def taken_over_before(owner: Owner, by: Claim, migration_id: str, *, used: bool = False) -> ClaimLost:
    """Return the error for an owner that returns after a takeover, when the migration has no holder any more."""
    return ClaimLost(
        f"{owner} has lost the migration to {by.owner} (generation {by.generation}) at {by.since}, and may not "
        "claim it again although it has no holder now",
        where=Where(migration_id=migration_id),
        next_step="stop; nothing was written. Continue with a new run or command, which needs no takeover"
        + (_USED if used else ""),
        details={"generation": None, "holder": None, "taken_over_by": str(by.owner), "taken_over_at": by.since},
    )


def lost(claim: Claim | None, holder: Claim | None, migration_id: str) -> ClaimLost:
    """Return the error for a writer that does not hold the migration (any more)."""
    if claim is None:
        what = "this run has not claimed the migration"
    elif holder is None:
        what = f"{claim.owner} has released the migration (generation {claim.generation})"
    else:
        what = (
            f"{claim.owner} (generation {claim.generation}) has lost the migration to {holder.owner} "
            f"(generation {holder.generation}) at {holder.since}"
        )
    return ClaimLost(
        what,
        where=Where(migration_id=migration_id),
        next_step=f"stop: this run may change nothing more. To continue nevertheless, {_TAKE_OVER}",
        details={
            "generation": claim.generation if claim else None,
            "holder": str(holder.owner) if holder else None,
            "holder_generation": holder.generation if holder else None,
        },
    )


# -- ledger -----------------------------------------------------------------------------------------------------------
#
# The journal in memory: the entries, and the state that results from them. Pure: no I/O.
#
# The same rules judge an entry before it is written and after it was read: see :meth:`Ledger.check_state`,
# :meth:`Ledger.check_claim` and :meth:`Ledger.read`.


_FILE_NAME = re.compile(r"([0-9]{20})\.json")


def journal_prefix(migration_id: str) -> str:
    """Return the common prefix of all entry keys."""
    return f"{migration_id}/journal/"


def entry_key(migration_id: str, seq: int) -> str:
    """Return the key of an entry: 20 digits, so that keys sort in the order of entries."""
    return f"{journal_prefix(migration_id)}{seq:020d}.json"


def seq_of_key(migration_id: str, key: str) -> int | None:
    """Return the number of the entry with this key; ``None`` for any other object."""
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
        """Return the error that names this problem."""
        return JournalTampered(
            f"journal entry {self.seq} is {self.kind}: {self.reason}",
            where=Where(migration_id=migration_id, path=entry_key(migration_id, self.seq)),
            next_step="stop using this migration; compare with a backup or the bucket's versions of the object; "
            "`kafka-migration journal verify` lists all problems",
            details={"kind": self.kind, "seq": self.seq, "reason": self.reason},
        )


class Ledger:
    """All known entries of one migration, in order, and the state that results from them."""

    def __init__(self, migration_id: str) -> None:
        self.migration_id = migration_id
        self.entries: list[JournalEntry] = []
        #: States passed through, one per transition (see :mod:`~..state`).
        self.history: list[State] = []
        #: Highest generation claimed so far; 0 before the first claim.
        self.generation = 0
        #: The claim in force; ``None`` before the first claim and after a release.
        self.holder: Claim | None = None
        #: The claim in force was made after the end, to abandon what was promoted: it opens the journal again.
        self.is_reopened = False
        #: Owners that lost the migration to a takeover, with the claim that took it, until they take it over again.
        self._ousted: list[tuple[Owner, Claim]] = []

    @property
    def tip(self) -> JournalEntry | None:
        """The last entry."""
        return self.entries[-1] if self.entries else None

    @property
    def tip_state(self) -> State | None:
        """The current state of the migration; ``None`` before the first entry."""
        return self.entries[-1].to_state if self.entries else None

    @property
    def course(self) -> Course:
        """The states that this journal may go through: those of a migration, unless its first entry names another."""
        kind = self.entries[0].details.get("kind", MIGRATION.kind) if self.entries else MIGRATION.kind
        return COURSES.get(kind, MIGRATION)

    @property
    def failed_in(self) -> State | None:
        """For a failed migration: the state that failed and will be entered again."""
        return walk_back(self.history) if self.tip_state is State.FAILED else None

    def check_state(self, to: State) -> None:
        """Raise :class:`IllegalTransition` unless ``tip_state -> to`` may be written."""
        if self.tip_state is not None:
            check_transition(
                self.tip_state, to, failed_in=self.failed_in, migration_id=self.migration_id, course=self.course
            )

    @property
    def is_closed(self) -> bool:
        """Whether the migration has ended, and nothing but a claim that opens it again may be written."""
        return self.tip_state is not None and self.tip_state.is_terminal and not self.is_reopened

    def check_open(self, to: State) -> None:
        """Raise :class:`IllegalTransition` if the migration has ended."""
        if self.is_closed and self.tip_state is not None:
            raise illegal_transition(self.tip_state, to, migration_id=self.migration_id, course=self.course)

    def check_claim(self, claim: Claim | None) -> None:
        """Raise :class:`ClaimLost` unless this claim is the one in force."""
        if claim is None or self.holder is None or self.holder.generation != claim.generation:
            raise lost(claim, self.holder, self.migration_id)

    def apply(self, entry: JournalEntry) -> None:
        """Add an entry that was already judged."""
        self.entries.append(entry)
        if not entry.is_step or len(self.entries) == 1:
            self.history.append(entry.to_state)
        if entry.step == CLAIMED:
            if self.is_closed:
                self.holder = None  # it ended with the promotion, and nobody ousts it
            self._apply_claim(Claim.of_entry(entry))
            self.is_reopened = entry.to_state in REOPENED
        elif entry.step == RELEASED:
            self.holder = None
        if entry.step == RELEASED or not entry.is_step:
            self.is_reopened = False

    def _apply_claim(self, claim: Claim) -> None:
        self._ousted = [item for item in self._ousted if not item[0].is_same(claim.owner)]
        if self.holder is not None and not self.holder.owner.is_same(claim.owner):
            self._ousted.append((self.holder.owner, claim))
        self.holder, self.generation = claim, claim.generation

    def has_claimed(self, owner: Owner) -> bool:
        """Return whether this owner has ever held the migration."""
        claims = (Claim.of_entry(entry) for entry in self.entries if entry.step == CLAIMED)
        return any(claim.owner.is_same(owner) for claim in claims)

    def ousted_by(self, owner: Owner) -> Claim | None:
        """Return the claim that took the migration over from this owner, unless the owner got it back; else None."""
        return next((claim for former, claim in self._ousted if former.is_same(owner)), None)

    def read(self, seq: int, data: bytes | None) -> JournalEntry:
        """Judge and add the stored bytes of entry ``seq``, which must be the next one.

        :raises JournalTampered: naming the entry and what is wrong with it.
        :raises DocumentUnreadable: a later release wrote the entry.
        """
        judged = self.judge(seq, data)
        if isinstance(judged, Problem):
            raise judged.error(self.migration_id)
        self.apply(judged)
        return judged

    def judge(self, seq: int, data: bytes | None) -> JournalEntry | Problem:
        """Return the entry in stored bytes, or what is wrong with it as the successor of the known entries."""
        judged = self.judge_alone(seq, data)
        if isinstance(judged, Problem):
            return judged
        return self._judge_chain(judged) or self._judge_meaning(judged) or judged

    def judge_alone(self, seq: int, data: bytes | None) -> JournalEntry | Problem:
        """Return the entry in stored bytes, or what is wrong with it regardless of other entries."""
        if data is None:
            return Problem("missing", seq, "the object does not exist, but there are later entries")
        try:
            entry, expected_hash = parse_entry(data, path=entry_key(self.migration_id, seq))
        except ValueError as error:
            return Problem("altered", seq, f"it cannot be read as a journal entry ({str(error)[:200]})")
        if entry.hash != expected_hash:
            return Problem("altered", seq, f"its content has the hash {expected_hash}, but it stores {entry.hash}")
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
        """Judge the meaning of an entry. We never write what is refused here: someone else did and fixed the hashes."""
        if self.tip_state is None:
            first = (entry.from_state, entry.to_state, entry.step, entry.generation)
            if first != (State.PLANNED, State.PLANNED, CREATED, 0):
                return Problem("illegal", entry.seq, "a journal begins with planned, created")
            return None
        if entry.from_state is not self.tip_state:
            return Problem("illegal", entry.seq, f"it starts at {entry.from_state}, but the state is {self.tip_state}")
        if not allowed(entry.from_state, entry.to_state, failed_in=self.failed_in, course=self.course):
            return Problem("illegal", entry.seq, f"there is no transition {entry.from_state} -> {entry.to_state}")
        if entry.step == CLAIMED:
            good = entry.generation == self.generation + 1
        else:
            held = self.holder is not None and entry.generation == self.holder.generation
            good = held and not self.is_closed
        if not good:
            return Problem("illegal", entry.seq, f"generation {entry.generation} did not hold the migration then")
        return None


# -- entries ----------------------------------------------------------------------------------------------------------


Clock = Callable[[], datetime]

#: Number of lost races after which an append gives up. Each one means that another writer has made progress.
MAX_LOST_RACES = 500
_MAX_BACKOFF_SECONDS = 0.1

_READERS = 16


@dataclass(frozen=True)
class Draft:
    """An entry to append; sequence, hashes and time are filled in when it is written."""

    to: State
    reason: str
    actor: str
    generation: int
    step: str | None = None
    step_key: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


#: Decides from the known entries what to append, or returns the entry that makes an append unnecessary.
Decision = Callable[[Ledger], Draft | JournalEntry]


def utc_now() -> datetime:
    """Return the time of this machine."""
    return datetime.now(UTC)


#: How long an entry that is missing or damaged is read again before the journal is called tampered with.
READ_AGAIN_SECONDS = 10.0
_PAUSE_SECONDS = 1.0


class EntryLog:
    """The entries of one migration in a store, and the :class:`Ledger` of the entries known here.

    Thread-safe. The constructor does no I/O.
    """

    def __init__(self, store: ObjectStore, migration_id: str, clock: Clock, sleep: Callable[[float], None]) -> None:
        self.store = store
        self.migration_id = migration_id
        self.lock = threading.RLock()
        self._clock = clock
        self._sleep = sleep
        self._ledger = Ledger(migration_id)
        self._loaded = False

    @property
    def ledger(self) -> Ledger:
        """The known entries, read from the store at the first use. Hold :attr:`lock` while reading it."""
        if not self._loaded:
            self.refresh()
        return self._ledger

    def refresh(self) -> None:
        """Read the entries that were written since the last refresh.

        :raises JournalTampered: an entry was altered, is missing, or does not follow its predecessor.
        """
        with self.lock:
            known = len(self._ledger.entries)
            after = entry_key(self.migration_id, known - 1) if known else None
            seqs = [
                seq
                for info in self.store.list(journal_prefix(self.migration_id), start_after=after)
                if (seq := seq_of_key(self.migration_id, info.key)) is not None
            ]
            # A list may show entry N but not N-1 if both were written while it ran: so it only yields the last number.
            wanted = range(known, max(seqs) + 1) if seqs else range(0)
            for seq, data in zip(wanted, read_entries(self.store, self.migration_id, wanted), strict=True):
                self._ledger.read(seq, self._read_again(seq, data))
            self._loaded = True

    def _read_again(self, seq: int, data: bytes | None) -> bytes | None:
        """Return the bytes of an entry, read again for a while if they are missing or damaged.

        A store with several sites may list an object before all of them return it.
        """
        waited = 0.0
        while waited < READ_AGAIN_SECONDS and _is_unreadable(self._ledger.judge(seq, data)):
            self._sleep(_PAUSE_SECONDS)
            waited += _PAUSE_SECONDS
            data = self.store.get(entry_key(self.migration_id, seq))
        return data

    def create(self, *, reason: str, actor: str, details: Mapping[str, Any]) -> None:
        """Write the first entry, unless another writer does.

        :raises StorageRefused: the store overwrites an object despite a create-only put.
        """
        with self.lock:
            entry, data = self._seal(None, Draft(State.PLANNED, reason, actor, 0, CREATED, None, details))
            key = entry_key(self.migration_id, 0)
            try:
                self.store.put_new(key, data)
            except ObjectExists:
                self.refresh()
                return
            self.check_create_only()
            self._ledger.apply(entry)

    def check_create_only(self) -> None:
        """Check that the store refuses to create the first entry once more: the whole journal relies on that.

        A store that ignores ``If-None-Match`` writes the same bytes again, which changes nothing. It is tried twice: a
        service that keeps no metadata takes the same bytes for this put's own when an answer was lost.

        :raises StorageRefused: the store overwrites an object despite a create-only put.
        """
        key = entry_key(self.migration_id, 0)
        data = self.store.get(key)
        if data is None:
            return  # reading the journal names what is missing; it must not be written here
        for _ in range(2):
            try:
                self.store.put_new(key, data)
            except ObjectExists:
                return
        raise StorageRefused(
            "the object store overwrites an existing object despite a create-only put",
            where=Where(migration_id=self.migration_id, path=f"{self.store.uri}/{key}"),
            next_step="use an object store that supports If-None-Match: * on PutObject",
        )

    def append(self, decide: Decision) -> JournalEntry:
        """Append what ``decide`` returns; call it again whenever another writer was faster.

        An append need not read the store first, because creating the entry detects other writers. But a refusal, or an
        entry that makes writing unnecessary, only counts after a fresh read.

        :raises JournalConflict: other writers were faster too many times.
        """
        with self.lock:
            is_fresh = not self._loaded
            for lost_races in range(MAX_LOST_RACES):
                try:
                    decision: Draft | JournalEntry | None = decide(self.ledger)
                except MigrationError:
                    if is_fresh:
                        raise
                    decision = None
                if isinstance(decision, JournalEntry) and is_fresh:
                    return decision
                if isinstance(decision, Draft):
                    entry = self._create_next(decision)
                    if entry is not None:
                        return entry
                    self._sleep(random.random() * min(_MAX_BACKOFF_SECONDS, 0.002 * 2 ** min(lost_races, 8)))  # noqa: S311
                self.refresh()
                is_fresh = True
        raise JournalConflict(
            f"another writer was faster {MAX_LOST_RACES} times",
            where=Where(migration_id=self.migration_id),
            next_step="clear the task",
        )

    def _create_next(self, draft: Draft) -> JournalEntry | None:
        """Create the next entry; ``None`` if another writer was faster."""
        entry, data = self._seal(tip_of(self.ledger), draft)
        try:
            self.store.put_new(entry_key(self.migration_id, entry.seq), data)
        except ObjectExists:
            return None
        self._ledger.apply(entry)
        return entry

    def _seal(self, tip: JournalEntry | None, draft: Draft) -> tuple[JournalEntry, bytes]:
        return seal(
            {
                "seq": tip.seq + 1 if tip else 0,
                "prev_hash": tip.hash if tip else NO_HASH,
                "migration_id": self.migration_id,
                "from": tip.to_state if tip else State.PLANNED,
                "to": draft.to,
                "at": format_time(self._clock()),
                "reason": draft.reason,
                "actor": draft.actor,
                "generation": draft.generation,
                "step": draft.step,
                "step_key": draft.step_key,
                "details": dict(draft.details),
            }
        )


def _is_unreadable(judged: JournalEntry | Problem) -> bool:
    return isinstance(judged, Problem) and judged.kind in ("missing", "altered")


def tip_of(ledger: Ledger) -> JournalEntry:
    """Return the last entry.

    :raises IllegalTransition: there is none because the migration was never started.
    """
    if ledger.tip is None:
        raise IllegalTransition(
            "there is no journal yet",
            where=Where(migration_id=ledger.migration_id),
            next_step="start the migration with its plan step; check migration_id and the journal's location",
        )
    return ledger.tip


def read_entries(store: ObjectStore, migration_id: str, seqs: Sequence[int]) -> list[bytes | None]:
    """Return the stored bytes of these entries, in their order; ``None`` for a missing one."""
    keys = [entry_key(migration_id, seq) for seq in seqs]
    if len(keys) < 3:
        return [store.get(key) for key in keys]
    with ThreadPoolExecutor(min(_READERS, len(keys)), thread_name_prefix="journal") as pool:
        return list(pool.map(store.get, keys))


def format_time(at: datetime) -> str:
    """Format a time as UTC, ISO 8601, with milliseconds: ``2026-04-24T10:40:00.123Z``."""
    utc = at.astimezone(UTC)
    return utc.strftime("%Y-%m-%dT%H:%M:%S.") + f"{utc.microsecond // 1000:03d}Z"


# -- fingerprint ------------------------------------------------------------------------------------------------------
#
# What must not change during a migration: its clusters, buckets and prefixes (docs/decisions/0014).


@dataclass(frozen=True)
class Fingerprint:
    """Source and target cluster id, buckets and prefixes by their role (``journal``, ``archive``, ``evidence``)."""

    source_cluster_id: str
    target_cluster_id: str
    buckets: Mapping[str, str] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_locations(cls, source_cluster_id: str, target_cluster_id: str, locations: Mapping[str, str]) -> Fingerprint:
        """Build it from locations by role: ``s3://bucket/prefix`` or ``file:///folder`` (which has no bucket)."""
        split = {role: _split(location) for role, location in locations.items()}
        return cls(
            source_cluster_id,
            target_cluster_id,
            {role: bucket for role, (bucket, _) in split.items()},
            {role: prefix for role, (_, prefix) in split.items()},
        )

    @staticmethod
    def recorded(entries: Sequence[JournalEntry]) -> dict[str, str]:
        """Return the parts in a journal's first entry, in the form of :meth:`fields`; empty without a journal."""
        stored = entries[0].details.get("fingerprint") if entries else None
        return dict((stored or {}).get("fields") or {})

    def fields(self) -> dict[str, str]:
        """Return all parts, flat, in a fixed order: ``source_cluster_id``, ``buckets.journal``, ..."""
        flat = {"source_cluster_id": self.source_cluster_id, "target_cluster_id": self.target_cluster_id}
        flat |= {f"buckets.{role}": self.buckets[role] for role in sorted(self.buckets)}
        flat |= {f"prefixes.{role}": self.prefixes[role] for role in sorted(self.prefixes)}
        return flat

    @property
    def sha256(self) -> str:
        """SHA-256 over the canonical JSON of :meth:`fields`, 64 hex digits."""
        return canonical_digest(self.fields())

    def as_details(self) -> dict[str, Any]:
        """Return what the first entry stores: the parts, so that an error can name a change, and their SHA-256."""
        return {"sha256": self.sha256, "fields": self.fields()}

    def check(self, stored: Mapping[str, Any], *, migration_id: str | None = None) -> None:
        """Compare with the fingerprint in the journal's first entry.

        :raises FingerprintChanged: naming each part that differs, with its old and new value.
        """
        if stored.get("sha256") == self.sha256:
            return
        old, new = dict(stored.get("fields") or {}), self.fields()
        changes = {
            name: {"old": old.get(name), "new": new.get(name)}
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        }
        listing = "; ".join(f"{name}: {change['old']!r} -> {change['new']!r}" for name, change in changes.items())
        raise FingerprintChanged(
            f"the migration was started with other settings: {listing or 'its fingerprint differs'}",
            where=Where(migration_id=migration_id),
            next_step="put the old values back, or start a new migration with another migration_id",
            details={"changes": changes},
        )


def _split(location: str) -> tuple[str, str]:
    scheme, _, rest = location.partition("://")
    bucket, _, prefix = rest.partition("/")
    return (f"{scheme}://{bucket}", prefix.strip("/"))
