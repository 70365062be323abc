"""Rows between tasks and driver: small, typed exactly as Arrow has them (int64 is bigint, int32 is int).

A work row says which lane to drive in which slice. A result row is one :class:`PartitionResult`, or the error that
stopped a whole lane before it could say anything of its partitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from airflow_provider_kafka_migration.documents.copy import PartitionResult
from airflow_provider_kafka_migration.errors import MigrationError, error_from_dict

#: A lane and the number of the slice, which only people read.
WORK_SCHEMA = "lane bigint, slice bigint"

#: The numbers are there for Spark's metrics; ``result`` and ``error`` are the content.
RESULT_SCHEMA = (
    "lane bigint, records bigint, copied_bytes bigint, source_bytes bigint, holes bigint, lag bigint, "
    "failed bigint, stuck bigint, "
    "result string, error string"
)
RESULT_ARROW = pa.schema(
    [
        ("lane", pa.int64()),
        ("records", pa.int64()),
        ("copied_bytes", pa.int64()),
        ("source_bytes", pa.int64()),
        ("holes", pa.int64()),
        ("lag", pa.int64()),
        ("failed", pa.int64()),
        ("stuck", pa.int64()),
        ("result", pa.string()),
        ("error", pa.string()),
    ]
)


class ResultRow(Protocol):
    """What the driver gets back: a :class:`pyspark.sql.Row` with these columns."""

    lane: int
    result: str | None
    error: str | None


@dataclass
class SliceOutcome:
    """What a slice of one or more lanes has brought."""

    results: list[PartitionResult] = field(default_factory=list)
    lane_errors: dict[int, MigrationError] = field(default_factory=dict)


def result_batch(results: Iterable[PartitionResult]) -> pa.RecordBatch:
    """Results of a lane as one Arrow batch of :data:`RESULT_ARROW`."""
    rows = [
        {
            "lane": result.lane,
            "records": result.records,
            "copied_bytes": result.copied_bytes,
            "source_bytes": result.source_bytes,
            "holes": result.holes,
            "lag": max(result.lag, 0),
            **_troubles(result.error or result.trouble),
            "result": result.model_dump_json(),
            "error": None,
        }
        for result in results
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RESULT_ARROW)


def _troubles(error: dict[str, object] | None) -> dict[str, int]:
    """What a partition, or a lane of which nothing can be said, adds to the metrics."""
    is_final = error is not None and error.get("kind") == "terminal"
    return {"failed": int(is_final), "stuck": int(error is not None and not is_final)}


def error_batch(lane: int, error: MigrationError) -> pa.RecordBatch:
    """The error of a lane as a batch of one row."""
    row: dict[str, Any] = dict.fromkeys(RESULT_ARROW.names, 0)
    row.update(lane=lane, **_troubles(error.as_dict()), result=None, error=json.dumps(error.as_dict()))
    return pa.RecordBatch.from_pylist([row], schema=RESULT_ARROW)


def read_rows(rows: Iterable[ResultRow]) -> SliceOutcome:
    """What the driver collected, as values again."""
    outcome = SliceOutcome()
    for row in rows:
        if row.result is not None:
            outcome.results.append(PartitionResult.model_validate_json(row.result))
        elif row.error is not None:
            outcome.lane_errors[row.lane] = error_from_dict(json.loads(row.error))
    outcome.results.sort(key=lambda result: (result.topic, result.partition))
    return outcome
