"""How many records a copy job had put on the target when it ended: what the next job's figures are counted from."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document


class CopiedRecords(Document):
    """``results/<job>-records.json``: totals since the copy began, by ``topic-partition`` of the source."""

    version: int = 1
    migration_id: str
    job: str
    records: dict[str, int] = Field(description="records on the target that the migration has copied")
    holes: dict[str, int] = Field(
        default_factory=dict, description="offsets filled by markers; not of partitions that are copied in transactions"
    )
