"""Many topics: plan and topology in batches, with progress; one bad topic does not hide the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.access import apply
from airflow_provider_kafka_migration.errors import TopologyRefused
from airflow_provider_kafka_migration.kafka.admin.topics import NewTopic
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.planning.make import make_plan
from airflow_provider_kafka_migration.topics import copy_settings
from harness.brokers import KafkaCluster
from harness.processes import wait_for
from tests.conftest import USERS
from tests.integration.control.control_support import Control, copy_topics

pytestmark = pytest.mark.integration

#: 1,000 topics of 10 partitions take a few minutes (KAFKA_MIGRATION_SCALE=1000); the usual run takes fewer.
TOPICS = int(os.environ.get("KAFKA_MIGRATION_SCALE", "60"))
PARTITIONS = 10
#: Beyond it, brokers of their own with room for so many partitions. Both in KRaft mode: a ZooKeeper controller needs
#: a tenth of a second for each new partition, and making the source's topics is not what is measured here.
SHARED_BROKERS_TOPICS = 200
ROOMY_JVM = ("-Xms512m", "-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SMALL_INDEXES = {"log.index.size.max.bytes": 65536}


@pytest.fixture
def many(
    make_control: Callable[..., Control], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Control]:
    """A migration between clusters that hold so many topics."""
    if TOPICS <= SHARED_BROKERS_TOPICS:
        yield make_control()
        return

    def cluster(name: str) -> KafkaCluster:
        folder = tmp_path_factory.mktemp(name)
        return KafkaCluster(folder, "4.1.1", "kraft", config=SMALL_INDEXES, jvm=ROOMY_JVM, users=USERS)

    with cluster("many-source") as source, cluster("many-target") as target:
        control = Control(tmp_path, source, target, "scale.")
        yield control
        control.close()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_topics(many: Control, capsys: pytest.CaptureFixture[str]) -> None:
    control = many
    names = [f"{control.prefix}{number:04d}" for number in range(TOPICS)]
    context = control.context()
    seconds = {}
    started = time.monotonic()
    answers = context.source.admin.create_topics(
        [NewTopic(name, PARTITIONS, 1, {"retention.ms": "3600000"}) for name in names]
    )
    assert not [item.error for item in answers.values() if item.error is not None]

    def led() -> bool:
        # The controller has answered; the broker makes its logs for a while yet.
        facts = context.source.admin.describe_topics(names)
        return all(not item.error and all(part.leader > 0 for part in item.partitions) for item in facts.values())

    wait_for("all partitions of the source", led, 300, 1.0)
    failed: list[object] = []
    producer = Producer({**control.source_cluster.client_config(), "linger.ms": 50})
    for name in names:
        for partition in range(PARTITIONS):
            producer.produce(
                name, b"value" * 20, b"key", partition, on_delivery=lambda error, _: error and failed.append(error)
            )
        producer.poll(0)
    assert producer.flush(120) == 0
    assert not failed
    seconds["making the source"] = time.monotonic() - started
    started = time.monotonic()
    context, plan = control.planned()
    seconds["plan"] = time.monotonic() - started
    assert len(plan.topics) == TOPICS
    assert len({key for lane in plan.lanes for key in lane.partitions}) == TOPICS * PARTITIONS
    started = time.monotonic()
    findings = precheck.find_all(context, plan)
    seconds["precheck"] = time.monotonic() - started
    assert not [item for item in findings if item.code == "B019"]
    started = time.monotonic()
    result = copy_topics(context)
    seconds["topology"] = time.monotonic() - started
    assert result.details["created"] == TOPICS
    started = time.monotonic()
    assert copy_topics(control.context()).already_done
    seconds["topology again"] = time.monotonic() - started
    for name, restore in (
        ("first step back", copy_settings.restore_producer_visible),
        ("second", copy_settings.restore_deleting),
    ):
        started = time.monotonic()
        restore(context.record, context.target)
        seconds[name] = time.monotonic() - started
    assert apply.run(context).summary
    entries = len(context.journal.entries())
    assert entries < 60 + TOPICS
    assert any("topics created" in str(line) for line in control.progress)
    resident = psutil.Process().memory_info().rss / 1e6
    with capsys.disabled():
        figures = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
        print(f"\n{TOPICS} topics x {PARTITIONS}: {figures}; {entries} journal entries, {resident:.0f} MB resident")


def test_one_bad_topic_does_not_stop_the_others(control: Control) -> None:
    names = [f"{control.prefix}{stem}" for stem in ("a", "bad", "c")]
    for name in names:
        control.source_cluster.create_topic(name)
    context, plan = control.planned()
    topics = [
        topic.model_copy(update={"target_configs": {"flush.ms": "not-a-number"}}) if topic.name == names[1] else topic
        for topic in plan.topics
    ]
    context.journal_store.put(context.key("plan.json"), plan.model_copy(update={"topics": topics}).canonical())
    with pytest.raises(TopologyRefused) as caught:
        copy_topics(context)
    assert list(caught.value.details["topics"]) == [names[1]]
    described = context.target.admin.describe_topics(names)
    assert [name for name in names if described[name].error is None] == [names[0], names[2]]
    # Corrected and run again, it goes on.
    context.journal_store.put(context.key("plan.json"), make_plan(control.context()).canonical())
    assert copy_topics(control.context()).details["created"] == 1
    assert control.context().record.stored_result("topology")["created"] == [names[1]]
