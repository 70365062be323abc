"""One slice of one lane: take the lease, copy until done, deadline or stop, end the lease."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from airflow_provider_kafka_migration.compare.lane_prover import LaneProver
from airflow_provider_kafka_migration.copy.backup import BackupCopier
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.copy.lane import LaneCopier, SliceLimits
from airflow_provider_kafka_migration.copy.partition import PartitionCopy
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult, StopAt
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.lanes.assignment import RateWatch
from airflow_provider_kafka_migration.lanes.claim_watch import ClaimWatch
from airflow_provider_kafka_migration.lanes.figures import SUMS, FiguresWriter
from airflow_provider_kafka_migration.lanes.leases import LeaseKeeper
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: A broker that does not answer holds a whole lane up for so long, no longer.
REQUEST_SECONDS = 10.0


class StopOffsets:
    """Where partitions stop: the job's own stop offsets, or the stop object once it is there."""

    _POLL_SECONDS = 0.5

    def __init__(self, job: CopyJob, store: ObjectStore) -> None:
        self._job = job
        self._store = store
        self._found: StopAt | None = None
        self._asked_at = 0.0

    def poll(self) -> StopAt | None:
        """The stop object, asked for now and then."""
        now = time.monotonic()
        if self._found is None and self._job.stop_key is not None and now - self._asked_at >= self._POLL_SECONDS:
            self._asked_at = now
            self._found = StopAt.in_force(self._store.get(self._job.stop_key))
        return self._found

    def until(self, copy: PartitionCopy) -> int | None:
        """Exclusive source offset where this partition stops, or None."""
        if copy.spec.until_offset is not None:
            return copy.spec.until_offset
        return None if self._found is None else self._found.offset(*copy.key)


def run_slice(
    job: CopyJob,
    lane: CopyLane,
    *,
    clients: Clients,
    attempt: int = 0,
    stop: Callable[[], bool] | None = None,
    slice_seconds: float | None = None,
) -> list[PartitionResult]:
    """Copy a lane for one slice; blocks. Never raises for a single partition: errors are in the results.

    :param attempt: of the task, for logs only; owners are told apart by leases.
    :param stop: asked now and then; True ends the slice early, whatever is left.
    :raises ClaimLost: another owner has taken the migration over.
    :raises MigrationError: nothing of the lane could be done (cluster or storage unreachable).
    """
    name = job.name
    if lane.half is not None:
        job = job.model_copy(update={"name": lane.half})
    asked_to_stop = stop or (lambda: False)
    store = clients.store(job.journal_location)
    seconds = float(slice_seconds or job.slice_seconds)
    scope = "backup" if job.name == "backup" else "target"
    keeper = LeaseKeeper(store, job.migration_id, scope, lane.lane, seconds)
    claim = ClaimWatch(job, store)
    if job.name != "backup":
        claim.check()
    lease = keeper.acquire(asked_to_stop)
    if lease is None:
        return []
    stops = StopOffsets(job, store)
    rates = RateWatch(job, store)
    figures = ("source_bytes",) if lane.half == "backup" else SUMS
    writer = FiguresWriter(store, job.migration_id, name, lane.lane, lease.generation, names=figures)

    def should_stop() -> bool:
        stops.poll()
        rates.poll()
        if job.name != "backup":
            claim.check()
        return asked_to_stop()

    with ExitStack() as opened:

        def wire(side: str) -> Wire:
            found = clients.wire(side, timeout_seconds=REQUEST_SECONDS)
            opened.callback(found.close)
            return found

        # All sockets are closed by then: nothing of this owner can reach a cluster except what the kernel already has.
        opened.callback(keeper.end, lease)
        stops.poll()
        rates.poll()
        limits = SliceLimits(lease.deadline, stops.until, should_stop, lambda: rates.bytes_per_second)
        copier: BackupCopier | LaneCopier
        archive = clients.store(job.archive_location) if job.via == "s3" else None
        if job.name == "backup":
            assert archive is not None
            copier = BackupCopier(job, lane, source=wire("source"), archive_store=archive, limits=limits)
        else:
            # A restore is given nothing of the source: it may be where nobody can reach it, or be gone.
            source = None if job.name == "restore" else wire("source")
            copier = LaneCopier(
                job, lane, source=source, target=wire("target"), map_store=store, archive_store=archive, limits=limits
            )
            opened.enter_context(LaneProver(job, lane, clients, store, lease.deadline))
        with writer.watching(copier.copies):
            results = copier.run()
    return [result.model_copy(update={"slice_number": lease.generation}) for result in results]


def lane_failed(lane: CopyLane, error: MigrationError) -> list[PartitionResult]:
    """Results that say that nothing of a lane could be done."""
    return [
        PartitionResult(
            lane=lane.lane,
            topic=spec.topic,
            partition=spec.partition,
            source_offset=-1,
            target_offset=-1,
            verdict=spec.verdict,
            error=error.as_dict(),
        )
        for spec in lane.partitions
    ]
