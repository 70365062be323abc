"""The engine ``submit``: Spark's own ``spark-submit``.

In client mode the driver is a child of this process and dies with it, so a task that uses it holds its slot. In cluster
mode (YARN, Kubernetes) the driver runs on the cluster, ``spark-submit`` ends once the job is accepted, and any machine
can ask for the job. Standalone clusters do not run Python drivers.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_provider_kafka_migration import plain_secrets
from airflow_provider_kafka_migration.engines import cluster_modes, service
from airflow_provider_kafka_migration.engines.base import JobState, JobStatus, SparkJob
from airflow_provider_kafka_migration.engines.bound_process import bound_command, kill_tree
from airflow_provider_kafka_migration.engines.cluster_modes import ClusterMode
from airflow_provider_kafka_migration.errors import EngineSecretsUnsafe, SparkJobFailed, SpecInvalid, Where

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

log = logging.getLogger(__name__)

#: ``spark-submit`` in cluster mode uploads the code and waits until the cluster has accepted the job.
SUBMIT_SECONDS = 600.0
_KEPT_LINES = 500
#: A shell, and a JVM whose Python was killed, report a signal as this plus its number.
_SIGNALED = 128
#: Signals that come from outside: the kernel without memory, a supervisor, a person.
_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

_OPTION = re.compile(r"[a-z][a-z-]*")
#: Options that are set otherwise, or that could show a secret.
_FIXED_OPTIONS = frozenset({"master", "deploy-mode", "name", "conf", "py-files", "class", "properties-file"})


class Running(Protocol):
    """A ``spark-submit`` that was started."""

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""

    def lines(self) -> tuple[str, ...]:
        """Return the last lines of its output, oldest first."""

    def kill(self) -> None:
        """End it with everything below it. Does nothing if it has ended."""


#: Starts ``spark-submit`` for a job. In cluster mode it adds what :meth:`ClusterMode.conf` returns.
Start = Callable[[SparkJob, Mapping[str, str]], Running]


class SubmitEngine:
    """``spark-submit``, in client or cluster mode.

    :param master: Spark's master: ``local[4,4]``, ``spark://host:7077``, ``yarn``, ``k8s://https://...``.
    :param deploy_mode: ``client`` or ``cluster``.
    :param resource_manager: address of YARN's ResourceManager, ``http://host:8088``; needed for YARN in cluster mode.
    :param kerberos: the ResourceManager wants Kerberos (SPNEGO).
    :param namespace: of Kubernetes; the driver pod runs there.
    :param options: options of ``spark-submit`` by name without dashes, for instance ``{"num-executors": 4}``.
    :raises SpecInvalid: an argument is malformed, or the combination cannot work.
    """

    name: ClassVar[str] = "submit"
    located_by: ClassVar[tuple[str, ...]] = ("master", "resource_manager", "namespace")

    def __init__(
        self,
        *,
        master: str = "local[4,4]",
        deploy_mode: str = "client",
        resource_manager: str = "",
        kerberos: bool = False,
        namespace: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.master = master
        self._arguments = {
            "master": master,
            "deploy_mode": deploy_mode,
            "resource_manager": resource_manager,
            "kerberos": kerberos,
            "namespace": namespace,
        }
        self._options = _checked_options(options or {})
        if deploy_mode not in ("client", "cluster"):
            raise _invalid("deploy_mode", f"it is {deploy_mode!r}, not client or cluster")
        self._cluster: ClusterMode | None = None
        if deploy_mode == "cluster":
            self._cluster = cluster_modes.of_master(
                master, resource_manager=resource_manager, kerberos=kerberos, namespace=namespace
            )
        #: The driver runs on the cluster.
        self.detached = self._cluster is not None
        self._start: Start = self._start_process
        self._running: dict[str, Running] = {}

    def started_by(self, start: Start) -> SubmitEngine:
        """Start ``spark-submit`` in another way from now on, as through the hook of Airflow's Spark provider."""
        self._start = start
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """What a trigger needs in order to ask for a job: plain data without secrets."""
        return {key: value for key, value in self._arguments.items() if value}

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one process of this machine, which has this package installed."""
        return self.master.startswith("local")

    # -- the protocol ------------------------------------------------------------------------------------------------

    def submit(self, job: SparkJob) -> str:
        """Start the driver here, or submit it to the cluster.

        :raises EngineSecretsUnsafe: the job has secrets for the driver's environment, which would be Spark conf there.
        :raises SparkJobFailed: ``spark-submit`` has ended with an error.
        """
        if self._cluster is None:
            return self._submit_here(job)
        if job.secret_environment:
            raise EngineSecretsUnsafe(
                "spark-submit in cluster mode passes environment variables in Spark's conf, which others can read",
                where=Where(migration_id=job.migration_id, phase=job.name),
                next_step="give driver and executors these variables as a secret of the platform: "
                f"{', '.join(sorted(job.secret_environment))}",
            )
        found = self._cluster.find(job.token)
        return found or self._submit_there(job, self._cluster)

    def status(self, job_id: str) -> JobStatus:
        """Say how a job is; a driver of another process of this machine has died with it."""
        if self._cluster is not None:
            return self._cluster.status(job_id)
        running = self._running.get(job_id)
        if running is None:
            return JobStatus(JobState.LOST, "the driver has ended with the process that started it")
        ended = running.poll()
        if ended is None:
            return JobStatus(JobState.RUNNING)
        lines = running.lines()
        if ended == 0:
            return JobStatus(JobState.SUCCEEDED, log_tail=lines[-service.TAIL_LINES :])
        return JobStatus(JobState.FAILED, _ended_text(ended, lines), lines[-service.TAIL_LINES :])

    def cancel(self, job_id: str) -> None:
        """End the driver with all its processes, or cancel the job on the cluster."""
        running = self._running.get(job_id)
        if running is not None:
            running.kill()
        elif self._cluster is not None:
            self._cluster.cancel(job_id)

    def find(self, token: str) -> str | None:
        """Return the id of the job with this token; None if the cluster has none, or drivers run here."""
        return None if self._cluster is None else self._cluster.find(token)

    def cancel_doubles(self, token: str, job_id: str) -> None:
        """Cancel all jobs with this token but one."""
        if self._cluster is not None:
            self._cluster.cancel_doubles(token, job_id)

    def trigger(self, job_id: str) -> BaseTrigger | None:
        """None: the status is polled."""
        return None

    def links(self, job_id: str) -> dict[str, str]:
        """Return the page of the ResourceManager."""
        return self._cluster.links(job_id) if self._cluster is not None else {}

    # -- spark-submit ------------------------------------------------------------------------------------------------

    def _submit_here(self, job: SparkJob) -> str:
        job_id = f"{socket.gethostname()}:{os.getpid()}:{job.token}"
        self._running[job_id] = self._start(job, {})
        return job_id

    def _submit_there(self, job: SparkJob, cluster: ClusterMode) -> str:
        running = self._start(job, cluster.conf(job))
        # While spark-submit runs, ``cancel`` has to reach it as well.
        self._running[job.token] = running
        try:
            deadline = time.monotonic() + SUBMIT_SECONDS
            while running.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
        finally:
            running.kill()
            del self._running[job.token]
        lines = running.lines()
        # The cluster knows better than the output, and a spark-submit that has failed may have been accepted before.
        # Where another attempt has submitted the same token meanwhile, this may be its id; the journal decides.
        found = cluster.find(job.token) or ""
        if found or (running.poll() == 0 and (found := cluster.id_in(lines))):
            return found
        raise SparkJobFailed(
            f"spark-submit did not submit the job (status {running.poll()}): {service.last_words(lines)}",
            where=Where(migration_id=job.migration_id, phase=job.name),
            next_step="see the task's log; then clear the task, or resume: it continues from the target's log ends",
            details={"log": list(lines[-service.TAIL_LINES :])},
        )

    def _start_process(self, job: SparkJob, more_conf: Mapping[str, str]) -> Running:
        return _Process(self.command(job, more_conf), {**job.environment, **job.secret_environment})

    def command(self, job: SparkJob, more_conf: Mapping[str, str] | None = None) -> list[str]:
        """Return the command line, which contains no secret; its first part binds the process to this one."""
        conf = {**job.conf, **(more_conf or {})}
        if self._cluster is not None:
            conf.update(self._cluster.environment_conf(job.environment))
        return [
            *bound_command("spark-submit"),
            *("--master", self.master, "--name", job.application_name),
            *(("--deploy-mode", "cluster") if self._cluster is not None else ()),
            *(part for key in sorted(conf) for part in ("--conf", f"{key}={conf[key]}")),
            *(part for key in sorted(self._options) for part in (f"--{key}", str(self._options[key]))),
            *(("--py-files", str(job.py_files)) if job.py_files is not None else ()),
            str(job.main),
            *job.arguments,
        ]


class _Process:
    """``spark-submit`` as a child of this process; a thread reads its output."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        started = threading.Event()
        self._error: OSError | None = None
        self._process: subprocess.Popen[str] | None = None
        # The kernel's parent-death signal follows the thread that starts the process, so this thread stays with it.
        self._thread = threading.Thread(
            target=self._run, args=(command, dict(environment), started), name="spark-submit", daemon=True
        )
        self._thread.start()
        started.wait()
        if self._error is not None:
            raise self._error

    def _run(self, command: list[str], environment: Mapping[str, str], started: threading.Event) -> None:
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except OSError as error:
            self._error = error
            return
        finally:
            started.set()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            log.debug("%s", line.rstrip())
        self._process.wait()

    def poll(self) -> int | None:
        """Return the exit status once the output was read to its end."""
        if self._thread.is_alive() or self._process is None:
            return None
        return self._process.returncode

    def lines(self) -> tuple[str, ...]:
        """Return the last lines."""
        return tuple(self._lines)

    def kill(self) -> None:
        """End it with everything below it."""
        if self._process is not None and self._process.returncode is None:
            kill_tree(self._process.pid)
            self._thread.join(timeout=10)


