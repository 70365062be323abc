"""The seed's driver: it runs slice after slice of each unfinished lane until the coordinator has finished.

Each lane has its own small Spark job per slice, from its own driver thread, so a finished lane never waits for a slow
one, and Spark's scheduler distributes the open lanes over the slots. The target is the checkpoint: a killed driver
leaves nothing to clean up, and the next one continues from the target's log ends.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from pyspark.sql import SparkSession

from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane
from airflow_provider_kafka_migration.errors import SparkJobFailed
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.spark.drivers import Merger
from airflow_provider_kafka_migration.spark.main import MAX_SPARK_FAILURES, JobArguments, run_main, spark_errors
from airflow_provider_kafka_migration.spark.session import copy_job, job_group, slots
from airflow_provider_kafka_migration.spark.source import NAME, RESULT_SCHEMA, SliceOutcome, lanes_option, read_rows
from airflow_provider_kafka_migration.spark.worker import JobPointer, RunLane, make_copy_slice, run_lane

log = logging.getLogger(__name__)


class SeedDriver:
    """Runs a copy job of batch reads.

    :param run: what a task does with a lane; tests pass their own function.
    """

    def __init__(
        self,
        session: SparkSession,
        job: CopyJob,
        pointer: JobPointer,
        coordinator: JobProgress,
        *,
        run: RunLane = run_lane,
    ) -> None:
        self._session = session
        self._job = job
        self._coordinator = coordinator
        self._pointer = pointer
        self._run_lane = run
        self._merger = Merger(coordinator)
        self._spark_failures: dict[int, int] = {}
        self._cancelled = threading.Event()

    def run(self) -> None:
        """Return when the coordinator has finished.

        :raises CopyFailed: some partitions could not be copied; the error lists all of them.
        :raises MigrationError: an error stopped a whole lane.
        :raises SparkJobFailed: Spark gave up a task.
        """
        lanes = self._coordinator.remaining_lanes()
        self._coordinator.begin()
        if not lanes:
            self._coordinator.check()
            return
        # One lane more than there are slots waits in Spark's queue, so that a free slot never waits for the driver.
        width = min(len(lanes), slots(self._session.sparkContext) + 1)
        with ThreadPoolExecutor(width, thread_name_prefix="seed") as pool:
            try:
                self._rounds(pool, lanes)
            except BaseException:
                self._cancelled.set()
                for lane in lanes:
                    self._session.sparkContext.cancelJobGroup(self._group(lane.lane))
                raise
        self._coordinator.check()

    def _rounds(self, pool: ThreadPoolExecutor, lanes: list[CopyLane]) -> None:
        open_slices: dict[Future[SliceOutcome], tuple[int, int]] = {
            pool.submit(self._slice, lane, 1): (lane.lane, 1) for lane in lanes
        }
        while open_slices:
            done, _ = wait(open_slices, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda future: open_slices[future]):
                lane, number = open_slices.pop(future)
                pause = self._merger.merge(self._outcome(lane, future))
                left = {item.lane: item for item in self._coordinator.remaining_lanes()}
                if lane in left:
                    open_slices[pool.submit(self._slice, left[lane], number + 1, pause)] = (lane, number + 1)

    def _outcome(self, lane: int, future: Future[SliceOutcome]) -> SliceOutcome:
        """Return the outcome of a slice; the first of consecutive failed Spark jobs counts as an error of its lane."""
        try:
            outcome = future.result()
        except SparkJobFailed as error:
            self._spark_failures[lane] = self._spark_failures.get(lane, 0) + 1
            if self._spark_failures[lane] >= MAX_SPARK_FAILURES:
                raise
            return SliceOutcome(lane_errors={lane: error})
        self._spark_failures.pop(lane, None)
        return outcome

    def _slice(self, lane: CopyLane, number: int, pause: float = 0.0) -> SliceOutcome:
        if self._cancelled.wait(pause):
            return SliceOutcome()
        function = make_copy_slice(self._pointer, self._run_lane, left=[spec.key for spec in lane.partitions])
        description = f"{self._job.name} of {self._job.migration_id}: lane {lane.lane}, slice {number}"
        with job_group(self._session.sparkContext, self._group(lane.lane), description), spark_errors(description):
            frame = (
                self._session.read.format(NAME)
                .option("lanes", lanes_option([[lane.lane]]))
                .option("slice", str(number))
                .load()
                .mapInArrow(function, RESULT_SCHEMA)
            )
            return read_rows(frame.collect())

    def _group(self, lane: int) -> str:
        return f"{self._job.migration_id}/{self._job.name}/lane-{lane:04d}"


def run_job(arguments: JobArguments) -> None:
    """Run the seed, or another copy job that ends by itself (backup, restore): the function of its Spark main."""
    with copy_job(arguments) as (session, job, coordinator):
        SeedDriver(session, job, arguments.pointer, coordinator).run()


def main() -> int:
    """Run ``spark_jobs/seed.py``."""
    return run_main(run_job, "Copies the partitions of a job up to their end offsets.")
