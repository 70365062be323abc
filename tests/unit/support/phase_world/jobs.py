"""What Spark does in a real migration: copiers, and the comparison of contents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyPartition, StopAt
from airflow_provider_kafka_migration.documents.proof import ContentDifference, ContentRange, PartitionContent
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.storage.base import ObjectStore
from phase_world.cluster import ClusterState
from phase_world.logs import Log
from phase_world.outside import Outside

MIGRATION = "m1"


class SimCopiers:
    """Copies whole batches at equal offsets, as far as a job asks for, and reports as a driver does.

    :param leaves: partitions by source key that are copied only up to an offset, whatever the job says.
    :param fails: partitions by source key that fail with an error.
    """

    def __init__(self, source: ClusterState, target: ClusterState, store: ObjectStore, outside: Outside) -> None:
        self._source, self._target = source, target
        self._store, self._outside = store, outside
        self.leaves: dict[tuple[str, int], int] = {}
        self.fails: dict[tuple[str, int], dict[str, Any]] = {}
        #: jobs as they were submitted, by name
        self.submitted: list[CopyJob] = []
        #: called at the end of each run, before the job is reported as finished
        self.then: Callable[[], None] = lambda: None
        #: called once a run has reported its end
        self.reported: Callable[[], None] = lambda: None

    def submit(self, _spec: Any, _location: str, key: str, _read_progress: Any) -> None:
        """Run a job to its end. See ``CopyRunner``."""
        data = self._store.get(key)
        assert data is not None, key
        job = CopyJob.parse(data)
        self.submitted.append(job)
        self._outside.call(f"copiers.{job.name}", lambda: self.copy(job), changes="records")
        self.then()
        self._report(job)
        self.reported()
        if self.fails:
            raise RuntimeError("the driver ended with exit code 1")

    def copy(self, job: CopyJob) -> None:
        """Copy what is there by now, up to the stop offsets of the job."""
        stop = StopAt.in_force(self._store.get(job.stop_key)) if job.stop_key else None
        for item in job.partitions:
            until = item.until_offset if stop is None else stop.offset(*item.key)
            source = self._source.log(*item.key)
            end = source.offset("stable") if until is None else min(until, source.offset("stable"))
            self._copy_one(item, source, min(end, self.leaves.get(item.key, end)))

    def _copy_one(self, item: CopyPartition, source: Log, end: int) -> None:
        target = self._target.log(item.target_topic, item.partition)
        shift = item.source_start_offset - item.target_start_offset
        for data in list(source.batches):
            batch = RawBatch(memoryview(data))
            if target.end <= batch.base_offset - shift and batch.next_offset <= end:
                target.put(data, batch.base_offset - shift)

    def _report(self, job: CopyJob) -> None:
        rows = [self._row(item) for item in job.partitions]
        total = sum(row["total_records"] for row in rows)
        document = {
            "generation": job.generation,
            "run": f"run-{len(self.submitted)}",
            "seconds": 1.0,
            "records_per_second": 1.0,
            "finished": True,
            "partitions_done": len(rows),
            "partitions_total": len(rows),
            "partitions_failed": len(self.fails),
            "records": total,
            "copied_bytes": 10 * total,
            "source_bytes": 10 * total,
            "total_bytes": 10 * total,
            "holes": 0,
            "partitions": rows,
        }
        self._store.put(f"{MIGRATION}/progress/{job.name}.json", json.dumps(document).encode())

    def _row(self, item: CopyPartition) -> dict[str, Any]:
        log = self._target.log(item.target_topic, item.partition)
        return {
            "topic": item.topic,
            "partition": item.partition,
            "verdict": item.verdict.value,
            "total_records": len(log.values()),
            "total_holes": 0,
            "error": self.fails.get(item.key),
            "failed": item.key in self.fails,
        }


class SimVerifier:
    """Compares the values of both logs.

    :param errors: partitions by source key that cannot be compared.
    """

    def __init__(self, source: ClusterState, target: ClusterState, outside: Outside) -> None:
        self._source, self._target, self._outside = source, target, outside
        self.errors: dict[tuple[str, int], dict[str, Any]] = {}
        #: partitions that no result is returned for
        self.silent: set[tuple[str, int]] = set()
        self.runs = 0

    def verify(self, ranges: Sequence[ContentRange]) -> Iterable[PartitionContent]:
        """Compare each range. See ``ContentVerifier``."""
        self.runs += 1
        self._outside.call("verifier", lambda: None)
        return [self._one(item) for item in reversed(ranges) if item.key not in self.silent]

    def _one(self, item: ContentRange) -> PartitionContent:
        error = self.errors.get(item.key)
        here = _values(self._source.log(*item.key), item.source_start_offset, item.source_end_offset)
        there = _values(
            self._target.log(item.target_topic, item.partition), item.target_start_offset, item.target_end_offset
        )
        if error is not None:
            return PartitionContent(
                topic=item.topic, partition=item.partition, source_records=0, target_records=0, compared=0, error=error
            )
        differing = [offset for offset in sorted(here.keys() | there.keys()) if here.get(offset) != there.get(offset)]
        return PartitionContent(
            topic=item.topic,
            partition=item.partition,
            source_records=len(here),
            target_records=len(there),
            compared=len(here) - len(differing),
            source_digest=str(sorted(here.items())),
            target_digest=str(sorted(there.items())),
            difference_count=len(differing),
            differences=[
                ContentDifference(kind="changed", source_offset=offset, target_offset=offset, detail="value")
                for offset in differing
            ],
        )


def _values(log: Log, start: int, end: int) -> dict[int, bytes | None]:
    return {offset: value for offset, value in log.values().items() if start <= offset < end}
