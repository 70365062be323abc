"""A Spark Connect server from pip's pyspark, in a JVM of its own, on loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from harness.processes import Process, free_port, is_listening, release_ports, start, tail_of, wait_for

_READY_SECONDS = 120
_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """A server; ends with the block, by its own pid.

    :param master: where it runs its tasks; ``local[N]`` would never retry one.
    :param python: interpreter of the tasks, whose folder has ``spark-submit``.
    :param pythonpath: of the tasks; without this project's folder they have only what clients send.
    :param conf: more of Spark's settings.
    """

    def __init__(
        self,
        folder: Path,
        *,
        master: str = "local[2,4]",
        python: str = sys.executable,
        pythonpath: str = "",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._master = master
        self._python = python
        self._pythonpath = pythonpath
        self._conf = dict(conf or {})
        self._process: Process | None = None
        self._port = 0

    def __enter__(self) -> ConnectServer:
        self._port = free_port()
        conf = {
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.driver.memory": "768m",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            **self._conf,
        }
        command = [str(Path(self._python).with_name("spark-submit")), "--master", self._master, "--class", _MAIN]
        for key, value in conf.items():
            command += ["--conf", f"{key}={value}"]
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("SPARK_REMOTE", "SPARK_HOME")},
            "PYSPARK_PYTHON": self._python,
            "PYTHONPATH": self._pythonpath,
        }
        log = self.folder / "spark-connect.log"
        # In its own folder: Python adds the working directory to the path of the tasks.
        self._process = start("Spark Connect", [*command, "spark-internal"], log, env=environment, cwd=self.folder)
        process = self._process

        def is_ready() -> bool:
            process.check_running()
            return is_listening(self._port)

        try:
            wait_for("Spark Connect", is_ready, _READY_SECONDS)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """``sc://127.0.0.1:PORT``."""
        return f"sc://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Of the server's JVM."""
        assert self._process is not None
        return self._process.pid

    def log_tail(self) -> str:
        """The end of its log, for a failure's message."""
        return "" if self._process is None else tail_of(self._process.log)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stop()
            self._process = None
            release_ports([self._port])
