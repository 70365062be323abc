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
from airflow_provider_kafka_migration.errors import MigrationError, Terminal, Transient
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, CopyRunner, Progress
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

    def verify(self, ranges: Sequence[ContentRange]) -> Iterable[PartitionContent]:
        """Compare the ranges and return one result per range.

        :raises Transient: the run failed as a whole, or omitted partitions.
        """
        record = self._record
        job = self._job(ranges)
        results = ContentResults(job, record.journal_store)
        key = record.key(keys.job(JOB))
        record.journal_store.put(key, job.canonical())
        try:
            self._runner.submit(record.spec, record.spec.storage.journal, key, lambda: self._progress(results, job))
        except MigrationError:
            raise
        except Exception as error:
            raise Transient(
                f"the content check ended with an error: {str(error)[:500]}",
                where=record.where("validating"),
                next_step="see the task's log; then clear validate: compared ranges are not compared again",
            ) from error
        return results.read_all()

    def _job(self, ranges: Sequence[ContentRange]) -> ContentJob:
        # A new attempt after a failed validation compares everything again; one that was killed continues.
        attempt = len(self._record.journal.steps(steps.VALIDATED)) + 1
        spec = self._record.spec
        plan = self._record.plan()
        return content_job(
            plan,
            ranges,
            delete_retention_ms=delete_retention_of(self._record, self._source, plan),
            journal_location=spec.storage.journal,
            timestamps=spec.offsets.timestamps,
            attempt=attempt,
            archive_of_deleted=None if spec.seed.via == "direct" else spec.storage.archive_location,
            schema_ids=schema_id_settings(self._record),
        )

    def _progress(self, results: ContentResults, job: ContentJob) -> Progress:
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
