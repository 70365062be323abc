"""The comparison of a mirror as a job: written, run on Spark, read back and removed. It makes no claim.

Each run of a DAG has a job of its own, so that comparisons of one mirror do not meet. Another attempt of the same run
continues its job: what was found equal is not compared again.
"""

from __future__ import annotations

import hashlib
import logging
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from airflow_provider_kafka_migration.compare.mirrored import SLICES, MirrorResults, results_prefix, unchecked
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.independent import IndependentRefusal
from airflow_provider_kafka_migration.documents.mirror import MirrorComparison, MirrorVerification
from airflow_provider_kafka_migration.errors import (
    DocumentUnreadable,
    JobMissing,
    MigrationError,
    ResultMissing,
    Terminal,
    Transient,
    error_from_dict,
)
from airflow_provider_kafka_migration.jobs import independent_jobs
from airflow_provider_kafka_migration.jobs.job_phase import JobRunner
from airflow_provider_kafka_migration.mirrors.verification import (
    PHASE,
    Scope,
    ascending,
    mirror_settings,
    other_topics,
    to_compare,
)
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import JobRef, PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso, parse_iso
from airflow_provider_kafka_migration.state import mirror_name
from airflow_provider_kafka_migration.verbs import in_former_words

log = logging.getLogger(__name__)

#: A job that is older is not continued: log starts, configs and topics have moved since.
CONTINUED_FOR = timedelta(days=1)
#: Jobs of runs that nobody has completed are removed after this time.
KEPT_FOR = timedelta(days=7)


def job_name(run: str, *, independent: bool = False) -> str:
    """Return the name of a run's job.

    :param independent: Spark's own Kafka source reads both sides.
    """
    digest = hashlib.sha256(run.encode()).hexdigest()
    return keys.independent_comparison_job(digest) if independent else keys.comparison_job(digest)


# -- writing ----------------------------------------------------------------------------------------------------------


def write(context: PhaseContext, scope: Scope, run: str, *, independent: bool = False) -> MirrorComparison:
    """Return the job of a run: the one that an earlier attempt has written, or a new one.

    :param context: a context that only reads.
    :param independent: Spark's own Kafka source reads both sides.
    :raises MigrationError: it cannot be determined what is to be compared.
    """
    record, name = context.record, job_name(run, independent=independent)
    former = _read(record, name)
    if former is not None and _is_continued(record, former, scope, run):
        log.info("The comparison that began at %s goes on: what is equal is not compared again", former.started_at)
        return former
    _remove_abandoned(record, name)
    state, started_at = record.journal.working_state, iso(record.now())
    settings = mirror_settings(record)
    ranges, known = to_compare(context, scope)
    job = MirrorComparison(
        migration_id=record.migration_id,
        name=name,
        run=run,
        spec_digest=_spec_digest(record),
        journal_location=record.spec.storage.journal,
        state=mirror_name(state) if state is not None else "",
        topics=list(scope.topics),
        last=scope.last,
        started_at=started_at,
        timestamps=settings.timestamps,
        schema_ids=settings.ids,
        provenance=settings.provenance,
        known=known,
        independent=independent,
        ranges=ranges,
        **(_of_independent(record) if independent else {}),
    )
    record.journal_store.put(record.key(keys.job(name)), job.canonical())
    return job


def _of_independent(record: MigrationRecord) -> dict[str, Any]:
    plan = record.plan()
    raw = record.spec.offsets.timestamps == "raw"
    return {
        "without_timestamps": independent_jobs.with_other_times(plan) if raw else [],
        "slice_offsets": independent_jobs.slice_offsets(plan),
    }


def _is_continued(record: MigrationRecord, job: MirrorComparison, scope: Scope, run: str) -> bool:
    same = (job.run, tuple(job.topics), job.last, job.spec_digest)
    if same != (run, scope.topics, scope.last, _spec_digest(record)):
        return False
    return record.now() - parse_iso(job.started_at) < CONTINUED_FOR


def _spec_digest(record: MigrationRecord) -> str:
    """Return the digest of the mirror's spec, which has references and no secrets."""
    return canonical_digest(in_former_words(record.spec.model_dump(mode="json")))


def _read(record: MigrationRecord, name: str) -> MirrorComparison | None:
    data = record.journal_store.get(record.key(keys.job(name)))
    if data is None:
        return None
    try:
        return MirrorComparison.parse(data)
    except ValidationError as error:
        log.warning("The job %s of an earlier attempt cannot be read (%d mistakes)", name, error.error_count())
        return None


def load(record: MigrationRecord, name: str) -> MirrorComparison:
    """Read a job.

    :raises JobMissing: it does not exist.
    :raises DocumentUnreadable: it cannot be read.
    """
    key = record.key(keys.job(name))
    data = record.journal_store.get(key)
    where = record.where(PHASE, path=f"{record.journal_store.uri}/{key}")
    if data is None:
        raise JobMissing("the job document does not exist", where=where, next_step="clear the task: it writes it again")
    try:
        return MirrorComparison.parse(data)
    except ValidationError as error:
        raise DocumentUnreadable(
            f"the job document has {error.error_count()} mistakes",
            where=where,
            next_step="clear the task: it writes it again",
        ) from None


# -- running ----------------------------------------------------------------------------------------------------------


