"""The copy jobs of seed and tail: written from plan and journal, run by a runner, verified on the clusters."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

from airflow_provider_kafka_migration.documents.copy import (
    CopyJob,
    CopyLane,
    CopyPartition,
    MetricsSettings,
    ProofSettings,
    ProvenanceSettings,
    halves,
)
from airflow_provider_kafka_migration.documents.plan import Plan, Verdict
from airflow_provider_kafka_migration.documents.proof import topic_rules
from airflow_provider_kafka_migration.errors import MigrationError, Terminal, Transient, Where, followed_by
from airflow_provider_kafka_migration.jobs.content_jobs import delete_retention_of
from airflow_provider_kafka_migration.jobs.job_phase import JobRunner
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.lanes.job_progress import failure_kind
from airflow_provider_kafka_migration.lanes.slices import Lease, LeaseKeeper
from airflow_provider_kafka_migration.metrics.snapshot import Snapshot
from airflow_provider_kafka_migration.record import keys, producer_ids
from airflow_provider_kafka_migration.record.context import Cluster, JobRef, PhaseContext, Progress
from airflow_provider_kafka_migration.record.offset_maps import SourcePositions, only_holes
from airflow_provider_kafka_migration.record.overtaken import tombstone_settings
from airflow_provider_kafka_migration.record.partition_names import target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.schema_id_settings import schema_id_settings
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.spec.advice import JOB_FIELDS, begin_again

log = logging.getLogger(__name__)


def planned_partitions(spec: MigrationSpec, plan: Plan) -> dict[TopicPartition, CopyPartition]:
    """Return all partitions of the plan that are copied, in the form that copiers need."""
    found = {}
    for topic in plan.topics:
        on_mismatch = _on_mismatch(spec, topic.name)
        for item in topic.partitions:
            if item.left_out:
                continue
            copied = CopyPartition.of_plan(topic, item)
            found[copied.key] = copied.model_copy(update={"on_mismatch": on_mismatch})
    return found


def lanes_of(record: MigrationRecord, plan: Plan, partitions: dict[TopicPartition, CopyPartition]) -> list[CopyLane]:
    """Return the plan's lanes with what copiers need to know about each partition."""
    return [
        CopyLane(
            lane=lane.lane,
            transactional_id=f"kafka-migration.{record.migration_id}.lane-{lane.lane}",
            partitions=[partitions[(topic, number)] for topic, number in lane.partitions],
        )
        for lane in plan.lanes
        if lane.partitions
    ]


def build_job(
    record: MigrationRecord,
    source: Cluster,
    name: Literal["seed", "tail"],
    lanes: list[CopyLane],
    former: CopyJob | None = None,
) -> CopyJob:
    """Build the job document of a phase.

    :param former: the previous job, of this phase or of the one before.
    """
    spec = record.spec
    section = spec.seed if name == "seed" else spec.tail
    split = spec.seed.via == "split"
    return CopyJob(
        migration_id=record.migration_id,
        name=name,
        generation=record.journal.generation,
        journal_location=spec.storage.journal,
        archive_location=spec.storage.archive_location,
        via="s3" if split or (name == "seed" and spec.seed.via == "s3") else "direct",
        producers=record.producer_ids(),
        lanes=halves(lanes) if split else lanes,
        segment_linger_seconds=spec.tail.segment_linger.total_seconds() if name == "tail" else 0.0,
        segment_max_bytes=spec.seed.segment_max_bytes,
        max_concurrent_partitions=spec.seed.max_concurrent_partitions,
        slice_seconds=section.slice_seconds,
        timestamps=spec.offsets.timestamps,
        on_mismatch="stop" if spec.offsets.mode == "equal" else spec.offsets.on_mismatch,
        on_source_gap=spec.offsets.on_source_gap,
        tombstones=tombstone_settings(record.spec, source, record.plan(), former.tombstones if former else None),
        max_markers_per_record=spec.offsets.max_markers_per_record,
        max_markers=spec.offsets.max_markers,
        max_fill_seconds=spec.offsets.max_fill_time.total_seconds(),
        max_bytes_per_second=section.max_bytes_per_second,
        stop_key=record.key(keys.TAIL_STOP) if name == "tail" else None,
        proof=proof_settings(record, source, record.plan()) if name == "tail" else None,
        schema_ids=schema_id_settings(record),
        metrics=metrics_settings(spec),
        target_deletes=spec.kind == "mirror",
        way_back=spec.is_way_back,
        mirror=spec.kind == "mirror",
        target_compacts=target_compacts(spec, record.plan(), former),
        provenance=provenance_settings(spec, record.plan()),
    )


