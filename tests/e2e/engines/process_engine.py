"""A detached Spark engine for tests: each job is a ``spark-submit`` of this machine that no process of Airflow owns.

It outlives the task, the worker and the scheduler that have started it, and any process of the machine can ask for it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from airflow_provider_kafka_migration.engines.base import JobState, JobStatus

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.engines.base import SparkJob

_STARTS_SECONDS = 60.0


class ProcessEngine:
    """Jobs by their tokens: ``<token>.pid``, ``<token>.log``, ``<token>.status`` and ``<token>.cancelled``.

    :param folder: where these files are.
    """

    name: ClassVar[str] = "process"
    detached = True

    def __init__(self, *, folder: str) -> None:
        self._folder = Path(folder)
        self.arguments: dict[str, Any] = {"folder": folder}

    def _file(self, job_id: str, kind: str) -> Path:
        return self._folder / f"{job_id}.{kind}"

    def submit(self, job: SparkJob) -> str:
        """Start the driver, unless its token is known."""
        pid = self._file(job.token, "pid")
        if pid.exists():
            return job.token
        conf = [part for key, value in sorted(job.conf.items()) for part in ("--conf", f"{key}={value}")]
        program = str(Path(sys.executable).with_name("spark-submit"))
        driver = [program, "--master", "local[2,4]", "--name", job.application_name, *conf, str(job.main)]
        command = shlex.join([*driver, *job.arguments])
        log, status = self._file(job.token, "log"), self._file(job.token, "status")
        # The shell in the middle ends, so the driver has no parent in Airflow; its own session is its process group.
        inner = f"{command} > {shlex.quote(str(log))} 2>&1; echo $? > {shlex.quote(str(status))}"
        outer = f"setsid sh -c {shlex.quote(inner)} & echo $! > {shlex.quote(str(pid))}"
        environment = {**os.environ, **job.environment}
        subprocess.run(["sh", "-c", outer], stdin=subprocess.DEVNULL, env=environment, check=True, timeout=60)
        return job.token

    def status(self, job_id: str) -> JobStatus:
        """Say how the driver is."""
        if self._file(job_id, "cancelled").exists():
            return JobStatus(JobState.RUNNING if self.is_alive(job_id) else JobState.CANCELLED)
        status = self._file(job_id, "status")
        if status.exists() and status.read_text():
            code = int(status.read_text())
            tail = tuple(self._file(job_id, "log").read_text(errors="replace").splitlines()[-40:])
            return JobStatus(JobState.FAILED if code else JobState.SUCCEEDED, f"status {code}", tail)
        return JobStatus(JobState.RUNNING if self.is_alive(job_id) else JobState.LOST)

    def is_alive(self, job_id: str) -> bool:
        """Whether the driver's shell runs."""
        pid = self._pid(job_id)
        return pid is not None and psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

    def _pid(self, job_id: str) -> int | None:
        file = self._file(job_id, "pid")
        return int(file.read_text()) if file.exists() and file.read_text().strip() else None

    def cancel(self, job_id: str) -> None:
        """End the driver with everything below it."""
        self._file(job_id, "cancelled").touch()
        until, pid = time.monotonic() + _STARTS_SECONDS, self._pid(job_id)
        while pid is not None and self.is_alive(job_id) and time.monotonic() < until:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            time.sleep(0.1)

    def trigger(self, _job_id: str) -> None:
        """Return none: the status is polled."""

    def links(self, _job_id: str) -> dict[str, str]:
        """Return no page."""
        return {}

    def jobs(self, name: str) -> list[str]:
        """Return the tokens of all jobs of a name that were ever submitted."""
        return sorted(path.stem for path in self._folder.glob(f"{name}-*.pid"))
