"""``<migration_id>/journal.jsonl``: the journal as seed 001 shows it, one line per entry. For people and other tools.

It is a view: always rewritten as a whole from the entries, and never read to decide anything, except to notice that
entries which it names are gone.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence

from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.errors import StorageRefused, StorageUnavailable
from airflow_provider_kafka_migration.journal.entries import EntryLog
from airflow_provider_kafka_migration.journal.ledger import Problem
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: Steps rewrite the view at most this often; transitions always do.
STEP_INTERVAL_SECONDS = 2.0


def materialised_key(migration_id: str) -> str:
    """Key of the view."""
    return f"{migration_id}/journal.jsonl"


def render(entries: Sequence[JournalEntry]) -> bytes:
    """The view of these entries. The seed's five fields come first in each line."""
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
    """An entry that the view names and the journal no longer has, or has with other content; ``None`` if there is none.

    Being behind is no contradiction: a writer was killed before it could rewrite the view.

    :param entries: read *after* the view.
    """
    for line in view.decode("utf-8", "replace").split("\n"):
        try:
            fields = json.loads(line)
            seq, stored_hash = int(fields["seq"]), str(fields["hash"])
        except (ValueError, KeyError, TypeError):
            continue
        if seq >= len(entries):
            return Problem("missing", seq, "journal.jsonl names it, but there is no such object")
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
        """Read the view, then the entries; raise :class:`JournalTampered` if the view names entries that are gone."""
        view = self._store.get(self._key)
        entries.refresh()
        with entries.lock:
            problem = contradiction(view, entries.ledger.entries) if view is not None else None
        if problem is not None:
            raise problem.error(self._migration_id)
        self._stored = view

    def after(self, entry: JournalEntry, entries: EntryLog) -> None:
        """To be called after an append. Of many steps in a row, not each rewrites the view."""
        if not entry.is_step or time.monotonic() - self._written_at >= STEP_INTERVAL_SECONDS:
            self.write(entries)
        else:
            self._left_behind = True

    def catch_up(self, entries: EntryLog) -> None:
        """Write what :meth:`after` has left out: the last steps of a task may stay the last ones for days."""
        if self._left_behind:
            self.write(entries)

    def write_if_stale(self, entries: EntryLog) -> None:
        """Heal what a killed writer left behind; the view as :meth:`check` read it is compared."""
        with entries.lock:
            wanted = render(entries.ledger.entries)
        if wanted != self._stored:
            self.write(entries)

    def write(self, entries: EntryLog) -> None:
        """Rewrite the view.

        Writers may overtake each other; but each looks again after it has written, so the last one leaves a view that
        has everything. A failure is logged only.
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
            log.warning("journal.jsonl could not be rewritten, the next append does it: %s", error)

    @staticmethod
    def _known(entries: EntryLog) -> int:
        with entries.lock:
            return len(entries.ledger.entries)
