"""Timestamps of every kind, and message formats 0 and 1."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    TopicPartition,
)

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.kafka.batches.api import Record as RawRecord
from harness.brokers import KafkaCluster
from harness.compare import Record, read_records
from harness.load import wait_cleaned, write
from harness.processes import wait_for
from harness.raw_writer import RawWriter
from tests.integration.copy.conftest import MakeCopying, kept_topic
from tests.integration.copy.test_batches_holes import CLEANED, write_batches

pytestmark = pytest.mark.integration

YEAR_MS = 365 * 24 * 3600 * 1000


@pytest.mark.parametrize("limit", ["20000000", "2000"], ids=["raw", "rebuilt"])
def test_create_times_of_every_kind(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    raw_writer: RawWriter,
    unique_name: Callable[[str], str],
    limit: str,
) -> None:
    now = int(time.time() * 1000)
    times = [now, now - 1, now - 3 * YEAR_MS, 0, 1, -1, now + YEAR_MS, now, -1, 2**40, 5, now - 50 * YEAR_MS + 10]
    topic = unique_name("times")
    kept_topic(source_cluster, topic)
    for codec in (0, 1, 3):
        records = [RawRecord(index, at, b"k", b"v%d" % index, []) for index, at in enumerate(times * 10)]
        raw_writer.write(topic, 0, records, codec)
        raw_writer.write(topic, 0, [RawRecord(0, -1, None, b"no time", [])], codec)
        raw_writer.write(topic, 0, list(reversed_offsets(records)), codec)
    copy = copying([topic], target_config={"max.message.bytes": limit})
    copy.run()
    copy.compare().check()


def reversed_offsets(records: list[RawRecord]) -> list[RawRecord]:
    """The same records with their times backwards."""
    return [
        record._replace(timestamp=other.timestamp) for record, other in zip(records, reversed(records), strict=True)
    ]


def timestamp_type(cluster: KafkaCluster, topic: str) -> int:
    """The type of the first record's timestamp, as a consumer sees it."""
    consumer = Consumer({**cluster.client_config(), "group.id": "looks", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[int] = []

        def polled() -> bool:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message.timestamp()[0])
            return bool(found)

        wait_for("a record", polled, 120)
        return found[0]
    finally:
        consumer.close()


@pytest.mark.parametrize("timestamps", ["visible", "raw"])
def test_log_append_time(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    raw_writer: RawWriter,
    unique_name: Callable[[str], str],
    timestamps: str,
) -> None:
    topic = unique_name("append-time")
    source_cluster.create_topic(topic, 1, config={"message.timestamp.type": "LogAppendTime"})
    written = [1_000_000_000_000 + index for index in range(200)]
    records = [RawRecord(index, at, b"k", b"v%d" % index, []) for index, at in enumerate(written)]
    for codec in (0, 2, 4):
        raw_writer.write(topic, 0, records, codec)
    # The type changed in the life of the topic: earlier batches keep theirs.
    source_cluster.alter_topic_configs({topic: {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}})
    raw_writer.write(topic, 0, records, 3)
    copy = copying([topic], job_fields={"timestamps": timestamps})
    copy.run()
    on_target = read_records(copy.target.client_config(), topic)[0]
    # The times are kept, their type is not, whatever the topic is set to afterwards.
    copy.target.alter_topic_configs({topic: {"message.timestamp.type": "LogAppendTime"}})
    assert timestamp_type(source_cluster, topic) == TIMESTAMP_LOG_APPEND_TIME
    assert timestamp_type(copy.target, topic) == TIMESTAMP_CREATE_TIME
    if timestamps == "visible":
        copy.compare().check()
        assert all(record.timestamp > written[-1] for record in on_target[:600])
    else:
        # What the producers wrote, before the brokers put their own time over it.
        assert [record.timestamp for record in on_target] == written * 4
        on_source = read_records(source_cluster.client_config(), topic)[0]
        assert [(item.offset, item.key, item.value) for item in on_target] == [
            (item.offset, item.key, item.value) for item in on_source
        ]


def plain_client(cluster: KafkaCluster) -> dict[str, object]:
    """Old message formats know no idempotent producers."""
    return {**cluster.client_config(), "enable.idempotence": False}


def magics(cluster: KafkaCluster, topic: str) -> set[int]:
    """The message formats in the log files of partition 0."""
    found = set()
    for path in cluster.data_folder(0).glob(f"{topic}-0/*.log"):
        data, position = path.read_bytes(), 0
        while position + 17 <= len(data) and (size := int.from_bytes(data[position + 8 : position + 12], "big")):
            found.add(data[position + 16])
            position += 12 + size
    return found


@pytest.mark.parametrize("via", ["direct", pytest.param("s3", marks=pytest.mark.soak)])
def test_message_formats_0_and_1(
    copying: MakeCopying, old_source: KafkaCluster, unique_name: Callable[[str], str], via: str
) -> None:
    formats = {"0.9.0": "magic0", "0.10.2": "magic1", "2.8": "magic2"}
    now = int(time.time() * 1000) - 3600_000
    topics = {}
    for version, mark in formats.items():
        for codec in ("none", "gzip", "snappy", "lz4"):
            name = unique_name(f"{mark}-{codec}")
            topics[name] = mark
            old_source.create_topic(name, 1, config={"message.format.version": version})
            records = [
                (0, Record(-1, now + index, None if index % 7 == 0 else b"k%d" % index, b"v" * (index % 90) or None))
                for index in range(300)
            ]
            write(plain_client(old_source), name, records, codec=codec)
    # One log with all three formats, as brokers have it that were upgraded step by step.
    mixed = unique_name("mixed")
    topics[mixed] = "mixed"
    old_source.create_topic(mixed, 1, config={"message.format.version": "0.9.0"})
    for magic, version in enumerate(("0.9.0", "0.10.2", "2.8")):
        old_source.alter_topic_configs({mixed: {"message.format.version": version}})
        records = [(0, Record(-1, now, b"k", version.encode()))] * 50
        # With ZooKeeper a broker learns of the change some time after the answer.
        while magic not in magics(old_source, mixed):
            write(plain_client(old_source), mixed, records, codec="lz4")
    found = {
        mark: set().union(*(magics(old_source, name) for name in topics if topics[name] == mark))
        for mark in ("magic0", "magic1", "magic2", "mixed")
    }
    assert found == {"magic0": {0}, "magic1": {1}, "magic2": {2}, "mixed": {0, 1, 2}}
    copy = copying(sorted(topics), source=old_source, via=via)
    copy.run()
    copy.compare().check()


def test_format_1_compacted(copying: MakeCopying, old_source: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    topics = {unique_name(mark): version for mark, version in (("magic1", "0.10.2"), ("magic0", "0.9.0"))}
    for name, version in topics.items():
        old_source.create_topic(name, 1, config={**CLEANED, "message.format.version": version})
        batches = [[(b"%d" % (number % 5), b"%d" % number) for number in range(20)] for _ in range(4)]
        write_batches(old_source, name, batches)
    magic1 = next(name for name, version in topics.items() if version == "0.10.2")
    # Without timestamps (format 0) segments do not roll by time, so only the other one is cleaned.
    wait_cleaned(old_source, [magic1])
    copy = copying(sorted(topics), source=old_source)
    progress = copy.run()
    assert int(progress["holes"]) > 0
    copy.compare().check()


@pytest.mark.parametrize("verdict", [Verdict.EQUAL, Verdict.MAPPED])
def test_offsets_by_time_find_markers_too_early_and_nothing_where_there_are_none(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str], verdict: Verdict
) -> None:
    """Markers carry the time of the copy, so a time before it is answered with the first of them."""
    topic = unique_name("by-time")
    source_cluster.create_topic(topic, 1, config=CLEANED)
    batches = [[(b"%d" % (number % 5), b"%d" % number) for number in range(20)] for _ in range(4)]
    write_batches(source_cluster, topic, batches)
    wait_cleaned(source_cluster, [topic])
    before_the_copy = int(time.time() * 1000)
    copy = copying([topic], verdicts={(topic, 0): verdict})
    copy.run()
    assert offset_at(source_cluster, topic, before_the_copy) == -1, "no record of the source is that young"
    found = offset_at(copy.target, topic, before_the_copy)
    if verdict is Verdict.MAPPED:
        assert found == -1
    else:
        records = read_records(copy.target.client_config(), topic)[0]
        assert 0 <= found < records[-1].offset
        assert found not in {record.offset for record in records}


def offset_at(cluster: KafkaCluster, topic: str, at_ms: int) -> int:
    """The first offset at or after a time, as a consumer is told; -1 if there is none."""
    consumer = Consumer({**cluster.client_config(), "group.id": "looks"})
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, at_ms)], timeout=60)
        return int(found.offset)
    finally:
        consumer.close()
