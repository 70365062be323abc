"""Two clusters behind proxies, and copiers that start quickly: the environment of the faults."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from harness.brokers import KafkaCluster
from harness.copiers.copier_pool import Copier, CopierPool
from harness.copiers.copying import Copying

#: Kafka soon ends a dead writer's transaction, and DeleteRecords on the source survives a crash.
_SOURCE_CONFIG = {
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "60000",
}


class TargetEnds:
    """The partitions' log ends, now or when a broker last answered; never waits long."""

    def __init__(self, bootstrap: str) -> None:
        config = ClientConfig.from_librdkafka({"bootstrap.servers": bootstrap}, "target")
        self._wire = Wire(config, timeout_seconds=0.5, patience_seconds=0.0)
        self._known: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()

    def ends(self, keys: Sequence[TopicPartition]) -> int:
        """Sum of the high watermarks."""
        with self._lock:
            with contextlib.suppress(MigrationError):
                self._known.update(self._wire.list_offsets(keys, "latest"))
            return sum(self._known.get(key, 0) for key in keys)


class FaultLab:
    """The parts of a fault run, with its own clusters.

    :param brokers: of the target, 1 or 3 (then replication factor 3 and min.insync.replicas 2).
    :param target_config: broker properties of the target.
    """

    def __init__(
        self, folder: Path, *, brokers: int = 1, target_config: Mapping[str, str] | None = None, version: str = "4.1.1"
    ) -> None:
        self.folder = folder
        self.brokers = brokers
        self.source = KafkaCluster(
            folder / "source", "3.9.1", "zookeeper", config=_SOURCE_CONFIG, authorizer=False, sasl=False, proxied=True
        )
        self.target = KafkaCluster(
            folder / "target",
            version,
            "kraft",
            brokers=brokers,
            config=target_config,
            authorizer=False,
            sasl=False,
            proxied=True,
        )
        self.pool = CopierPool(folder / "pool")
        self._stack = contextlib.ExitStack()
        self._numbers = 0

    def __enter__(self) -> FaultLab:
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(3) as executor:
            for part in executor.map(lambda item: (item, item.__enter__())[0], (self.source, self.target, self.pool)):
                stack.push(part.__exit__)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.__exit__(*details)

    def name(self, stem: str) -> str:
        """A new, unused name."""
        self._numbers += 1
        return f"{stem}-{self._numbers}"

    def copying(self, topics: list[str], **options: Any) -> Copying:
        """A copy whose copiers connect through the proxies, while this process does not."""
        name = self.name("m")
        copy = Copying(
            self.source,
            self.target,
            self.folder / name,
            topics,
            name,
            references={
                "source": {"bootstrap.servers": self.source.proxied_bootstrap},
                "target": {"bootstrap.servers": self.target.proxied_bootstrap},
                "storage": None,
            },
            replication_factor=self.brokers,
            **options,
        )
        copy.clients.close()
        copy.clients = Clients(
            {
                "source": {"bootstrap.servers": self.source.bootstrap},
                "target": {"bootstrap.servers": self.target.bootstrap},
                "storage": None,
            }
        )
        return copy

    def copier(self, copy: Copying, lane: int = 0, job: str = "seed", *options: str) -> Copier:
        """Start a copier of a lane."""
        return self.pool.start(lane, [str(copy.references_file), copy.journal, copy.job_key(job), str(lane), *options])

    def target_ends(self) -> TargetEnds:
        """Reads the target's log ends."""
        return TargetEnds(self.target.bootstrap)

    @contextlib.contextmanager
    def healthy(self) -> Iterator[None]:
        """Ensure that all brokers run at the end."""
        try:
            yield
        finally:
            self.heal()

    def heal(self) -> None:
        """Wake and start all brokers that were stopped or killed."""
        for cluster in (self.source, self.target):
            cluster.resume()
            for index in range(cluster.brokers):
                if not cluster.is_running(index):
                    cluster.restart(index)
            cluster.wait_ready()
