"""Entries in the store: reading them, and the compare-and-append by which they are written."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_provider_kafka_migration.documents.journal import CREATED, NO_HASH, JournalEntry, seal
from airflow_provider_kafka_migration.errors import (
    IllegalTransition,
    JournalConflict,
    MigrationError,
    ObjectExists,
    StorageRefused,
    Where,
)
from airflow_provider_kafka_migration.journal.ledger import Ledger, entry_key, journal_prefix, seq_of_key
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.base import ObjectStore

Clock = Callable[[], datetime]

#: Lost races after which an append gives up. Each means that another writer has made progress.
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


#: Decides, on what is known, what to append; or returns the entry that makes it unnecessary.
Decision = Callable[[Ledger], Draft | JournalEntry]


def utc_now() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)


class EntryLog:
    """The entries of one migration in a store, and the :class:`~.ledger.Ledger` of those known here.

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
        """What is known; read from the store at the first use. Hold :attr:`lock` while looking at it."""
        if not self._loaded:
            self.refresh()
        return self._ledger

    def refresh(self) -> None:
        """Read the entries that were written since the last look.

        :raises JournalTampered: an entry was altered, is missing, or does not follow the one before it.
        """
        with self.lock:
            known = len(self._ledger.entries)
            after = entry_key(self.migration_id, known - 1) if known else None
            seqs = [
                seq
                for info in self.store.list(journal_prefix(self.migration_id), start_after=after)
                if (seq := seq_of_key(self.migration_id, info.key)) is not None
            ]
            # A list may show entry N and not N-1 if both were written while it ran: so it only tells the last one.
            wanted = range(known, max(seqs) + 1) if seqs else range(0)
            for seq, data in zip(wanted, read_entries(self.store, self.migration_id, wanted), strict=True):
                self._ledger.read(seq, data)
            self._loaded = True

    def create(self, *, reason: str, actor: str, details: Mapping[str, Any]) -> None:
        """Write the first entry, unless somebody else does.

        :raises StorageRefused: the store overwrites what was to be created only.
        """
        with self.lock:
            entry, data = self._seal(None, Draft(State.PLANNED, reason, actor, 0, CREATED, None, details))
            key = entry_key(self.migration_id, 0)
            try:
                self.store.put_new(key, data)
            except ObjectExists:
                self.refresh()
                return
            try:
                # All that follows rests on this. A store that ignores If-None-Match writes the same bytes again.
                self.store.put_new(key, data)
            except ObjectExists:
                self._ledger.apply(entry)
                return
        raise StorageRefused(
            "the object store overwrites an object that was to be created only",
            where=Where(migration_id=self.migration_id, path=f"{self.store.uri}/{key}"),
            next_step="use an object store that honours If-None-Match: * on PutObject",
        )

    def append(self, decide: Decision) -> JournalEntry:
        """Append what ``decide`` says; it is asked again whenever another writer was faster.

        An append need not look at the store first, since creating the entry is what finds out. But a refusal, or an
        entry that makes writing unnecessary, only counts after a fresh look.

        :raises JournalConflict: too many other writers were faster.
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
            f"{MAX_LOST_RACES} times another writer was faster",
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


def tip_of(ledger: Ledger) -> JournalEntry:
    """The last entry.

    :raises IllegalTransition: there is none: the migration was never started.
    """
    if ledger.tip is None:
        raise IllegalTransition(
            "there is no journal yet",
            where=Where(migration_id=ledger.migration_id),
            next_step="start the migration with its plan step; check migration_id and the journal's location",
        )
    return ledger.tip


def read_entries(store: ObjectStore, migration_id: str, seqs: Sequence[int]) -> list[bytes | None]:
    """The stored bytes of these entries, in their order; ``None`` for one that is not there."""
    keys = [entry_key(migration_id, seq) for seq in seqs]
    if len(keys) < 3:
        return [store.get(key) for key in keys]
    with ThreadPoolExecutor(min(_READERS, len(keys)), thread_name_prefix="journal") as pool:
        return list(pool.map(store.get, keys))


def format_time(at: datetime) -> str:
    """UTC, ISO 8601, milliseconds: ``2026-04-24T10:40:00.123Z``."""
    utc = at.astimezone(UTC)
    return utc.strftime("%Y-%m-%dT%H:%M:%S.") + f"{utc.microsecond // 1000:03d}Z"
