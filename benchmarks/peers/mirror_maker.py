"""MirrorMaker 2 of Kafka's own artifacts, as a dedicated node; with its defaults, and tuned."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.base import ProcessPeer, Task
from harness.jars import kafka_jars

VERSION = "4.1.1"
#: What kafka-run-class.sh and connect-mirror-maker.sh of Kafka's release give the JVM.
_JVM = (
    "-Xms256M",
    "-Xmx2G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class MirrorMaker(ProcessPeer):
    """A MirrorMaker 2 node for one topic. Its alias of the source is its name: ``<name>.<topic>`` is its policy's.

    Heartbeats, checkpoints and the copying of configurations and ACLs are off: only records are measured.
    """

    #: Keys without the cluster's alias: for the target's producer, and for the source's consumer.
    producer: dict[str, str] = {}
    consumer: dict[str, str] = {}
    tasks = 1

    def command(self, task: Task) -> Sequence[str]:
        path = task.folder / "mm2.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.properties(task).items()), encoding="utf-8")
        jars = kafka_jars.classpath(f"{VERSION}-connect")
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        return [kafka_jars.java(), *_JVM, "-cp", jars, main, str(path)]

    def properties(self, task: Task) -> dict[str, str]:
        """``mm2.properties``."""
        flow, copies = f"{self.name}->target", str(task.replication_factor)
        consumer = {"isolation.level": "read_committed", **self.consumer} if task.read_committed else self.consumer
        return {
            "clusters": f"{self.name},target",
            f"{self.name}.bootstrap.servers": task.source,
            "target.bootstrap.servers": task.target,
            f"{flow}.enabled": "true",
            f"{flow}.topics": task.topic,
            f"{flow}.groups.exclude": ".*",
            f"{flow}.emit.heartbeats.enabled": "false",
            f"{flow}.emit.checkpoints.enabled": "false",
            f"{flow}.sync.topic.configs.enabled": "false",
            f"{flow}.sync.topic.acls.enabled": "false",
            f"target->{self.name}.enabled": "false",
            "tasks.max": str(self.tasks),
            "replication.factor": copies,
            "checkpoints.topic.replication.factor": "1",
            "heartbeats.topic.replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "offset.storage.replication.factor": "1",
            "status.storage.replication.factor": "1",
            "config.storage.replication.factor": "1",
            **{f"target.producer.{key}": value for key, value in self.producer_keys(task).items()},
            **{f"{self.name}.consumer.{key}": value for key, value in consumer.items()},
        }

    def producer_keys(self, task: Task) -> dict[str, str]:
        return self.producer


class Defaults(MirrorMaker):
    """As it comes: one task, no compression, no linger."""

    name = "mm2_defaults"
    title = "MirrorMaker 2, defaults"


class Tuned(MirrorMaker):
    """The keys that were seen to take effect."""

    name = "mm2_tuned"
    title = "MirrorMaker 2, tuned"
    tasks = 2
    consumer = {"max.poll.records": "5000"}

    def producer_keys(self, task: Task) -> dict[str, str]:
        return {
            "compression.type": "lz4",
            "batch.size": "65536",
            "linger.ms": str(task.linger_ms),
            "enable.idempotence": "true",
            "max.in.flight.requests.per.connection": "5",
        }
