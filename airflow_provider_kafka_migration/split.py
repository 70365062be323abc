"""Backup and restore: the two halves of a migration between clusters that cannot see each other.

Each half opens only what it may know: a backup opens the source and the storage, a restore the storage and the target.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NoReturn, cast

from airflow_provider_kafka_migration.errors import Terminal, Transient, Where
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.spec_guard import spec_to_record
from airflow_provider_kafka_migration.lanes.slices import publish_claim
from airflow_provider_kafka_migration.phases import backup, restore
from airflow_provider_kafka_migration.record.context import Cluster, CopyRunner, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store
from airflow_provider_kafka_migration.storage.s3 import S3Config

Side = Literal["source", "target"]


class AbsentCluster:
    """Placeholder for the cluster that this half must not know; any use of it is a bug in this package and raises."""

    #: There is no connection whose principal could be named.
    config = None
    absent = True

    def __init__(self, side: Side) -> None:
        self._side = side

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Terminal(
            f"this job must not use the {self._side} cluster, but asked for its {name}",
            where=Where(cluster=self._side),
            next_step="report this as a bug",
        )


class SplitJob:
    """One half of a split migration. Close it, or use it as a context manager.

    :param side: the only cluster that this half knows.
    :param owner: the owner that holds the migration on the target; a backup does not use it.
    """

    def __init__(
        self,
        spec: MigrationSpec,
        side: Side,
        resolver: Resolver,
        runner: CopyRunner,
        *,
        owner: Owner,
        takeover: bool = False,
        progress: Callable[[Progress], None] = lambda _progress: None,
    ) -> None:
        self.spec = spec
        self._side = side
        self._resolver = resolver
        self._runner = runner
        self._owner = owner
        self._takeover = takeover
        self._progress = progress

    def __enter__(self) -> SplitJob:
        return self

    def __exit__(self, *_: object) -> None:
        cluster = self.__dict__.pop("_cluster", None)
        if cluster is not None:
            cluster.close()

    @cached_property
    def _cluster(self) -> Cluster:
        section = self.spec.source if self._side == "source" else self.spec.target
        return Cluster.of(self._side, section, self._resolver)

    def _store(self, location: str) -> ObjectStore:
        reference = self.spec.storage.conn_id
        config = None if reference is None else S3Config.of(self._resolver, reference)
        return open_store(location, config)

    def _context(self) -> PhaseContext:
        storage = self.spec.storage
        journal_store = self._store(storage.journal)
        known: dict[Side, Any] = {"source": AbsentCluster("source"), "target": AbsentCluster("target")}
        known[self._side] = self._cluster
        return PhaseContext(
            spec=self.spec,
            journal=Journal(journal_store, self.spec.migration_id),
            source=cast(Cluster, known["source"]),
            target=cast(Cluster, known["target"]),
            journal_store=journal_store,
            archive_store=self._store(storage.archive_location),
            evidence_store=self._store(storage.evidence_location),
            resolver=self._resolver,
            runner=self._runner,
            progress=self._progress,
        )

    def backup(self, *, follow: bool = False, finish: bool = False) -> PhaseResult:
        """See :func:`~.phases.backup.run`."""
        return backup.run(self._context(), follow=follow, finish=finish)

    def restore(self, *, follow: bool = False, commit_groups: bool = True) -> PhaseResult:
        """See :func:`~.phases.restore.run`. Claims the migration: only one owner writes to the target.

        :raises ClaimHeld: another owner holds it.
        """
        context = self._context()
        source = context.record.backup_source()
        if source is None:
            raise Transient(
                "there is no backup to restore",
                where=Where(migration_id=self.spec.migration_id, path=context.archive_store.uri),
                next_step="run `kafka-migration backup` on the source side with the same storage, then try again",
            )
        storage = self.spec.storage
        fingerprint = Fingerprint.of_locations(
            source.source.cluster_id,
            self._cluster.cluster_id,
            {
                "journal": storage.journal,
                "archive": storage.archive_location,
                "evidence": storage.evidence_location,
            },
        )
        context.journal = Journal.create_or_open(
            context.journal_store,
            self.spec.migration_id,
            fingerprint,
            owner=self._owner,
            takeover=self._takeover,
            reason="restore of a backup",
            details={"spec": spec_to_record(self.spec.model_dump(mode="json"))},
        )
        publish_claim(context.journal_store, self.spec.migration_id, context.journal.generation, str(self._owner))
        return restore.run(context, follow=follow, commit_groups=commit_groups)
