"""Lines for the task log: the results of the slices that just ended, and the progress of the job."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable

from airflow_provider_kafka_migration.documents.copy import CopyJob, PartitionResult
from airflow_provider_kafka_migration.lanes.assignment import LanePauses
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress, lane_failed
from airflow_provider_kafka_migration.spark import IS_FOLLOWED
from airflow_provider_kafka_migration.spark.rows import SliceOutcome


class ProgressLines:
    """Sums results of slices. Offsets measure work where an end is known; bytes and records measure throughput."""

    def __init__(self, job: CopyJob, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._clock = clock
        self._started = clock()
        self._partitions = {partition.key: partition for partition in job.partitions}
        self._latest: dict[tuple[str, int], PartitionResult] = {}
        self._records = 0
        self._bytes = 0
        # Sums are kept, not made anew: a line is written after each of some hundred lanes' slices.
        self._done = 0
        self._failed = 0
        self._offsets = 0
        self._all_offsets = sum(
            item.until_offset - item.source_start_offset
            for item in self._partitions.values()
            if item.until_offset is not None
        )

    def add(self, results: Iterable[PartitionResult]) -> str:
        """Add results; return one line about the job as a whole."""
        for result in results:
            self._replace(result)
            self._records += result.records
            self._bytes += result.copied_bytes
        seconds = max(self._clock() - self._started, 0.001)
        parts = [
            f"{self._job.name}: {self._done} of {len(self._partitions)} partitions done",
            f"{self._records:,} records, {self._bytes / 1e6:,.1f} MB, {self._records / seconds:,.0f} rec/s",
        ]
        parts += self._lag() if self._job.name == "tail" else self._share(seconds)
        return ", ".join(parts + ([f"{self._failed} failed"] if self._failed else []))

    def _replace(self, result: PartitionResult) -> None:
        """Count the newest result of a partition instead of its former one."""
        key = (result.topic, result.partition)
        former = self._latest.get(key)
        self._latest[key] = result
        self._done += result.done - (former is not None and former.done)
        self._failed += (result.error is not None) - (former is not None and former.error is not None)
        partition = self._partitions.get(key)
        if partition is not None and partition.until_offset is not None:
            before = partition.source_start_offset if former is None else former.source_offset
            self._offsets += result.source_offset - before

    def _lag(self) -> list[str]:
        known = [(result.lag, key) for key, result in self._latest.items() if result.lag >= 0]
        if not known:
            return []
        lag, (topic, partition) = max(known)
        return [f"largest lag {lag:,} records ({topic}-{partition})"]

    def _share(self, seconds: float) -> list[str]:
        if not self._all_offsets:
            return []
        share = self._offsets / self._all_offsets
        eta = f", {seconds * (1 - share) / share:,.0f} s to go" if 0 < share < 1 else ""
        return [f"{share:.0%} of the offsets{eta}"]


# -- pauses -----------------------------------------------------------------------------------------------------------
#
# How long to wait before a lane is retried: the same on Spark as in one process.


Pauses = LanePauses


# -- merging ----------------------------------------------------------------------------------------------------------
#
# Merges the outcome of a slice: results go to the coordinator, lines to the log; it pauses when nothing worked.


log = logging.getLogger(__name__)


class Merger:
    """Merges the outcomes of slices. One per driver; used by one thread at a time."""

    def __init__(self, coordinator: JobProgress) -> None:
        self.coordinator = coordinator
        self._lines = ProgressLines(coordinator.job)
        self._pauses = Pauses(follows=coordinator.follows)
        #: the last line about the job as a whole
        self.line = ""
        # Whoever follows the driver writes the job's progress to the same log.
        self._level = logging.DEBUG if os.environ.get(IS_FOLLOWED) else logging.INFO

    def merge(self, outcome: SliceOutcome) -> float:
        """Record an outcome.

        :returns: seconds to wait before the next slice; more than 0 only if every lane of this slice failed completely.
        """
        open_lanes = {lane.lane: lane for lane in self.coordinator.remaining_lanes()}
        results = list(outcome.results)
        for number, error in sorted(outcome.lane_errors.items()):
            log.info("Lane %d could not run: %s", number, error)
            if number in open_lanes:
                results += lane_failed(open_lanes[number], error)
        # The coordinator logs which partitions are stuck or have failed.
        self.coordinator.record(results)
        self.line = self._lines.add(outcome.results)
        log.log(self._level, self.line)
        # Lanes without open partitions, too: a tail drives them on, and they must not fail again at once.
        lanes = {result.lane for result in results} | set(outcome.lane_errors)
        failed = lanes - {result.lane for result in results if not (result.error or result.trouble)}
        pause = self._pauses.after(lanes, failed)
        return pause if failed == lanes else 0.0
