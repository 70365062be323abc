"""MirrorMaker 2 of Kafka's own artifacts as a dedicated node, to be killed and taken over."""

from __future__ import annotations

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


class MirrorMaker2:
    """One node that copies the topics of a pattern; each :meth:`start` is a new life with the same state.

    :param topics: regular expression of source topics.
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
        flush_seconds: float = 60,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._lives = 0
        self._process: Process | None = None
        flow = f"{SOURCE_ALIAS}->{TARGET_ALIAS}"
        self.properties = {
            "clusters": f"{SOURCE_ALIAS},{TARGET_ALIAS}",
            f"{SOURCE_ALIAS}.bootstrap.servers": source,
            f"{TARGET_ALIAS}.bootstrap.servers": target,
            f"{flow}.enabled": "true",
            f"{flow}.topics": topics,
            f"{flow}.groups.exclude": ".*",
            f"{flow}.emit.heartbeats.enabled": "false",
            f"{flow}.emit.checkpoints.enabled": "false",
            f"{flow}.sync.topic.acls.enabled": "false",
            f"{TARGET_ALIAS}->{SOURCE_ALIAS}.enabled": "false",
            "tasks.max": "2",
            "replication.factor": "1",
            **{f"{name}.replication.factor": "1" for name in _INTERNAL},
            # At the top level this key has no effect in dedicated mode.
            f"{TARGET_ALIAS}.offset.flush.interval.ms": str(int(flush_seconds * 1000)),
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
        jars = kafka_jars.classpath(f"{VERSION}-connect")
        level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        command = [kafka_jars.java(), "-Xms128M", "-Xmx512M", "-XX:+UseSerialGC", level, "-cp", jars, _MAIN, str(path)]
        self._process = start("MirrorMaker 2", command, self._folder / f"life-{self._lives}.log", cwd=self._folder)

    def check_running(self) -> None:
        """:raises HarnessError: it has ended."""
        assert self._process is not None
        self._process.check_running()

    def kill(self) -> None:
        """SIGKILL; does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()

    def stop(self, timeout_seconds: float = 60) -> None:
        """SIGTERM: it commits what it has copied."""
        if self._process is not None:
            self._process.stop(timeout_seconds)
