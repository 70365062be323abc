"""Runs a copy job in this process: a thread per lane. For the command line, tests and small migrations."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.lanes.job_progress import JobCoordinator
from airflow_provider_kafka_migration.lanes.lane_pauses import LanePauses
from airflow_provider_kafka_migration.lanes.slices import lane_failed, run_slice

#: A look at lanes that rest.
_REST_SECONDS = 0.1


def _slice_or_failure(
    job: CopyJob, lane: CopyLane, clients: Clients, stop: Callable[[], bool]
) -> list[PartitionResult]:
    try:
        return run_slice(job, lane, clients=clients, stop=stop)
    except MigrationError as error:
        return lane_failed(lane, error)


class LocalRunner:
    """Slices of all lanes side by side until the job is finished.

    :param threads: lanes at the same time.
    :param stop: asked now and then; True ends early (the job goes on where it was when run again).
    """

    def __init__(self, clients: Clients, *, threads: int = 4, stop: Callable[[], bool] | None = None) -> None:
        self._clients = clients
        self._threads = threads
        self._stop = stop or (lambda: False)

    def run(self, job: CopyJob, *, on_progress: Callable[[dict[str, object]], None] | None = None) -> dict[str, object]:
        """Copy until every partition is done; the final progress document.

        :raises CopyFailed: with all partitions that failed.
        """
        coordinator = JobCoordinator(job, self._clients.store(job.journal_location), on_progress=on_progress)
        coordinator.begin()
        running: dict[Future[list[PartitionResult]], int] = {}
        #: when a lane of which nothing could be copied is tried again (monotonic clock)
        rests: dict[int, float] = {}
        #: since when the slice of a lane runs (monotonic clock)
        began: dict[int, float] = {}
        pauses = LanePauses(follows=coordinator.follows)
        # Both halves of a split job must run at the same time, or the one waits for the other.
        threads = max(self._threads, len(job.lanes)) if any(lane.half for lane in job.lanes) else self._threads
        with ThreadPoolExecutor(threads, "lane") as pool:
            while not coordinator.finished and not self._stop():
                coordinator.refresh_job()
                self._start_lanes(pool, coordinator, running, rests)
                self._wait(running)
                for future in [future for future in running if future.done()]:
                    lane, results = running.pop(future), future.result()
                    began.pop(lane, None)
                    coordinator.record(results)
                    in_vain = bool(results) and all(result.error or result.trouble for result in results)
                    rests[lane] = time.monotonic() + pauses.after([lane], [lane] if in_vain else [])
                # Those that wait for a thread do not run yet.
                under_way = {lane for future, lane in running.items() if future.running()}
                began = {lane: began.get(lane, time.monotonic()) for lane in sorted(under_way)}
                coordinator.tick(began)
            # What the slices under way still do counts, also when they are told to stop: recorded gaps, for instance.
            for future in running:
                coordinator.record(future.result())
        return coordinator.check()

    def submit(self, spec: object, job_location: str, job_key: str, read_progress: object) -> None:
        """As a runner of the core (``phases.context.CopyRunner``): load the job document and run it.

        :raises CopyFailed: with all partitions that failed.
        """
        self.run(self._clients.load_job(job_location, job_key))

    @staticmethod
    def _wait(running: dict[Future[list[PartitionResult]], int]) -> None:
        """Until a slice has ended, or for a moment when all lanes rest."""
        if running:
            wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
        else:
            time.sleep(_REST_SECONDS)

    def _start_lanes(
        self,
        pool: ThreadPoolExecutor,
        coordinator: JobCoordinator,
        running: dict[Future[list[PartitionResult]], int],
        rests: dict[int, float],
    ) -> None:
        busy = set(running.values())
        now = time.monotonic()
        for lane in coordinator.remaining_lanes():
            if lane.lane not in busy and rests.get(lane.lane, 0.0) <= now:
                future = pool.submit(_slice_or_failure, coordinator.job, lane, self._clients, self._stop)
                running[future] = lane.lane
