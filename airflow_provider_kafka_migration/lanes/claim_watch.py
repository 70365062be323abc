"""Data plane processes outlive the tasks that started them; this tells them that the migration has a new owner.

``<migration_id>/control/claim.json`` names the generation in force. It is a copy of what the journal says, small enough
to be asked for in each slice; the journal stays the authority for everything that is journaled.
"""

from __future__ import annotations

import time

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import ClaimLost, Where
from airflow_provider_kafka_migration.storage.base import ObjectStore

_ASK_SECONDS = 2.0


class ClaimNotice(Document):
    """``control/claim.json``."""

    version: int = 1
    migration_id: str
    generation: int
    owner: str


def claim_key(migration_id: str) -> str:
    """Where the notice is."""
    return f"{migration_id}/control/claim.json"


def publish_claim(store: ObjectStore, migration_id: str, generation: int, owner: str) -> None:
    """Tell copiers who holds the migration. An older generation never replaces a newer one."""
    data = store.get(claim_key(migration_id))
    if data is not None and ClaimNotice.parse(data).generation >= generation:
        return
    notice = ClaimNotice(migration_id=migration_id, generation=generation, owner=owner)
    store.put(claim_key(migration_id), notice.canonical())


class ClaimWatch:
    """Asked before and during slices: does the job's generation still hold the migration?"""

    def __init__(self, job: CopyJob, store: ObjectStore) -> None:
        self._job = job
        self._store = store
        self._asked_at = -_ASK_SECONDS

    def check(self) -> None:
        """Ask now and then.

        :raises ClaimLost: another owner has taken the migration over.
        """
        now = time.monotonic()
        if now - self._asked_at < _ASK_SECONDS:
            return
        self._asked_at = now
        data = self._store.get(claim_key(self._job.migration_id))
        notice = None if data is None else ClaimNotice.parse(data)
        if notice is not None and notice.generation > self._job.generation:
            raise ClaimLost(
                f"{notice.owner} has taken the migration over (generation {notice.generation}); this copier is of "
                f"generation {self._job.generation}",
                where=Where(migration_id=self._job.migration_id, phase=self._job.name),
                next_step="none: the new owner's copiers go on from the target's log ends",
            )
