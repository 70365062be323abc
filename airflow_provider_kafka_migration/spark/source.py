"""The Spark data source ``kafka_lanes``: its rows name the lanes to drive; they never contain records.

* batch: one partition (and therefore one task) per lane;
* streaming: the offset is the number of slices, so a micro-batch is exactly one slice, with one partition per slot.
  A slot may get several lanes, which it drives in parallel.

Options: ``lanes`` (JSON, a list of lists of lane numbers: one inner list per Spark partition), ``slice`` (batch: number
of the slice, for people), ``finished_file`` (streaming: a local path of the driver; once it exists there are no more
slices).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from airflow_provider_kafka_migration.documents.copy import PartitionResult
from airflow_provider_kafka_migration.errors import MigrationError, error_from_dict

# -- rows -------------------------------------------------------------------------------------------------------------
#
# Rows between tasks and driver: small, with exactly Arrow's types (int64 is bigint, int32 is int).
#
# A work row names the lane to drive and the slice. A result row is one :class:`PartitionResult`, or the error that
# stopped a whole lane before it had results for its partitions.


#: A lane and the number of the slice, which is only for people.
WORK_SCHEMA = "lane bigint, slice bigint"

#: The numbers are for Spark's metrics; ``result`` and ``error`` are the content.
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
    """A row that the driver gets back: a :class:`pyspark.sql.Row` with these columns."""

    lane: int
    result: str | None
    error: str | None


@dataclass
class SliceOutcome:
    """The outcome of a slice of one or more lanes."""

    results: list[PartitionResult] = field(default_factory=list)
    lane_errors: dict[int, MigrationError] = field(default_factory=dict)


def result_batch(results: Iterable[PartitionResult]) -> pa.RecordBatch:
    """Encode the results of a lane as one Arrow batch of :data:`RESULT_ARROW`."""
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
    """Return what a partition, or a lane without results, adds to the metrics."""
    is_final = error is not None and error.get("kind") == "terminal"
    return {"failed": int(is_final), "stuck": int(error is not None and not is_final)}


def error_batch(lane: int, error: MigrationError) -> pa.RecordBatch:
    """Encode the error of a lane as a batch of one row."""
    row: dict[str, Any] = dict.fromkeys(RESULT_ARROW.names, 0)
    row.update(lane=lane, **_troubles(error.as_dict()), result=None, error=json.dumps(error.as_dict()))
    return pa.RecordBatch.from_pylist([row], schema=RESULT_ARROW)


def read_rows(rows: Iterable[ResultRow]) -> SliceOutcome:
    """Decode the rows that the driver collected."""
    outcome = SliceOutcome()
    for row in rows:
        if row.result is not None:
            outcome.results.append(PartitionResult.model_validate_json(row.result))
        elif row.error is not None:
            outcome.lane_errors[row.lane] = error_from_dict(json.loads(row.error))
    outcome.results.sort(key=lambda result: (result.topic, result.partition))
    return outcome


# -- source -----------------------------------------------------------------------------------------------------------


NAME = "kafka_lanes"


class LanePartition(InputPartition):  # type: ignore[misc]
    """The lanes of one task, ascending, and the number of their slice."""

    def __init__(self, lanes: tuple[int, ...], slice_number: int) -> None:
        super().__init__((lanes, slice_number))
        self.lanes = lanes
        self.slice_number = slice_number


class LaneReader(DataSourceReader):  # type: ignore[misc]
    """One slice of some lanes."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._groups = _groups(options)
        self._slice_number = int(options.get("slice", "0"))

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per group of lanes."""
        return [LanePartition(group, self._slice_number) for group in self._groups]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """A row per lane."""
        return _rows(partition)


class LaneStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Offers one slice after another until the driver has finished."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._groups = _groups(options)
        self._finished_file = Path(options["finished_file"])

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset before the first slice."""
        return {"slice": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the slice after ``start``, or ``start`` itself (no micro-batch) once the driver has finished."""
        if self._finished_file.exists():
            return start
        return {"slice": start["slice"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return one partition per slot. A restarted query may request several slices together: they become one."""
        if start["slice"] >= end["slice"]:
            return []
        return [LanePartition(group, end["slice"]) for group in self._groups]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """A row per lane."""
        return _rows(partition)


class KafkaLanes(DataSource):  # type: ignore[misc]
    """The data source, registered by :func:`~.session.build_session`."""

    @classmethod
    def name(cls) -> str:
        """``kafka_lanes``."""
        return NAME

    def schema(self) -> StructType | str:
        """Return the schema (lane, slice)."""
        return WORK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for batch reads: the seed and the content check."""
        return LaneReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader for Structured Streaming: the tail."""
        return LaneStreamReader(self.options)


def _groups(options: Mapping[str, str]) -> list[tuple[int, ...]]:
    return [tuple(group) for group in json.loads(options["lanes"])]


def _rows(partition: InputPartition) -> Iterator[tuple[Any, ...]]:
    assert isinstance(partition, LanePartition)
    return iter([(lane, partition.slice_number) for lane in partition.lanes])


def lanes_option(groups: Sequence[Sequence[int]]) -> str:
    """Return the value of the option ``lanes``."""
    return json.dumps([sorted(group) for group in groups])


def group_lanes(weights: Mapping[int, int], slots: int) -> list[list[int]]:
    """Spread lanes over at most ``slots`` groups of similar weight (largest lane first, then by lane number).

    :param weights: lane -> its bytes; lanes of unknown or zero size count a little, so that they are spread too.
    """
    groups: list[list[int]] = [[] for _ in range(max(1, min(slots, len(weights))))]
    loads = [0] * len(groups)
    for lane in sorted(weights, key=lambda lane: (-weights[lane], lane)):
        lightest = loads.index(min(loads))
        groups[lightest].append(lane)
        loads[lightest] += max(weights[lane], 1)
    return [sorted(group) for group in groups if group]
