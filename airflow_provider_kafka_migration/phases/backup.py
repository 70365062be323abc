"""Backup: source -> archive, by a process that knows only the source and the storage.

In addition to the segments, the archive holds everything that a restore needs to know about the source:
``backup/source.json`` (topics, configs, log starts and ends), ``backup/groups.json`` (committed offsets), and
``backup/end.json`` once the backup is complete. Segments are create-only and named by their content, so a backup may
be killed, repeated, or run twice at the same time.
"""

from __future__ import annotations

from typing import Any, Final

from airflow_provider_kafka_migration.copy.archive import SegmentIndex, build_manifest, joined, read_gaps
from airflow_provider_kafka_migration.documents.copy import (
    BackupEnd,
    BackupRange,
    BackupSource,
    CopyJob,
    CopyLane,
    CopyPartition,
    ProducerIds,
    StopAt,
)
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import CopyFailed, ObjectExists, Transient
from airflow_provider_kafka_migration.freeze import tail_stop
from airflow_provider_kafka_migration.groups import commit
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase, Step, job_ref
from airflow_provider_kafka_migration.lanes.assignment import assign_lanes
from airflow_provider_kafka_migration.planning import source_snapshot
from airflow_provider_kafka_migration.planning.source_snapshot import (
    archived,
)
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import Cluster, JobRef, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.partition_names import by_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec

PHASE: Final = "backup"
#: A backup writes to no cluster, so it takes no producer id.
_NO_IDS = ProducerIds(
    data_producer_id=-1, data_producer_epoch=-1, filler_producer_id=-1, filler_producer_epoch=-1
)  # fmt: skip


def run(context: PhaseContext, *, follow: bool = False, finish: bool = False) -> PhaseResult:
    """Archive up to the current ends, or continuously until a stop is set.

    :param follow: continue until this or another process calls with ``finish``.
    :param finish: end a continuous backup at the source's current ends. Producers must have been stopped.
    :raises CopyFailed: some partitions could not be archived; the error lists them.
    """
    return JOB_PHASE.run(context, follow=follow, stop=finish)


def prepare(context: PhaseContext, *, follow: bool = False, stop: bool = False) -> Step:
    """Write the job.

    :param stop: set the stop of a continuous backup first, at the source's current ends.
    """
    record = context.record
    source = record.backup_source() or _write_source(context)
    if _is_over(record):
        # The stop of a complete backup does not apply to the next one.
        tail_stop.clear_stop(record)
    if stop:
        _stop_here(context, source)
    _job(context, source, follow=follow or stop)
    return job_ref(record, PHASE)


def finish(context: PhaseContext, _job: JobRef) -> Step:
    """Check in the archive itself that it is complete, and write the end of the backup.

    :raises CopyFailed: some partitions are not archived up to their end.
    """
    record = context.record
    job = record.job(PHASE)
    assert job is not None
    progress = record.job_progress(PHASE)
    ends = _check(record, job)
    end = _write_end(record, context.source, job, ends)
    records = int(progress.get("records", 0))
    copied_bytes = int(progress.get("copied_bytes", 0))
    summary = (
        f"backup complete: {len(end.ranges)} partitions, {records} records, {copied_bytes / 1e6:.1f} MB in this run"
    )
    details = {
        "summary": summary,
        "records": records,
        "copied_bytes": copied_bytes,
        "source_bytes": int(progress.get("source_bytes", 0)),
        "manifest": f"{context.archive_store.uri}/{end.manifest}",
        "manifest_digest": end.manifest_digest,
        "partitions": len(end.ranges),
        "gaps": sum(len(item.gaps) for item in end.ranges),
    }
    return PhaseResult(PHASE, summary, details)


def _write_source(context: PhaseContext) -> BackupSource:
    """Read the source once; if two backups begin at the same time, the snapshot stored first counts for both."""
    context.progress(Progress(PHASE, "reading the source"))
    document = archived(context.migration_id, source_snapshot.read_source(context))
    try:
        context.archive_store.put_new(context.key(keys.BACKUP_SOURCE), document.canonical())
    except ObjectExists:
        found = context.record.backup_source()
        assert found is not None
        return found
    return document


def _partitions(source: BackupSource) -> dict[tuple[str, int], CopyPartition]:
    return {
        (topic.name, item.partition): CopyPartition(
            topic=topic.name,
            target_topic=topic.name,
            partition=item.partition,
            topic_id=topic.topic_id,
            source_start_offset=item.log_start_offset,
            target_start_offset=item.log_start_offset,
            verdict=Verdict.EQUAL,
            size_bytes=item.size_bytes,
        )
        for topic in source.topics
        for item in topic.partitions
    }


def _is_over(record: MigrationRecord) -> bool:
    """Whether the latest job is complete."""
    end, former = record.backup_end(), record.job(PHASE)
    return end is not None and former is not None and end.job_digest == former.digest()


def _stop_here(context: PhaseContext, source: BackupSource) -> None:
    """Record where backup and restore end, unless a stop is already in force."""
    if context.record.tail_stop() is not None:
        return
    ends = context.source.wire.list_offsets(list(_partitions(source)), "stable")
    stop = StopAt(migration_id=context.migration_id, offsets=by_name(ends))
    context.journal_store.put(context.key(keys.TAIL_STOP), stop.canonical())


