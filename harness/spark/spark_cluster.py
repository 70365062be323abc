"""A standalone Spark cluster from pip's pyspark: one Master and some Workers, each in its own JVM.

On loopback, or each on a host of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psutil

from harness.hosts import Host
from harness.processes import LOOPBACK, HarnessError, Process, start, stop_all, tail_of, wait_for

_READY_SECONDS = 60
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


class SparkCluster:
    """Master and Workers by ``spark-class``; ends with the block, by their own pids.

    :param workers: how many Workers, on loopback.
    :param cores: slots of each Worker.
    :param host: run the Master there, and a Worker on each of ``worker_hosts``; None: all on loopback.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        worker_memory: str = "1g",
        host: Host | None = None,
        worker_hosts: Sequence[Host] = (),
    ) -> None:
        if (host is None) != (not worker_hosts):
            raise ValueError("the Master and the Workers are on hosts, or none of them")
        self.folder = folder
        self._host = host
        self._worker_hosts = list(worker_hosts)
        self.workers: list[Process] = []
        self.master: Process | None = None
        self.url = ""
        self._count = len(worker_hosts) or workers
        self._cores = cores
        self._memory = worker_memory

    def __enter__(self) -> SparkCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start all processes and wait until every Worker is registered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self.master = self._spawn("spark-master", "org.apache.spark.deploy.master.Master", host=self._host)
        master = self.master

        def address() -> str | None:
            master.check_running()
            found = _MASTER.search(master.log.read_text(errors="replace"))
            return found[1] if found else None

        self.url = wait_for("the Spark master", address, _READY_SECONDS)
        for number in range(self._count):
            self.workers.append(self._spawn_worker(number))
        for number in range(self._count):
            self._wait_registered(number)

    def _spawn_worker(self, number: int) -> Process:
        host = self._worker_hosts[number] if self._worker_hosts else None
        folder = self.folder if host is None else host.disk
        return self._spawn(
            f"spark-worker-{number}",
            "org.apache.spark.deploy.worker.Worker",
            *("--cores", str(self._cores), "--memory", self._memory),
            *("--work-dir", str(folder / f"work-{number}")),
            self.url,
            host=host,
        )

    def restart_worker(self, number: int) -> None:
        """Start a Worker again, after :meth:`kill_worker` or on a host that was killed and is up again."""
        worker = self.workers[number]
        worker.kill()
        worker.log.rename(worker.log.with_suffix(".1.log"))
        self.workers[number] = self._spawn_worker(number)
        self._wait_registered(number)

    def _wait_registered(self, number: int) -> None:
        worker = self.workers[number]
        wait_for(f"{worker.name} to register", lambda: self._registered(worker), _READY_SECONDS)

    @staticmethod
    def _registered(worker: Process) -> bool | None:
        worker.check_running()
        return _REGISTERED in worker.log.read_text(errors="replace") or None

    def _spawn(self, name: str, main: str, *arguments: str, host: Host | None) -> Process:
        binary = Path(sys.executable).with_name("spark-class")
        if not binary.exists():
            found = shutil.which("spark-class")
            if found is None:
                raise HarnessError("spark-class is not there: pip install pyspark")
            binary = Path(found)
        environment = {
            "SPARK_LOCAL_IP": LOOPBACK if host is None else host.address,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        # On hosts by name, as in companies: driver and executors resolve the name, and Spark compares it literally.
        listen = ("--host", LOOPBACK if host is None else host.name, "--port", "0", "--webui-port", "0")
        command, log = [str(binary), main, *listen, *arguments], self.folder / f"{name}.log"
        if host is not None:
            return host.start(name, command, log, env=environment)
        environment["SPARK_WORKER_DIR"] = str(self.folder)
        return start(name, command, log, env={**os.environ, **environment})

    def kill_worker(self, number: int) -> None:
        """Kill a Worker and its descendants with SIGKILL, as when a machine fails."""
        worker = self.workers[number]
        below = psutil.Process(worker.pid).children(recursive=True)
        worker.kill()
        for process in below:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(below, timeout=10)

    def executors(self, number: int) -> list[psutil.Process]:
        """Executor JVMs of a Worker, and the Python processes below them."""
        return psutil.Process(self.workers[number].pid).children(recursive=True)

    def log_tail(self) -> str:
        """The ends of all logs, for a failure's message."""
        return "\n".join(tail_of(process.log) for process in [*self.workers, self.master] if process is not None)

    def stop(self) -> None:
        """End all."""
        stop_all([*self.workers, *([self.master] if self.master is not None else [])])
        self.workers.clear()
        self.master = None
