"""``spark-submit`` of our mains in the background, and the processes below it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.integration.copy.copying import Copying

ROOT = Path(__file__).parents[3]


def command_of(process: psutil.Process) -> str:
    """A process' command line; empty for one that has ended, or that nobody has waited for yet (a zombie)."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


class MainRun:
    """One run of a main, in the background.

    :param command: what starts the main; its own arguments are added.
    """

    def __init__(
        self, copy: Copying, main: str, job_name: str, command: list[str], env: dict[str, str] | None = None
    ) -> None:
        self.log = copy.folder / f"{main}-{time.time():.3f}.log"
        arguments = [
            *command,
            str(ROOT / "spark_jobs" / f"{main}.py"),
            *("--job-location", copy.journal, "--job-key", copy.job_key(job_name)),
            *("--references", str(copy.references_file)),
        ]
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                arguments, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, cwd=copy.folder
            )

    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = 400) -> int:
        """Its exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"Spark did not end within {seconds} s:\n{self.text()[-4000:]}") from None

    def below(self) -> list[psutil.Process]:
        """All processes below spark-submit."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        """Python workers: children of PySpark's daemon."""
        return [process for process in self.below() if self._is_daemon(process) and self._is_daemon(process.parent())]

    @staticmethod
    def _is_daemon(process: psutil.Process | None) -> bool:
        return process is not None and "pyspark.daemon" in command_of(process)

    def end(self) -> None:
        """Kill everything, if it still runs."""
        if self.process.poll() is not None:
            return
        below = self.below()
        self.process.kill()
        for process in below:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(30)


class SparkRun(MainRun):
    """One ``spark-submit`` of a main.

    :param python: interpreter of driver and tasks, whose folder has ``spark-submit``.
    """

    def __init__(
        self,
        copy: Copying,
        main: str,
        job_name: str,
        master: str = "local[2,4]",
        *options: str,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
    ) -> None:
        conf = {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        command = [str(Path(python).with_name("spark-submit")), "--master", master]
        for key, value in conf.items():
            command += ["--conf", f"{key}={value}"]
        own = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        super().__init__(copy, main, job_name, [*command, *options], {**own, **(env or {})})


class ConnectRun(MainRun):
    """One run of a main as a client of Spark Connect: no ``spark-submit`` and no JVM."""

    def __init__(self, copy: Copying, main: str, job_name: str, url: str, python: str = sys.executable) -> None:
        super().__init__(copy, main, job_name, [python], {"SPARK_REMOTE": url, "PYTHONPATH": str(ROOT)})
