"""A copy that pauses for longer than the source keeps tombstones: a deleted key would live on, unseen."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from airflow_provider_kafka_migration.compare.runner import LocalContentRunner
from airflow_provider_kafka_migration.copy.read_watch import read_overtaken
from airflow_provider_kafka_migration.documents.copy import TombstoneSettings
from airflow_provider_kafka_migration.documents.proof import PartitionContent, TopicRules
from airflow_provider_kafka_migration.errors import CopyFailed
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, records
from airflow_provider_kafka_migration.kafka.logs import read_span
from harness.brokers import KafkaCluster
from harness.load import Record, write
from harness.processes import wait_for
from tests.integration.content.test_content_on_brokers import content_job
from tests.integration.copy.conftest import MakeCopying
from tests.integration.copy.copying import Copying

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SEGMENT_MS, RETENTION_MS = 60_000, 1_000
CLEANED = {
    "cleanup.policy": "compact",
    "segment.ms": str(SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": str(RETENTION_MS),
}


class Segments:
    """Writes batches of one partition, each a segment of its own, so that the cleaner gets to all but the last."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.time_ms = int(time.time() * 1000) - 6 * 3600 * 1000

    def add(self, *batches: list[tuple[bytes, bytes | None]]) -> None:
        config = {**self.cluster.client_config(), "linger.ms": 100}
        for batch in batches:
            self.time_ms += 2 * SEGMENT_MS
            write(config, self.topic, [(0, Record(-1, self.time_ms, key, value)) for key, value in batch])


def keys_of(copy: Copying, side: str) -> set[bytes | None]:
    """Keys of all records that the cluster has, tombstones included."""
    wire = copy.clients.wire(side)
    ((topic, partition),) = copy.partitions
    end = wire.list_offsets([(topic, partition)], "latest")[topic, partition]
    found = read_span(wire, (topic, partition), 0, end)
    batches = [batch for batch in found if isinstance(batch, RawBatch) and not batch.is_control]
    return {item.key for batch in batches for item in records(batch)}


def test_a_deleted_key_that_lives_on_is_named_and_found(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("overtaken")
    source_cluster.create_topic(topic, 1, config=CLEANED)
    segments = Segments(source_cluster, topic)
    segments.add([(b"kept", b"value"), (b"dead", b"value")], [(b"more", b"value")])
    copy = copying([topic])
    settings = TombstoneSettings(on_overtaken="stop", retention_ms={topic: RETENTION_MS})
    copy.run(tombstones=settings)
    runner = LocalContentRunner(copy.clients)
    rules = {topic: TopicRules(compacted=True, delete_retention_ms=RETENTION_MS)}

    def check(attempt: int) -> PartitionContent:
        job = content_job(copy, rules, attempt).model_copy(update={"start_from_proven": True})
        return runner.run(job)[0]

    assert check(1).is_proven

    # While nobody copies, the key is deleted, and its tombstone after it.
    segments.add([(b"dead", None)])

    def is_gone() -> bool:
        segments.add([(b"roll", b"value")])
        return b"dead" not in keys_of(copy, "source")

    wait_for("the tombstone is gone", is_gone, 120, every_seconds=0.5)
    before = copy.clients.wire("target").list_offsets([(topic, 0)], "log_end")
    with pytest.raises(CopyFailed) as raised:
        copy.run(tombstones=settings)
    (failed,) = raised.value.details["partitions"]
    assert failed["error"]["code"] == "TOMBSTONES_OVERTAKEN"
    assert failed["error"]["details"]["retention_ms"] == RETENTION_MS
    assert failed["error"]["details"]["gap_seconds"] > RETENTION_MS / 1000
    assert failed["error"]["details"]["caught_up_offset"] == before[topic, 0]
    assert copy.clients.wire("target").list_offsets([(topic, 0)], "log_end") == before, "nothing was copied behind it"

    progress = copy.run(tombstones=settings.model_copy(update={"on_overtaken": "note"}))
    assert progress["partitions_overtaken"] == 1
    assert {item.from_offset for item in read_overtaken([copy.clients.store(copy.journal)], copy.migration_id)} == {
        before[topic, 0]
    }
    # What was proven before is looked at again: else nobody would ever see the key.
    assert b"dead" in keys_of(copy, "target")
    content = check(2)
    assert not content.is_equal
    assert [(item.kind, item.target_offset) for item in content.differences] == [("extra", 1)]
