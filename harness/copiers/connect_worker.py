"""A worker of a Connect cluster, distributed mode, that runs MirrorMaker 2's connectors."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.copiers.mirror_maker import java_command
from harness.processes import LOOPBACK, HarnessError, Process, free_port, release_ports, start, wait_for

_MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
_BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
_START_SECONDS = 240


class ConnectWorker:
    """The only worker of a Connect cluster; each :meth:`start` is a new life with the same state.

    :param bootstrap: the cluster with its three topics: the target of a MirrorSourceConnector.
    :param name: of the Connect cluster: its group, and the prefix of its topics.
    :param flush_seconds: how often it commits source offsets; its default is 60.
    :param settings: further worker properties.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        name: str,
        *,
        flush_seconds: float = 60,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._lives = 0
        self._process: Process | None = None
        self._port = free_port()
        self.offsets_topic = f"{name}-offsets"
        self.properties = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "listeners": f"http://{LOOPBACK}:{self._port}",
            "plugin.discovery": "service_load",
            **{f"{what}.converter": _BYTES for what in ("key", "value", "header")},
            **{f"{what}.storage.topic": f"{name}-{what}s" for what in ("offset", "config")},
            "status.storage.topic": f"{name}-status",
            **{f"{what}.storage.replication.factor": "1" for what in ("offset", "config", "status")},
            "offset.flush.interval.ms": str(int(flush_seconds * 1000)),
            # A killed worker's tasks wait five minutes for its return by default, even where it is the only one.
            "scheduled.rebalance.max.delay.ms": "0",
            **(settings or {}),
        }

    def __enter__(self) -> ConnectWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        release_ports([self._port])

    def start(self) -> None:
        """Begin a life, and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "worker.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()), encoding="utf-8")
        self._lives += 1
        log = self._folder / f"life-{self._lives}.log"
        self._process = start("Connect worker", java_command(_MAIN, path), log, cwd=self._folder)
        wait_for("answer of the Connect worker", self._answers, _START_SECONDS, 0.2)

    def _answers(self) -> bool:
        self.check_running()
        return self._request("GET", "/connectors")[0] == http.client.OK

    def configure(self, connector: str, config: Mapping[str, str]) -> None:
        """Create a connector, or give it another configuration. A group that is being joined refuses for a while."""
        path = f"/connectors/{connector}/config"

        def is_done() -> bool:
            self.check_running()
            status, text = self._request("PUT", path, config)
            if status in (http.client.OK, http.client.CREATED):
                return True
            if status in (0, http.client.CONFLICT, http.client.NOT_FOUND, http.client.INTERNAL_SERVER_ERROR):
                return False
            raise HarnessError(f"the Connect worker refuses {connector}: {status} {text}")

        wait_for(f"creation of the connector {connector}", is_done, _START_SECONDS, 0.5)

    def status(self, connector: str) -> dict[str, Any]:
        """The state of a connector and its tasks; empty while it is not known."""
        status, text = self._request("GET", f"/connectors/{connector}/status")
        found: dict[str, Any] = json.loads(text) if status == http.client.OK else {}
        return found

    def _request(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Status and text of an answer; status 0: there was none."""
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=90)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def check_running(self) -> None:
        """:raises HarnessError: it has ended."""
        assert self._process is not None
        self._process.check_running()

    def kill(self) -> None:
        """SIGKILL; does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
