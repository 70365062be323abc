"""The process of :mod:`benchmarks.peers.ours`: runs a copy job with the local runner.

``python -m benchmarks.peers.ours_worker FOLDER REFERENCES JOURNAL_LOCATION JOB_KEY``. With ``BENCH_PROFILE`` in the
environment it writes a profile (cProfile) of each lane's thread into the folder.
"""

from __future__ import annotations

import cProfile
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.lanes import slices
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from benchmarks.peers.base import note_idle_size


def _profiled(run: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    def wrapper(*arguments: Any, **options: Any) -> Any:
        profile = cProfile.Profile()
        try:
            return profile.runcall(run, *arguments, **options)
        finally:
            profile.dump_stats(folder / f"profile-{threading.get_ident()}.prof")

    return wrapper


def main() -> int:
    """Copy until the job is done; a tail goes on until it is killed."""
    folder, references, journal, key = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    if os.environ.get("BENCH_PROFILE"):
        slices.run_slice = _profiled(slices.run_slice, Path(folder))  # type: ignore[assignment]
    clients = Clients.from_file(references)
    job = clients.load_job(journal, key)
    note_idle_size(Path(folder))
    LocalRunner(clients, threads=len(job.lanes)).run(job)
    return 0


if __name__ == "__main__":
    sys.exit(main())
