"""The content check on Spark: a task per group of partitions. Many small tasks balance well and can be retried.

Each result is stored as soon as it is found, so a retried task or a restarted driver does not compare again what was
found equal. Differences are data; the phase that started the job judges them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from airflow_provider_kafka_migration.compare.runner import ContentChecker, ContentResults, balanced
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.proof import ContentJob, ContentRange
from airflow_provider_kafka_migration.errors import MigrationError, Terminal, error_from_dict
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.spark.main import JobArguments, run_main, spark_errors
from airflow_provider_kafka_migration.spark.session import job_and_runner
from airflow_provider_kafka_migration.spark.tasks import Row, TaskFunction, TaskRunner
from airflow_provider_kafka_migration.spark.worker import JobPointer, ParentWatch, die_with_parent

log = logging.getLogger(__name__)

_TASKS_PER_SLOT = 4
#: A driver may count its slots before all executors have come.
_LEAST_TASKS = 16

#: Topic, partition, compared records, differences, what prevented the comparison.
ComparedRow = tuple[str, int, int, int, str | None]
Compare = Callable[[JobPointer, Sequence[TopicPartition]], Iterator[ComparedRow]]
COMPARED_COLUMNS = {
    "topic": "string",
    "partition": "int",
    "compared": "bigint",
    "difference_count": "bigint",
    "error": "string",
}


def make_compare(
    pointer: JobPointer, groups: Sequence[Sequence[TopicPartition]], compare_group: Compare
) -> TaskFunction:
    """Return a task: the number of a group in, a row of :data:`COMPARED_COLUMNS` per compared partition out.

    :param compare_group: compares the partitions of a group in the task's process.
    """
    pointer = pointer.refreshed()

    def compare(number: int) -> Iterator[ComparedRow]:
        return compare_group(pointer, groups[number])

    return compare


def compare_group(pointer: JobPointer, keys: Sequence[TopicPartition]) -> Iterator[ComparedRow]:
    """Compare some partitions in this process, one after another."""
    die_with_parent()
    secrets = pointer.references.resolve()
    store = pointer.store(secrets)
    job = pointer.read(ContentJob, store)
    ranges = {compared.key: compared for compared in job.ranges}
    with ContentChecker(job, Clients(secrets), store, stop=ParentWatch().orphaned) as checker:
        for key in keys:
            content = checker.check(ranges[key])
            error = None if content.error is None else str(content.error.get("what"))
            yield (content.topic, content.partition, content.compared, content.difference_count, error)


def verify(runner: TaskRunner, job: ContentJob, pointer: JobPointer) -> None:
    """Compare all ranges of a job and store the results.

    :raises SparkJobFailed: Spark gave up a task.
    """
    if job.ranges:
        groups = grouped(runner, job.ranges)
        run_groups(runner, make_compare(pointer, groups, compare_group), groups, job.migration_id, "content check")


def grouped(runner: TaskRunner, ranges: Iterable[ContentRange]) -> list[list[TopicPartition]]:
    """Divide partitions into the groups that tasks compare.

    :raises SparkJobFailed: Spark does not say how many tasks run in parallel.
    """
    with spark_errors("counting the slots of Spark"):
        tasks = max(_LEAST_TASKS, _TASKS_PER_SLOT * runner.slots())
    return [[compared.key for compared in group] for group in balanced(ranges, tasks)]


def run_groups(
    runner: TaskRunner, compare: TaskFunction, groups: Sequence[Sequence[TopicPartition]], migration_id: str, what: str
) -> list[Row]:
    """Run a task per group, log what they have found, and return their rows of :data:`COMPARED_COLUMNS`.

    :param what: the job, for people.
    :raises SparkJobFailed: Spark gave up a task.
    """
    count = sum(len(group) for group in groups)
    description = f"{what} of {migration_id}: {count} partitions in {len(groups)} tasks"
    with spark_errors(description):
        rows = runner.run(
            compare, COMPARED_COLUMNS, range(len(groups)), group=f"{migration_id}/verify", description=description
        )
    for row in sorted(rows, key=lambda row: (row["topic"], row["partition"])):
        if row["error"] is not None:
            log.warning("%s-%d could not be compared: %s", row["topic"], row["partition"], row["error"])
        elif row["difference_count"]:
            log.warning("%s-%d has %d differences", row["topic"], row["partition"], row["difference_count"])
    log.info("%d partitions, %s records compared", len(rows), f"{sum(row['compared'] for row in rows):,}")
    return rows


def run_job(arguments: JobArguments) -> None:
    """Run the content check: the function of its Spark main.

    Differences are results, not a failure of this job.

    :raises MigrationError: no partition could be compared, for instance because a cluster cannot be reached.
    """
    with job_and_runner(ContentJob, arguments) as (job, store, runner):
        verify(runner, job, arguments.pointer)
    found = ContentResults(job, store).read_all()
    errors = [error_from_dict(content.error) for content in found if content.error is not None]
    if errors and len(errors) == len(found):
        raise worst(errors)


def worst(errors: list[MigrationError]) -> MigrationError:
    """Return the first error that a person has to act upon; else the first one."""
    return next((error for error in errors if isinstance(error, Terminal)), errors[0])


def main() -> int:
    """Run ``spark_jobs/verify.py``."""
    return run_main(run_job, "Compares the content of the partitions of a job on both clusters.")
