"""The seed's driver: it runs slice after slice of each unfinished lane until the coordinator has finished.

Each lane is a unit of its own, so a finished lane never waits for a slow one, and Spark's scheduler distributes the
open lanes over the slots.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kafka_migration.spark.main import JobArguments, run_main
from airflow_provider_kafka_migration.spark.session import copy_job
from airflow_provider_kafka_migration.spark.slice_loop import SliceLoop, Unit


class SeedDriver(SliceLoop):
    """Runs a copy job of batch reads."""

    def _next_units(self, busy: set[int]) -> list[Unit]:
        return [
            self._unit([lane.lane], [spec.key for spec in lane.partitions])
            for lane in self._coordinator.remaining_lanes()
            if lane.lane not in busy
        ]

    def _running_since(self) -> Mapping[int, float]:
        # More lanes than slots are normal here: slices wait in Spark's queue for as long as others copy.
        return {}


def run_job(arguments: JobArguments) -> None:
    """Run the seed, or another copy job that ends by itself (backup, restore): the function of its Spark main."""
    with copy_job(arguments) as (runner, job, coordinator):
        SeedDriver(runner, job, arguments.pointer, coordinator).run()


def main() -> int:
    """Run ``spark_jobs/seed.py``."""
    return run_main(run_job, "Copies the partitions of a job up to their end offsets.")
