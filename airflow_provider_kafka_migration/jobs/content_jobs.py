"""Content comparison through a runner: submit the job document, read back the results of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_kafka_migration.compare.runner import ContentResults
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.proof import (
    ContentJob,
    ContentRange,
    PartitionContent,
    content_job,
    is_compacted,
)
from airflow_provider_kafka_migration.errors import JobMissing, MigrationError, Terminal, Transient
from airflow_provider_kafka_migration.jobs.job_phase import JobRunner, job_ref
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, CopyRunner, JobRef, PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.schema_id_settings import schema_id_settings

JOB = "verify"


class SubmittedVerifier:
    """A verifier (documents.validation.ContentVerifier) that uses a runner of job documents.

    Existing results of the same job are not computed again, so a validation that was killed continues.
    """

    def __init__(self, record: MigrationRecord, source: Cluster, runner: CopyRunner) -> None:
        self._record = record
        self._source = source
        self._runner = runner

    @property
    def runner(self) -> CopyRunner:
        """What runs the job."""
        return self._runner

    def verify(self, ranges: Sequence[ContentRange]) -> Iterable[PartitionContent]:
        """Compare the ranges and return one result per range.

        :raises Transient: the run failed as a whole, or omitted partitions.
        """
        write_content_job(self._record, self._source, ranges)
        run_with(self._runner, self._record, job_ref(self._record, JOB))
        return read_results(self._record, JOB)


def write_content_job(record: MigrationRecord, source: Cluster, ranges: Sequence[ContentRange]) -> None:
    """Write the job document of a content check."""
    # A new attempt after a failed validation compares everything again; one that was killed continues.
    attempt = len(record.journal.steps(steps.VALIDATED)) + 1
    spec = record.spec
    plan = record.plan()
    job = content_job(
        plan,
        ranges,
        delete_retention_ms=delete_retention_of(record, source, plan),
        journal_location=spec.storage.journal,
        timestamps=spec.offsets.timestamps,
        attempt=attempt,
        archive_of_deleted=None if spec.seed.via == "direct" else spec.storage.archive_location,
        schema_ids=schema_id_settings(record),
    )
    record.journal_store.put(record.key(keys.job(JOB)), job.canonical())


def read_results(record: MigrationRecord, name: str) -> list[PartitionContent]:
    """Return one result per range of the job with this name.

    :raises Transient: the job has omitted partitions.
    """
    return list(ContentResults(_load(record, name), record.journal_store).read_all())


def run_content_job(context: PhaseContext, job: JobRef) -> None:
    """Run a content check through the context's runner and wait for its end.

    :raises Transient: the run failed as a whole.
    """
    assert context.runner is not None
    run_with(context.runner, context.record, job)


def run_with(runner: CopyRunner, record: MigrationRecord, job: JobRef) -> None:
    """Run a content check through a runner and wait for its end.

    :raises Transient: the run failed as a whole.
    """
    content = _load(record, job.name)
    results = ContentResults(content, record.journal_store)

    def progress() -> Progress:
        return _progress(results, content)

    try:
        if isinstance(runner, JobRunner):
            runner.run(record, job, progress)
        else:
            runner.submit(record.spec, job.location, job.key, progress)
    except MigrationError:
        raise
    except Exception as error:
        raise content_job_failed(record, error) from error


def content_job_failed(record: MigrationRecord, error: Exception) -> MigrationError:
    """Build the error of a content check that failed as a whole."""
    if isinstance(error, MigrationError):
        return error
    return Transient(
        f"the content check ended with an error: {str(error)[:500]}",
        where=record.where("validating"),
        next_step="see the task's log; then clear validate: compared ranges are not compared again",
    )


def content_progress(record: MigrationRecord, job: JobRef) -> Progress | None:
    """Return how many partitions are compared."""
    content = _load(record, job.name)
    return _progress(ContentResults(content, record.journal_store), content)


def _load(record: MigrationRecord, name: str) -> ContentJob:
    key = record.key(keys.job(name))
    data = record.journal_store.get(key)
    if data is None:
        raise JobMissing(
            "the job document does not exist",
            where=record.where("validating", path=f"{record.journal_store.uri}/{key}"),
            next_step="clear validate: it writes the document again",
        )
    return ContentJob.parse(data)


def _progress(results: ContentResults, job: ContentJob) -> Progress:
    done = sum(results.read(item) is not None for item in job.ranges)
    total = len(job.ranges)
    return Progress("validating", f"content of {done} of {total} partitions compared", done, total, "partitions")


def delete_retention_of(record: MigrationRecord, source: Cluster, plan: Plan) -> dict[str, int]:
    """Read the source's effective ``delete.retention.ms`` of all compacted topics: their own, or the broker's default.

    :raises Terminal: it cannot be read. A guess would excuse missing tombstones, or report legitimately removed ones.
    """
    names = [topic.name for topic in plan.topics if is_compacted(topic)]
    configs = source.admin.topic_configs(names) if names else {}
    found = {}
    for name in names:
        text = configs[name].get("delete.retention.ms")
        if not text:
            raise Terminal(
                f"delete.retention.ms of {name} cannot be read: {configs[name].error or 'the brokers do not tell it'}",
                where=record.where("validating", cluster="source", topic=name),
                next_step="grant DescribeConfigs on the topic to the migration's principal; then clear validate",
            )
        found[name] = int(text)
    return found
