"""Airflow as sites with many tasks run it: PostgreSQL, Redis, Celery workers, and a process for each component."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.airflow import kill_descendants
from harness.airflow_components import COMPONENTS, ReplaceableAirflow, start_component
from harness.processes import HarnessError, Process, free_port, release_ports, start, stop_all, tail_of, wait_for
from harness.reaper import descendants

_SECONDS = 300.0
_STOP_SECONDS = 20.0
_MIGRATE_SECONDS = 600.0
#: The user that runs PostgreSQL where tests run as root, which PostgreSQL refuses.
_USER = "postgres"


def find_program(name: str) -> str:
    """Return the path of a server's program; empty if it is not installed. Debian keeps PostgreSQL's out of PATH."""
    places = [Path(folder) / name for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    return shutil.which(name) or next((str(place) for place in places if place.exists()), "")


class Servers:
    """PostgreSQL with a database ``airflow``, and Redis, on loopback."""

    def __init__(self) -> None:
        # Directly below the system's folder for such files, which the user of PostgreSQL may enter.
        self._folder = Path(tempfile.mkdtemp(prefix="airflow-servers-"))
        self._ports = [free_port(), free_port()]
        self._processes: list[Process] = []

    @property
    def database(self) -> str:
        """Host, port and database, without a dialect."""
        return f"airflow@127.0.0.1:{self._ports[0]}/airflow"

    @property
    def broker(self) -> str:
        """Celery's broker."""
        return f"redis://127.0.0.1:{self._ports[1]}/0"

    def start(self) -> None:
        """Start both.

        :raises HarnessError: a program is missing, or one does not answer in time.
        """
        data = self._folder / "data"
        data.mkdir()
        as_user: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(self._folder, _USER)
            shutil.chown(data, _USER)
            as_user = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
        initdb, psql = find_program("initdb"), find_program("psql")
        self._run([*as_user, initdb, "-D", str(data), "-U", "airflow", "--auth=trust", "-E", "UTF8"])
        port = str(self._ports[0])
        postgres = [find_program("postgres"), "-D", str(data), "-p", port, "-k", str(self._folder), "-h", "127.0.0.1"]
        # The log is opened by this process, before the user changes.
        self._processes.append(start("PostgreSQL", [*as_user, *postgres], self._folder / "postgres.log"))
        redis = [find_program("redis-server"), "--port", str(self._ports[1]), "--bind", "127.0.0.1", "--save", ""]
        self._processes.append(start("Redis", redis, self._folder / "redis.log", cwd=self._folder))
        ask = [psql, "-h", "127.0.0.1", "-p", port, "-U", "airflow", "-d", "postgres", "-c"]
        wait_for("PostgreSQL", lambda: self._answers([*ask, "SELECT 1"]), _SECONDS, every_seconds=0.5)
        self._run([*ask, "CREATE DATABASE airflow"])

    def stop(self) -> None:
        """End both and remove their files."""
        stop_all(self._processes, _STOP_SECONDS)
        self._processes = []
        release_ports(self._ports)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self, command: Sequence[str]) -> bool:
        for process in self._processes:
            process.check_running()
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    @staticmethod
    def _run(command: Sequence[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HarnessError(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")


class AirflowOnCelery(ReplaceableAirflow):
    """The same Airflow with PostgreSQL instead of SQLite, and with Celery workers instead of the scheduler's own ones.

    :param workers: how many Celery workers, each with processes for four tasks.
    """

    def __init__(self, *arguments: Any, workers: int = 2, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._workers = workers
        self._servers = Servers()
        self._parts: list[Process] = []

    def start(self) -> None:
        """Start the servers, migrate the database, start all components and workers, and wait until they run."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._ports = [free_port() for _ in range(3)]
        try:
            self._servers.start()
            database, broker = self._servers.database, self._servers.broker
            self._env |= {
                "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}",
                "AIRFLOW__CELERY__BROKER_URL": broker,
                "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2://{database}",
                "AIRFLOW__CELERY__WORKER_CONCURRENCY": "4",
            }
            self._migrate()
            self._parts = [start_component(self, name) for name in COMPONENTS]
            self._parts += [self._start_worker(number) for number in range(self._workers)]
            self._process = self._parts[0]
            wait_for("Airflow's components", self._is_healthy, _MIGRATE_SECONDS, every_seconds=0.5)
        except BaseException as error:
            story = f"{error}; its log {self.log} ends:\n{tail_of(self.log)}"
            self.stop()
            raise HarnessError(story) from error

    def stop(self) -> None:
        """End workers, components and servers. The database is gone then."""
        stop_all(self._parts, _STOP_SECONDS)
        self._parts, self._process = [], None
        self._servers.stop()
        release_ports(self._ports)
        self._token = ""

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its tasks with SIGKILL, as when its machine is lost, and start another one."""
        place = len(COMPONENTS) + number
        lost = self._parts[place]
        lost.signal(signal.SIGSTOP)
        kill_descendants(lost.pid)
        lost.kill()
        self._parts[place] = self._start_worker(number)

    def worker_of(self, pid: int) -> int:
        """Return which worker runs a process.

        :raises HarnessError: none of them does.
        """
        for number, worker in enumerate(self._parts[len(COMPONENTS) :]):
            if pid in descendants(worker.pid):
                return number
        raise HarnessError(f"no Celery worker runs the process {pid}")

    def _start_worker(self, number: int) -> Process:
        binary = str(Path(sys.executable).with_name("airflow"))
        command = [sys.executable, str(Path(__file__).with_name("reaper.py")), binary, "celery", "worker"]
        command += ["--celery-hostname", f"worker{number}@%h", "--skip-serve-logs"]
        return start(
            f"Celery worker {number}",
            command,
            self.home / f"worker-{number}.log",
            env=self.environment(),
            cwd=self.home,
            death_signal=signal.SIGTERM,
        )

    def _processes(self) -> list[Process]:
        return list(self._parts)

    def _check_running(self) -> None:
        for part in self._parts:
            part.check_running()

    def _migrate(self) -> None:
        airflow = str(Path(sys.executable).with_name("airflow"))
        done = subprocess.run(
            [airflow, "db", "migrate"],
            env=self.environment(),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=_MIGRATE_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise HarnessError(f"airflow db migrate failed:\n{(done.stdout + done.stderr)[-4000:]}")
