"""Records that are on neither cluster: an outage that outlasts retention, and a disk that is replaced."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.copy.archive import read_losses
from airflow_provider_kafka_migration.errors import CopyFailed
from harness.brokers import KafkaCluster
from harness.copiers.copying import Copying
from harness.raw_writer import RawWriter, plain

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two clusters of their own: one loses its disk."""
    with (
        KafkaCluster(tmp_path / "source", "3.9.1", "zookeeper", sasl=False, authorizer=False) as source,
        KafkaCluster(tmp_path / "target", "4.1.1", sasl=False, authorizer=False) as target,
    ):
        yield source, target


def failure(copying: Copying) -> dict[str, Any]:
    with pytest.raises(CopyFailed) as caught:
        copying.run()
    (partition,) = caught.value.details["partitions"]
    return dict(partition["error"])


def test_what_is_on_neither_cluster_is_named_where_nothing_seems_copied(
    clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    source, target = clusters
    for topic in ("idle", "disk"):
        source.create_topic(topic, 1, config={"retention.ms": "-1"})
    with RawWriter(source.bootstrap) as writer:
        for number in range(3):
            writer.write("disk", 0, plain(*[b"d%d" % (number * 20 + item) for item in range(20)]))
        idle = Copying(source, target, tmp_path / "idle", ["idle"], "idle-copy")
        disk = Copying(source, target, tmp_path / "disk", ["disk"], "disk-copy")
        idle.run()
        disk.run()

        # Nobody reads an empty topic for longer than its records are kept.
        for number in range(10):
            writer.write("idle", 0, plain(*[b"r%d" % (number * 10 + item) for item in range(10)]))
        writer.wire.delete_records({("idle", 0): 100})
        writer.write("idle", 0, plain(b"later 1", b"later 2"))
        error = failure(idle)
        assert error["code"] == "SOURCE_GAP"
        assert "records 0..99 were deleted" in error["what"]

        # The target's disk is replaced, and the source has deleted a part of what was there.
        target.stop_broker(0)
        folders = [path for path in (tmp_path / "target").rglob("disk-0") if path.is_dir()]
        assert folders
        for path in folders:
            shutil.rmtree(path)
        target.restart(0)
        writer.wire.delete_records({("disk", 0): 40})
        error = failure(disk)
        assert error["code"] == "SOURCE_GAP"
        assert "records 0..39 are on neither cluster" in error["what"]
        (loss,) = read_losses(disk.clients.store(disk.journal), disk.migration_id)
        assert (loss.from_target_offset, loss.to_target_offset, loss.source_offset) == (60, 0, 60)
