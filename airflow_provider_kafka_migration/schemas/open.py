"""The two registries of a migration, and what passes over them share."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.schemas.snapshot import SnapshotCache

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.documents.schemas import SchemasResult
    from airflow_provider_kafka_migration.record.context import PhaseContext
    from airflow_provider_kafka_migration.registry.client import Registry


@dataclass
class RegistryPair:
    """Both registries, and what was read of them. Use it as a context manager, or call :meth:`close`.

    One pair serves one thread at a time; a follower opens its own.

    :param passes: complete synchronizations with this pair.
    :param ids_ignored: how the target has ignored a fixed id; empty: it has not.
    :param settled: digest of the source as it was at the last synchronization that left nothing to do, and its result.
    """

    source: Registry
    target: Registry
    source_cache: SnapshotCache = field(default_factory=SnapshotCache)
    target_cache: SnapshotCache = field(default_factory=SnapshotCache)
    passes: int = 0
    ids_ignored: str = ""
    settled: tuple[str, SchemasResult] | None = None

    def __enter__(self) -> RegistryPair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close both clients."""
        for registry in (self.source, self.target):
            with suppress(MigrationError, OSError):
                registry.close()


def open_pair(context: PhaseContext) -> RegistryPair:
    """Open clients of both registries of a spec.

    :raises SpecInvalid: the spec names no registry.
    :raises ConnectionInvalid: a connection is missing, or has settings that cannot be used.
    """
    source = context.registry("source")
    try:
        target = context.registry("target")
    except BaseException:
        source.close()
        raise
    return RegistryPair(source, target)
