"""The comparison of a mirror on Spark: a task per group of partitions, as the content check of a migration.

Each result is stored as soon as it is found, so a retried task or a restarted driver does not compare again what was
found equal. Differences are data; the phase that started the job judges them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_provider_kafka_migration.compare.connections import OwnConnections
from airflow_provider_kafka_migration.compare.independent import IndependentResults
from airflow_provider_kafka_migration.compare.mirrored import (
    CORRECTED,
    SLICES,
    MirrorChecker,
    MirrorMaps,
    MirrorResults,
    judged_independently,
    results_prefix,
    still_covers,
    unchecked,
    why_not_compared,
)
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.independent import IndependentResult
from airflow_provider_kafka_migration.documents.mirror import MirrorComparison, MirroredRange
from airflow_provider_kafka_migration.errors import MigrationError, ResultMissing, Where, error_from_dict
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.spark.compare import ComparedRow, grouped, make_compare, run_groups, worst
from airflow_provider_kafka_migration.spark.frames.groups import Item
from airflow_provider_kafka_migration.spark.independent import Proof, Work, session_of
from airflow_provider_kafka_migration.spark.main import JobArguments, run_main
from airflow_provider_kafka_migration.spark.session import job_and_runner
from airflow_provider_kafka_migration.spark.tasks import TaskRunner
from airflow_provider_kafka_migration.spark.worker import JobPointer, ParentWatch, die_with_parent
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def verify_independently(
    job: MirrorComparison, store: ObjectStore, clients: Clients, spark: SparkSession, *, slots: int = 2
) -> None:
    """Compare all partitions of a job with Spark's own Kafka source, and store the results.

    :param store: of the journal.
    :raises SparkConnectorMissing: Spark has no Kafka source.
    :raises ConnectionInvalid: a connection has something that the Java client cannot do.
    :raises SparkJobFailed: Spark could not read a cluster.
    """
    results = MirrorResults(job, store)
    with OwnConnections(clients) as connections:
        maps = MirrorMaps(job.migration_id, store, connections.wire)
        pieces = {piece.key: piece for piece in job.ranges if not _is_known(results, piece)}
        items = _items(list(pieces.values()), maps, results)
        of_items = {item.range.key: item.map for item in items}

        def judge(found: IndependentResult) -> None:
            piece = pieces[found.key]
            outcome = judged_independently(piece, found)
            if outcome.outcome == "different" and maps.again(piece, of_items[found.key]) is not None:
                outcome = unchecked(piece, CORRECTED)
            results.write(piece, outcome, None, reader=found.reader)

        work = Work(
            migration_id=job.migration_id,
            journal_location=job.journal_location,
            items=items,
            without_timestamps=job.without_timestamps,
            schema_ids=job.schema_ids,
            slice_offsets=job.slice_offsets,
            marks=job.provenance,
        )
        prefix = f"{results_prefix(job.migration_id, job.name)}{SLICES}"
        slices = IndependentResults(job.migration_id, job.digest(), store, prefix)
        Proof(work, slices, store, clients, spark, slots, on_result=judge).run()


def _is_known(results: MirrorResults, piece: MirroredRange) -> bool:
    found = results.read(piece)
    return found is not None and found.found.outcome != "unchecked"


def _items(pieces: Sequence[MirroredRange], maps: MirrorMaps, results: MirrorResults) -> list[Item]:
    """Return what can be compared; store the outcome of the others."""
    items = []
    for piece in pieces:
        try:
            offset_map = maps.load(piece)
        except MigrationError as error:
            results.write(piece, unchecked(piece, why_not_compared(error)), error)
            continue
        if still_covers(piece, offset_map):
            items.append(Item(piece.range, offset_map, piece.source_rules, piece.target_rules))
        else:
            results.write(piece, unchecked(piece, CORRECTED), None)
    return items


def run_job(arguments: JobArguments) -> None:
    """Run the comparison: the function of its Spark main.

    Differences are results, not a failure of this job.

    :raises MigrationError: no partition could be compared, for instance because executors cannot reach a cluster.
    """
    with job_and_runner(MirrorComparison, arguments) as (job, store, runner):
        if job.independent:
            with Clients(arguments.secrets) as clients:
                verify_independently(job, store, clients, session_of(runner), slots=runner.slots())
        else:
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
