"""Nobody copies: waits until whoever owned the lanes of a job sends nothing any more, and keeps the lanes meanwhile.

The journal's claim says who may drive copiers. It does not end a copier that has outlived its task: that one goes on
until its slice is over. Before a target topic is deleted it has to be gone, or it would append to the topic that is
made in its place, and a broker takes any first sequence from a producer that it does not know (KIP-360).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.lanes.leases import Lease, LeaseKeeper
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress

#: All jobs that write to the target share it.
SCOPE = "target"
#: Lanes that are waited for at a time: each may take a whole slice, and all owners have mostly gone at the same time.
_THREADS = 64


@contextmanager
def lanes_kept(context: PhaseContext, phase: str, job: CopyJob) -> Iterator[None]:
    """Wait for the owners of all lanes of a job that write to the target, at most about one slice; then nobody else
    gets these lanes until the block ends.

    :raises StorageUnavailable: the leases cannot be read or written.
    """
    context.progress(Progress(phase, "waits until earlier copiers of this migration have ended, at most one slice"))
    lanes = sorted({lane.lane for lane in job.lanes if lane.half != "backup"})
    keepers = [
        LeaseKeeper(context.journal_store, context.migration_id, SCOPE, lane, float(job.slice_seconds))
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
                # The task is to end, or the storage is away: the others give up, too.
                stop.set()
                raise
        yield
    finally:
        for keeper, lease in kept:
            keeper.end(lease)
