"""MirrorMaker 2 of Kafka's own artifacts as a dedicated node, to be killed and taken over."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from harness.jars import kafka_jars
from harness.processes import Process, start

VERSION = "4.1.1"
SOURCE_ALIAS, TARGET_ALIAS = "src", "dst"
_MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
_INTERNAL = (
    "checkpoints.topic",
    "heartbeats.topic",
    "offset-syncs.topic",
    "offset.storage",
    "status.storage",
    "config.storage",
)
_IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"


def java_command(main: str, properties: Path) -> list[str]:
    """The command of a main class of Connect."""
    jars = kafka_jars.classpath(f"{VERSION}-connect")
    level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [kafka_jars.java(), "-Xms128M", "-Xmx512M", "-XX:+UseSerialGC", level, "-cp", jars, main, str(properties)]


class MirrorMaker2:
    """One node that copies the topics of a pattern; each :meth:`start` is a new life with the same state.

    :param topics: regular expression of source topics.
    :param aliases: of source and target; mirrors with the same source alias share their state on a target.
    :param flush_seconds: how often it commits source offsets; its default is 60.
    :param settings: further lines of ``mm2.properties``.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        target: str,
        topics: str,
        *,
        identity: bool = False,
        aliases: tuple[str, str] = (SOURCE_ALIAS, TARGET_ALIAS),
        flush_seconds: float = 60,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._lives = 0
        self._process: Process | None = None
        source_alias, target_alias = aliases
        flow = f"{source_alias}->{target_alias}"
        self.properties = {
            "clusters": f"{source_alias},{target_alias}",
            f"{source_alias}.bootstrap.servers": source,
            f"{target_alias}.bootstrap.servers": target,
            f"{flow}.enabled": "true",
            f"{flow}.topics": topics,
            f"{flow}.groups.exclude": ".*",
            f"{flow}.emit.heartbeats.enabled": "false",
            f"{flow}.emit.checkpoints.enabled": "false",
            f"{flow}.sync.topic.acls.enabled": "false",
            f"{target_alias}->{source_alias}.enabled": "false",
            "tasks.max": "2",
            "replication.factor": "1",
            **{f"{name}.replication.factor": "1" for name in _INTERNAL},
            # At the top level this key has no effect in dedicated mode.
            f"{target_alias}.offset.flush.interval.ms": str(int(flush_seconds * 1000)),
            **({"replication.policy.class": _IDENTITY} if identity else {}),
            **(settings or {}),
        }

    def __enter__(self) -> MirrorMaker2:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Begin a life."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "mm2.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()), encoding="utf-8")
        self._lives += 1
        command = java_command(_MAIN, path)
        self._process = start("MirrorMaker 2", command, self._folder / f"life-{self._lives}.log", cwd=self._folder)

    def check_running(self) -> None:
        """:raises HarnessError: it has ended."""
        assert self._process is not None
        self._process.check_running()

    def pause(self) -> None:
        """SIGSTOP: it does nothing until :meth:`resume`."""
        assert self._process is not None
        self._process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()

    def stop(self, timeout_seconds: float = 60) -> None:
        """SIGTERM: it commits what it has copied."""
        if self._process is not None:
            self._process.stop(timeout_seconds)
