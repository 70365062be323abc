"""A topic whose segments lie in remote storage only is copied record by record, also when remote reads are held back.

The storage is Kafka's own ``LocalTieredStorage``, a folder. A quota for remote reads makes the broker answer without
records though there are some, which must never become holes.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from airflow_provider_kafka_migration.kafka import logs
from harness.brokers import KafkaCluster
from harness.faults.fetch_faults import Answered, Asked, FetchFaults
from harness.jars import kafka_jars
from harness.jars.kafka_jars import NEWEST
from harness.raw_writer import RawWriter, plain
from tests.integration.copy.copying import Copying, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]

#: Version of the brokers -> that of the storage's jars. Those of 4.4.0 are not published.
STORAGES = {"3.9.1": "3.9.1-tiered", NEWEST: "4.3.1-tiered"}
SEGMENT_BYTES = 65_536
BATCHES, RECORDS, VALUE_BYTES = 200, 10, 1_000
END = BATCHES * RECORDS
QUOTA_BYTES_PER_SECOND = 300_000


def moved_classes(folder: Path) -> Path:
    """A jar of the classes that the storage of 4.3.1 looks for where brokers of 4.4 no longer have them."""
    jar = folder / "moved.jar"
    clients = kafka_jars.ensure("4.3.1-mirror-client") / "kafka-clients-4.3.1.jar"
    with zipfile.ZipFile(clients) as source, zipfile.ZipFile(jar, "w") as target:
        for name in source.namelist():
            if re.match(r"org/apache/kafka/common/utils/(Exit|KafkaThread|LogContext)\b", name):
                target.writestr(name, source.read(name))
    return jar


def properties(version: str, folder: Path) -> dict[str, str | int | bool]:
    """A broker that keeps segments in a folder, looks after them several times a second, and reads them slowly."""
    jars = sorted(kafka_jars.ensure(STORAGES[version]).glob("*.jar"))
    if version == NEWEST:
        jars.append(moved_classes(folder.parent))
    return {
        "remote.log.storage.system.enable": True,
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.class.path": ":".join(map(str, jars)),
        "rsm.config.dir": str(folder),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 2,
        "remote.log.manager.task.interval.ms": 500,
        "remote.log.manager.fetch.max.bytes.per.second": QUOTA_BYTES_PER_SECOND,
        "remote.log.manager.fetch.quota.window.num": 2,
        "log.retention.check.interval.ms": 500,
        "log.initial.task.delay.ms": 500,
    }


@pytest.fixture(scope="module", params=STORAGES)
def tiered_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    folder = tmp_path_factory.mktemp("tiered")
    with KafkaCluster(
        folder / "cluster",
        request.param,
        "kraft",
        config=properties(request.param, folder / "remote"),
        authorizer=False,
        sasl=False,
        proxied=True,
    ) as cluster:
        yield cluster


@pytest.fixture
def remote_topic(tiered_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> str:
    """Two thousand records; all but the newest segments are in remote storage only."""
    topic = unique_name("remote")
    key = (topic, 0)
    # Kafka 4 allows topics no segments below 1 MiB, but has this name for its own tests.
    segment_bytes = "segment.bytes" if tiered_cluster.version.startswith("3.") else "internal.segment.bytes"
    tiered_cluster.create_topic(
        topic,
        config={
            "remote.storage.enable": "true",
            segment_bytes: str(SEGMENT_BYTES),
            "local.retention.bytes": "1",
            "retention.ms": "-1",
            "retention.bytes": "-1",
        },
    )
    with RawWriter(tiered_cluster.bootstrap) as writer:
        for number in range(BATCHES):
            values = (f"{number}-{index}-".encode().ljust(VALUE_BYTES, b".") for index in range(RECORDS))
            writer.write(topic, 0, plain(*values))
        wire = writer.wire
        wire.metadata([topic])
        epoch = wire.leader_epochs([key])[key]

        def is_remote() -> bool:
            local = logs.local_log_start(wire, key, epoch)
            return local is not None and END - local < 2 * SEGMENT_BYTES // VALUE_BYTES

        wait_for(is_remote, 120, "the segments to be in remote storage only")
        assert wire.list_offsets([key], "earliest") == {key: 0}
    return topic


class Silences:
    """Counts answers that give nothing although the log goes on; changes none."""

    def __init__(self) -> None:
        self.counted = 0

    def __call__(self, asked: Asked, answered: Answered) -> Answered:
        if not answered.error_code and not answered.records and answered.last_stable_offset > asked.offset:
            self.counted += 1
        return answered


@pytest.mark.parametrize("via", ["direct", "s3"])
def test_what_lies_in_remote_storage_only_is_copied(
    tiered_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    remote_topic: str,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    via: Literal["direct", "s3"],
) -> None:
    silences = Silences()
    tiered_cluster.proxy.rewrite_answer = FetchFaults(remote_topic, silences)
    references = {
        "source": {"bootstrap.servers": tiered_cluster.proxied_bootstrap},
        "target": {"bootstrap.servers": target_cluster.bootstrap},
        "storage": None,
    }
    copy = Copying(
        tiered_cluster,
        target_cluster,
        tmp_path,
        [remote_topic],
        unique_name("m").lower(),
        via=via,
        references=references,
    )
    progress = copy.run()
    assert progress["partitions_done"] == 1, progress
    assert silences.counted > 0, "the quota has held reads back"
    assert int(progress["holes"]) == 0
    assert progress["records"] == END
    tiered_cluster.proxy.rewrite_answer = None
    copy.compare().check()
