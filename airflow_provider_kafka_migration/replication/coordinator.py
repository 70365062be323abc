"""Drives a copy job from outside of the copiers: what is left, what failed for good, progress, the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import rfc8785

from airflow_provider_kafka_migration.documents.copy_job import CopyJob, CopyLane, PartitionResult, StopAt
from airflow_provider_kafka_migration.errors import CopyFailed, Where
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: Errors that the next slice may heal, in a row, before a partition counts as failed.
MAX_TRANSIENT_ROUNDS = 5
_PROGRESS_SECONDS = 2.0
#: Jobs that write to the target.
_WRITING_JOBS = ("seed", "tail", "restore")


@dataclass
class _Standing:
    """What is known of one partition over all slices."""

    result: PartitionResult | None = None
    records: int = 0
    copied_bytes: int = 0
    source_bytes: int = 0
    holes: int = 0
    transaction_holes: int = 0
    transient_rounds: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    went_back: tuple[tuple[int, int], ...] = ()
    #: target log end as the last slice that took it over, maybe of an earlier driver, has left it
    end_offset: int = -1
    done: bool = False
    failed: bool = False


class JobCoordinator:
    """Merges the results of slices. One per driver; its state is only for progress, the target's log decides.

    :param store: of the journal location.
    :param on_progress: called with the progress document every few seconds.
    """

    def __init__(
        self, job: CopyJob, store: ObjectStore, *, on_progress: Callable[[dict[str, object]], None] | None = None
    ) -> None:
        self.job = job
        self._store = store
        self._on_progress = on_progress
        self._standing: dict[tuple[str, int], _Standing] = {spec.key: _Standing() for spec in job.partitions}
        self._began = time.monotonic()
        self._written_at = 0.0
        self._stop: StopAt | None = None
        self._read_earlier_ends()

    def _read_earlier_ends(self) -> None:
        """What drivers before this one have seen: else a log that went back between two of them would go unnoticed."""
        for name in _WRITING_JOBS if self.job.name in _WRITING_JOBS else ():
            data = self._store.get(f"{self.job.migration_id}/progress/{name}.json")
            for item in json.loads(data)["partitions"] if data else ():
                standing = self._standing.get((item["topic"], item["partition"]))
                if standing is not None:
                    standing.end_offset = max(standing.end_offset, item["target_offset"])

    def poll_stop(self) -> StopAt | None:
        """The stop object of a tail, once it is there."""
        if self._stop is None and self.job.stop_key is not None:
            self._stop = StopAt.in_force(self._store.get(self.job.stop_key))
        return self._stop

    def remaining_lanes(self) -> list[CopyLane]:
        """Lanes that still have work, with the partitions that do."""
        lanes = []
        for lane in self.job.lanes:
            left = [spec for spec in lane.partitions if not self._is_over(spec.key)]
            if left:
                lanes.append(lane.model_copy(update={"partitions": left}))
        return lanes

    def _is_over(self, key: tuple[str, int]) -> bool:
        standing = self._standing[key]
        return standing.done or standing.failed

    @property
    def finished(self) -> bool:
        """Every partition is done, or has failed for good."""
        return all(self._is_over(key) for key in self._standing)

    def record(self, results: Iterable[PartitionResult]) -> None:
        """Take in the results of slices and write progress now and then."""
        for result in results:
            standing = self._standing.get((result.topic, result.partition))
            if standing is None:
                continue
            standing.went_back += self._went_back(standing, result)
            standing.result = result
            standing.records += result.records
            standing.copied_bytes += result.copied_bytes
            standing.source_bytes += result.source_bytes
            standing.holes += result.holes
            standing.transaction_holes += result.transaction_holes
            standing.gaps += tuple(result.gaps)
            standing.done = result.done
            self._judge(standing, result)
        if time.monotonic() - self._written_at >= _PROGRESS_SECONDS or self.finished:
            self.write_progress()

    @staticmethod
    def _went_back(standing: _Standing, now: PartitionResult) -> tuple[tuple[int, int], ...]:
        """Where the target's log end went back: within the slice, and since the slice before it."""
        since: tuple[tuple[int, int], ...] = ()
        if 0 <= now.resumed_offset < standing.end_offset:
            since = ((standing.end_offset, now.resumed_offset),)
        if now.resumed_offset >= 0:
            standing.end_offset = now.target_offset
        return (*since, *now.went_back)

    def _judge(self, standing: _Standing, result: PartitionResult) -> None:
        if result.error is None:
            standing.transient_rounds = 0
            return
        if result.records:
            standing.transient_rounds = 0
        standing.transient_rounds += 1
        standing.failed = result.error["kind"] == "terminal" or standing.transient_rounds >= MAX_TRANSIENT_ROUNDS

    def progress(self) -> dict[str, object]:
        """Progress as a document: totals and, per partition, where it stands."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        records = sum(item.records for item in self._standing.values())
        return {
            "version": 1,
            "migration_id": self.job.migration_id,
            "job": self.job.name,
            "generation": self.job.generation,
            "finished": self.finished,
            "partitions_total": len(self._standing),
            "partitions_done": sum(item.done for item in self._standing.values()),
            "partitions_failed": sum(item.failed for item in self._standing.values()),
            "records": records,
            "copied_bytes": sum(item.copied_bytes for item in self._standing.values()),
            "source_bytes": sum(item.source_bytes for item in self._standing.values()),
            "total_bytes": sum(max(spec.size_bytes, 0) for spec in self.job.partitions),
            "holes": sum(item.holes for item in self._standing.values()),
            "transaction_holes": sum(item.transaction_holes for item in self._standing.values()),
            "seconds": round(seconds, 3),
            "records_per_second": round(records / seconds, 1),
            "partitions": [self._partition(key) for key in sorted(self._standing)],
        }

    def _partition(self, key: tuple[str, int]) -> dict[str, object]:
        standing = self._standing[key]
        last = standing.result
        return {
            "topic": key[0],
            "partition": key[1],
            "records": standing.records,
            "copied_bytes": standing.copied_bytes,
            "source_bytes": standing.source_bytes,
            "holes": standing.holes,
            "gaps": [list(gap) for gap in standing.gaps],
            "done": standing.done,
            "source_offset": -1 if last is None else last.source_offset,
            "target_offset": -1 if last is None else last.target_offset,
            "lag": -1 if last is None else last.lag,
            "held_back": 0 if last is None else last.held_back,
            "went_back": [list(item) for item in standing.went_back],
            "verdict": "" if last is None else str(last.verdict),
            "error": None if last is None else last.error,
        }

    def write_progress(self) -> dict[str, object]:
        """Write ``progress/<job>.json`` and tell the listener."""
        self._written_at = time.monotonic()
        document = self.progress()
        self._store.put(f"{self.job.migration_id}/progress/{self.job.name}.json", rfc8785.dumps(document))  # type: ignore[arg-type]
        if self._on_progress is not None:
            self._on_progress(document)
        return document

    def check(self) -> dict[str, object]:
        """The final progress document.

        :raises CopyFailed: with every partition that could not be copied, and why.
        """
        document = self.write_progress()
        failed = [
            {"topic": key[0], "partition": key[1], "error": item.result.error if item.result else None}
            for key, item in sorted(self._standing.items())
            if item.failed
        ]
        if failed:
            first = failed[0]
            error = first["error"]
            reason = f"[{error['code']}] {error['what']}" if isinstance(error, dict) else "no answer"
            raise CopyFailed(
                f"{len(failed)} of {len(self._standing)} partitions could not be copied; the first is "
                f"{first['topic']}-{first['partition']}: {reason}",
                where=Where(migration_id=self.job.migration_id, phase=self.job.name),
                next_step=(str(error["next_step"]) if isinstance(error, dict) else "see the task log")
                + "; then clear the task: it goes on from the target's log ends",
                details={"partitions": failed},
            )
        return document
