"""Jobs, lanes, partitions and results of slices, as documents."""

from __future__ import annotations

from typing import Any

from copy_specs import IDS

from airflow_provider_kafka_migration.documents.copy import (
    CopyJob,
    CopyLane,
    CopyPartition,
    PartitionResult,
)
from airflow_provider_kafka_migration.documents.plan import Verdict


def partition(topic: str, number: int, topic_id: str = "") -> CopyPartition:
    return CopyPartition(
        topic=topic,
        topic_id=topic_id,
        target_topic=topic,
        partition=number,
        source_start_offset=0,
        target_start_offset=0,
        verdict=Verdict.EQUAL,
    )


def lane(number: int, *partitions: CopyPartition) -> CopyLane:
    return CopyLane(lane=number, transactional_id=f"lane-{number}", partitions=list(partitions))


def job(lanes: list[CopyLane], name: Any = "tail", **fields: Any) -> CopyJob:
    plain: dict[str, Any] = {
        "migration_id": "m1",
        "name": name,
        "generation": 1,
        "journal_location": "file:///j",
        "archive_location": "file:///a",
        "via": "s3",
        "producers": IDS,
        "lanes": lanes,
    }
    return CopyJob(**{**plain, **fields})


def result(of: CopyLane, topic: str, number: int, **fields: Any) -> PartitionResult:
    values = {"source_offset": 5, "target_offset": 5, "verdict": Verdict.EQUAL, **fields}
    return PartitionResult(lane=of.lane, topic=topic, partition=number, **values)
