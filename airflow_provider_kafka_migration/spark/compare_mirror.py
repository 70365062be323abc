"""The comparison of a mirror on Spark: a task per group of partitions, as the content check of a migration.

Each result is stored as soon as it is found, so a retried task or a restarted driver does not compare again what was
found equal. Differences are data; the phase that started the job judges them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_kafka_migration.compare.mirrored import MirrorChecker, MirrorResults
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.mirror import MirrorComparison
from airflow_provider_kafka_migration.errors import ResultMissing, Where, error_from_dict
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.spark.compare import ComparedRow, grouped, make_compare, run_groups, worst
from airflow_provider_kafka_migration.spark.main import JobArguments, run_main
from airflow_provider_kafka_migration.spark.session import job_and_runner
from airflow_provider_kafka_migration.spark.tasks import TaskRunner
from airflow_provider_kafka_migration.spark.worker import JobPointer, ParentWatch, die_with_parent
from airflow_provider_kafka_migration.storage.base import ObjectStore


def compare_group(pointer: JobPointer, keys: Sequence[TopicPartition]) -> Iterator[ComparedRow]:
    """Compare some partitions in this process, one after another."""
    die_with_parent()
    secrets = pointer.references.resolve()
    store = pointer.store(secrets)
    job = pointer.read(MirrorComparison, store)
    pieces = {piece.key: piece for piece in job.ranges}
    with MirrorChecker(job, Clients(secrets), store, stop=ParentWatch().orphaned) as checker:
        for key in keys:
            found = checker.check(pieces[key])
            error = None if found.error is None else str(found.error.get("what"))
            yield (*key, found.found.compared, found.found.difference_count, error)


def verify(runner: TaskRunner, job: MirrorComparison, pointer: JobPointer) -> None:
    """Compare all partitions of a job and store the results.

    :raises SparkJobFailed: Spark gave up a task.
    :raises ResultMissing: tasks have ended well without a row for each of their partitions.
    """
    if not job.ranges:
        return
    groups = grouped(runner, [piece.range for piece in job.ranges])
    rows = run_groups(
        runner, make_compare(pointer, groups, compare_group), groups, job.migration_id, "comparison of the mirror"
    )
    missing = {piece.key for piece in job.ranges} - {(str(row["topic"]), int(row["partition"])) for row in rows}
    if missing:
        topic, partition = min(missing)
        raise ResultMissing(
            f"{len(missing)} of {len(job.ranges)} partitions have no row in what Spark has returned",
            where=Where(migration_id=job.migration_id, phase="verify", topic=topic, partition=partition),
            next_step="clear the task: what was found equal is not compared again",
        )


def run_job(arguments: JobArguments) -> None:
    """Run the comparison: the function of its Spark main.

    Differences are results, not a failure of this job.

    :raises MigrationError: no partition could be compared, for instance because executors cannot reach a cluster.
    """
    with job_and_runner(MirrorComparison, arguments) as (job, store, runner):
        verify(runner, job, arguments.pointer)
    _check_any(job, store)


def _check_any(job: MirrorComparison, store: ObjectStore) -> None:
    results = MirrorResults(job, store)
    found = [results.read(piece) for piece in job.ranges]
    errors = [error_from_dict(item.error) for item in found if item is not None and item.error is not None]
    if errors and len(errors) == len(found):
        raise worst(errors)


def main() -> int:
    """Run ``spark_jobs/compare_mirror.py``."""
    return run_main(run_job, "Compares the partitions of a mirror on both clusters.")
