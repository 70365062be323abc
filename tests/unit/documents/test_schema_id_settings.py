"""The settings of schema ids in a copy job: jobs without them are what they were."""

from __future__ import annotations

import json

from job_documents import job, lane, partition

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings, TopicIdSettings


def test_a_job_without_schema_ids_keeps_its_bytes() -> None:
    found = job([lane(0, partition("a", 0))])
    assert found.schema_ids is None
    assert "schema_ids" not in json.loads(found.canonical())
    assert CopyJob.parse(found.canonical()).digest() == found.digest()


def test_settings_survive_the_document() -> None:
    settings = SchemaIdSettings(
        id_map_key="m/schemas/id-map.json",
        strict=True,
        topics={"a": TopicIdSettings(parts="both", context=".prod"), "b": TopicIdSettings(parts="key", rewrite=False)},
    )
    found = job([lane(0, partition("a", 0))]).model_copy(update={"schema_ids": settings})
    assert CopyJob.parse(found.canonical()).schema_ids == settings
