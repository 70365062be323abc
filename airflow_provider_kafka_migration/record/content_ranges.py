"""What is compared of each partition, from the offset map of the finished copy."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.offset_map import OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange


def content_ranges(document: OffsetMapDocument) -> list[ContentRange]:
    """What is compared: each partition from its first to its last copied offset."""
    return [
        ContentRange(
            topic=item.topic,
            target_topic=item.target_topic,
            partition=item.partition,
            verdict=Verdict(item.verdict),
            source_start_offset=item.source_start_offset or 0,
            source_end_offset=item.source_end_offset or 0,
            target_start_offset=item.target_start_offset or 0,
            target_end_offset=item.target_end_offset or 0,
        )
        for item in document.partitions
        if item.verdict
    ]
