"""Every kind of source log, copied in transactions: content in order, and a map that is right for every offset."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.documents.plan import Verdict
from harness.brokers import KafkaCluster
from harness.compare import read_records
from harness.copiers.copying import results_of
from harness.load import load, tiny_topics
from tests.integration.transactional.conftest import MakeCopying
from tests.integration.transactional.transactional_support import (
    FOREIGN_KEY,
    check_copy,
    foreign_writers,
    map_of,
    position_of,
)

pytestmark = pytest.mark.integration


def test_all_kinds(copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    topics = tiny_topics(unique_name("k") + ".")
    load(source_cluster, topics, seed=7)
    copy = copying([topic.name for topic in topics], lanes=2, via="s3", job_fields={"segment_max_bytes": 20_000})
    progress = copy.run()
    assert progress["partitions_done"] == sum(topic.partitions for topic in topics)
    assert {item["verdict"] for item in progress["partitions"]} == {Verdict.TRANSACTIONAL}
    assert check_copy(copy) == 0
    again = copy.run()
    assert (again["records"], again["partitions_done"]) == (0, progress["partitions_done"])
    assert check_copy(copy) == 0


@pytest.mark.soak
def test_all_kinds_on_a_target_of_the_first_transaction_version(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    first_version_target: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    topics = tiny_topics(unique_name("k") + ".")
    load(source_cluster, topics, seed=11)
    copy = copying([topic.name for topic in topics], target=first_version_target, lanes=2)
    assert copy.run()["partitions_done"] == sum(topic.partitions for topic in topics)
    assert check_copy(copy) == 0


def test_beside_foreign_writers(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    first_version_target: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    target = first_version_target
    topics = tiny_topics(unique_name("k") + ".")[:3]
    load(source_cluster, topics, seed=13)
    copy = copying([topic.name for topic in topics], target=target)
    first = topics[0]
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(20):  # the target's log does not begin with us
        producer.produce(first.name, b"before-%d" % number, key=FOREIGN_KEY, partition=0)
    producer.flush()
    with foreign_writers(target, first.name, first.partitions):
        more = Producer({"bootstrap.servers": source_cluster.bootstrap})
        for _ in range(3):
            copy.run()
            for number in range(40):
                more.produce(first.name, b"more-%d" % number, partition=number % first.partitions)
            more.flush()
        copy.run()
    assert check_copy(copy) > 20
    found = map_of(copy, (first.name, 0))
    assert found.target_start_offset is not None
    assert found.target_start_offset >= 20
    assert len(found) > 3


@pytest.mark.soak
def test_batches_that_are_too_large_are_split(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """The leader refuses in the middle of a transaction: all of it is given up, and copied again in smaller pieces."""
    topic = unique_name("large")
    source_cluster.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap, "batch.size": 900_000, "linger.ms": 200})
    for number in range(3_000):
        producer.produce(topic, b"%06d" % number * 50, partition=0)
    producer.flush()
    copy = copying([topic], target_config={"max.message.bytes": "60000"})
    assert copy.run()["partitions_done"] == 1
    assert check_copy(copy) == 0


@pytest.mark.soak
def test_a_single_record_that_is_too_large_is_named(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("single")
    source_cluster.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap, "linger.ms": 0})
    for size in (10, 20, 300_000, 30):
        producer.produce(topic, b"x" * size, partition=0)
        producer.flush()
    copy = copying([topic], target_config={"max.message.bytes": "60000"})
    copy.write_job("seed")
    out, err = copy.worker().communicate(timeout=240)
    (result,) = results_of(out)
    assert result.error is not None, err
    assert (result.error["code"], result.done) == ("RECORD_TOO_LARGE", False)
    # What lies before it is there, and nothing has overtaken it.
    records = read_records({"bootstrap.servers": copy.target.bootstrap}, topic)[0]
    assert [len(item.value or b"") for item in records] == [10, 20]
    assert position_of(copy, (topic, 0)).source_offset == 2


def test_runs_that_no_longer_fit_go_to_pages(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Small transactions on the source leave a hole after each record: a run each, more than a commit's metadata."""
    topic = unique_name("holes")
    source_cluster.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for number in range(1_200):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.commit_transaction()
    copy = copying([topic])
    assert copy.run()["partitions_done"] == 1
    assert position_of(copy, (topic, 0)).page
    assert check_copy(copy) == 0
    assert len(map_of(copy, (topic, 0))) == 1_200