def renewed(record: MigrationRecord, source: Cluster, job: CopyJob) -> CopyJob:
    """Return the job for another run: what it copies stays; the owner, and what may still change, are the present ones.

    :param job: a seed's or a tail's.
    """
    name: Literal["seed", "tail"] = "seed" if job.name == "seed" else "tail"
    present = build_job(record, source, name, [], job)
    # After a takeover, copiers must belong to the current owner.
    fields = {"generation", *JOB_FIELDS}
    update = {field: getattr(present, field) for field in fields} | {"lanes": with_policies(record.spec, job.lanes)}
    return job.model_copy(update=update)


def with_policies(spec: MigrationSpec, lanes: Iterable[CopyLane]) -> list[CopyLane]:
    """Return lanes whose partitions have the present policy for offsets that cannot be kept."""
    return [
        lane.model_copy(
            update={
                "partitions": [
                    item.model_copy(update={"on_mismatch": _on_mismatch(spec, item.topic)}) for item in lane.partitions
                ]
            }
        )
        for lane in lanes
    ]


def _on_mismatch(spec: MigrationSpec, topic: str) -> Literal["stop", "note"] | None:
    return spec.offsets.on_mismatch_of(topic) if spec.offsets.by_topic else None


def provenance_settings(spec: MigrationSpec, plan: Plan) -> ProvenanceSettings | None:
    """How copied records are marked; None unless topics have the same names in both directions.

    :raises Terminal: a cluster has no id that could be the mark.
    """
    if spec.kind != "mirror" or not spec.mirror.merges:
        return None
    for name, facts in (("source", plan.source), ("target", plan.target)):
        if not facts.cluster_id:
            raise Terminal(
                f"records cannot be marked with where they come from: the {name} cluster reports no cluster id",
                where=Where(migration_id=spec.migration_id, cluster=name),
                next_step=f"{begin_again(spec)} and mirror.naming: default, which tells clusters by their aliases",
            )
    return ProvenanceSettings(
        header=spec.mirror.provenance_header,
        source_cluster_id=plan.source.cluster_id,
        target_cluster_id=plan.target.cluster_id,
        max_hops=spec.mirror.max_hops,
    )


def target_compacts(spec: MigrationSpec, plan: Plan, former: CopyJob | None = None) -> list[str]:
    """Return the source topics whose target topics are compacted while they are copied, or once were."""
    if spec.kind != "mirror":
        return []
    now = {topic.name for topic in plan.topics if "compact" in topic.target_configs.get("cleanup.policy", "")}
    return sorted(now | set(former.target_compacts if former is not None else ()))


def metrics_settings(spec: MigrationSpec) -> MetricsSettings:
    """Return what the spec says about metrics, as the process that drives a job needs it."""
    section = spec.metrics
    return MetricsSettings(
        max_topics=section.max_topics,
        max_partitions=section.max_partitions,
        prometheus_host=section.prometheus.host if section.prometheus.enabled else None,
        prometheus_port=section.prometheus.port,
        flow=f"{spec.mirror.source_alias}->{spec.mirror.target_alias}" if spec.kind == "mirror" else "",
    )


def proof_settings(record: MigrationRecord, source: Cluster, plan: Plan) -> ProofSettings | None:
    """How the tail compares in the background; None if it does not."""
    spec = record.spec
    # Copiers of a split job can reach only one of the clusters. Where a mirror deletes and compacts on the target, what
    # was compared is gone soon, and what is gone would look like a difference. Topics with the records of both clusters
    # are always left to the brokers.
    deletes = spec.kind == "mirror" and (spec.mirror.target_retention != "keep" or spec.mirror.merges)
    if not spec.validation.before_cutover or spec.seed.via == "split" or source.absent or deletes:
        return None
    try:
        rules = topic_rules(plan, delete_retention_of(record, source, plan))
    except MigrationError as error:
        # The validation compares everything; the comparison in the background must not prevent the start of a tail.
        log.warning("Nothing is compared in the background: %s", error)
        return None
    return ProofSettings(
        max_bytes_per_second=spec.validation.max_bytes_per_second,
        archive_of_deleted=spec.storage.archive_location if spec.seed.via == "s3" else None,
        topics={name: found for name, found in rules.items() if found.compacted},
    )


def job_key(record: MigrationRecord, name: str) -> str:
    """Key of a job document."""
    return record.key(keys.job(name))


def run_job(context: PhaseContext, job: JobRef) -> None:
    """Submit a copy job to the runner and wait for its end.

    :raises CopyFailed: the error lists every partition that could not be copied.
    :raises Transient: the runner failed as a whole (Spark could not start, was killed ...).
    """
    record, runner = context.record, context.runner
    if runner is None:
        raise Terminal(
            "there is no runner for copy jobs", where=context.where(job.name), next_step="configure a runner"
        )
    check_may_copy(context, job)
    try:
        if isinstance(runner, JobRunner):
            runner.run(record, job, lambda: read_progress(record, job.name))
        else:
            runner.submit(context.spec, job.location, job.key, lambda: read_progress(record, job.name))
    except MigrationError:
        raise
    except Exception as error:
        raise job_failed(record, job.name, error) from error


