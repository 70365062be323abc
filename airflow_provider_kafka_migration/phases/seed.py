"""Seed: copy everything up to the end offsets seen at its first start.

It may be killed at any moment: run again, it continues from the target's log ends to the same stop offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from airflow_provider_kafka_migration.copy.archive import build_manifest
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import CopyFailed
from airflow_provider_kafka_migration.groups.early import EarlyGroupSync
from airflow_provider_kafka_migration.jobs import copy_jobs, target_losses
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase, Step, job_ref
from airflow_provider_kafka_migration.mirrors.group_sync import GroupSync
from airflow_provider_kafka_migration.mirrors.mirror_maker_state import Checkpoints, HeartbeatPasses
from airflow_provider_kafka_migration.planning import late_ids
from airflow_provider_kafka_migration.planning.follow import lanes_with
from airflow_provider_kafka_migration.record import keys, producer_ids, steps
from airflow_provider_kafka_migration.record.context import Cluster, JobRef, PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.offset_maps import job_figures, write_open_map
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.schemas.settings_left import try_to_put_back_target
from airflow_provider_kafka_migration.schemas.sync import SchemaFollower
from airflow_provider_kafka_migration.topics.large_batches import make_room
from airflow_provider_kafka_migration.topics.recopy import make_missing, recopy

PHASE: Final = "seed"


def run(context: PhaseContext) -> PhaseResult:
    """Write the job once, run it, and verify on the brokers that every stop offset is reached.

    :raises CopyFailed: some partitions could not be copied; the error lists them.
    """
    return JOB_PHASE.run(context)


def prepare(context: PhaseContext) -> Step:
    """Write the job, or renew it after an earlier run; a result if every stop offset was reached before."""
    record = context.record
    job = record.job(PHASE)
    if job is None:
        late_ids.before_first_copy(context)
        job = _write_job(record, context.source)
    job = _without_dropped(record, job)
    recopy(context, PHASE, job)
    late_ids.before_copied_again(context, PHASE, job)
    make_missing(context, PHASE, job)
    make_room(context, PHASE)
    done = context.journal.find_step(steps.SEED_DONE)
    if done is not None and not _behind(record, context.target, job):
        try_to_put_back_target(context)
        return PhaseResult(PHASE, str(done.details["summary"]), dict(done.details), already_done=True)
    renewed = copy_jobs.renewed(record, context.source, job)
    if renewed != record.job(PHASE):
        context.journal_store.put(copy_jobs.job_key(record, PHASE), renewed.canonical())
    return job_ref(record, PHASE)


def finish(context: PhaseContext, _job: JobRef) -> Step:
    """Verify on the brokers that every stop offset is reached, and journal it.

    :raises CopyFailed: some partitions have not reached their stop offsets.
    """
    record = context.record
    job = record.job(PHASE)
    assert job is not None
    _check(record, context.target, job)
    details = _details(record, context.target, job, record.job_progress(PHASE))
    write_open_map(record, context.target)
    context.journal.step(steps.SEED_DONE, details=details)
    return PhaseResult(PHASE, details["summary"], details)


@contextmanager
def _beside(context: PhaseContext) -> Iterator[None]:
    # Groups of a mirror, or of a migration that asks for it, follow from the moment that a partition is copied.
    with (
        SchemaFollower(context),
        GroupSync(context),
        Checkpoints(context),
        HeartbeatPasses(context),
        EarlyGroupSync(context),
        copy_jobs.beside(context),
    ):
        yield


def _follow(context: PhaseContext, memory: dict[str, Any]) -> None:
    producer_ids.renew_if_due(context.record, context.target, memory)
    SchemaFollower(context).once(memory)
    GroupSync(context).once(memory)
    Checkpoints(context).once(memory)
    HeartbeatPasses(context).once(memory)
    EarlyGroupSync(context).once(memory)


def _without_dropped(record: MigrationRecord, job: CopyJob) -> CopyJob:
    """Return the job without partitions that have left the plan since: topics that a person took out of a way back."""
    if not any(entry.details.get("dropped") for entry in record.journal.steps(steps.PLAN_SUPPLEMENTED)):
        return job
    planned = copy_jobs.planned_partitions(record.spec, record.plan())
    return job.model_copy(update={"lanes": lanes_with(job, planned, {})})


def _write_job(record: MigrationRecord, source: Cluster) -> CopyJob:
    plan = record.plan()
    partitions = copy_jobs.planned_partitions(record.spec, plan)
    stable = source.wire.list_offsets(list(partitions), "stable")
    partitions = {
        key: item.model_copy(update={"until_offset": max(stable[key], item.source_start_offset)})
        for key, item in partitions.items()
    }
    job = copy_jobs.build_job(record, source, "seed", copy_jobs.lanes_of(record, plan, partitions))
    record.journal.check_holds()
    record.journal_store.put(copy_jobs.job_key(record, PHASE), job.canonical())
    return job


def _until(job: CopyJob) -> dict[tuple[str, int], int]:
    return {item.key: item.until_offset or item.source_start_offset for item in job.partitions}


def _behind(record: MigrationRecord, target: Cluster, job: CopyJob) -> dict[tuple[str, int], tuple[int, int]]:
    return copy_jobs.behind(record, target, job, _until(job))


def _check(record: MigrationRecord, target: Cluster, job: CopyJob) -> None:
    """Check on the brokers themselves: a job that ended without error but copied too little must not turn green."""
    left = _behind(record, target, job)
    if left:
        (topic, partition), (position, until) = sorted(left.items())[0]
        raise CopyFailed(
            f"{len(left)} partitions have not reached their stop offsets; the first is at {position} of {until}",
            where=record.where(PHASE, topic=topic, partition=partition, offset=position),
            next_step="clear seed: it continues from the target's log ends",
            details={"partitions": [[*key, *value] for key, value in sorted(left.items())]},
        )


def _details(record: MigrationRecord, target: Cluster, job: CopyJob, progress: dict[str, Any]) -> dict[str, Any]:
    verdicts: dict[str, int] = {}
    for item in progress.get("partitions", []):
        verdict = str(item["verdict"])
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    figures = job_figures(record, target, job, progress)
    details: dict[str, Any] = {
        "summary": f"seed complete: {figures['records']} records, {figures['copied_bytes'] / 1e6:.1f} MB, "
        f"{len(job.partitions)} partitions",
        **figures,
        "partitions": len(job.partitions),
        "offsets": sum(until - item.source_start_offset for item, until in _spans(job)),
        "verdicts": verdicts,
        "gaps": record.gaps(),
        "overtaken_tombstones": record.overtaken(),
        "target_losses": target_losses.found(record),
        "via": job.via,
    }
    if job.via == "s3":
        manifest = build_manifest(record.archive_store, record.migration_id)
        record.archive_store.put(record.key(keys.MANIFEST), manifest.canonical())
        details["manifest"] = {"uri": f"{record.archive_store.uri}/{record.key(keys.MANIFEST)}"}
    return details


def _spans(job: CopyJob) -> list[tuple[Any, int]]:
    until = _until(job)
    return [(item, until[item.key]) for item in job.partitions]


JOB_PHASE: Final = JobPhase(
    jobs=(PHASE,),
    prepare=prepare,
    finish=finish,
    run_job=copy_jobs.run_job,
    beside=_beside,
    follow=_follow,
    read_progress=copy_jobs.copy_progress,
)
