"""What a Spark task does: take the lanes of its rows, drive each for one slice, give their results back as rows.

The bytes go through sockets that the task opens itself. A lost task is tried again by Spark; it waits for the lease of
the former attempt and goes on from the target's end, so trying again is always safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.lanes.slices import run_slice
from airflow_provider_kafka_migration.spark.rows import error_batch, result_batch
from airflow_provider_kafka_migration.spark.worker import JobPointer
from airflow_provider_kafka_migration.spark.worker_process import ParentWatch, die_with_parent

#: (job, lane, secrets, attempt, stop) -> a result per partition; blocks for one slice.
RunLane = Callable[[CopyJob, CopyLane, dict[str, Any], int, Callable[[], bool]], list[PartitionResult]]
ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def run_lane(
    job: CopyJob, lane: CopyLane, secrets: dict[str, Any], attempt: int, stop: Callable[[], bool]
) -> list[PartitionResult]:
    """One slice of a lane with clients of its own."""
    return run_slice(job, lane, clients=Clients(secrets), attempt=attempt, stop=stop)


def make_copy_slice(
    pointer: JobPointer, run: RunLane = run_lane, left: Sequence[tuple[str, int]] | None = None
) -> ArrowFunction:
    """The function for ``mapInArrow``: rows of ``WORK_SCHEMA`` in, rows of ``RESULT_SCHEMA`` out.

    :param left: partitions that are not over yet; None: all of the lanes'.
    """
    wanted = None if left is None else frozenset(left)

    def copy_slice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lanes = sorted(lane for batch in batches for lane in batch.column("lane").to_pylist())
        return drive_lanes(pointer, lanes, run, wanted)

    return copy_slice


def drive_lanes(
    pointer: JobPointer, lanes: list[int], run: RunLane, wanted: frozenset[tuple[str, int]] | None = None
) -> Iterator[pa.RecordBatch]:
    """Drive some lanes at once, each in a thread; a batch of rows as soon as a lane has ended its slice.

    A :class:`MigrationError` of a lane is data: the driver decides. Anything else fails the task, and Spark retries.
    """
    if not lanes:
        return
    die_with_parent()
    watch = ParentWatch()
    ended = threading.Event()
    context = TaskContext.get()
    attempt = context.attemptNumber() if context else 0
    try:
        secrets, job = _open_job(pointer)
    except MigrationError as error:
        yield from (error_batch(number, error) for number in lanes)
        return
    by_number = {lane.lane: _narrowed(lane, wanted) for lane in job.lanes}

    def stop() -> bool:
        return ended.is_set() or watch.orphaned()

    def drive(number: int) -> pa.RecordBatch:
        try:
            lane = by_number.get(number)
            return result_batch(run(job, lane, secrets, attempt, stop) if lane is not None else [])
        except MigrationError as error:
            return error_batch(number, error)

    with ThreadPoolExecutor(len(lanes), thread_name_prefix="lane") as pool:
        futures = [pool.submit(drive, number) for number in lanes]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            # A cancelled task closes this generator: the other lanes end their slices before the process goes on.
            ended.set()


def _open_job(pointer: JobPointer) -> tuple[dict[str, Any], CopyJob]:
    """Secrets and job, read in each slice: a tail takes up partitions that appear while it runs."""
    secrets = pointer.references.resolve()
    return secrets, pointer.read(CopyJob, pointer.store(secrets))


def _narrowed(lane: CopyLane, wanted: frozenset[tuple[str, int]] | None) -> CopyLane:
    if wanted is None:
        return lane
    return lane.model_copy(update={"partitions": [spec for spec in lane.partitions if spec.key in wanted]})
