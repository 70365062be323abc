"""The independent proof as a job of the validation: what it compares, whether it can run, and what it has found."""

from __future__ import annotations

import importlib.metadata
import random
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pydantic import ValidationError

from airflow_provider_kafka_migration.compare.independent import IndependentResults
from airflow_provider_kafka_migration.documents.independent import (
    INDEPENDENT,
    NEVER_STARTED,
    SLICE_BYTES,
    SLICE_OFFSETS,
    IndependentJob,
    IndependentRefusal,
    IndependentResult,
)
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.proof import ContentRange, topic_rules
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    MigrationError,
    SparkConnectorMissing,
    SparkJobFailed,
    SparkReaderUnfit,
)
from airflow_provider_kafka_migration.jobs.content_jobs import delete_retention_of
from airflow_provider_kafka_migration.jobs.job_phase import JobRunner
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.schema_id_settings import schema_id_settings
from airflow_provider_kafka_migration.storage.base import ObjectStore

JOB: Final = INDEPENDENT
SWITCHED_OFF: Final = "validation.independent is off"
WITHOUT_SPARK: Final = "the validation ran without Spark (--runner local)"
#: What ``spark-submit`` says if it cannot fetch the packages that it was asked for.
_UNRESOLVED: Final = ("unresolved dependency", "UNRESOLVED DEPENDENCIES", "Server access error")
#: What it says where it has no folder for them (images of Kubernetes), or no way to the jars of ``spark.jars``.
_NO_JARS: Final = ("basedir must be absolute", "No FileSystem for scheme", "S3AFileSystem not found")
#: The same of a folder that is there and cannot be used. Each run names that folder, also one that goes well.
_NO_FOLDER: Final = re.compile(r"/\.ivy2.*(No such file|denied|Read-only|No space)|NotFoundException.*/\.ivy2")
_MEANS_NOT_RUN: Final = (SparkConnectorMissing, SparkReaderUnfit, ConnectionInvalid)


def write_job(context: PhaseContext, ranges: Sequence[ContentRange]) -> bool:
    """Write the job document; return False if there is nothing to run: it is off, has run, or Spark is not used."""
    record = context.record
    if why_not(context) or not ranges:
        return False
    job, former = _job(context, ranges), read_job(record)
    # The seed of a job that was killed stays: otherwise it would draw until it likes what it gets.
    is_same = former is not None and _without_draw(former) == _without_draw(job)
    job = _drawn(context, job, former.sample_seed if former is not None and is_same else None)
    record.journal_store.put(record.key(keys.job(JOB)), job.canonical())
    if len(read_results(record, job)) == len(job.ranges):
        return False
    refusal = _refusal(record, job)
    tries = refusal.tries if refusal is not None and refusal.reason == NEVER_STARTED else 0
    _refuse(record, job, NEVER_STARTED, tries + 1)
    return True


def why_not(context: PhaseContext) -> str:
    """Return why the proof is not to run; empty: it is."""
    if context.spec.validation.independent == "off":
        return SWITCHED_OFF
    return "" if runner_of(context) is not None else WITHOUT_SPARK


def runner_of(context: PhaseContext) -> JobRunner | None:
    """Return what runs jobs on Spark: the runner of the first comparison; None if that needs no Spark."""
    runner = getattr(context.verifier, "runner", None) or context.runner
    return runner if isinstance(runner, JobRunner) else None


def _without_draw(job: IndependentJob) -> IndependentJob:
    kept = job.model_copy(update={"sample_seed": None, "left_out": 0})
    return kept if job.extent == "all" else kept.model_copy(update={"ranges": []})


def attempt_of(record: MigrationRecord, *, has_passed: bool = False) -> int:
    """Return the number of the validation's attempt.

    :param has_passed: not of the present one, but of the one in which all content has passed.
    """
    passed = record.journal.find_step(steps.CONTENT_PASSED) if has_passed else None
    ended = record.journal.steps(steps.VALIDATED)
    return 1 + sum(passed is None or entry.seq < passed.seq for entry in ended)