def run_job(context: PhaseContext, job: JobRef) -> None:
    """Run a comparison through the context's runner and wait for its end.

    :raises Terminal: there is no runner.
    :raises MigrationError: the job's own error, or that of the engine.
    """
    if not isinstance(context.runner, JobRunner):
        raise Terminal(
            "the comparison needs a Spark engine",
            where=context.where(PHASE),
            next_step="use the DAG kafka_mirror_verify, or kafka-migration mirror verify FILE without Spark",
        )
    record = context.record
    try:
        context.runner.run(record, job, lambda: read_progress(record, job))
    except MigrationError as error:
        if not note_not_run(record, load(record, job.name), error):
            raise


def read_progress(record: MigrationRecord, job: JobRef) -> Progress | None:
    """Return how many partitions are compared; one listing."""
    found = load(record, job.name)
    total = len(found.ranges)
    done = min(MirrorResults(found, record.journal_store).count(), total)
    return Progress(PHASE, f"{done} of {total} partitions compared", done, total, "partitions")


def has_results(record: MigrationRecord, job: MirrorComparison) -> bool:
    """Whether some partition was compared."""
    results = MirrorResults(job, record.journal_store)
    return any(results.read(piece) is not None for piece in job.ranges)


# -- its end ----------------------------------------------------------------------------------------------------------


def collect(context: PhaseContext, job: MirrorComparison) -> tuple[MirrorVerification, list[MigrationError]]:
    """Return what a job has found, and the errors that kept it from comparing partitions.

    A partition without a result of this job is unchecked.

    :param context: a context that only reads.
    :raises MigrationError: the source does not answer, or results cannot be read.
    """
    results = MirrorResults(job, context.journal_store)
    stored = {piece.key: results.read(piece) for piece in job.ranges}
    # After all comparisons: another topic of this name would make all of it different.
    wrong = other_topics(context.source, {piece.key: piece.topic_id for piece in job.ranges}) if job.ranges else {}
    partitions = list(job.known)
    errors: list[MigrationError] = []
    for piece in job.ranges:
        result = stored[piece.key]
        if piece.key in wrong:
            partitions.append(unchecked(piece, wrong[piece.key]))
        elif result is None:
            error = ResultMissing(
                "its comparison has brought no result",
                where=context.where(PHASE, topic=piece.range.topic, partition=piece.range.partition),
                next_step="see the log of the Spark job",
            )
            partitions.append(unchecked(piece, error.what))
            errors.append(error)
        else:
            partitions.append(result.found)
            errors += [] if result.error is None else [error_from_dict(result.error)]
    verification = MirrorVerification(
        migration_id=job.migration_id,
        state=job.state,
        topics=job.topics,
        last=job.last,
        started_at=job.started_at,
        finished_at=iso(context.now()),
        partitions=ascending(partitions),
        reader=next((result.reader for result in stored.values() if result is not None), ""),
    )
    return verification, errors


def note_not_run(record: MigrationRecord, job: MirrorComparison, error: MigrationError) -> bool:
    """Note why Spark's own Kafka source could not read anything; False: the error is no such reason."""
    reason = independent_jobs.reason_not_to_run(error) if job.independent else ""
    if not reason:
        return False
    refusal = IndependentRefusal(migration_id=job.migration_id, job_digest=job.digest(), reason=reason)
    record.journal_store.put(_refusal_key(job), refusal.canonical())
    return True


def read_not_run(record: MigrationRecord, job: MirrorComparison) -> str:
    """Return why it could not; empty: nothing is known."""
    data = record.journal_store.get(_refusal_key(job))
    found = None if data is None else IndependentRefusal.parse(data)
    return found.reason if found is not None and found.job_digest == job.digest() else ""


def _refusal_key(job: MirrorComparison) -> str:
    return f"{results_prefix(job.migration_id, job.name)}{SLICES}not-run.json"


def retriable(errors: list[MigrationError]) -> list[Transient]:
    """Return the errors after which comparing again may help."""
    return [error for error in errors if isinstance(error, Transient)]


def remove(record: MigrationRecord, name: str) -> None:
    """Remove a job with its results, once they are stored elsewhere. Without the right to delete, they stay."""
    try:
        # The document first: without it, nothing continues the job.
        record.journal_store.delete(record.key(keys.job(name)))
        for prefix in (
            results_prefix(record.migration_id, name),
            record.key(keys.job_end(f"{name}-")).removesuffix(".json"),
            record.key(f"sealed/{name}-"),
        ):
            for info in list(record.journal_store.list(prefix)):
                record.journal_store.delete(info.key)
    except MigrationError as error:
        log.warning("The objects of the comparison %s could not be removed: %s", name, error)


def _remove_abandoned(record: MigrationRecord, own: str) -> None:
    """Remove the jobs of runs that nobody has completed, such as those of a DAG that was deleted."""
    prefix = record.key(keys.job(keys.comparison_job(""))).removesuffix(".json")
    for info in list(record.journal_store.list(prefix)):
        name = info.key.rpartition("/")[2].removesuffix(".json")
        found = _read(record, name)
        if name != own and (found is None or _age(record.now(), found) >= KEPT_FOR):
            remove(record, name)


def _age(now: datetime, job: MirrorComparison) -> timedelta:
    return now - parse_iso(job.started_at)
