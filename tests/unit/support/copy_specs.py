"""Partitions to be copied, as jobs describe them."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.documents.copy import CopyPartition, ProducerIds
from airflow_provider_kafka_migration.documents.plan import Verdict

IDS = ProducerIds(data_producer_id=1, data_producer_epoch=0, filler_producer_id=2, filler_producer_epoch=0)


def orders(**fields: Any) -> CopyPartition:
    """orders-0, copied from offset 0 to the same offset; ``fields`` are laid over that."""
    plain: dict[str, Any] = {
        "topic": "orders",
        "target_topic": "orders",
        "partition": 0,
        "source_start_offset": 0,
        "target_start_offset": 0,
        "verdict": Verdict.EQUAL,
    }
    return CopyPartition(**{**plain, **fields})