def _job(context: PhaseContext, ranges: Sequence[ContentRange]) -> IndependentJob:
    """Return a job for all ranges."""
    record, spec = context.record, context.spec
    plan = record.plan()
    return IndependentJob(
        migration_id=record.migration_id,
        attempt=attempt_of(record),
        journal_location=spec.storage.journal,
        extent=_extent(spec.validation.independent, plan, spec.validation.independent_sample),
        without_timestamps=with_other_times(plan) if spec.offsets.timestamps == "raw" else [],
        topics=topic_rules(plan, delete_retention_of(record, context.source, plan)),
        schema_ids=schema_id_settings(record),
        slice_offsets=slice_offsets(plan),
        ranges=sorted(ranges, key=lambda item: item.key),
    )


def _drawn(context: PhaseContext, job: IndependentJob, seed: int | None) -> IndependentJob:
    """Return the job with a sample of its ranges, if it is to have one.

    :param seed: of the draw; None: a new one.
    """
    if job.extent == "all":
        return job
    seed = secrets.randbits(32) if seed is None else seed
    chosen = draw(job.ranges, context.record.plan(), context.spec.validation.independent_sample, seed)
    left_out = len(job.ranges) - len(chosen)
    return job.model_copy(update={"ranges": chosen, "sample_seed": seed, "left_out": left_out})


def _extent(wanted: Literal["all", "sample", "off"] | None, plan: Plan, sample_bytes: int) -> Literal["all", "sample"]:
    if wanted is None:
        return "all" if plan.total_bytes <= sample_bytes else "sample"
    return "sample" if wanted == "sample" else "all"


def draw(ranges: Sequence[ContentRange], plan: Plan, sample_bytes: int, seed: int) -> list[ContentRange]:
    """Draw whole partitions at random until they have so many bytes on the source; at least one.

    :param ranges: ascending; the same ranges, sizes and seed give the same draw.
    """
    sizes = {
        (topic.name, item.partition): max(item.size_bytes, 0) for topic in plan.topics for item in topic.partitions
    }
    shuffled = list(ranges)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - the seed is part of the evidence, so that anybody can repeat it
    chosen: list[ContentRange] = []
    total_bytes = 0
    for item in shuffled:
        total_bytes += sizes.get(item.key, 0)
        if chosen and total_bytes > sample_bytes:
            break
        chosen.append(item)
    return sorted(chosen, key=lambda item: item.key)


def slice_offsets(plan: Plan) -> dict[str, int]:
    """Return by source topic with large records how many offsets are read at a time."""
    found = {}
    for topic in plan.topics:
        size_bytes = sum(max(item.size_bytes, 0) for item in topic.partitions)
        offsets = sum(max(item.end_offset - item.source_start_offset, 0) for item in topic.partitions)
        wanted = SLICE_BYTES * offsets // max(size_bytes, 1)
        if offsets and wanted < SLICE_OFFSETS:
            found[topic.name] = max(wanted, 1)
    return found


def with_other_times(plan: Plan) -> list[str]:
    """Return the topics whose readers see the broker's time on the source, and the producer's on the target."""
    return sorted(
        topic.name
        for topic in plan.topics
        if topic.source_configs.get("message.timestamp.type") == "LogAppendTime" or "log_append_time" in topic.kinds
    )


# -- results ----------------------------------------------------------------------------------------------------------


def read_job(record: MigrationRecord) -> IndependentJob | None:
    """Return the last job; None if there is none."""
    data = record.journal_store.get(record.key(keys.job(JOB)))
    if data is None:
        return None
    try:
        return IndependentJob.parse(data)
    except ValidationError:
        return None


def read_results(record: MigrationRecord, job: IndependentJob, *, whole: bool = True) -> list[IndependentResult]:
    """Return the results of a job that are there, ascending.

    :param whole: only of partitions that are compared to their ends.
    """
    return IndependentResults.of(job, record.journal_store).read_all(job.ranges, whole=whole)


