"""A separate copier process that tests can kill: runs slices of one lane until its partitions are done.

``python -m harness.copiers.copy_worker REFERENCES JOURNAL_LOCATION JOB_KEY LANE [--slice-seconds S] [--slices N]
[--without NET,...] [--at ACTION:POINT:N]``; see :mod:`harness.faults.nets` and :mod:`harness.faults.points`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.lanes.slices import run_slice
from harness.faults.nets import switch_off
from harness.faults.points import FaultPoint

#: The first line on stderr: all imports are done, the copy begins.
BEGUN = "copier begins"


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy; the last line of the output is the results as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("references")
    parser.add_argument("journal_location")
    parser.add_argument("job_key")
    parser.add_argument("lane", type=int)
    parser.add_argument("--slice-seconds", type=float, default=None)
    parser.add_argument("--slices", type=int, default=1_000_000)
    parser.add_argument("--without", default="", help="nets to switch off")
    parser.add_argument("--at", default="", help="kill or stop this process at an exact moment")
    options = parser.parse_args(arguments)
    switch_off([name for name in options.without.split(",") if name])
    if options.at:
        FaultPoint(options.at).install()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    print(BEGUN, file=sys.stderr, flush=True)
    clients = Clients.from_file(options.references)
    for _ in range(options.slices):
        try:
            job = clients.load_job(options.journal_location, options.job_key)
            lane = next(lane for lane in job.lanes if lane.lane == options.lane)
            results = run_slice(job, lane, clients=clients, slice_seconds=options.slice_seconds)
        except MigrationError as error:
            print(error, file=sys.stderr, flush=True)
            if error.as_dict()["kind"] == "terminal":
                return 2
            time.sleep(0.2)
            continue
        finally:
            clients.close()
        print(json.dumps([item.model_dump(mode="json") for item in results]), flush=True)
        if any(item.error is not None and item.error["kind"] == "terminal" for item in results):
            return 1
        if all(item.done for item in results):
            return 0
    return 3


if __name__ == "__main__":
    sys.exit(main())
