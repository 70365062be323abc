"""The content check on real logs: copies are equal, damage is found, compaction and deletion since are known."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_kafka_migration.compare.logs import KafkaLog
from airflow_provider_kafka_migration.compare.proven import proven_key
from airflow_provider_kafka_migration.compare.runner import ContentResults, LocalContentRunner
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.proof import (
    ContentJob,
    ContentRange,
    PartitionContent,
    ProvenPartition,
    TopicRules,
)
from airflow_provider_kafka_migration.errors import BrokerRefused
from harness.brokers import KafkaCluster
from harness.load import Kind, Record, load, tiny_topics, wait_cleaned, write
from tests.integration.copy.copying import Copying

pytestmark = pytest.mark.integration


def content_job(copy: Copying, rules: dict[str, TopicRules] | None = None, attempt: int = 1) -> ContentJob:
    """Compare everything up to the target's ends."""
    target_ends = copy.clients.wire("target").list_offsets(list(copy.partitions), "latest")
    return ContentJob(
        migration_id=copy.migration_id,
        attempt=attempt,
        journal_location=copy.journal,
        topics=rules or {},
        ranges=[
            ContentRange(
                topic=key[0],
                target_topic=spec.target_topic,
                partition=key[1],
                verdict=spec.verdict,
                source_start_offset=spec.source_start_offset,
                source_end_offset=target_ends[key] + spec.source_start_offset - spec.target_start_offset,
                target_start_offset=spec.target_start_offset,
                target_end_offset=target_ends[key],
            )
            for key, spec in sorted(copy.partitions.items())
        ],
    )


def verify(copy: Copying, rules: dict[str, TopicRules] | None = None) -> list[PartitionContent]:
    return LocalContentRunner(copy.clients, threads=2).run(content_job(copy, rules))


