"""Kafka's own ``RemoteClusterUtils`` and ``MirrorClient``, from its jars, called through a small JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from harness.jars import kafka_jars

VERSION = "4.1.1"
#: The first minor version whose classes translate the groups of a pattern (KIP-1239).
PATTERN_VERSION = "4.3.1"

#: (topic, partition) -> offset
Offsets = dict[tuple[str, int], int]


class MirrorClient:
    """Answers of ``org.apache.kafka.connect.mirror`` about one target cluster.

    :param properties: of the client: ``bootstrap.servers``, and the replication policy's keys.
    """

    def __init__(self, gateway: JavaGateway, properties: Mapping[str, str]) -> None:
        self._gateway = gateway
        self._classes = gateway.jvm.org.apache.kafka.connect.mirror
        self._properties = gateway.jvm.java.util.HashMap()
        for name, value in properties.items():
            self._properties.put(name, value)

    def about(self, properties: Mapping[str, str]) -> MirrorClient:
        """Return a client of the same JVM for another target cluster."""
        return MirrorClient(self._gateway, properties)

    def translate(self, source_alias: str, group: str, *, seconds: int = 60) -> Offsets:
        """``RemoteClusterUtils.translateOffsets``."""
        wait = self._gateway.jvm.java.time.Duration.ofSeconds(seconds)
        found = self._classes.RemoteClusterUtils.translateOffsets(self._properties, source_alias, group, wait)
        return {(key.topic(), key.partition()): found[key].offset() for key in found}

    def translate_matching(self, source_alias: str, pattern: str, *, seconds: int = 60) -> dict[str, Offsets]:
        """``RemoteClusterUtils.translateOffsets`` of all groups whose whole name matches; from Kafka 4.3 on.

        :return: group -> offsets.
        """
        wait = self._gateway.jvm.java.time.Duration.ofSeconds(seconds)
        compiled = self._gateway.jvm.java.util.regex.Pattern.compile(pattern)
        found = self._classes.RemoteClusterUtils.translateOffsets(self._properties, source_alias, compiled, wait)
        return {
            group: {(key.topic(), key.partition()): found[group][key].offset() for key in found[group]}
            for group in found
        }

    def remote_topics(self, source_alias: str | None = None) -> set[str]:
        """``MirrorClient.remoteTopics``: of all sources, or of this one."""
        client = self._classes.MirrorClient(self._properties)
        try:
            return set(client.remoteTopics() if source_alias is None else client.remoteTopics(source_alias))
        finally:
            client.close()

    def metadata(self, source_alias: str, group: str, *, seconds: int = 60) -> dict[tuple[str, int], str]:
        """The texts of the commits, which ``translateOffsets`` returns, too."""
        wait = self._gateway.jvm.java.time.Duration.ofSeconds(seconds)
        found = self._classes.RemoteClusterUtils.translateOffsets(self._properties, source_alias, group, wait)
        return {(key.topic(), key.partition()): found[key].metadata() for key in found}

    def upstream_clusters(self) -> set[str]:
        """``RemoteClusterUtils.upstreamClusters``."""
        return set(self._classes.RemoteClusterUtils.upstreamClusters(self._properties))

    def replication_hops(self, alias: str) -> int:
        """``RemoteClusterUtils.replicationHops``."""
        return int(self._classes.RemoteClusterUtils.replicationHops(self._properties, alias))

    def topics(self, kind: str) -> set[str]:
        """``checkpointTopics`` or ``heartbeatTopics`` of ``RemoteClusterUtils``."""
        return set(getattr(self._classes.RemoteClusterUtils, kind)(self._properties))


def _classpath(version: str) -> str:
    """The mirror classes of a version. Those of :data:`VERSION` lie beside Connect, which tests of MirrorMaker need."""
    if version == VERSION:
        return f"{kafka_jars.classpath(f'{VERSION}-connect')}:{kafka_jars.classpath(VERSION)}"
    return kafka_jars.classpath(f"{version}-mirror-client")


@contextmanager
def mirror_client(properties: Mapping[str, str], version: str = VERSION) -> Iterator[MirrorClient]:
    """Start a JVM with the mirror classes of a version of Kafka, and stop it."""
    (py4j,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
    port, token = launch_gateway(
        classpath=_classpath(version),
        jarpath=str(py4j),
        java_path=kafka_jars.java(),
        javaopts=["-Xmx128M", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"],
        die_on_exit=True,
        enable_auth=True,
    )
    parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
    gateway: Any = JavaGateway(gateway_parameters=parameters)
    try:
        yield MirrorClient(gateway, properties)
    finally:
        gateway.shutdown()