def check_may_copy(context: PhaseContext, job: JobRef) -> None:
    """Check the claim before a job writes to the target."""
    if job.name != "backup":
        # Segments are create-only and named by their content: any number of backups may write them.
        context.journal.check_holds()


def beside(context: PhaseContext) -> AbstractContextManager[object]:
    """Keep the target from forgetting the copiers' transactional id while a job runs."""
    return producer_ids.Renewal(context.record, context.target)


def copy_progress(record: MigrationRecord, job: JobRef) -> Progress | None:
    """Return the newest progress of a copy job as a line for people; None before the first one."""
    return read_progress(record, job.name)


def job_failed(record: MigrationRecord, name: str, error: Exception) -> MigrationError:
    """Build the error of a failed job: the failures that the job wrote say more than the exit of a process.

    :param error: what the runner raised; an error of this package is returned as it is if the job wrote no failures.
    """
    document = record.job_progress(name)
    task = "mirror" if record.spec.kind == "mirror" and name == "tail" else name
    generation = record.journal.generation
    # A job that did not finish ended for another reason than the partitions that had failed by then.
    finished = document.get("generation") == generation and document.get("finished")
    if finished and document.get("partitions_failed"):
        failed = [item for item in document["partitions"] if item["error"] and item.get("failed", True)]
        return failure_kind(item["error"] for item in failed)(
            f"{len(failed)} of {document['partitions_total']} partitions could not be copied; the first is "
            f"{failed[0]['topic']}-{failed[0]['partition']}: {failed[0]['error']['what']}",
            where=record.where(name),
            next_step=followed_by(
                failed[0]["error"]["next_step"], f"clear {task}: it continues from the target's log ends"
            ),
            details={"partitions": failed},
        )
    if isinstance(error, MigrationError):
        return error
    return Transient(
        f"the {name} job ended with an error: {str(error)[:500]}",
        where=record.where(name),
        next_step=f"see the task's log; then clear {task}: it continues from the target's log ends",
    )


def read_progress(record: MigrationRecord, name: str) -> Progress | None:
    """Return the newest progress as a line for people; None before the first one."""
    snapshot = Snapshot.of(record.journal_store, record.job_progress(name))
    if snapshot is None:
        return None
    document = snapshot.document
    everything = document.get("all_runs") or document
    done_bytes, total_bytes = int(everything["copied_bytes"]), int(document["total_bytes"])
    seconds = float(everything["seconds"])
    rate = done_bytes / seconds if seconds > 0 else 0.0
    left = max(total_bytes - done_bytes, 0)
    # A tail has no end, and its share of what there was says nothing: people wait for its lag.
    follows = name == "tail"
    where = (
        lag_text(snapshot) if follows else f"{document['partitions_done']} of {document['partitions_total']} partitions"
    )
    return Progress(
        phase=name,
        message=f"{where}, {everything['records']} records, {done_bytes / 1e6:.1f} MB{_throttled(document)}"
        f"{_overtaken(document)}{_went_back(document)}{_troubled(document)}",
        done=int(document["partitions_done"]),
        total=int(document["partitions_total"]),
        unit="partitions",
        done_bytes=done_bytes,
        total_bytes=-1 if follows else total_bytes,
        records_per_second=float(document["records_per_second"]),
        eta_seconds=left / rate if name == "seed" and rate > 0 else -1.0,
        failed=int(document.get("partitions_failed", 0)),
        went_back=int(document.get("partitions_went_back", 0)),
        stuck=int(document.get("partitions_stuck", 0)),
        stuck_seconds=float(document.get("stuck_seconds", 0.0)),
        heartbeat=f"{document.get('run')} {document.get('seconds')} {document.get('at')}",
        snapshot=snapshot,
    )


def lag_text(snapshot: Snapshot) -> str:
    """Return how far a copy that goes on is behind, and where it is worst, as its driver and lanes have reported it."""
    lags = {key: item.lag for key, item in snapshot.standings.items()}
    known = [lag for lag in lags.values() if lag >= 0]
    unknown, late = len(lags) - len(known), [lag for lag in known if lag]
    if not known:
        return "the lag is not known yet"
    if not late and not unknown:
        return f"all {len(lags)} partitions are up to date"
    if not late:
        return f"{len(known)} of {len(lags)} partitions are up to date, the lag of the others is not known yet"
    (topic, partition), largest = max(lags.items(), key=lambda item: item[1])
    rest = f", that of {unknown} is not known yet" if unknown else ""
    return (
        f"lag {sum(late)} records in {len(late)} of {len(lags)} partitions, "
        f"the largest {largest} at {topic}-{partition}{rest}"
    )


