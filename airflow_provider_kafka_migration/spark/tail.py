"""The tail's driver: a Structured Streaming query whose micro-batches are slices.

In a slice each slot drives its lanes without pause, so the latency is that of the wire; only the slowest records also
wait for the gap between two slices. Results are merged after each slice. The query ends by itself once the coordinator
has finished: every partition has then reached its stop offset. Spark's checkpoint folder is disposable: the target is
the checkpoint.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming import StreamingQuery

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import SparkJobFailed, Where
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.spark.drivers import Merger
from airflow_provider_kafka_migration.spark.main import MAX_SPARK_FAILURES, JobArguments, run_main, spark_errors
from airflow_provider_kafka_migration.spark.session import copy_job, slots
from airflow_provider_kafka_migration.spark.source import NAME, RESULT_SCHEMA, group_lanes, lanes_option, read_rows
from airflow_provider_kafka_migration.spark.worker import ArrowFunction, JobPointer, RunLane, make_copy_slice, run_lane

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5


class TailDriver:
    """Runs a copy job as a stream of slices.

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
        self._function: ArrowFunction = make_copy_slice(pointer, run)
        self._merger = Merger(coordinator)
        self._failure: BaseException | None = None
        #: number of merged slices
        self._merged = 0
        #: when the current slice of all lanes began (monotonic clock)
        self._slice_began = time.monotonic()

    def run(self) -> None:
        """Return when the coordinator has finished.

        :raises CopyFailed: only failed partitions are left; ``details["partitions"]`` lists all of them.
        :raises MigrationError: an error stopped a whole lane.
        :raises SparkJobFailed: Spark gave up a task, or the query.
        """
        failures = 0
        self._coordinator.begin()
        while not self._coordinator.finished:
            merged = self._merged
            try:
                self._query()
            except SparkJobFailed as error:
                # Losing a process other than the tasks (the query's own Python planner) ends the query: restart it.
                failures = 1 if self._merged > merged else failures + 1
                if failures >= MAX_SPARK_FAILURES:
                    raise
                log.warning("The streaming query is restarted: %s", error)
        self._coordinator.check()

    def _query(self) -> None:
        """Run one streaming query until it is finished or fails."""
        folder = Path(tempfile.mkdtemp(prefix="kafka-migration-tail-"))
        finished_file = folder / "finished"
        self._failure = None
        try:
            with spark_errors(f"tail of {self._job.migration_id}"):
                self._drive(self._start(folder, finished_file), finished_file)
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not self._coordinator.finished:
            raise SparkJobFailed(
                "the streaming query was stopped before every partition had reached its stop offset",
                where=Where(migration_id=self._job.migration_id, phase=self._job.name),
                next_step="clear the task: the tail continues from the target's log ends",
            )

    def _start(self, folder: Path, finished_file: Path) -> StreamingQuery:
        weights = {lane.lane: sum(max(p.size_bytes, 0) for p in lane.partitions) for lane in self._job.lanes}
        groups = group_lanes(weights, slots(self._session.sparkContext))
        copied = (
            self._session.readStream.format(NAME)
            .option("lanes", lanes_option(groups))
            .option("finished_file", str(finished_file))
            .load()
            .mapInArrow(self._function, RESULT_SCHEMA)
            # Named metrics of each micro-batch, for the Spark UI and for listeners.
            .observe(
                "copied",
                functions.sum("records").alias("records"),
                functions.sum("copied_bytes").alias("copied_bytes"),
                functions.sum("holes").alias("holes"),
                functions.max("lag").alias("largest_lag"),
                functions.sum("failed").alias("failed"),
                functions.sum("stuck").alias("stuck"),
            )
        )
        return (
            copied.writeStream.queryName(f"tail of {self._job.migration_id}")
            .option("checkpointLocation", (folder / "checkpoint").as_uri())
            .trigger(processingTime="0 seconds")
            .foreachBatch(lambda frame, number: self._merge(frame, number, finished_file))
            .start()
        )

    def _merge(self, frame: DataFrame, number: int, finished_file: Path) -> None:
        """Run the slice of a micro-batch and merge its outcome. Spark calls this in its own thread."""
        try:
            with spark_errors(f"slice {number + 1} of the tail of {self._job.migration_id}"):
                outcome = read_rows(frame.collect())
            pause = self._merger.merge(outcome)
            self._merged += 1
            self._slice_began = time.monotonic() + pause
            if self._coordinator.finished:
                finished_file.touch()
            elif pause:
                time.sleep(pause)
        except BaseException as error:
            # Spark turns exceptions into text; the driver needs the error itself.
            self._failure = error
            raise

    def _drive(self, query: StreamingQuery, finished_file: Path) -> None:
        try:
            while not finished_file.exists():
                if query.awaitTermination(_POLL_SECONDS):
                    break
                self._coordinator.tick({lane.lane: self._slice_began for lane in self._job.lanes})
        finally:
            query.stop()


def run_job(arguments: JobArguments) -> None:
    """Run the tail: the function of its Spark main."""
    with copy_job(arguments) as (session, job, coordinator):
        TailDriver(session, job, arguments.pointer, coordinator).run()


def main() -> int:
    """Run ``spark_jobs/tail.py``."""
    return run_main(run_job, "Copies the partitions of a job until stop offsets are set and all of them are reached.")
