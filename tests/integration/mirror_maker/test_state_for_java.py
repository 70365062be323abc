"""Kafka's own classes read the state that we write: exact positions of groups, while the tail is running."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

sys.path.insert(0, str(Path(__file__).parents[1] / "cutover"))

from cutover_support import Lab, closing

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import ForeignData, TopologyRefused
from airflow_provider_kafka_migration.mirror_maker.formats import Checkpoint
from airflow_provider_kafka_migration.mirror_maker.state_topics import StateTopics
from airflow_provider_kafka_migration.mirror_maker.state_writer import latest
from airflow_provider_kafka_migration.translate import Translator
from airflow_provider_kafka_migration.translate.publish import StatePublisher
from harness import clients, compare
from harness.brokers import KafkaCluster
from harness.jars import kafka_jars
from harness.load import Kind, TopicLoad, load
from harness.mirror_client import PATTERN_VERSION, MirrorClient, mirror_client

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FORMATTERS = "org.apache.kafka.connect.mirror.formatters"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@pytest.fixture
def lab(
    tmp_path: Path, source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> Iterator[Lab]:
    """A migration whose tail has caught up, with groups all over its topics."""
    stem = unique_name("mm")
    kinds = {
        f"{stem}.plain": (Kind.PLAIN, Verdict.EQUAL),
        f"{stem}.tx": (Kind.TRANSACTIONAL, Verdict.MAPPED),
        f"{stem}.head": (Kind.HEAD_DELETED, Verdict.SHIFTED),
        f"{stem}.compact": (Kind.COMPACTED, Verdict.MAPPED),
    }
    made = Lab(
        tmp_path, source_cluster, target_cluster, list(kinds), verdicts={name: kind[1] for name, kind in kinds.items()}
    )
    with closing(made):
        load(source_cluster, [TopicLoad(name, kind, 1, 150, 60) for name, (kind, _) in kinds.items()])
        config = source_cluster.client_config()
        for fraction in (0.0, 0.2, 0.5, 0.8, 1.0):
            positions = clients.positions(config, made.topics, fraction)
            clients.commit_offsets(config, f"{made.migration_id}.{fraction}", positions)
        context = made.begin()
        made.start_tail()
        made.drain_ready(context)
        yield made


@pytest.fixture(scope="module")
def java(target_cluster: KafkaCluster) -> Iterator[MirrorClient]:
    with mirror_client({"bootstrap.servers": target_cluster.bootstrap}) as client:
        yield client


@pytest.fixture(scope="module")
def newer_java(target_cluster: KafkaCluster) -> Iterator[MirrorClient]:
    """The classes of the first minor version that translates the groups of a pattern."""
    with mirror_client({"bootstrap.servers": target_cluster.bootstrap}, PATTERN_VERSION) as client:
        yield client


def records(cluster: KafkaCluster, topics: Sequence[str]) -> dict[str, list[compare.Record]]:
    return {topic: compare.read_records(cluster.client_config(), topic)[0] for topic in topics}


def unread(found: Sequence[compare.Record], offset: int) -> list[tuple[Any, Any]]:
    return [(record.key, record.value) for record in found if record.offset >= offset]


def formatted(cluster: KafkaCluster, topic: str, formatter: str) -> str:
    """What Kafka's console consumer prints with one of MirrorMaker 2's formatters."""
    classpath = f"{kafka_jars.classpath('4.1.1-connect')}:{kafka_jars.classpath('4.1.1')}"
    command = [
        kafka_jars.java(),
        "-Xmx128M",
        "-cp",
        classpath,
        CONSOLE_CONSUMER,
        "--bootstrap-server",
        cluster.bootstrap,
    ]
    command += [
        "--formatter",
        f"{FORMATTERS}.{formatter}",
        "--topic",
        topic,
        "--from-beginning",
        "--timeout-ms",
        "8000",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout


def test_java_clients_get_exact_offsets_of_every_kind_of_partition(
    lab: Lab, java: MirrorClient, newer_java: MirrorClient
) -> None:
    alias = f"src{lab.migration_id.replace('.', '-')}"
    topics = StateTopics(alias, "dst")
    context = lab.context()
    publisher = StatePublisher(context, topics)
    assert {topics.checkpoints, topics.offset_syncs, topics.remote_heartbeats} <= {*publisher.created}
    first = publisher.publish()
    groups = [f"{lab.migration_id}.{fraction}" for fraction in (0.0, 0.2, 0.5, 0.8, 1.0)]
    assert first.checkpoints >= len(groups) * len(lab.topics)

    source = lab.source_cluster.client_config()
    there, here = records(lab.source_cluster, lab.topics), records(lab.target_cluster, lab.topics)
    for group in groups:
        committed = clients.committed_offsets(source, group, lab.topics)
        answered = java.translate(alias, group)
        assert sorted(topic for topic, _ in answered) == sorted(lab.topics)
        for (topic, number), offset in answered.items():
            wanted = unread(there[topic], committed[topic, number])
            assert unread(here[topic], offset) == wanted, (group, topic)
    assert java.translate(alias, "nobody") == {}
    some = re.escape(lab.migration_id)
    assert newer_java.translate_matching(alias, rf"{some}\.0\..*") == {
        group: java.translate(alias, group) for group in groups[:-1]
    }
    assert newer_java.translate_matching(alias, some) == {}, "the whole name of a group has to match"
    assert newer_java.translate(alias, groups[1]) == java.translate(alias, groups[1])

    assert alias in java.upstream_clusters()
    assert java.replication_hops(alias) == 1
    assert java.replication_hops("elsewhere") == -1
    assert topics.checkpoints in java.topics("checkpointTopics")
    assert {topics.heartbeats, topics.remote_heartbeats} <= java.topics("heartbeatTopics")

    shown = formatted(lab.target_cluster, topics.checkpoints, "CheckpointFormatter")
    assert shown.count("Checkpoint{consumerGroupId=") == first.checkpoints
    assert f"topicPartition={lab.topics[0]}-0" in shown
    assert "OffsetSync{topicPartition=" in formatted(lab.target_cluster, topics.offset_syncs, "OffsetSyncFormatter")
    assert f"sourceClusterAlias={alias}, targetClusterAlias=dst" in formatted(
        lab.target_cluster, topics.heartbeats, "HeartbeatFormatter"
    )


@pytest.mark.soak
def test_a_group_with_a_pending_commit_holds_up_no_other_one(lab: Lab, java: MirrorClient) -> None:
    """An application has left its transaction open, which had the group's offsets: brokers answer that they change."""
    alias = f"pending{lab.migration_id.replace('.', '-')}"
    topics, context = StateTopics(alias, "dst"), lab.context()
    source, topic = lab.source_cluster.client_config(), lab.topics[0]
    pending, other = f"{lab.migration_id}.0.2", f"{lab.migration_id}.0.5"
    producer = Producer({**source, "transactional.id": f"{lab.migration_id}-pending"})
    producer.init_transactions(60)
    producer.begin_transaction()
    consumer = Consumer({**source, "group.id": pending})
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), 60)
    consumer.close()
    publisher = StatePublisher(context, topics)
    try:
        written = publisher.publish()
        assert list(publisher.unread) == [pending]
        assert "UNSTABLE_OFFSET_COMMIT" in publisher.unread[pending].what
        assert written.checkpoints > 0
        assert java.translate(alias, other), "the other groups are published"
        assert java.translate(alias, pending) == {}
    finally:
        producer.abort_transaction(60)
    publisher.publish()
    assert publisher.unread == {}
    assert java.translate(alias, pending), "and this one as soon as it can be read"


