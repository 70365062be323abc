"""What every phase receives, and what every phase returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from airflow_provider_kafka_migration.documents.proof import ContentVerifier
from airflow_provider_kafka_migration.errors import FingerprintChanged, SpecInvalid, Where
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import ClusterSection, MigrationSpec
from airflow_provider_kafka_migration.storage.base import ObjectStore

# The clients are imported where they are opened: DAG files use the results of phases, too.
if TYPE_CHECKING:
    from airflow_provider_kafka_migration.journal.journal import Journal
    from airflow_provider_kafka_migration.kafka.admin.client import Admin
    from airflow_provider_kafka_migration.kafka.config import ClientConfig
    from airflow_provider_kafka_migration.kafka.wire import Wire
    from airflow_provider_kafka_migration.metrics.snapshot import Snapshot
    from airflow_provider_kafka_migration.record.record import MigrationRecord
    from airflow_provider_kafka_migration.record.registry_settings import Role
    from airflow_provider_kafka_migration.registry.client import Registry


# -- cluster ----------------------------------------------------------------------------------------------------------
#
# One of the two clusters of a migration: its admin client and its wire client, opened at their first use.


#: How long a cluster that has never answered is tried, so that a wrong address is reported soon.
FIRST_CONTACT_SECONDS = 6.0


class Cluster:
    """A cluster with the clients that phases use. Not thread-safe: one owner; use :meth:`clone` for another thread."""

    #: Whether this process must not know the cluster: one half of a split migration.
    absent = False

    def __init__(self, role: Literal["source", "target"], config: ClientConfig) -> None:
        self.role = role
        self.config = config

    def clone(self) -> Cluster:
        """Return the same cluster with separate connections."""
        return Cluster(self.role, self.config)

    @classmethod
    def of(cls, role: Literal["source", "target"], section: ClusterSection, resolver: Resolver) -> Cluster:
        """Return the cluster of a spec; nothing is contacted.

        :raises ConnectionInvalid: its connection has mistakes.
        """
        from airflow_provider_kafka_migration.kafka.config import ClientConfig

        return cls(role, ClientConfig.from_librdkafka(resolver.mapping(section.conn_id), role))

    @cached_property
    def wire(self) -> Wire:
        """Raw protocol client."""
        from airflow_provider_kafka_migration.kafka.wire import Wire

        return Wire(self.config, first_contact_seconds=FIRST_CONTACT_SECONDS)

    @cached_property
    def admin(self) -> Admin:
        """Client for typed admin calls."""
        from airflow_provider_kafka_migration.kafka.admin.client import Admin

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
    #: partitions of which the target has lost records after they were copied
    went_back: int = -1
    #: changes each time the job's driver writes
    heartbeat: str = ""
    #: all that is known about a copy job, for metrics: not for people, and too large to be stored
    snapshot: Snapshot | None = field(default=None, repr=False, compare=False)

    @property
    def slot(self) -> tuple[str, bool]:
        """Where this is shown: what runs beside a copy, under the same name or another, must not hide its figures."""
        return self.phase, bool(self.heartbeat)

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
        return {key: value for key, value in self.figures().items() if value not in (-1, -1.0, "")}

    def figures(self) -> dict[str, Any]:
        """All figures as data, except for the snapshot."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "snapshot"}


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


@dataclass(frozen=True)
class JobRef:
    """A job document that a phase has written and wants to be run, between its two halves ``prepare`` and ``finish``.

    :param name: name of the document: ``seed``, ``tail``, ``verify``, ``backup``, ``restore`` ...
    :param location: where the store begins: ``s3://bucket/prefix`` or ``file:///folder``.
    :param key: key of the document below the location.
    :param since: number of the journal's last entry before the job began, so that ``finish`` knows what came after it.
    """

    name: str
    location: str
    key: str
    since: int = -1


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


def _tell_nobody(_text: str) -> None:
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
    sleep: Callable[[float], None] = time.sleep
    #: Opens a client of a schema registry; None: as the spec's connections say.
    open_registry: Callable[[Role], Registry] | None = None
    #: Tells people that producers are stopped, or how a freeze has ended; it returns before they are told.
    announce: Callable[[str], None] = _tell_nobody

    @property
    def record(self) -> MigrationRecord:
        """What the migration has recorded so far."""
        from airflow_provider_kafka_migration.record.record import MigrationRecord

        stores = (self.journal_store, self.archive_store, self.evidence_store)
        return MigrationRecord(self.spec, self.journal, *stores, now=self.now)

    @property
    def migration_id(self) -> str:
        """The migration's name."""
        return self.spec.migration_id

    def key(self, name: str) -> str:
        """Return the key of a document of this migration, the same in all of its stores."""
        return self.record.key(name)

    def where(self, phase: str, **fields: Any) -> Where:
        """Build a place in this migration, for errors."""
        return self.record.where(phase, **fields)

    def registry(self, role: Role) -> Registry:
        """Open a client of a schema registry. The caller closes it.

        Connections to registries are resolved here and nowhere else, so tasks that need no registry work without them.

        :raises SpecInvalid: the spec names no such registry.
        :raises ConnectionInvalid: its connection is missing, or has settings that cannot be used.
        :raises RegistryRefused: it is the AWS Glue Schema Registry.
        """
        if self.open_registry is not None:
            return self.open_registry(role)
        # Most tasks need no registry, so they do not import its HTTP client.
        from airflow_provider_kafka_migration.registry.access import RegistryAccess
        from airflow_provider_kafka_migration.registry.client import Registry
        from airflow_provider_kafka_migration.registry.glue import refuse_glue

        section = self.spec.schemas
        reference = section.source if role == "source" else section.target
        if not reference:
            raise SpecInvalid(
                f"the spec names no schema registry of the {role}",
                where=Where(migration_id=self.migration_id, path=f"schemas.{role}"),
                next_step=f"put schemas.{role} into the spec",
            )
        refuse_glue(reference)
        settings = self.resolver.registry(reference)
        refuse_glue(reference, str(settings.get("url", "")))
        access = RegistryAccess.from_dict(
            settings, reference=reference, max_parallel_requests=section.max_parallel_requests
        )
        return Registry(access, role)


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
        self,
        role: Literal["source", "target"],
        open_config: Callable[[], ClientConfig],
        expected_id: str,
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
        from airflow_provider_kafka_migration.kafka.wire import Wire

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
        from airflow_provider_kafka_migration.kafka.admin.client import Admin

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
