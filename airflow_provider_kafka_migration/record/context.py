"""What every phase gets, and what every phase gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.plan_supplement import STEP as SUPPLEMENTED
from airflow_provider_kafka_migration.documents.plan_supplement import PlanSupplement, supplemented
from airflow_provider_kafka_migration.documents.proof import ContentVerifier
from airflow_provider_kafka_migration.errors import DocumentUnreadable, Terminal, Where
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.journal.journal import Journal
    from airflow_provider_kafka_migration.record.cluster import Cluster


@dataclass(frozen=True)
class Progress:
    """One line of progress. Units are in the names; -1 where a figure is not known."""

    phase: str
    message: str
    done: int = -1
    total: int = -1
    unit: str = ""
    done_bytes: int = -1
    total_bytes: int = -1
    records_per_second: float = -1.0
    eta_seconds: float = -1.0
    #: partitions that wait for a person, and partitions that are tried again; and for how long the longest of these
    failed: int = -1
    stuck: int = -1
    stuck_seconds: float = -1.0
    #: differs each time that the job's driver has written
    heartbeat: str = ""

    def __str__(self) -> str:
        parts = [f"{self.phase}: {self.message}"]
        if self.records_per_second >= 0:
            parts.append(f"{self.records_per_second:,.0f} rec/s")
        if self.total_bytes > 0 and self.done_bytes >= 0:
            parts.append(f"{min(self.done_bytes / self.total_bytes, 1.0):.0%}")
        if self.eta_seconds >= 0:
            parts.append(f"about {self.eta_seconds:.0f} s left")
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The progress as data; unknown figures are left out."""
        return {key: value for key, value in asdict(self).items() if value not in (-1, -1.0, "")}


@dataclass(frozen=True)
class PhaseResult:
    """What a phase says when it ends well.

    :param summary: one line for people, also the journal's reason.
    :param details: JSON-able, small, no secrets.
    :param already_done: the journal said so and it was verified; nothing was written.
    """

    phase: str
    summary: str
    details: dict[str, Any] = field(default_factory=dict)
    already_done: bool = False


class CopyRunner(Protocol):
    """Runs a job document to its end: in this process, or on Spark."""

    def submit(
        self, spec: MigrationSpec, job_location: str, job_key: str, read_progress: Callable[[], Progress | None]
    ) -> None:
        """Return when the job has ended well; raise otherwise. The job writes its own progress and results."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _ignore(_progress: Progress) -> None:
    return None


@dataclass
class PhaseContext:
    """A migration as its phases see it. Phases know neither Airflow nor Spark."""

    spec: MigrationSpec
    journal: Journal
    source: Cluster
    target: Cluster
    journal_store: ObjectStore
    archive_store: ObjectStore
    evidence_store: ObjectStore
    resolver: Resolver
    runner: CopyRunner | None = None
    verifier: ContentVerifier | None = None
    progress: Callable[[Progress], None] = _ignore
    now: Callable[[], datetime] = _utc_now

    @property
    def migration_id(self) -> str:
        """The migration's name."""
        return self.spec.migration_id

    def key(self, name: str) -> str:
        """Key of a document of this migration in any of its stores."""
        return f"{self.spec.migration_id}/{name}"

    def load_plan(self) -> Plan:
        """The plan that the journal points to, with all that came to it while the tail ran (its supplements).

        :raises Terminal: there is no plan yet.
        :raises DocumentUnreadable: a supplement is gone, or is not what was journaled.
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
        """All source topics that the plan or one of its supplements has had, those that were dropped included."""
        data = self.journal_store.get(self.key("plan.json"))
        first = {topic.name for topic in Plan.parse(data).topics} if data is not None else set()
        return first | {topic.name for item in self.supplements() for topic in item.topics}

    def supplements(self) -> list[PlanSupplement]:
        """Supplements of the plan, in their order."""
        found = []
        for entry in self.journal.steps(SUPPLEMENTED):
            key = self.key(str(entry.details["document"]))
            data = self.journal_store.get(key)
            document = None if data is None else PlanSupplement.parse(data)
            if document is None or document.digest() != entry.details["digest"]:
                raise DocumentUnreadable(
                    f"supplement {entry.step_key} of the plan is not what was journaled",
                    where=Where(migration_id=self.migration_id, path=f"{self.journal_store.uri}/{key}"),
                    next_step="restore the object from a version of the bucket",
                )
            found.append(document)
        return found

    def where(self, phase: str, **fields: Any) -> Where:
        """A place in this migration, for errors."""
        return Where(migration_id=self.migration_id, phase=phase, **fields)