def _troubled(document: Mapping[str, Any]) -> str:
    """Partitions that are not being copied, for people; empty if there are none."""
    text = describe_troubles(document)
    return f"; {text}" if text else ""


def _overtaken(document: Mapping[str, Any]) -> str:
    found = int(document.get("partitions_overtaken", 0))
    return f", tombstones may have been removed before they were read in {_count(found)}" if found else ""


def _went_back(document: Mapping[str, Any]) -> str:
    found = int(document.get("partitions_went_back", 0))
    return f", THE TARGET LOST RECORDS after they were copied in {_count(found)}" if found else ""


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def describe_troubles(document: Mapping[str, Any]) -> str:
    """``2 partitions FAILED, 3 stuck for up to 40 s, the first is orders-1: [CODE] what``; empty if all are copied."""
    failed, stuck = int(document.get("partitions_failed", 0)), int(document.get("partitions_stuck", 0))
    parts = [f"{_count(failed)} FAILED"] if failed else []
    if stuck:
        parts.append(f"{_count(stuck)} stuck for up to {float(document['stuck_seconds']):.0f} s (tried again)")
    if not parts:
        return ""
    troubles = document.get("troubles") or []
    first = troubles[0] if troubles else None
    example = "" if first is None else f", {first['topic']}-{first['partition']}: [{first['code']}] {first['what']}"
    return ", ".join(parts) + example


def _throttled(document: Mapping[str, Any]) -> str:
    """Which brokers' quotas slow the copy down, for people; empty if none does."""
    seconds = {side: float(document.get(f"{side}_throttled_seconds", 0)) for side in ("source", "target")}
    return "".join(f", {side} throttles ({value:.0f} s so far)" for side, value in seconds.items() if value >= 1)


def behind(
    record: MigrationRecord,
    target: Cluster,
    job: CopyJob,
    until: dict[TopicPartition, int],
    *,
    source: Cluster | None = None,
) -> dict[TopicPartition, tuple[int, int]]:
    """Partitions whose target end is before their stop offset: (position, stop offset). Queries the brokers.

    :param source: is asked whether a mapped partition lacks records or only holes; without it, such a partition counts
        as copied.
    """
    partitions = {item.key: item for item in job.partitions}
    ends = target.wire.list_offsets([target_key(item) for item in partitions.values()], "log_end")
    positions = SourcePositions.load(record, target)
    found = {}
    for key, item in partitions.items():
        position = positions.of(item, ends[target_key(item)])
        # The end of a mapped partition tells nothing about holes behind its last record.
        mapped = item.verdict is Verdict.MAPPED or positions.is_mapped(key)
        if position >= until[key]:
            continue
        if not mapped or (source is not None and not only_holes(source, key, position, until[key])):
            found[key] = (position, until[key])
    return found


# -- lane owners ------------------------------------------------------------------------------------------------------
#
# Between copiers: wait until the former owners of a job's lanes have stopped sending, and hold the lanes meanwhile.
#
# The journal's claim decides who may drive copiers. It does not end a copier that has outlived its task: that copier
# continues until its slice is over. It has to end before a target topic is deleted, or it would append to the topic
# that replaces it, because a broker accepts any first sequence from a producer that it does not know (KIP-360).


#: Shared by all jobs that write to the target.
SCOPE = "target"
#: Number of lanes to wait for at a time: each may take a whole slice, but mostly all owners end at the same time.
_THREADS = 64


@contextmanager
def lanes_kept(context: PhaseContext, phase: str, job: CopyJob) -> Iterator[None]:
    """Wait for the owners of all lanes of a job that write to the target, at most about one slice.

    Then no other process gets these lanes until the block ends.

    :raises StorageUnavailable: the leases cannot be read or written.
    """
    context.progress(Progress(phase, "waiting until earlier copiers of this migration have ended, at most one slice"))
    lanes = sorted({lane.lane for lane in job.lanes if lane.half != "backup"})
    keepers = [
        LeaseKeeper(
            context.journal_store,
            context.migration_id,
            SCOPE,
            lane,
            float(job.slice_seconds),
            forgets=job.target_deletes,
        )
        for lane in lanes
    ]
    stop = threading.Event()
    kept: list[tuple[LeaseKeeper, Lease]] = []
    try:
        with ThreadPoolExecutor(min(max(len(keepers), 1), _THREADS), "lane-owners") as pool:

            def acquire(keeper: LeaseKeeper) -> None:
                lease = keeper.acquire(stop.is_set)
                if lease is not None:
                    kept.append((keeper, lease))

            futures = [pool.submit(acquire, keeper) for keeper in keepers]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                # The task has to end, or the storage is unavailable: the other threads give up, too.
                stop.set()
                raise
        yield
    finally:
        for keeper, lease in kept:
            keeper.end(lease)
