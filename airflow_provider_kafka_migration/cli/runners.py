"""How the command line runs jobs of the data plane: in this process, or by ``spark-submit``."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.cli.ending import Stop
from airflow_provider_kafka_migration.compare.runner import LocalContentRunner
from airflow_provider_kafka_migration.copy.clients import Clients, write_references
from airflow_provider_kafka_migration.documents.content import ContentJob
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import Interrupted, JobMissing, SparkJobFailed, Terminal, Where
from airflow_provider_kafka_migration.lanes.local_runner import LocalRunner
from airflow_provider_kafka_migration.record.context import Progress
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.storage.s3_credentials import keys_kept_in, with_keys_file

_PROGRESS_SECONDS = 1.0
_KILL_SECONDS = 10.0
#: Spark mains of jobs that have none of their own. The tail's ends by itself, too, and follows when it has to.
_MAINS = {"backup": "tail", "restore": "tail", "verify-archive": "verify"}

ReadProgress = Callable[[], Progress | None]
ShowProgress = Callable[[Progress], None]


#: Jobs that are given only one of the clusters; all others get both.
_ONE_SIDED = {"backup": ("source",), "restore": ("target",), "verify-archive": ("target",)}


def references(spec: MigrationSpec, resolver: Resolver, job: str = "") -> dict[str, Any]:
    """The connections of a spec, with their secrets: for this process, or for a file of mode 0600.

    :param job: name of the job document; one that may know only one cluster is given only that.

    :raises ConnectionInvalid: one cannot be resolved.
    """
    storage = spec.storage.conn_id
    known = {"source": spec.source.conn_id, "target": spec.target.conn_id}
    sides = _ONE_SIDED.get(job, tuple(known))
    return {
        **{side: resolver.mapping(known[side]) for side in sides},
        "storage": resolver.mapping(storage) if storage else None,
    }


class ProgressPump:
    """Reads a job's progress now and then while the caller waits for the job, and shows it."""

    def __init__(self, read: ReadProgress, show: ShowProgress) -> None:
        self._read = read
        self._show = show
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> ProgressPump:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.wait(_PROGRESS_SECONDS):
            # A figure that cannot be read must not stop a copy.
            with contextlib.suppress(Exception):
                progress = self._read()
                if progress is not None:
                    self._show(progress)


class InProcessRunner:
    """Copies and compares with threads of this process.

    :param stop: when set, a copy ends early with :class:`Interrupted`; run again, it goes on where it was.
    :param threads: lanes, or partitions to compare, at the same time.
    """

    def __init__(self, resolver: Resolver, show: ShowProgress, stop: Stop, *, threads: int = 4) -> None:
        self._resolver = resolver
        self._show = show
        self._stop = stop
        self._threads = threads

    def submit(self, spec: MigrationSpec, job_location: str, job_key: str, read_progress: ReadProgress) -> None:
        """Run a job document to its end."""
        # The reference itself: keys that end are renewed in this process.
        given = {**references(spec, self._resolver, Path(job_key).stem), "storage": spec.storage.conn_id}
        with (
            self._stop.heeded(),
            Clients(given, None, self._resolver) as clients,
            ProgressPump(read_progress, self._show),
        ):
            data = clients.store(job_location).get(job_key)
            if data is None:
                raise JobMissing(
                    "there is no job document",
                    where=Where(migration_id=spec.migration_id, path=f"{job_location}/{job_key}"),
                    next_step="resume the migration: the phase writes it again",
                )
            if json.loads(data).get("name") == "verify":
                self._compare(clients, ContentJob.parse(data))
            else:
                self._copy(clients, CopyJob.parse(data))

    def _copy(self, clients: Clients, job: CopyJob) -> None:
        try:
            LocalRunner(clients, threads=self._threads, stop=self._stop.is_set).run(job)
        finally:
            if self._stop.is_set():
                raise interrupted(job.migration_id, job.name)

    def _compare(self, clients: Clients, job: ContentJob) -> None:
        LocalContentRunner(clients, threads=self._threads, stop=self._stop.is_set).run(job)


class SparkRunner:
    """Runs jobs by ``spark-submit`` on a master, with connections in a file of mode 0600 for as long as the job runs.

    :param master: for instance ``local[4,4]`` or ``spark://host:7077``.
    """

    def __init__(self, resolver: Resolver, show: ShowProgress, stop: Stop, *, master: str) -> None:
        self._resolver = resolver
        self._show = show
        self._stop = stop
        self._master = master

    def submit(self, spec: MigrationSpec, job_location: str, job_key: str, read_progress: ReadProgress) -> None:
        """Run a job document to its end.

        :raises SparkJobFailed: Spark ended with an error; the job's own errors are in its progress document.
        """
        name = Path(job_key).stem
        folder = Path(tempfile.mkdtemp(prefix="kafka-migration-"))
        try:
            file = folder / "references.json"
            given = references(spec, self._resolver, name)
            renew = self._resolver.renewal(spec.storage.conn_id) if spec.storage.conn_id else None
            keys: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if renew is not None:
                path = folder / "storage-keys.json"
                given["storage"] = with_keys_file(given["storage"], path)
                keys = keys_kept_in(path, renew)
            write_references(str(file), given)
            command = self._command(spec, name, job_location, job_key, file)
            with self._stop.heeded(), keys, ProgressPump(read_progress, self._show):
                self._run(spec, name, command, folder / "spark.log")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _command(self, spec: MigrationSpec, name: str, job_location: str, job_key: str, file: Path) -> list[str]:
        conf = {**spec.spark.conf, "spark.speculation": "false"}
        return [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", self._master, "--name", f"kafka-migration-{spec.migration_id}-{name}"),
            *(part for key in sorted(conf) for part in ("--conf", f"{key}={conf[key]}")),
            str(_spark_main(f"{_MAINS.get(name, name)}.py")),
            *("--job-location", job_location, "--job-key", job_key, "--references", str(file)),
        ]

    def _run(self, spec: MigrationSpec, name: str, command: list[str], log: Path) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            while process.poll() is None:
                if self._stop.wait(0.2):
                    raise interrupted(spec.migration_id, name)
        finally:
            _end(process)
        if process.returncode:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise SparkJobFailed(
                f"spark-submit ended with status {process.returncode}: {_last_words(lines)}",
                where=Where(migration_id=spec.migration_id, phase=name),
                next_step="resume: it goes on from the target's log ends",
                details={"log": lines[-40:]},
            )


def interrupted(migration_id: str, name: str) -> Interrupted:
    """The error of a job that was told to stop."""
    return Interrupted(
        f"{name} was told to stop",
        where=Where(migration_id=migration_id, phase=name),
        next_step="run the same command again, or resume the migration: it goes on where it was",
    )


def _last_words(lines: list[str]) -> str:
    told = [line for line in lines if line.strip()]
    return told[-1][:500] if told else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the driver with all that it started."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)
            return


def _spark_main(name: str) -> Path:
    """Where a Spark main lies: inside of the package (installed), or beside it (in the repository)."""
    package = Path(airflow_provider_kafka_migration.__file__).parent
    for folder in (package / "spark_jobs", package.parent / "spark_jobs"):
        if (folder / name).is_file():
            return folder / name
    raise Terminal(
        f"the Spark main {name} is not there", where=Where(path=str(package)), next_step="install the package again"
    )
