"""Source logs with holes: compaction, log starts above 0, empty partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
from confluent_kafka import TopicPartition

from airflow_provider_kafka_migration.copy.archive import read_gaps
from harness.brokers import KafkaCluster
from harness.compare import Record, bounds
from harness.load import wait_cleaned, write
from harness.processes import wait_for
from harness.raw_writer import RawTransactions, RawWriter, plain
from tests.integration.copy.conftest import MakeCopying, kept_topic
from tests.integration.copy.copying import results_of

pytestmark = pytest.mark.integration

SEGMENT_MS = 60_000
NOW = int(time.time() * 1000) - 6 * 3600 * 1000
CLEANED = {
    "cleanup.policy": "compact",
    "segment.ms": str(SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "0",
}


def write_batches(cluster: KafkaCluster, topic: str, batches: list[list[tuple[bytes, bytes | None]]]) -> None:
    """Each list is a batch and a segment of its own."""
    for number, batch in enumerate(batches):
        records = [
            (0, Record(-1, NOW + number * 2 * SEGMENT_MS + index, key, value))
            for index, (key, value) in enumerate(batch)
        ]
        # Not idempotent: old message formats do not know it.
        config = {**cluster.client_config(), "linger.ms": 100, "enable.idempotence": False}
        write(config, topic, records, codec="lz4" if number % 2 else "none")


def shapes(cluster: KafkaCluster, topic: str) -> list[tuple[int, int, int]]:
    """(base offset, last offset, records) of the batches on disk."""
    return [
        (int(item["baseOffset"]), int(item["lastOffset"]), int(item["count"])) for item in cluster.dump_log(topic)[0]
    ]


@pytest.mark.parametrize("via", ["direct", "s3"])
def test_compacted_at_every_place(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str], via: str
) -> None:
    topic = unique_name("compacted")
    source_cluster.create_topic(topic, 1, config=CLEANED)
    old = [(b"old %d" % n, b"old value") for n in range(10)]
    kept = [(b"kept %d" % n, b"kept value %d" % n) for n in range(10)]
    later = [(key, b"new value") for key, _ in old]
    write_batches(
        source_cluster,
        topic,
        [
            old,  # all gone: the log begins with a hole
            kept[:2] + old + kept[2:4],  # a hole inside
            old[:5] + kept[4:6],  # a hole at the head of the batch
            kept[6:8] + old[5:],  # a hole at the tail
            old,  # a whole batch gone
            [(b"kept 0", None), (b"dead", None), *kept[8:]],  # tombstones
            [(b"kept 1", b"again"), *later, (b"dead 2", None)],
            [(b"last", b"in the active segment"), (b"old 3", None)],
        ],
    )
    wait_cleaned(source_cluster, [topic])
    source_cluster.alter_topic_configs({topic: {"segment.ms": "604800000", "min.cleanable.dirty.ratio": "1"}})
    found = shapes(source_cluster, topic)
    assert found[0][0] > 0 or found[0][2] == 0, "the log should begin with a hole"
    assert any(0 < count < last - base + 1 for base, last, count in found), "a batch should have holes"
    missing = sum(last - base + 1 - count for base, last, count in found) + sum(
        later[0] - earlier[1] - 1 for earlier, later in pairwise(found)
    )
    copy = copying([topic], via=via)
    progress = copy.run()
    comparison = copy.compare()
    comparison.check()
    assert int(progress["holes"]) == found[0][0] + missing
    assert comparison.topics[topic].source_records == int(progress["records"])


def test_log_starts_above_zero(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    raw_writer: RawWriter,
    unique_name: Callable[[str], str],
) -> None:
    """DeleteRecords into the middle of a batch, to the very end, into an aborted transaction; and never written to."""
    topic = unique_name("starts")
    kept_topic(source_cluster, topic, 5)
    for partition in range(4):
        for number in range(5):
            raw_writer.write(topic, partition, plain(*[b"%d" % number] * 50))
    transactions = RawTransactions(raw_writer, unique_name("tx"))
    transactions.write(topic, 2, plain(*[b"aborted"] * 50))
    transactions.end(commit=False)
    raw_writer.write(topic, 2, plain(b"after"))
    starts = {0: 120, 1: 250, 2: 270, 3: 1}
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in starts.items()]
    admin = source_cluster.admin()
    for future in admin.delete_records(wanted, request_timeout=120).values():
        future.result()
    copy = copying([topic])
    copy.run()
    copy.compare().check()
    on_target = bounds(copy.target.client_config(), [topic])[topic]
    assert {number: item.log_start for number, item in on_target.items()} == {**starts, 4: 0}
    # A partition that is empty at S goes on at S.
    assert on_target[1].end == 250
    raw_writer.write(topic, 1, plain(b"at 250"))
    raw_writer.write(topic, 4, plain(b"at 0"))
    copy.run()
    copy.compare().check()


def test_log_start_by_retention(
    copying: MakeCopying, old_source: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("retention")
    old_source.create_topic(topic, 1, config={"retention.ms": "-1", "segment.ms": str(SEGMENT_MS)})
    batches = [[(b"%d" % n, b"v" * 100) for n in range(30)] for _ in range(6)]
    write_batches(old_source, topic, batches)
    # Keeps the last two segments.
    age = int(time.time() * 1000) - (NOW + 4 * 2 * SEGMENT_MS) + SEGMENT_MS
    old_source.alter_topic_configs({topic: {"retention.ms": str(age)}})
    config = old_source.client_config()
    wait_for("retention", lambda: bounds(config, [topic])[topic][0].log_start > 0, 120)
    old_source.alter_topic_configs({topic: {"retention.ms": "-1"}})
    copy = copying([topic], source=old_source)
    assert copy.partitions[topic, 0].source_start_offset == 120
    copy.run()
    copy.compare().check()


def delete_records(cluster: KafkaCluster, starts: Mapping[tuple[str, int], int]) -> None:
    """Move log starts."""
    wanted = [TopicPartition(topic, partition, offset) for (topic, partition), offset in starts.items()]
    admin = cluster.admin()
    for future in admin.delete_records(wanted, request_timeout=120).values():
        future.result()


@pytest.mark.parametrize("policy", ["stop", "note"])
def test_retention_overtakes_the_copy(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    raw_writer: RawWriter,
    unique_name: Callable[[str], str],
    policy: str,
) -> None:
    """Records are deleted between two slices: a named error, or a hole that the results name."""
    topic = unique_name("overtaken")
    kept_topic(source_cluster, topic)
    for number in range(10):
        raw_writer.write(topic, 0, plain(*[b"%d" % number] * 10))
    copy = copying([topic], job_fields={"on_source_gap": policy})
    copy.run()
    for number in range(10, 20):
        raw_writer.write(topic, 0, plain(*[b"%d" % number] * 10))
    admin = source_cluster.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, 155)], request_timeout=120).values():
        future.result()
    if policy == "stop":
        with pytest.raises(Exception, match=r"records 100\.\.154 were deleted on the source") as caught:
            copy.run()
        assert caught.value.details["partitions"][0]["error"]["code"] == "SOURCE_GAP"
        return
    copy.write_job("seed")
    out, err = copy.worker().communicate(timeout=240)
    assert results_of(out)[0].gaps == [(100, 155)], err
    # As after a kill right behind the gap: that copier's results are lost, and the next one does not see it any more.
    progress = copy.run()
    assert progress["partitions"][0]["gaps"] == []
    assert progress["partitions"][0]["verdict"] == "equal"
    assert read_gaps((copy.clients.store(copy.journal),), copy.migration_id) == {(topic, 0): [(100, 155)]}
    copy.compare(source_may_delete=True).check()


@pytest.mark.parametrize("policy", ["stop", "note"])
def test_source_records_that_were_copied_already_are_deleted(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    raw_writer: RawWriter,
    unique_name: Callable[[str], str],
    policy: str,
) -> None:
    """DeleteRecords on the source ends inside of the last copied batch, at its end, or before the last record.

    Nothing is lost, so no policy applies: the next slice goes on, names no gap and writes none down.
    """
    topic = unique_name("deleted")
    kept_topic(source_cluster, topic, 4)
    for partition in range(4):
        for number in range(10):
            raw_writer.write(topic, partition, plain(*[b"%d" % number] * 10))
    # Partition 1 does not begin at 0, so its copy does not look like one that has not begun.
    delete_records(source_cluster, {(topic, 1): 20})
    copy = copying([topic], job_fields={"on_source_gap": policy})
    copy.run()
    delete_records(source_cluster, {(topic, 0): 95, (topic, 1): 95, (topic, 2): 99, (topic, 3): 100})
    for partition in range(4):
        raw_writer.write(topic, partition, plain(*[b"new"] * 5))
    copy.write_job("seed")
    worker = copy.worker()
    try:
        out, err = worker.communicate(timeout=240)
    finally:
        worker.kill()
    results = results_of(out)
    assert [(item.error, item.gaps, item.done, item.target_offset) for item in results] == [
        (None, [], True, 105)
    ] * 4, err
    assert read_gaps((copy.clients.store(copy.journal),), copy.migration_id) == {}
    copy.compare(source_may_delete=True).check()