def _ended_text(status: int, lines: tuple[str, ...]) -> str:
    """Say how ``spark-submit`` has ended: by a signal, which no line of its output explains, or by an error."""
    number = -status if status < 0 else status - _SIGNALED
    if number in _SIGNALS:
        return f"spark-submit was killed by {signal.Signals(number).name}"
    words = service.last_words(lines)
    return f"spark-submit ended with status {status}" + (f": {words}" if words else f", {service.WITHOUT_AN_ERROR}")


def _checked_options(options: Mapping[str, Any]) -> dict[str, str]:
    for path, _ in plain_secrets.in_arguments("options", options):
        raise _invalid(
            path,
            "this looks like a secret, and everybody on the machine can see the arguments of a process: put it into "
            "spark-defaults.conf of the machine that submits",
        )
    checked = {}
    for name, value in options.items():
        if not _OPTION.fullmatch(name) or name in _FIXED_OPTIONS:
            raise _invalid(f"options.{name}", "this option cannot be given; conf belongs into spark.conf")
        if not isinstance(value, str | int):
            raise _invalid(f"options.{name}", "it is neither a text nor a number")
        checked[name] = str(value)
    return checked


def _invalid(path: str, why: str) -> SpecInvalid:
    return SpecInvalid(
        f"spark.engine_args.{path}: {why}",
        where=Where(path=f"spark.engine_args.{path}"),
        next_step="correct spark.engine_args; docs/spark.md describes the arguments of the engine submit",
    )
