"""What the seed read and wrote, for OpenLineage. Plain data until somebody asks, and nothing is read again then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.phases.context import PhaseResult


@dataclass(frozen=True)
class SeedLineage:
    """Datasets of one seed.

    :param source: ``kafka://host:port`` of the source; of several addresses the first one in alphabetical order.
    :param topics: (source topic, target topic), ascending.
    :param archive: ``s3://bucket`` and key prefix of the segments; None when nothing was archived.
    :param records: records and bytes of all runs of the seed, or -1.
    """

    source: str
    target: str
    topics: tuple[tuple[str, str], ...]
    archive: tuple[str, str] | None
    records: int
    copied_bytes: int

    @classmethod
    def of(cls, migration: Migration, result: PhaseResult) -> SeedLineage:
        """From the plan and the phase's result."""
        spec, plan = migration.spec, migration.context.load_plan()
        location = f"{spec.storage.archive_location}/{spec.migration_id}"
        archived = spec.seed.via != "direct" and location.startswith("s3://")
        return cls(
            source=_namespace(migration.source.config.bootstrap_servers),
            target=_namespace(migration.target.config.bootstrap_servers),
            topics=tuple(sorted((topic.name, topic.target_name) for topic in plan.topics)),
            archive=_split(location) if archived else None,
            records=int(result.details.get("records", -1)),
            copied_bytes=int(result.details.get("copied_bytes", -1)),
        )

    def facets(self) -> OperatorLineage[Any, Any] | None:
        """Inputs and outputs; None without the OpenLineage provider."""
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


def _namespace(bootstrap_servers: str) -> str:
    """As OpenLineage names a Kafka cluster: by one of its addresses."""
    return f"kafka://{min(server.strip() for server in bootstrap_servers.split(','))}"


def _split(location: str) -> tuple[str, str]:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return f"s3://{bucket}", key
