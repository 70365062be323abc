"""Seed: copy everything up to the end offsets seen at its first start.

Killed at any moment and run again it goes on from the target's log ends, to the same stop offsets.
"""

from __future__ import annotations

from typing import Any, Final

from airflow_provider_kafka_migration.documents.copy_job import CopyJob
from airflow_provider_kafka_migration.errors import CopyFailed
from airflow_provider_kafka_migration.phases import copy_jobs
from airflow_provider_kafka_migration.phases.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.phases.migrated import load_job
from airflow_provider_kafka_migration.phases.source_gaps import source_gaps
from airflow_provider_kafka_migration.phases.topology_missing import make_missing
from airflow_provider_kafka_migration.replication.segments import build_manifest

PHASE: Final = "seed"
DONE = "seed_done"


def run(context: PhaseContext) -> PhaseResult:
    """Write the job once, run it, verify on the brokers that every stop offset is reached.

    :raises CopyFailed: with every partition that could not be copied.
    """
    job = load_job(context, PHASE) or _write_job(context)
    make_missing(context, PHASE, job)
    done = context.journal.find_step(DONE)
    if done is not None and not _behind(context, job):
        return PhaseResult(PHASE, str(done.details["summary"]), dict(done.details), already_done=True)
    if job.generation != context.journal.generation:
        # A takeover: copiers must know whose they are; the stop offsets stay.
        job = job.model_copy(update={"generation": context.journal.generation})
        context.journal_store.put(copy_jobs.job_key(context, PHASE), job.canonical())
    progress = copy_jobs.run_job(context, PHASE)
    _check(context, job)
    details = _details(context, job, progress)
    context.journal.step(DONE, details=details)
    return PhaseResult(PHASE, details["summary"], details)


def _write_job(context: PhaseContext) -> CopyJob:
    plan = context.load_plan()
    partitions = copy_jobs.planned_partitions(context, plan)
    stable = context.source.wire.list_offsets(list(partitions), "stable")
    partitions = {
        key: item.model_copy(update={"until_offset": max(stable[key], item.source_start_offset)})
        for key, item in partitions.items()
    }
    job = copy_jobs.build_job(context, "seed", copy_jobs.lanes_of(context, plan, partitions))
    context.journal.check_holds()
    context.journal_store.put(copy_jobs.job_key(context, PHASE), job.canonical())
    return job


def _until(job: CopyJob) -> dict[tuple[str, int], int]:
    return {item.key: item.until_offset or item.source_start_offset for item in job.partitions}


def _behind(context: PhaseContext, job: CopyJob) -> dict[tuple[str, int], tuple[int, int]]:
    return copy_jobs.behind(context, job, _until(job))


def _check(context: PhaseContext, job: CopyJob) -> None:
    """The brokers have the last word: a job that ended well but copied too little must not turn green."""
    left = _behind(context, job)
    if left:
        (topic, partition), (position, until) = sorted(left.items())[0]
        raise CopyFailed(
            f"{len(left)} partitions have not reached their stop offsets; the first stands at {position} of {until}",
            where=context.where(PHASE, topic=topic, partition=partition, offset=position),
            next_step="clear seed: it goes on from the target's log ends",
            details={"partitions": [[*key, *value] for key, value in sorted(left.items())]},
        )


def _details(context: PhaseContext, job: CopyJob, progress: dict[str, Any]) -> dict[str, Any]:
    verdicts: dict[str, int] = {}
    for item in progress.get("partitions", []):
        verdict = str(item["verdict"])
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    records, copied = int(progress.get("records", 0)), int(progress.get("copied_bytes", 0))
    details: dict[str, Any] = {
        "summary": f"seed complete: {records} records, {copied / 1e6:.1f} MB, {len(job.partitions)} partitions",
        "records": records,
        "copied_bytes": copied,
        "source_bytes": int(progress.get("source_bytes", 0)),
        "holes": int(progress.get("holes", 0)),
        "partitions": len(job.partitions),
        "offsets": sum(until - item.source_start_offset for item, until in _spans(job)),
        "seconds": progress.get("seconds", -1),
        "verdicts": verdicts,
        "gaps": source_gaps(context),
        "via": job.via,
        # Figures are of the last run of the job: what an earlier, killed run copied is in the target, not in here.
        "figures_of": "last run",
    }
    if job.via == "s3":
        manifest = build_manifest(context.archive_store, context.migration_id)
        context.archive_store.put(context.key("manifest.json"), manifest.canonical())
        details["manifest"] = {"uri": f"{context.archive_store.uri}/{context.key('manifest.json')}"}
    return details


def _spans(job: CopyJob) -> list[tuple[Any, int]]:
    until = _until(job)
    return [(item, until[item.key]) for item in job.partitions]
