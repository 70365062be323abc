"""``<migration_id>/journal.jsonl``: the journal as one file, one line per entry. For people and other tools.

It is a view, always rewritten as a whole from the entries. It is never read to decide anything, except to detect that
entries which it names no longer exist.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.journal import NO_HASH, JournalEntry
from airflow_provider_kafka_migration.errors import JournalTampered, StorageRefused, StorageUnavailable, Where
from airflow_provider_kafka_migration.journal.entries import (
    EntryLog,
    Ledger,
    Problem,
    journal_prefix,
    read_entries,
    seq_of_key,
)
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: Steps rewrite the view at most this often; transitions always do.
STEP_INTERVAL_SECONDS = 2.0


def materialised_key(migration_id: str) -> str:
    """Return the key of the view."""
    return f"{migration_id}/journal.jsonl"


def render(entries: Sequence[JournalEntry]) -> bytes:
    """Return the view of these entries. The seed's five fields come first in each line."""
    return "".join(_line(entry) for entry in entries).encode()


def _line(entry: JournalEntry) -> str:
    fields = {
        "migration_id": entry.migration_id,
        "from": entry.from_state.value,
        "to": entry.to_state.value,
        "at": entry.at,
        "reason": entry.reason,
        "seq": entry.seq,
        "actor": entry.actor,
        "generation": entry.generation,
        "step": entry.step,
        "step_key": entry.step_key,
        "hash": entry.hash,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n"


def contradiction(view: bytes, entries: Sequence[JournalEntry]) -> Problem | None:
    """Return a problem if the view names an entry that the journal lacks or has with other content; else ``None``.

    A view that is behind is not a contradiction: a writer was killed before it could rewrite it.

    :param entries: the entries, read *after* the view.
    """
    for line in view.decode("utf-8", "replace").split("\n"):
        try:
            fields = json.loads(line)
            seq, stored_hash = int(fields["seq"]), str(fields["hash"])
        except (ValueError, KeyError, TypeError):
            continue
        if seq >= len(entries):
            return Problem("missing", seq, "journal.jsonl names it, but the object does not exist")
        if entries[seq].hash != stored_hash:
            return Problem("altered", seq, f"journal.jsonl has it with the hash {stored_hash}")
    return None


class View:
    """The stored view of one migration. Thread-safe."""

    def __init__(self, store: ObjectStore, migration_id: str) -> None:
        self._store = store
        self._migration_id = migration_id
        self._key = materialised_key(migration_id)
        self._lock = threading.Lock()
        self._stored: bytes | None = None
        self._written_at = -STEP_INTERVAL_SECONDS
        self._left_behind = False

    def check(self, entries: EntryLog) -> None:
        """Read the view, then the entries; raise :class:`JournalTampered` if the view names missing entries."""
        view = self._store.get(self._key)
        entries.refresh()
        with entries.lock:
            problem = contradiction(view, entries.ledger.entries) if view is not None else None
        if problem is not None:
            raise problem.error(self._migration_id)
        self._stored = view

    def after(self, entry: JournalEntry, entries: EntryLog) -> None:
        """Update the view after an append. In a quick sequence of steps, not every step rewrites it."""
        if not entry.is_step or time.monotonic() - self._written_at >= STEP_INTERVAL_SECONDS:
            self.write(entries)
        else:
            self._left_behind = True

    def catch_up(self, entries: EntryLog) -> None:
        """Write what :meth:`after` skipped: the last steps of a task may remain the last ones for days."""
        if self._left_behind:
            self.write(entries)

    def write_if_stale(self, entries: EntryLog) -> None:
        """Rewrite the view if the one that :meth:`check` read is stale, for instance after a killed writer."""
        with entries.lock:
            wanted = render(entries.ledger.entries)
        if wanted != self._stored:
            self.write(entries)

    def write(self, entries: EntryLog) -> None:
        """Rewrite the view.

        Writers may overtake each other, but each one reads the entries again after writing, so the last one leaves a
        complete view. A failure is only logged.
        """
        self._left_behind = False
        try:
            with self._lock:
                written = -1
                while written < self._known(entries):
                    with entries.lock:
                        content, count = render(entries.ledger.entries), len(entries.ledger.entries)
                    self._store.put(self._key, content)
                    self._stored, written = content, count
                    entries.refresh()
                self._written_at = time.monotonic()
        except (StorageUnavailable, StorageRefused) as error:
            self._left_behind = True
            log.warning("journal.jsonl could not be rewritten; the next append will rewrite it: %s", error)

    @staticmethod
    def _known(entries: EntryLog) -> int:
        with entries.lock:
            return len(entries.ledger.entries)


# -- verify -----------------------------------------------------------------------------------------------------------
#
# Checks a stored journal from its first to its last entry.


@dataclass(frozen=True)
class VerifyReport:
    """The result of a check of the whole journal.

    :param entries: number of entries present.
    :param tip_hash: hash of the last good entry: two journals with the same hash are equal up to there.
    :param problems: empty for a good journal. After the first broken entry the chain cannot be checked, so
        later problems are only missing, unreadable and altered entries.
    """

    migration_id: str
    entries: int
    tip_hash: str
    problems: tuple[Problem, ...]

    @property
    def is_good(self) -> bool:
        """No problem was found."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return the report as data."""
        return {
            "migration_id": self.migration_id,
            "entries": self.entries,
            "tip_hash": self.tip_hash,
            "problems": [asdict(problem) for problem in self.problems],
        }

    def raise_for_problems(self) -> None:
        """Raise :class:`JournalTampered` for the first problem, with all of them in its details."""
        if not self.problems:
            return
        first = self.problems[0].error(self.migration_id)
        more = f" ({len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        raise JournalTampered(
            first.what + more,
            where=Where(migration_id=self.migration_id, path=first.where.path),
            next_step=first.next_step,
            details={**first.details, "problems": [asdict(problem) for problem in self.problems]},
        )


def verify_journal(store: ObjectStore, migration_id: str) -> VerifyReport:
    """Read every entry and judge it; never writes.

    :raises DocumentUnreadable: a later release wrote an entry.
    """
    view = store.get(materialised_key(migration_id))
    problems: list[Problem] = []
    seqs: list[int] = []
    for info in store.list(journal_prefix(migration_id)):
        seq = seq_of_key(migration_id, info.key)
        if seq is None:
            problems.append(Problem("foreign", len(seqs), f"{info.key} is not a journal entry"))
        else:
            seqs.append(seq)
    wanted = range(max(seqs) + 1) if seqs else range(0)
    stored = read_entries(store, migration_id, wanted)
    ledger = Ledger(migration_id)
    problems += _judge_all(ledger, stored)
    named = contradiction(view, ledger.entries) if view is not None and not problems else None
    if named is not None:
        problems.append(named)
    present = sum(data is not None for data in stored)
    tip_hash = ledger.tip.hash if ledger.tip else NO_HASH
    return VerifyReport(migration_id, present, tip_hash, tuple(sorted(problems, key=lambda problem: problem.seq)))


def _judge_all(ledger: Ledger, stored: list[bytes | None]) -> list[Problem]:
    problems: list[Problem] = []
    broken = False
    for seq, data in enumerate(stored):
        judged = ledger.judge_alone(seq, data) if broken else ledger.judge(seq, data)
        if isinstance(judged, Problem):
            problems.append(judged)
            broken = True
        elif not broken:
            ledger.apply(judged)
    return problems
