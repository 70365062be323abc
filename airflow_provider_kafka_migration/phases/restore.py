"""Restore: archive -> target, by a process that knows only the storage and the target.

Topics are created in the same way as by plan and topology_copy, from the backup's snapshot of its source. At the end
the target is compared with the archive, record by record, and the archived offsets of consumer groups are committed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.documents.copy import (
    BackupEnd,
    BackupSource,
    CopyJob,
    CopyPartition,
    RestoreResult,
    StopAt,
)
from airflow_provider_kafka_migration.documents.cutover import GroupResult
from airflow_provider_kafka_migration.documents.plan import Plan, Verdict
from airflow_provider_kafka_migration.documents.proof import ContentJob, ContentRange, PartitionContent, TopicRules
from airflow_provider_kafka_migration.errors import GroupsIncomplete, Transient, ValidationFailed
from airflow_provider_kafka_migration.groups import commit
from airflow_provider_kafka_migration.jobs import content_jobs, copy_jobs
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase, Step, job_ref
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap
from airflow_provider_kafka_migration.planning.make import plan_of_look, put_plan
from airflow_provider_kafka_migration.planning.source_snapshot import snapshot_of
from airflow_provider_kafka_migration.record import keys, offset_maps, producer_ids, steps
from airflow_provider_kafka_migration.record.context import Cluster, JobRef, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.partition_names import target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.topics import bring, copy_settings

PHASE: Final = "restore"
JOB = "verify-archive"


def run(context: PhaseContext, *, follow: bool = False, commit_groups: bool = True) -> PhaseResult:
    """Restore what the archive has, or follow a continuous backup until it ends.

    :param follow: continue until ``backup --finish`` has set the end and the restore has reached it.
    :param commit_groups: commit the archived offsets of groups, if the backup is complete.
    :raises Transient: no backup has begun yet.
    :raises ValidationFailed: the target differs from the archive.
    :raises GroupsIncomplete: the offsets of some groups could not be committed.
    """
    phase = replace(JOB_PHASE, finish=partial(finish, commit_groups=commit_groups))
    return phase.run(context, follow=follow)


def prepare(context: PhaseContext, *, follow: bool = False) -> Step:
    """Create the topics and write the job.

    :raises Transient: no backup has begun yet.
    """
    record = context.record
    source = record.backup_source()
    if source is None:
        raise Transient(
            "there is no backup to restore",
            where=context.where(PHASE, path=f"{context.archive_store.uri}/{context.key(keys.BACKUP_SOURCE)}"),
            next_step="start `kafka-migration backup` on the side of the source, with the same storage; then try again",
        )
    plan = _plan(context, source)
    bring.bring(context, plan)
    _job(record, context.source, plan, follow=follow)
    return job_ref(record, PHASE)


def finish(context: PhaseContext, ended: JobRef, *, commit_groups: bool = True) -> Step:
    """After the copy, write the job that compares the target with the archive; after that one, end the restore.

    :raises ValidationFailed: the target differs from the archive.
    :raises GroupsIncomplete: the offsets of some groups could not be committed.
    """
    record = context.record
    job = record.job(PHASE)
    assert job is not None
    ends = _ends(record, job)
    if ended.name == PHASE:
        _write_content_job(context, job, ends)
        return job_ref(record, JOB)
    contents = _read_contents(context)
    end = record.backup_end()
    complete = end is not None and all((end.until(*key) or 0) <= until for key, until in ends.items())
    results: list[GroupResult] = []
    if complete and end is not None:
        copy_settings.restore_producer_visible(record, context.target)
        copy_settings.restore_deleting(record, context.target)
        results = _commit_groups(context, end, ends) if commit_groups else []
    result = RestoreResult(
        migration_id=context.migration_id,
        finished_at=iso(context.now()),
        backup_end_digest=end.digest() if complete and end is not None else "",
        manifest_digest=end.manifest_digest if complete and end is not None else "",
        contents=contents,
        groups=results,
    )
    return _finish(record, result, record.job_progress(PHASE), complete=complete)


def _run_job(context: PhaseContext, job: JobRef) -> None:
    (copy_jobs.run_job if job.name == PHASE else content_jobs.run_content_job)(context, job)


def _beside(context: PhaseContext) -> AbstractContextManager[object]:
    return copy_jobs.beside(context)


def _follow(context: PhaseContext, memory: dict[str, Any]) -> None:
    producer_ids.renew_if_due(context.record, context.target, memory)


def _read_progress(record: MigrationRecord, job: JobRef) -> Progress | None:
    return copy_jobs.copy_progress(record, job) if job.name == PHASE else content_jobs.content_progress(record, job)


def _finish(record: MigrationRecord, result: RestoreResult, progress: dict[str, Any], *, complete: bool) -> PhaseResult:
    key = record.put_result(keys.RESTORE, result)
    records = sum(item.compared for item in result.contents)
    text = "" if complete else "; the backup has not ended: configs and groups are restored when it has"
    summary = f"restored: {records} records in {len(result.contents)} partitions equal the archive{text}"
    details = {
        "summary": summary,
        "result": key,
        "digest": result.digest(),
        "records": int(progress.get("records", 0)),
        "compared_records": records,
        "complete": complete,
        "groups": len(result.groups),
    }
    record.journal.step(steps.RESTORED, details=details, reason=summary)
    incomplete = [item.group for item in result.groups if item.failures]
    if incomplete:
        raise GroupsIncomplete(
            f"the offsets of {len(incomplete)} groups could not be committed; the first is {incomplete[0]}",
            where=record.where(PHASE, group=incomplete[0]),
            next_step=f"see {key} for the causes; correct them and run the restore again: it does not repeat what is "
            "done",
            details={"groups": incomplete},
        )
    return PhaseResult(PHASE, summary, details)


def _plan(context: PhaseContext, source: BackupSource) -> Plan:
    """Return the plan of an earlier run, or make one from the archived snapshot of the source."""
    if context.record.has_plan():
        return context.record.plan()
    context.progress(Progress(PHASE, "planning from the archive"))
    plan = plan_of_look(
        context.record,
        context.target,
        snapshot_of(source),
        notes=["made from a backup, which does not contain ACLs, users and quotas"],
    )
    put_plan(context.record, context.source, context.target, plan)
    return plan


def _job(record: MigrationRecord, source: Cluster, plan: Plan, *, follow: bool) -> CopyJob:
    spec, end = record.spec, record.backup_end()
    partitions = copy_jobs.planned_partitions(record.spec, plan)
    if not follow:
        partitions = {
            key: item.model_copy(update={"until_offset": max(_archived(record, item, end), item.source_start_offset)})
            for key, item in partitions.items()
        }
    lanes = copy_jobs.lanes_of(record, plan, partitions)
    job = copy_jobs.build_job(record, source, "tail", lanes).model_copy(
        update={
            "name": PHASE,
            "lanes": lanes,
            "via": "s3",
            "slice_seconds": spec.tail.slice_seconds if follow else spec.seed.slice_seconds,
            "max_bytes_per_second": spec.tail.max_bytes_per_second if follow else spec.seed.max_bytes_per_second,
            "stop_key": record.key(keys.TAIL_STOP) if follow else None,
            "proof": None,
        }
    )
    record.journal.check_holds()
    record.journal_store.put(copy_jobs.job_key(record, PHASE), job.canonical())
    return job


def _archived(record: MigrationRecord, item: CopyPartition, end: BackupEnd | None) -> int:
    """Return where a partition ends that is not followed: the end of the backup, or what the archive has by now."""
    until = None if end is None else end.until(*item.key)
    if until is not None:
        return until
    index = SegmentIndex(record.archive_store, record.migration_id, *item.key, topic_id=item.topic_id)
    return index.until_offset(item.source_start_offset)


def _ends(record: MigrationRecord, job: CopyJob) -> dict[tuple[str, int], int]:
    stop = StopAt.in_force(record.journal_store.get(job.stop_key)) if job.stop_key is not None else None
    ends = {}
    for item in job.partitions:
        until = item.until_offset if stop is None else stop.offset(*item.key)
        if until is None:
            raise Transient(
                "the restore has ended, but no stop was set for it",
                where=record.where(PHASE, topic=item.topic, partition=item.partition),
                next_step="run the restore again: it continues from the target's log ends",
            )
        ends[item.key] = max(until, item.source_start_offset)
    return ends


# -- proof -----------------------------------------------------------------------------------------------------------


def _write_content_job(context: PhaseContext, job: CopyJob, ends: dict[tuple[str, int], int]) -> None:
    """Write the job that compares the target with the archive: it reads all segments again and verifies checksums."""
    target_ends = context.target.wire.list_offsets([target_key(item) for item in job.partitions], "log_end")
    maps = offset_maps.load_maps(context.record, context.target, {item.key: item for item in job.partitions})
    ranges = [
        ContentRange(
            topic=item.topic,
            target_topic=item.target_topic,
            partition=item.partition,
            verdict=_verdict(item, maps[item.key]),
            source_start_offset=item.source_start_offset,
            source_end_offset=ends[item.key],
            target_start_offset=item.target_start_offset,
            target_end_offset=target_ends[target_key(item)],
        )
        for item in job.partitions
    ]
    rules = TopicRules(compacted=False, delete_retention_ms=None)
    content_job = ContentJob(
        migration_id=context.migration_id,
        attempt=len(context.journal.steps(steps.RESTORED)) + 1,
        journal_location=context.spec.storage.journal,
        archive_location=context.spec.storage.archive_location,
        timestamps=context.spec.offsets.timestamps,
        topics={item.topic: rules for item in ranges},
        schema_ids=job.schema_ids,
        ranges=ranges,
    )
    context.journal_store.put(copy_jobs.job_key(context.record, JOB), content_job.canonical())


def _read_contents(context: PhaseContext) -> list[PartitionContent]:
    contents = content_jobs.read_results(context.record, JOB)
    bad = [item for item in contents if not item.is_equal]
    if bad:
        first = bad[0].differences[0].detail if bad[0].differences else str(bad[0].error)
        raise ValidationFailed(
            f"{len(bad)} partitions differ from the archive; the first is {bad[0].topic}-{bad[0].partition}: {first}",
            where=context.where(PHASE, topic=bad[0].topic, partition=bad[0].partition),
            next_step="find out who else writes to the target topic; delete the topic there and run the restore again",
            details={"partitions": [item.model_dump(mode="json") for item in bad[:50]]},
        )
    return contents


def _verdict(item: CopyPartition, offset_map: PartitionMap) -> Verdict:
    """Return the final verdict: an equal or shifted partition may have become mapped while it was restored."""
    if item.verdict is Verdict.TRANSACTIONAL:
        return item.verdict
    return Verdict.MAPPED if len(offset_map) > 1 else item.verdict


# -- groups ----------------------------------------------------------------------------------------------------------


def _commit_groups(context: PhaseContext, end: BackupEnd, ends: dict[tuple[str, int], int]) -> list[GroupResult]:
    record = context.record
    partitions = record.partitions()
    target_ends = context.target.wire.list_offsets([target_key(item) for item in partitions.values()], "log_end")
    by_source = {key: target_ends[target_key(item)] for key, item in partitions.items()}
    document = offset_maps.build_document(record, context.target, ends, by_source)
    context.evidence_store.put(context.key(keys.OFFSET_MAP), document.canonical())
    snapshot = record.backup_groups(end)
    context.journal.check_holds()
    translator = commit.GroupTranslator(partitions, offset_maps.closed_maps(document))
    results = commit.commit(context, snapshot.groups, translator)
    record.put_result(keys.GROUPS, commit.make_result(record, results, snapshot.groups))
    return results


JOB_PHASE: Final = JobPhase(
    jobs=(PHASE, JOB),
    prepare=prepare,
    finish=finish,
    run_job=_run_job,
    beside=_beside,
    follow=_follow,
    read_progress=_read_progress,
)
