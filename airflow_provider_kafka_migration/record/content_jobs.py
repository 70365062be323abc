"""Content comparison through a runner: the job document goes out, per-partition results come back."""

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
from airflow_provider_kafka_migration.record.context import CopyRunner, PhaseContext, Progress

JOB = "verify"


class SubmittedVerifier:
    """A verifier (documents.validation.ContentVerifier) over a runner that takes job documents.

    Results that are there already for the very same job are not made again, so a killed validation goes on.
    """

    def __init__(self, context: PhaseContext, runner: CopyRunner) -> None:
        self._context = context
        self._runner = runner

    def verify(self, ranges: Sequence[ContentRange]) -> Iterable[PartitionContent]:
        """Compare; one result per range.

        :raises Transient: the run as a whole did not work, or left partitions out.
        """
        context = self._context
        job = self._job(ranges)
        results = ContentResults(job, context.journal_store)
        key = context.key(f"jobs/{JOB}.json")
        context.journal_store.put(key, job.canonical())
        try:
            self._runner.submit(context.spec, context.spec.storage.journal, key, lambda: self._progress(results, job))
        except MigrationError:
            raise
        except Exception as error:
            raise Transient(
                f"the content check ended with an error: {str(error)[:500]}",
                where=context.where("validating"),
                next_step="see the task's log; then clear validate: what is compared already is not compared again",
            ) from error
        return results.read_all()

    def _job(self, ranges: Sequence[ContentRange]) -> ContentJob:
        # A new attempt after a failed validation compares everything anew; a killed one goes on.
        attempt = len(self._context.journal.steps("validated")) + 1
        spec = self._context.spec
        plan = self._context.load_plan()
        return content_job(
            plan,
            ranges,
            delete_retention_ms=delete_retention_of(self._context, plan),
            journal_location=spec.storage.journal,
            timestamps=spec.offsets.timestamps,
            attempt=attempt,
            archive_of_deleted=None if spec.seed.via == "direct" else spec.storage.archive_location,
        )

    def _progress(self, results: ContentResults, job: ContentJob) -> Progress:
        done = sum(results.read(item) is not None for item in job.ranges)
        total = len(job.ranges)
        return Progress("validating", f"content of {done} of {total} partitions compared", done, total, "partitions")


def delete_retention_of(context: PhaseContext, plan: Plan) -> dict[str, int]:
    """``delete.retention.ms`` in force on the source, of all compacted topics: their own, or the broker's default.

    :raises Terminal: it cannot be read; a guess would excuse tombstones that are missing, or blame those that went.
    """
    names = [topic.name for topic in plan.topics if is_compacted(topic)]
    configs = context.source.admin.topic_configs(names) if names else {}
    found = {}
    for name in names:
        text = configs[name].get("delete.retention.ms")
        if not text:
            raise Terminal(
                f"delete.retention.ms of {name} cannot be read: {configs[name].error or 'the brokers do not tell it'}",
                where=context.where("validating", cluster="source", topic=name),
                next_step="grant DescribeConfigs on the topic to the migration's principal; then clear validate",
            )
        found[name] = int(text)
    return found