def test_later_rounds_and_later_processes_write_only_what_has_changed(lab: Lab, java: MirrorClient) -> None:
    alias = f"later{lab.migration_id.replace('.', '-')}"
    topics, context = StateTopics(alias, "dst"), lab.context()
    publisher = StatePublisher(context, topics)
    publisher.publish()
    again = publisher.publish()
    assert (again.checkpoints, again.offset_syncs, again.heartbeats) == (0, 0, 2)

    source, topic = lab.source_cluster.client_config(), lab.topics[0]
    group = f"{lab.migration_id}.0.5"
    end = compare.bounds(source, [topic])[topic][0].end
    clients.commit_offsets(source, group, {(topic, 0): end})
    restarted = StatePublisher(context, topics)
    assert restarted.created == []
    changed = restarted.publish()
    assert (changed.checkpoints, changed.heartbeats) == (1, 2)
    assert java.translate(alias, group)[topic, 0] == Translator(context).offset(topic, 0, end).to_offset

    clients.commit_offsets(source, group, {(topic, 0): 3})
    assert restarted.publish().checkpoints == 1, "a group that was set back"
    assert java.translate(alias, group)[topic, 0] == Translator(context).offset(topic, 0, 3).to_offset
    newest = [Checkpoint.decode(*item) for item in latest(context.target.wire, topics.checkpoints).items()]
    assert len({(item.group, item.topic, item.partition) for item in newest}) == len(newest)


def test_a_tombstone_in_a_state_topic_is_named_before_anything_is_written(lab: Lab) -> None:
    alias = f"bad{lab.migration_id.replace('.', '-')}"
    topics, context = StateTopics(alias, "dst"), lab.context()
    StatePublisher(context, topics)
    producer = Producer(lab.target_cluster.client_config())
    producer.produce(topics.checkpoints, None, b"key", 0)
    assert producer.flush(120) == 0
    with pytest.raises(ForeignData, match="without key or value"):
        StatePublisher(context, topics)


def test_a_state_topic_with_several_partitions_is_refused(lab: Lab) -> None:
    topics = StateTopics(f"wide{lab.migration_id.replace('.', '-')}", "dst")
    lab.target_cluster.create_topics({topics.checkpoints: (3, {"cleanup.policy": "compact"})})
    with pytest.raises(TopologyRefused, match="3 partitions"):
        StatePublisher(lab.context(), topics)