def test_all_kinds_of_logs_are_equal(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topics = tiny_topics(unique_name("c") + ".")
    load(source_cluster, topics, seed=21)
    copy = copying([topic.name for topic in topics], lanes=2)
    progress = copy.run()
    job = content_job(copy)
    found = LocalContentRunner(copy.clients, threads=2).run(job)
    assert [content.differences for content in found] == [[] for _ in found]
    assert all(content.is_equal and content.explained == {} for content in found)
    assert sum(content.compared for content in found) == progress["records"]
    assert all(content.source_digest == content.target_digest for content in found)
    methods = {content.topic: content.method for content in found if content.compared}
    names = {topic.kind: topic.name for topic in topics}
    assert (methods[names[Kind.PLAIN]], methods[names[Kind.LOG_APPEND_TIME]]) == ("payload", "decoded")
    stored = ContentResults(job, copy.clients.store(copy.journal)).read_all()
    assert stored == found


@pytest.mark.soak
def test_equal_results_are_not_made_again_in_the_same_attempt(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topics = tiny_topics(unique_name("c") + ".")[:1]
    load(source_cluster, topics, seed=22)
    copy = copying([topic.name for topic in topics])
    copy.run()
    job = content_job(copy)
    first = LocalContentRunner(copy.clients).run(job)
    nowhere = {**(copy.references or {}), "source": {"bootstrap.servers": "127.0.0.1:1"}}
    assert LocalContentRunner(Clients(nowhere)).run(job) == first
    again = LocalContentRunner(Clients(nowhere)).run(content_job(copy, attempt=2))
    assert {str((content.error or {}).get("code")) for content in again} == {"BROKER_UNREACHABLE"}
    assert not any(content.is_equal for content in again)


def test_what_somebody_else_wrote_is_found(
    copying: Callable[..., Copying],
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    name = unique_name("c")
    source_cluster.create_topic(name, 2)
    config = {"bootstrap.servers": source_cluster.bootstrap}
    now = int(time.time() * 1000)
    write(config, name, [(number % 2, Record(-1, now, b"k", b"v%d" % number)) for number in range(100)])
    copy = copying([name])
    copy.run()
    target = {"bootstrap.servers": target_cluster.bootstrap}
    write(target, name, [(1, Record(-1, now, b"k", b"foreign"))])
    left, right = verify(copy)
    assert left.is_equal
    assert [(item.kind, item.target_offset) for item in right.differences] == [("extra", 50)]
    assert right.source_digest != right.target_digest


def flipped(records: list[Record]) -> list[Record]:
    value = records[30].value
    assert value is not None
    changed = bytes([value[0] ^ 1]) + value[1:]
    return [*records[:30], replace(records[30], value=changed), *records[31:]]


def lost(records: list[Record]) -> list[Record]:
    return [*records[:30], *records[31:]]


def duplicated(records: list[Record]) -> list[Record]:
    return [*records[:31], records[30], *records[31:]]


def swapped(records: list[Record]) -> list[Record]:
    return [*records[:30], records[31], records[30], *records[32:]]


@pytest.mark.parametrize(
    ("damage", "kind"),
    [(flipped, "changed"), (lost, "offset"), (duplicated, "duplicate"), (swapped, "order")],
)
def test_each_kind_of_damage_is_found_on_the_target(
    copying: Callable[..., Copying],
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    damage: Callable[[list[Record]], list[Record]],
    kind: str,
) -> None:
    """A target log that a broker takes as good, with one thing wrong in it."""
    name = unique_name("c")
    source_cluster.create_topic(name, 1)
    now = int(time.time() * 1000)
    records = [Record(-1, now + number, b"k", b"value %d" % number) for number in range(100)]
    write({"bootstrap.servers": source_cluster.bootstrap}, name, [(0, record) for record in records])
    copy = copying([name])
    copy.run()
    assert verify(copy)[0].is_equal
    target_cluster.delete_topics([name])
    target_cluster.create_topic(name, 1)
    write({"bootstrap.servers": target_cluster.bootstrap}, name, [(0, record) for record in damage(records)])
    (found,) = LocalContentRunner(copy.clients).run(content_job(copy, attempt=2))
    assert not found.is_equal
    assert found.source_digest != found.target_digest
    first = found.differences[0]
    assert first.kind == kind, found.differences
    assert {first.source_offset, first.target_offset} & {30, 31}, found.differences


def test_a_source_that_goes_on_compacting_and_deleting_is_not_blamed(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    compacted, deleted = unique_name("c"), unique_name("c")
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "min.cleanable.dirty.ratio": "1.0",
        "min.compaction.lag.ms": "86400000",
    }
    source_cluster.create_topic(compacted, 1, config=settings)
    source_cluster.create_topic(deleted, 1)
    config = {"bootstrap.servers": source_cluster.bootstrap}
    now = int(time.time() * 1000)
    rows = [(0, Record(-1, now, b"key %d" % (number % 40), b"x" * 500 + b"%d" % number)) for number in range(4_000)]
    write(config, compacted, rows)
    for first in range(0, 1_000, 100):  # ten batches at least: the log start is in one of them
        write(config, deleted, rows[first : first + 100])
    copy = copying([compacted, deleted])
    copy.run()
    rules = {compacted: TopicRules(compacted=True), deleted: TopicRules(compacted=False)}
    assert all(content.is_equal and not content.explained for content in verify(copy, rules))

    source_cluster.alter_topic_configs(
        {
            compacted: {
                "min.compaction.lag.ms": "0",
                "min.cleanable.dirty.ratio": "0.01",
                "max.compaction.lag.ms": "1000",
                "segment.ms": "1000",
            }
        }
    )
    # A record that rolls the segment: the active one is never cleaned.
    time.sleep(1.1)
    write(config, compacted, [(0, Record(-1, int(time.time() * 1000), b"last", b"v"))])
    wait_cleaned(source_cluster, [compacted])
    copy.clients.wire("source").delete_records({(deleted, 0): 420})
    by_topic = {content.topic: content for content in LocalContentRunner(copy.clients).run(content_job(copy, rules, 2))}
    after = by_topic[compacted]
    assert after.is_equal, after.differences
    assert after.explained["compacted"] > 2_000
    assert after.compared + after.explained["compacted"] == 4_000
    gone = by_topic[deleted]
    assert gone.is_equal
    assert not gone.is_proven
    assert 0 < gone.uncompared_records <= 420
    assert [start for start, _ in gone.uncompared] == [0]
    blamed = LocalContentRunner(copy.clients).run(content_job(copy, {}, 3))
    assert {content.topic: content.is_equal for content in blamed} == {compacted: False, deleted: True}


def test_what_is_proven_is_not_read_again_unless_the_targets_log_is_another(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("p")
    source_cluster.create_topics({topic: (1, {})})
    write(source_cluster.client_config(), topic, [(0, Record(n, 1_000 + n, b"k", b"v%d" % n)) for n in range(40)])
    copy = copying([topic])
    copy.run()
    runner, store = LocalContentRunner(copy.clients), copy.clients.store(copy.journal)

    def check(attempt: int) -> PartitionContent:
        job = content_job(copy, attempt=attempt).model_copy(update={"start_from_proven": True})
        return runner.run(job)[0]

    assert (check(1).compared, check(1).is_proven) == (40, True)
    key = proven_key(copy.migration_id, topic, 0)
    document = ProvenPartition.parse(store.get(key) or b"")
    assert document.proven is not None
    assert (document.proven.source_end_offset, document.proven.anchor_offset, document.proven.pieces) == (40, 39, 1)
    assert document.proven.anchor_epoch >= 0

    # More comes: only that is compared.
    write(source_cluster.client_config(), topic, [(0, Record(n, 1_000 + n, b"k", b"v%d" % n)) for n in range(7)])
    copy.run()
    copy.clients.wire("target").delete_records({(topic, 0): 10})
    assert (check(2).compared, check(2).is_proven) == (47, True)
    document = ProvenPartition.parse(store.get(key) or b"")
    assert document.proven is not None
    assert (document.proven.pieces, document.proven.target_log_start_offset) == (2, 10)

    # Another epoch at the anchor: somebody has written this log again. Then nothing is proven.
    other = document.proven.model_copy(update={"anchor_epoch": document.proven.anchor_epoch + 1})
    store.put(key, document.model_copy(update={"proven": other}).canonical())
    again = check(3)
    assert [difference.kind for difference in again.differences] == ["missing"] * 10


def test_a_comparison_cannot_write_to_a_cluster(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("w")
    source_cluster.create_topics({topic: (1, {})})
    write(source_cluster.client_config(), topic, [(0, Record(0, 1_000, b"k", b"v"))])
    clients = copying([topic]).clients
    wire = clients.wire("source", read_only=True)
    assert wire.list_offsets([(topic, 0)], "latest") == {(topic, 0): 1}
    assert sum(1 for _ in KafkaLog(wire, topic, 0).batches(0, 1)) == 1
    with pytest.raises(BrokerRefused, match="this connection is read-only"):
        wire.init_producer_id()
    with pytest.raises(BrokerRefused, match="this connection is read-only"):
        wire.delete_records({(topic, 0): 1})
    assert clients.wire("source").list_offsets([(topic, 0)], "earliest") == {(topic, 0): 0}
