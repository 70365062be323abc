"""A topic whose copy is not to be trusted any more is deleted on the target, made again and copied again, by policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cutover_support import Lab

from airflow_provider_kafka_migration.errors import CopyFailed
from airflow_provider_kafka_migration.phases import seed
from airflow_provider_kafka_migration.record import steps
from harness.brokers import KafkaCluster
from harness.load import wait_cleaned
from tests.integration.copy.test_overtaken_tombstones import CLEANED, Segments

pytestmark = pytest.mark.integration


def test_a_seed_that_was_overtaken_copies_the_topic_again(
    make_lab: Callable[..., Lab], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("recopied")
    # Tombstones that go in no time: any copy is too late.
    source_cluster.create_topic(topic, 1, config={**CLEANED, "delete.retention.ms": "0"})
    segments = Segments(source_cluster, topic)
    segments.add([(b"first", b"1"), (b"again", b"1")], [(b"again", b"2")], [(b"last", b"1")])
    wait_cleaned(source_cluster, [topic])
    lab = make_lab([topic], offsets={"on_overtaken_tombstones": "repair"})
    with pytest.raises(CopyFailed, match=r"\[TOMBSTONES_OVERTAKEN\]") as caught:
        lab.begin()
    assert "to repair (it deletes the target topic" in caught.value.next_step
    context = lab.context()

    def target_id() -> str:
        return context.target.admin.describe_topics([topic])[topic].topic_id

    before = target_id()
    # Nobody deletes a topic that the journal does not call made by this migration.
    source_cluster.alter_topic_configs({topic: {"delete.retention.ms": "0"}})
    with pytest.raises(CopyFailed, match=r"\[TOMBSTONES_OVERTAKEN\]"):
        seed.run(context)
    assert target_id() == before
    context.journal.step(steps.TOPIC_CREATED, details={"topics": {topic: before}})
    source_cluster.alter_topic_configs({topic: {"delete.retention.ms": "86400000"}})
    seed.run(context)
    assert target_id() not in ("", before)
    lab.check_equal()
    assert [entry.details["topics"] for entry in context.journal.steps(steps.TOPICS_RECOPIED)] == [{topic: before}]
    assert [entry.details["topics"] for entry in context.journal.steps(steps.TOPICS_MADE_AGAIN)] == [[topic]]
    assert all("copied again" in item["what"] for item in context.record.overtaken())
    assert seed.run(context).already_done
    assert len(context.journal.steps(steps.TOPICS_RECOPIED)) == 1
