"""The tail's driver: it keeps as many slices running as Spark has slots until every partition has reached its stop.

A task drives all lanes of its slot without pause, so the latency is that of the wire; only records that are written
between two slices of a lane also wait for that gap. The lanes that have just ended a slice are spread over the slots
that are free then.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kafka_migration.spark.main import JobArguments, run_main, spark_errors
from airflow_provider_kafka_migration.spark.rows import SliceOutcome
from airflow_provider_kafka_migration.spark.session import copy_job
from airflow_provider_kafka_migration.spark.slice_loop import SliceLoop, Unit, group_lanes, lane_weights

#: How long lanes rest whose partitions have all reached their stop, or have failed: the stop may be withdrawn,
#: partitions may be added, and what is wrong may be mended.
_DONE_SECONDS = 1.0


class TailDriver(SliceLoop):
    """Runs a copy job that follows its source."""

    def _next_units(self, busy: set[int]) -> list[Unit]:
        lanes = [lane for lane in self._coordinator.job.lanes if lane.lane not in busy and lane.partitions]
        with spark_errors("counting the slots of Spark"):
            free = self._runner.slots() - len(self._open)
        if not lanes or (free < 1 and self._open):
            return []
        # A task reads the job document itself, for partitions that were added since: None instead of a list.
        return [self._unit(group, None) for group in group_lanes(lane_weights(lanes), free)]

    def _running_since(self) -> Mapping[int, float]:
        return self._began

    def _rest(self, unit: Unit, outcome: SliceOutcome) -> float:
        # Where everything has failed, the merger decides.
        is_over = all(result.done or result.error is not None for result in outcome.results)
        return _DONE_SECONDS if is_over and (outcome.results or not outcome.lane_errors) else 0.0


def run_job(arguments: JobArguments) -> None:
    """Run the tail: the function of its Spark main."""
    with copy_job(arguments) as (runner, job, coordinator):
        TailDriver(runner, job, arguments.pointer, coordinator).run()


def main() -> int:
    """Run ``spark_jobs/tail.py``."""
    return run_main(run_job, "Copies the partitions of a job until stop offsets are set and all of them are reached.")
