"""A standalone Spark cluster from pip's pyspark: one Master and some Workers, each in its own JVM, on loopback."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from types import TracebackType

import psutil

from harness.processes import HarnessError, Process, start, stop_all, tail_of, wait_for

_READY_SECONDS = 60
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


class SparkCluster:
    """Master and Workers by ``spark-class``; ends with the block, by their own pids.

    :param workers: how many Workers.
    :param cores: slots of each Worker.
    """

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1, worker_memory: str = "1g") -> None:
        self.folder = folder
        self.workers: list[Process] = []
        self.master: Process | None = None
        self.url = ""
        self._count = workers
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
        local = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.master = self._spawn("spark-master", "org.apache.spark.deploy.master.Master", *local)
        master = self.master

        def address() -> str | None:
            master.check_running()
            found = _MASTER.search(master.log.read_text(errors="replace"))
            return found[1] if found else None

        self.url = wait_for("the Spark master", address, _READY_SECONDS)
        for number in range(self._count):
            self.workers.append(
                self._spawn(
                    f"spark-worker-{number}",
                    "org.apache.spark.deploy.worker.Worker",
                    *local,
                    *("--cores", str(self._cores), "--memory", self._memory),
                    *("--work-dir", str(self.folder / f"work-{number}")),
                    self.url,
                )
            )
        for worker in self.workers:
            wait_for(f"{worker.name} to register", lambda worker=worker: self._registered(worker), _READY_SECONDS)

    @staticmethod
    def _registered(worker: Process) -> bool | None:
        worker.check_running()
        return _REGISTERED in worker.log.read_text(errors="replace") or None

    def _spawn(self, name: str, main: str, *arguments: str) -> Process:
        binary = Path(sys.executable).with_name("spark-class")
        if not binary.exists():
            found = shutil.which("spark-class")
            if found is None:
                raise HarnessError("spark-class is not there: pip install pyspark")
            binary = Path(found)
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(self.folder),
            "PYSPARK_PYTHON": sys.executable,
        }
        return start(name, [str(binary), main, *arguments], self.folder / f"{name}.log", env=environment)

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
