"""The record of a migration: what phases learn from each other, as typed facts over the journal and the stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.documents.plan import STEP as SUPPLEMENTED
from airflow_provider_kafka_migration.documents.plan import Plan, PlanSupplement, supplemented
from airflow_provider_kafka_migration.errors import DocumentUnreadable, Terminal, Where
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.journal.journal import Journal


@dataclass(frozen=True)
class MigrationRecord:
    """Everything that a migration has recorded: its journal, and the documents in its stores.

    :param now: the clock that dates what is recorded.
    """

    spec: MigrationSpec
    journal: Journal
    journal_store: ObjectStore
    archive_store: ObjectStore
    evidence_store: ObjectStore
    now: Callable[[], datetime]

    @property
    def migration_id(self) -> str:
        """The migration's name."""
        return self.spec.migration_id

    def key(self, name: str) -> str:
        """Return the key of a document of this migration, the same in all of its stores."""
        return f"{self.spec.migration_id}/{name}"

    def where(self, phase: str, **fields: Any) -> Where:
        """Build a place in this migration, for errors."""
        return Where(migration_id=self.migration_id, phase=phase, **fields)

    def plan(self) -> Plan:
        """Load the plan that the journal points to, with all supplements that were added while the tail ran.

        :raises Terminal: there is no plan yet.
        :raises DocumentUnreadable: a supplement is missing, or is not what was journaled.
        """
        data = self.journal_store.get(self.key("plan.json"))
        if data is None:
            raise Terminal(
                "there is no plan yet",
                where=Where(migration_id=self.migration_id, path=f"{self.journal_store.uri}/{self.key('plan.json')}"),
                next_step="run the plan phase first (task plan, or kafka-migration plan)",
            )
        return supplemented(Plan.parse(data), self.supplements())

    def ever_planned(self) -> set[str]:
        """All source topics that the plan or one of its supplements has ever contained, including dropped ones."""
        data = self.journal_store.get(self.key("plan.json"))
        first = {topic.name for topic in Plan.parse(data).topics} if data is not None else set()
        return first | {topic.name for item in self.supplements() for topic in item.topics}

    def supplements(self) -> list[PlanSupplement]:
        """Load the supplements of the plan, in their order."""
        found = []
        for entry in self.journal.steps(SUPPLEMENTED):
            key = self.key(str(entry.details["document"]))
            data = self.journal_store.get(key)
            document = None if data is None else PlanSupplement.parse(data)
            if document is None or document.digest() != entry.details["digest"]:
                raise DocumentUnreadable(
                    f"supplement {entry.step_key} of the plan is not what was journaled",
                    where=Where(migration_id=self.migration_id, path=f"{self.journal_store.uri}/{key}"),
                    next_step="restore the object from an earlier version in the bucket",
                )
            found.append(document)
        return found
