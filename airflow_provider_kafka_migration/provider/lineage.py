"""What a copy read and wrote, for OpenLineage. Plain data until OpenLineage asks; nothing is read again then."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.record.context import PhaseResult

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CopyLineage:
    """The datasets of one copy: the seed or the tail.

    :param source: ``kafka://host:port`` of the source; of several addresses, the first in alphabetical order.
    :param topics: (source topic, target topic), ascending.
    :param archive: ``s3://bucket`` and key prefix of the segments; None when nothing was archived.
    :param records: records of all runs of the seed, or -1; ``copied_bytes`` likewise.
    """

    source: str
    target: str
    topics: tuple[tuple[str, str], ...]
    archive: tuple[str, str] | None
    records: int
    copied_bytes: int

    @classmethod
    def of(cls, migration: Migration, phase: str, result: PhaseResult | None = None) -> CopyLineage:
        """Build it from the plan and the phase's result; without a result the copy has not ended, or has failed.

        :param phase: ``seed`` or ``tail``. The tail archives only what ``seed.via: split`` copies through the bucket.
        """
        spec, plan = migration.spec, migration.context.record.plan()
        details = result.details if result else {}
        location = f"{spec.storage.archive_location}/{spec.migration_id}"
        through_bucket = ("s3", "split") if phase == "seed" else ("split",)
        archived = spec.seed.via in through_bucket and location.startswith("s3://")
        return cls(
            source=_namespace(migration.source.config.bootstrap_servers),
            target=_namespace(migration.target.config.bootstrap_servers),
            topics=tuple(sorted((topic.name, topic.target_name) for topic in plan.topics)),
            archive=_split(location) if archived else None,
            records=int(details.get("records", -1)),
            copied_bytes=int(details.get("copied_bytes", -1)),
        )

    def facets(self) -> OperatorLineage[Any, Any] | None:
        """Return inputs and outputs; None without the OpenLineage provider."""
        try:
            from airflow.providers.common.compat.openlineage.facet import Dataset, OutputStatisticsOutputDatasetFacet
            from airflow.providers.openlineage.extractors import OperatorLineage
            from openlineage.client.event_v2 import OutputDataset
        except ImportError:
            return None
        outputs = [Dataset(namespace=self.target, name=target) for _, target in self.topics]
        if self.archive is not None:
            statistics = OutputStatisticsOutputDatasetFacet(rowCount=self.records, size=self.copied_bytes)
            known: dict[str, Any] = {"outputStatistics": statistics} if self.records >= 0 else {}
            outputs.append(OutputDataset(namespace=self.archive[0], name=self.archive[1], outputFacets=known))
        inputs = [Dataset(namespace=self.source, name=source) for source, _ in self.topics]
        return OperatorLineage(inputs=inputs, outputs=outputs)


class TellsLineage:
    """Mixin for the operators that copy: they report to OpenLineage what they read and wrote, even when they fail.

    The datasets are taken from the plan before the copy starts. Nothing is read when OpenLineage asks, because a failed
    task may have lost its clusters.
    """

    phase: str
    _lineage: CopyLineage | None = None

    def _keep_lineage(self, migration: Migration, result: PhaseResult | None = None) -> None:
        try:
            self._lineage = CopyLineage.of(migration, self.phase, result)
        except Exception as error:  # missing lineage must not fail a copy
            log.warning("The lineage is not available: %s", error)

    def _starts(self, migration: Migration) -> None:
        self._keep_lineage(migration)

    def _finished(self, migration: Migration, result: PhaseResult) -> None:
        self._keep_lineage(migration, result)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Return the lineage of a successful task, for the OpenLineage provider if it is installed."""
        return self._lineage.facets() if self._lineage is not None else None

    def get_openlineage_facets_on_failure(self, _task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Return the lineage of a failed task: records up to the failure are on the target."""
        return self._lineage.facets() if self._lineage is not None else None


def _namespace(bootstrap_servers: str) -> str:
    """Return the name that OpenLineage uses for a Kafka cluster: one of its addresses."""
    return f"kafka://{min(server.strip() for server in bootstrap_servers.split(','))}"


def _split(location: str) -> tuple[str, str]:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return f"s3://{bucket}", key