def progress(record: MigrationRecord) -> Progress | None:
    """Return how many partitions are compared."""
    job = read_job(record)
    if job is None:
        return None
    done, total = len(read_results(record, job)), len(job.ranges)
    what = f"{done} of {total} partitions read again by Spark's own Kafka source"
    return Progress("validating", what, done, total, "partitions")


# -- not run ----------------------------------------------------------------------------------------------------------


def note_not_run(record: MigrationRecord, error: MigrationError) -> bool:
    """Note why the job could not run; return False if the error is no such reason, so that the task fails."""
    job = read_job(record)
    if job is None or job.attempt != attempt_of(record):
        return False
    refusal = _refusal(record, job)
    has_begun = refusal is not None and not refusal.reason
    reason = reason_not_to_run(error, has_begun=has_begun) or _never_started(refusal, error)
    if not reason:
        return False
    _refuse(record, job, reason, 0 if refusal is None else refusal.tries)
    return True


def read_not_run(record: MigrationRecord, job: IndependentJob) -> str:
    """Return why a job could not run; empty if nothing is known."""
    refusal = _refusal(record, job)
    return "" if refusal is None else refusal.reason


def _refusal(record: MigrationRecord, job: IndependentJob) -> IndependentRefusal | None:
    data = record.result(keys.INDEPENDENT_NOT_RUN)
    found = None if data is None else IndependentRefusal.parse(data)
    return found if found is not None and found.job_digest == job.digest() else None


def _refuse(record: MigrationRecord, job: IndependentJob, reason: str, tries: int) -> None:
    digest = job.digest()
    refusal = IndependentRefusal(migration_id=record.migration_id, job_digest=digest, reason=reason, tries=tries)
    record.put_result(keys.INDEPENDENT_NOT_RUN, refusal)


def note_begun(store: ObjectStore, job: IndependentJob) -> None:
    """Note that the driver of a job has started: what it fails of from now on, it says itself."""
    refusal = IndependentRefusal(migration_id=job.migration_id, job_digest=job.digest(), reason="")
    store.put(f"{job.migration_id}/{keys.result(keys.INDEPENDENT_NOT_RUN)}", refusal.canonical())


def _never_started(refusal: IndependentRefusal | None, error: MigrationError) -> str:
    """Return why a job has never run whose driver did not start twice; empty: once, or it did.

    Services often keep a driver's log to themselves: nothing else tells of jars that could not be fetched there.
    """
    is_silent = isinstance(error, SparkJobFailed) and "job_id" in (error.details or {})
    is_again = refusal is not None and refusal.reason == NEVER_STARTED and refusal.tries > 1
    return f"{NEVER_STARTED}: {error.what}" if is_silent and is_again else ""


def reason_not_to_run(error: MigrationError, *, has_begun: bool = False) -> str:
    """Return why a job has read nothing at all, for people; empty: the error is no such reason.

    :param has_begun: the driver has started, so it had all jars, whatever its log says.
    """
    if isinstance(error, _MEANS_NOT_RUN):
        return error.what
    if has_begun:
        return ""
    lines: Iterable[str] = (error.details or {}).get("log", ()) if isinstance(error, SparkJobFailed) else ()
    said = "\n".join((error.what, *lines))
    if any(mark in said for mark in _UNRESOLVED):
        return "Spark could not fetch its Kafka source (spark.kafka_connector: packages)"
    if any(mark in said for mark in _NO_JARS) or _NO_FOLDER.search(said):
        return "Spark could not load the jars of its Kafka source (spark.kafka_connector)"
    return ""


# -- connector --------------------------------------------------------------------------------------------------------


def connector_conf(where: str) -> dict[str, str]:
    """Return the Spark conf that gives a job Spark's Kafka source.

    :param where: ``spark.kafka_connector`` of the spec.
    """
    if where == "provided":
        return {}
    if where != "packages":
        return {"spark.jars": where}
    version = _spark_version()
    if not version:
        return {}
    scala = "2.12" if version.startswith("3.") else "2.13"
    return {"spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{version}"}


def _spark_version() -> str:
    for name in ("pyspark", "pyspark-client"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""
