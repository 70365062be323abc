"""Checking a stored journal from its first to its last entry."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.journal import NO_HASH
from airflow_provider_kafka_migration.errors import JournalTampered, Where
from airflow_provider_kafka_migration.journal.entries import read_entries
from airflow_provider_kafka_migration.journal.ledger import (
    Ledger,
    Problem,
    journal_prefix,
    seq_of_key,
)
from airflow_provider_kafka_migration.journal.view import contradiction, materialised_key
from airflow_provider_kafka_migration.storage.base import ObjectStore


@dataclass(frozen=True)
class VerifyReport:
    """What a check of the whole journal found.

    :param entries: entries that are there.
    :param tip_hash: hash of the last good entry: two journals with the same one are equal up to there.
    :param problems: empty for a good journal. After the first broken entry nothing can be said about the chain, so
        what follows are only missing, unreadable and altered ones.
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
        """The report as data."""
        return {
            "migration_id": self.migration_id,
            "entries": self.entries,
            "tip_hash": self.tip_hash,
            "problems": [asdict(problem) for problem in self.problems],
        }

    def raise_for_problems(self) -> None:
        """Raise :class:`JournalTampered` about the first problem, with all of them in its details."""
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

    :raises DocumentUnreadable: an entry of a later release.
    """
    view = store.get(materialised_key(migration_id))
    problems: list[Problem] = []
    seqs: list[int] = []
    for info in store.list(journal_prefix(migration_id)):
        seq = seq_of_key(migration_id, info.key)
        if seq is None:
            problems.append(Problem("foreign", len(seqs), f"{info.key} is none of our objects"))
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
