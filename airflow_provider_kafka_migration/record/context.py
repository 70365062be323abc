"""What every phase receives, and what every phase returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pendulum

from airflow_provider_kafka_migration.documents.plan import STEP as SUPPLEMENTED
from airflow_provider_kafka_migration.documents.plan import Plan, PlanSupplement, supplemented
from airflow_provider_kafka_migration.documents.proof import ContentVerifier
from airflow_provider_kafka_migration.errors import DocumentUnreadable, FingerprintChanged, Terminal, Where
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.journal.journal import Journal


# -- timing -----------------------------------------------------------------------------------------------------------
#
# Times of the phases: one text form for machines, durations for people, and waiting with a limit.


def iso(at: datetime) -> str:
    """``2026-04-24T10:40:00.123456Z``; the time must have a zone."""
    if at.tzinfo is None:
        raise ValueError("a time without a zone")
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_iso(text: str) -> datetime:
    """Read what :func:`iso` writes (and any ISO 8601 time with a zone)."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"a time without a zone: {text}")
    return at


def words(seconds: float) -> str:
    """A duration for people: ``1 minute 35 seconds``; below ten seconds with a tenth: ``2.5 s``."""
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    return pendulum.duration(seconds=round(seconds)).in_words(locale="en")


# -- cluster ----------------------------------------------------------------------------------------------------------
#
# One of the two clusters of a migration: its admin client and its wire client, opened at their first use.


#: How long a cluster that has never answered is tried, so that a wrong address is reported soon.
FIRST_CONTACT_SECONDS = 6.0


class Cluster:
    """A cluster with the clients that phases use. Not thread-safe: one owner; use :meth:`clone` for another thread."""

    def __init__(self, role: Literal["source", "target"], config: ClientConfig) -> None:
        self.role = role
        self.config = config

    def clone(self) -> Cluster:
        """Return the same cluster with separate connections."""
        return Cluster(self.role, self.config)

    @cached_property
    def wire(self) -> Wire:
        """Raw protocol client."""
        return Wire(self.config, first_contact_seconds=FIRST_CONTACT_SECONDS)

    @cached_property
    def admin(self) -> Admin:
        """Client for typed admin calls."""
        return Admin(self.config, first_contact_seconds=FIRST_CONTACT_SECONDS)

    @cached_property
    def cluster_id(self) -> str:
        """The cluster's id."""
        self.wire.metadata([])
        return self.wire.cluster_id

    def close(self) -> None:
        """Close the clients that were opened."""
        for name in ("wire", "admin"):
            client = self.__dict__.pop(name, None)
            if client is not None:
                client.close()


# -- context ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """One line of progress. The names contain the units; -1 means that a figure is unknown."""

    phase: str
    message: str
    done: int = -1
    total: int = -1
    unit: str = ""
    done_bytes: int = -1
    total_bytes: int = -1
    records_per_second: float = -1.0
    eta_seconds: float = -1.0
    #: partitions that wait for a person, partitions that are retried, and how long the longest of the latter has waited
    failed: int = -1
    stuck: int = -1
    stuck_seconds: float = -1.0
    #: changes each time the job's driver writes
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
    """What a phase returns when it succeeds.

    :param summary: one line for people, also the journal's reason.
    :param details: JSON-able, small, no secrets.
    :param already_done: the journal showed it as done and that was verified; nothing was written.
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
    """A migration as its phases see it. Phases depend on neither Airflow nor Spark."""

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
        """Return the key of a document of this migration, the same in all of its stores."""
        return f"{self.spec.migration_id}/{name}"

    def load_plan(self) -> Plan:
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

    def where(self, phase: str, **fields: Any) -> Where:
        """Build a place in this migration, for errors."""
        return Where(migration_id=self.migration_id, phase=phase, **fields)


# -- known cluster ----------------------------------------------------------------------------------------------------
#
# A cluster whose id the journal knows: opened at its first use, and refused if it is another one.
#
# Phases that end a freeze must start while a cluster is down, or while its connection cannot be resolved. They contact
# a cluster only when they need it, so its identity is checked at that moment and not before.


class KnownCluster(Cluster):
    """A cluster of a migration that has begun.

    :param open_config: resolves the connection; called at the first use.
    :param expected_id: the cluster's id in the journal; empty if unknown: any cluster is accepted.
    """

    def __init__(
        self, role: Literal["source", "target"], open_config: Callable[[], ClientConfig], expected_id: str
    ) -> None:
        self.role = role
        self._open_config = open_config
        self._expected_id = expected_id

    @cached_property
    def config(self) -> ClientConfig:  # type: ignore[override]
        """How to reach the cluster."""
        return self._open_config()

    def clone(self) -> Cluster:
        """Return the same cluster with separate connections."""
        return KnownCluster(self.role, self._open_config, self._expected_id)

    @cached_property
    def wire(self) -> Wire:
        """Raw protocol client.

        :raises FingerprintChanged: the connection leads to another cluster than the one in the journal.
        """
        wire = Wire(self.config, first_contact_seconds=FIRST_CONTACT_SECONDS)
        if self._expected_id:
            try:
                wire.metadata([])
                self._check(wire.cluster_id)
            except BaseException:
                wire.close()
                raise
        return wire

    @cached_property
    def admin(self) -> Admin:
        """Client for typed admin calls.

        :raises FingerprintChanged: the connection leads to another cluster than the one in the journal.
        """
        _ = self.wire
        return Admin(self.config)

    def _check(self, found: str) -> None:
        if found == self._expected_id:
            return
        raise FingerprintChanged(
            f"the {self.role} connection leads to the cluster {found or 'without an id'}, but the migration was "
            f"started with {self._expected_id}",
            where=Where(cluster=self.role, broker=self.config.bootstrap_servers),
            next_step=f"correct bootstrap.servers of the {self.role} connection; nothing was changed there",
            details={"changes": {f"{self.role}_cluster_id": {"old": self._expected_id, "new": found}}},
        )