def _settings(spec: MigrationSpec, *, follow: bool) -> dict[str, Any]:
    """Return the fields of the job that the spec decides, and that a job which goes on takes from the present one."""
    section = spec.tail if follow else spec.seed
    return {
        "segment_max_bytes": spec.seed.segment_max_bytes,
        "segment_linger_seconds": spec.tail.segment_linger.total_seconds() if follow else 0.0,
        "max_concurrent_partitions": spec.seed.max_concurrent_partitions,
        "slice_seconds": section.slice_seconds,
        "on_source_gap": spec.offsets.on_source_gap,
        "max_bytes_per_second": section.max_bytes_per_second,
        "metrics": copy_jobs.metrics_settings(spec),
    }


def _job(context: PhaseContext, source: BackupSource, *, follow: bool) -> CopyJob:
    """Return the unfinished job, which keeps the ends it was given first, or a new job."""
    spec, former = context.spec, context.record.job(PHASE)
    if former is not None and not _is_over(context.record) and (former.stop_key is not None) == follow:
        renewed = former.model_copy(update=_settings(spec, follow=follow))
        if renewed != former:
            context.journal_store.put(copy_jobs.job_key(context.record, PHASE), renewed.canonical())
        return renewed
    partitions = _partitions(source)
    if not follow:
        stable = context.source.wire.list_offsets(list(partitions), "stable")
        partitions = {
            key: item.model_copy(update={"until_offset": max(stable[key], item.source_start_offset)})
            for key, item in partitions.items()
        }
    lanes = assign_lanes({key: item.size_bytes for key, item in partitions.items()}, spec.seed.lanes)
    job = CopyJob(
        migration_id=context.migration_id,
        name=PHASE,
        # No claim backs this number; it only distinguishes this backup from earlier ones.
        generation=1 if former is None else former.generation + 1,
        journal_location=spec.storage.journal,
        archive_location=spec.storage.archive_location,
        via="s3",
        producers=_NO_IDS,
        lanes=[
            CopyLane(
                lane=lane.lane, transactional_id="", partitions=[partitions[key[0], key[1]] for key in lane.partitions]
            )
            for lane in lanes
            if lane.partitions
        ],
        stop_key=context.key(keys.TAIL_STOP) if follow else None,
        **_settings(spec, follow=follow),
    )
    context.journal_store.put(copy_jobs.job_key(context.record, PHASE), job.canonical())
    return job


def _check(record: MigrationRecord, job: CopyJob) -> dict[tuple[str, int], int]:
    """Return where each partition ends, after checking in the archive itself that it is covered up to there."""
    stop = StopAt.in_force(record.journal_store.get(job.stop_key)) if job.stop_key is not None else None
    ends: dict[tuple[str, int], int] = {}
    left = []
    for item in job.partitions:
        until = item.until_offset if stop is None else stop.offset(*item.key)
        index = SegmentIndex(record.archive_store, record.migration_id, *item.key, topic_id=item.topic_id)
        covered = index.until_offset(item.source_start_offset)
        if until is None:
            raise Transient(
                "the backup has ended, but no stop was set for it",
                where=record.where(PHASE),
                next_step="run the backup again: it continues where the archive ends",
            )
        ends[item.key] = max(until, item.source_start_offset)
        if covered < ends[item.key]:
            left.append((item, covered))
    if left:
        item, covered = left[0]
        raise CopyFailed(
            f"{len(left)} partitions are not archived up to their end; the first one is archived up to offset "
            f"{covered} of {ends[item.key]}",
            where=record.where(PHASE, topic=item.topic, partition=item.partition, offset=covered),
            next_step="run the backup again: it continues where the archive ends",
        )
    return ends


def _write_end(record: MigrationRecord, source: Cluster, job: CopyJob, ends: dict[tuple[str, int], int]) -> BackupEnd:
    snapshot = commit.take_snapshot(record, source)
    record.archive_store.put(record.key(keys.BACKUP_GROUPS), snapshot.canonical())
    manifest = build_manifest(record.archive_store, record.migration_id)
    manifest_key = record.key(keys.MANIFEST)
    record.archive_store.put(manifest_key, manifest.canonical())
    former = record.backup_end()
    gaps = {(item.topic, item.partition): set(item.gaps) for item in former.ranges} if former is not None else {}
    for key, ranges in read_gaps((record.archive_store,), record.migration_id).items():
        gaps.setdefault(key, set()).update(ranges)
    end = BackupEnd(
        migration_id=record.migration_id,
        job_digest=job.digest(),
        follows=job.stop_key is not None,
        ranges=[
            BackupRange(
                topic=item.topic,
                partition=item.partition,
                from_offset=item.source_start_offset,
                until_offset=ends[item.key],
                gaps=joined(gaps.get(item.key, ())),
            )
            for item in job.partitions
        ],
        manifest=manifest_key,
        manifest_digest=manifest.digest(),
        groups=record.key(keys.BACKUP_GROUPS),
        groups_digest=snapshot.digest(),
    )
    record.archive_store.put(record.key(keys.BACKUP_END), end.canonical())
    return end


JOB_PHASE: Final = JobPhase(
    jobs=(PHASE,), prepare=prepare, finish=finish, run_job=copy_jobs.run_job, read_progress=copy_jobs.copy_progress
)
