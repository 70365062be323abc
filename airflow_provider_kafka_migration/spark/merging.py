"""Takes in what a slice has brought: results to the coordinator, lines to the log, a pause when nothing worked."""

from __future__ import annotations

import logging

from airflow_provider_kafka_migration.lanes.job_progress import JobCoordinator
from airflow_provider_kafka_migration.lanes.slices import lane_failed
from airflow_provider_kafka_migration.spark.drivers import ProgressLines
from airflow_provider_kafka_migration.spark.pauses import Pauses
from airflow_provider_kafka_migration.spark.rows import SliceOutcome

log = logging.getLogger(__name__)


class Merger:
    """One per driver; used by one thread at a time."""

    def __init__(self, coordinator: JobCoordinator) -> None:
        self.coordinator = coordinator
        self._lines = ProgressLines(coordinator.job)
        self._pauses = Pauses(follows=coordinator.follows)

    def merge(self, outcome: SliceOutcome) -> float:
        """Record an outcome.

        :returns: seconds to wait before the next slice: more than 0 only if every lane of this one failed as a whole.
        """
        open_lanes = {lane.lane: lane for lane in self.coordinator.remaining_lanes()}
        results = list(outcome.results)
        for number, error in sorted(outcome.lane_errors.items()):
            log.info("Lane %d could not be driven: %s", number, error)
            if number in open_lanes:
                results += lane_failed(open_lanes[number], error)
        # The coordinator says which partitions are stuck or have failed.
        self.coordinator.record(results)
        log.info(self._lines.add(outcome.results))
        lanes = {result.lane for result in results}
        failed = lanes - {result.lane for result in results if not (result.error or result.trouble)}
        pause = self._pauses.after(lanes, failed)
        return pause if failed == lanes else 0.0
