"""The rows that tasks return to the driver: small, and never records.

A row is one :class:`PartitionResult`, or the error that stopped a whole lane before it had results for its partitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.documents.copy import PartitionResult
from airflow_provider_kafka_migration.errors import MigrationError, error_from_dict
from airflow_provider_kafka_migration.spark.tasks import Row

#: ``result`` or ``error`` is JSON, the other one is null.
RESULT_COLUMNS = {"lane": "bigint", "result": "string", "error": "string"}

#: A row with these columns.
ResultRow = tuple[int, str | None, str | None]


@dataclass
class SliceOutcome:
    """The outcome of a slice of one or more lanes."""

    results: list[PartitionResult] = field(default_factory=list)
    lane_errors: dict[int, MigrationError] = field(default_factory=dict)


def result_rows(results: Iterable[PartitionResult]) -> list[ResultRow]:
    """Encode the results of a lane."""
    return [(result.lane, result.model_dump_json(), None) for result in results]


def error_row(lane: int, error: MigrationError) -> ResultRow:
    """Encode the error of a lane."""
    return (lane, None, json.dumps(error.as_dict()))


def read_rows(rows: Iterable[Row]) -> SliceOutcome:
    """Decode the rows that the driver collected."""
    outcome = SliceOutcome()
    for row in rows:
        if row["result"] is not None:
            outcome.results.append(PartitionResult.model_validate_json(row["result"]))
        elif row["error"] is not None:
            outcome.lane_errors[row["lane"]] = error_from_dict(json.loads(row["error"]))
    outcome.results.sort(key=lambda result: (result.topic, result.partition))
    return outcome
