"""A detached Spark engine for tests: a cluster of one machine, whose jobs belong to no process of Airflow.

It outlives the task, the worker, the scheduler and the whole Airflow that has submitted a job; any process of the
machine can ask for it. Job ``<token>`` has the files ``<token>.json``, ``.pid``, ``.log``, ``.status``, ``.cancelled``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow_provider_kafka_migration.engines.base import JobState, JobStatus

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.engines.base import SparkJob

_POLL_SECONDS = 0.1


class ProcessEngine:
    """Talks to a :class:`ProcessCluster` through its folder.

    :param folder: of the cluster.
    """

    name: ClassVar[str] = "process"
    detached = True

    def __init__(self, *, folder: str) -> None:
        self._folder = Path(folder)
        self.arguments: dict[str, Any] = {"folder": folder}

    def _file(self, job_id: str, kind: str) -> Path:
        return self._folder / f"{job_id}.{kind}"

    def submit(self, job: SparkJob) -> str:
        """Ask for a driver; the same token is one job."""
        file = self._file(job.token, "json")
        if not file.exists():
            conf = [part for key, value in sorted(job.conf.items()) for part in ("--conf", f"{key}={value}")]
            program = str(Path(sys.executable).with_name("spark-submit"))
            named = ["--master", "local[2,4]", "--name", job.application_name]
            command = [program, *named, *conf, str(job.main), *job.arguments]
            asked = {"command": command, "environment": {**os.environ, **job.environment}}
            partial = file.with_suffix(f".partial-{os.getpid()}")
            partial.write_text(json.dumps(asked))
            partial.replace(file)
        return job.token

    def status(self, job_id: str) -> JobStatus:
        """Say how the driver is."""
        if not self._file(job_id, "json").exists():
            return JobStatus(JobState.LOST)
        if not self._file(job_id, "status").exists():
            return JobStatus(JobState.RUNNING if self._file(job_id, "pid").exists() else JobState.PENDING)
        code = int(self._file(job_id, "status").read_text())
        if code and self._file(job_id, "cancelled").exists():
            return JobStatus(JobState.CANCELLED)
        tail = tuple(self._file(job_id, "log").read_text(errors="replace").splitlines()[-40:])
        return JobStatus(JobState.FAILED if code else JobState.SUCCEEDED, f"status {code}", tail)

    def cancel(self, job_id: str) -> None:
        """Ask the cluster to end the driver with everything below it."""
        self._file(job_id, "cancelled").touch()

    def trigger(self, _job_id: str) -> None:
        """Return none: the status is polled."""

    def links(self, _job_id: str) -> dict[str, str]:
        """Return no page."""
        return {}

    def jobs(self, name: str) -> list[str]:
        """Return the tokens of all jobs of a name that were ever submitted."""
        return sorted(path.stem for path in self._folder.glob(f"{name}-*.json"))

    def runs(self, job_id: str) -> bool:
        """Whether a driver has begun and not ended."""
        return self.status(job_id).state is JobState.RUNNING


class ProcessCluster:
    """Starts the drivers that are asked for in a folder, as its own children, until the ``with`` block ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._drivers: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-cluster", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for driver in self._drivers.values():
            _kill(driver)

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            for file in sorted(self._folder.glob("*.json")):
                if file.stem not in self._drivers:
                    self._drivers[file.stem] = self._start(file)
            for token, driver in self._drivers.items():
                self._look(token, driver)

    def _start(self, file: Path) -> subprocess.Popen[bytes]:
        asked = json.loads(file.read_text())
        with file.with_suffix(".log").open("wb") as log:
            driver = subprocess.Popen(
                asked["command"],
                env=asked["environment"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        file.with_suffix(".pid").write_text(str(driver.pid))
        return driver

    def _look(self, token: str, driver: subprocess.Popen[bytes]) -> None:
        status = self._folder / f"{token}.status"
        if status.exists():
            return
        if (self._folder / f"{token}.cancelled").exists():
            _kill(driver)
        if (code := driver.poll()) is not None:
            partial = status.with_suffix(".partial")
            partial.write_text(str(code))
            partial.replace(status)


def _kill(driver: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
