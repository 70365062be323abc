"""Who may write to a migration: one run of the DAG, or one use of the CLI, at a time.

A claim is a journal entry with the next *generation*; the last claim wins. Every entry carries the generation of its
writer, and an entry can only be created by who has read all entries before it: so a holder that was superseded cannot
append any more, whatever it believes. A claim has no time limit: it ends by release, by the end of the migration, by a
takeover that a person asked for, or when the same user on the same host starts a command after the one that held it has
ended. After a takeover the former holder needs one itself, also when nobody holds the migration any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.journal import CLAIMED, JournalEntry
from airflow_provider_kafka_migration.errors import ClaimHeld, ClaimLost, Where
from airflow_provider_kafka_migration.journal.owner_process import Life, OwnerProcess


@dataclass(frozen=True)
class Owner:
    """Somebody who can hold a migration.

    :param kind: ``dag_run`` or ``cli``.
    :param identity: what stays equal when tasks of the run are cleared or retried: the DAG and run id, or the
        user and host of the CLI.
    :param actor: who acts, for the journal: a user, a task, a program. Does not make it another owner.
    :param process: of the command line: two commands of one user are two owners. ``None`` for DAG runs, whose tasks
        are many processes.
    """

    kind: str
    identity: str
    actor: str
    process: OwnerProcess | None = None

    def is_same(self, other: Owner) -> bool:
        """The same run, whoever acts in it; of the command line the same process."""
        return (self.kind, self.identity, self.process) == (other.kind, other.identity, other.process)

    def follows(self, other: Owner) -> bool:
        """The next command of the same user on the same host, after one whose process has certainly ended."""
        if (self.kind, self.identity) != (other.kind, other.identity) or self.process is None:
            return False
        return other.process is not None and other.process.life() is Life.ENDED

    def as_details(self) -> dict[str, Any]:
        """For a journal entry."""
        details: dict[str, Any] = {"kind": self.kind, "identity": self.identity, "actor": self.actor}
        if self.process is not None:
            details["process"] = self.process.as_details()
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
        """The claim that a ``claimed`` entry made."""
        if entry.step != CLAIMED:
            raise ValueError(f"entry {entry.seq} is no claim")
        owner = entry.details["owner"]
        process = OwnerProcess.of_details(owner.get("process"))
        return cls(Owner(owner["kind"], owner["identity"], owner["actor"], process), entry.generation, entry.at)

    def as_details(self, *, takeover_from: Claim | None) -> dict[str, Any]:
        """The details of a ``claimed`` entry."""
        details: dict[str, Any] = {"owner": self.owner.as_details()}
        if takeover_from is not None:
            details["taken_over_from"] = {
                "kind": takeover_from.owner.kind,
                "identity": takeover_from.owner.identity,
                "generation": takeover_from.generation,
            }
        return details


def held_by_another(holder: Claim, migration_id: str) -> ClaimHeld:
    """The error for who claims a migration that another owner holds."""
    process = holder.owner.process
    life = None if process is None else process.life()
    which = "" if process is None else f", {process}, which {life}"
    ended = "its process has ended, so nothing of it acts any more: kafka-migration release FILE --takeover lets it go"
    return ClaimHeld(
        f"the migration is held by {holder.owner} (acting: {holder.owner.actor}{which}) since {holder.since}",
        where=Where(migration_id=migration_id),
        next_step=(ended if life is Life.ENDED else "let it end or release it (kafka-migration release FILE)")
        + "; if it is dead or must stop, take over with takeover=true "
        "(CLI: --takeover), after which its next write is refused",
        details={
            "kind": holder.owner.kind,
            "identity": holder.owner.identity,
            "actor": holder.owner.actor,
            "since": holder.since,
            "generation": holder.generation,
            "process": None if process is None else {**process.as_details(), "life": str(life)},
        },
    )


def taken_over_before(owner: Owner, by: Claim, migration_id: str) -> ClaimLost:
    """The error for an owner who would come back after a takeover, now that nobody holds the migration."""
    return ClaimLost(
        f"{owner} has lost the migration to {by.owner} (generation {by.generation}) at {by.since}; that "
        "nobody holds it now does not give it back",
        where=Where(migration_id=migration_id),
        next_step="stop; nothing was written. Go on with a new run or command, which needs no takeover; to go on here, "
        "clear the task with takeover=true (CLI: --takeover)",
        details={"generation": None, "holder": None, "taken_over_by": str(by.owner), "taken_over_at": by.since},
    )


def lost(claim: Claim | None, holder: Claim | None, migration_id: str) -> ClaimLost:
    """The error for a writer that does not hold the migration (any more)."""
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
        next_step="stop; nothing was written. To go on here, clear the task with takeover=true (CLI: --takeover)",
        details={
            "generation": claim.generation if claim else None,
            "holder": str(holder.owner) if holder else None,
            "holder_generation": holder.generation if holder else None,
        },
    )
