"""What nobody could compare is never passed over: retention of the source, and writers that came too late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from cutover_support import CUTOVER_STEPS, Lab

from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import ApprovalRefused, ValidationFailed
from airflow_provider_kafka_migration.freeze import late_writes
from airflow_provider_kafka_migration.phases import groups, validate
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import State
from harness.brokers import KafkaCluster

pytestmark = pytest.mark.integration

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]


def delete_records(cluster: KafkaCluster, topic: str, partition: int, before: int) -> None:
    admin = cluster.admin()
    for future in admin.delete_records([Place(topic, partition, before)]).values():
        future.result()


def switched(lab: Lab) -> PhaseContext:
    """Seed, tail, cutover and client switch."""
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    for step in CUTOVER_STEPS:
        if step is groups.commit_groups:
            lab.join_tail()
        step(context)
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    lab.approve(context, "client_switch")
    context.journal.transition(State.VALIDATING, "lab")
    return context


def check(context: PhaseContext, name: str) -> Any:
    result = context.record.validation()
    assert result is not None
    return result.check(name)


@pytest.mark.parametrize("via", ["direct", "s3"])
def test_a_source_that_retention_has_emptied(make_lab: MakeLab, fill: Fill, unique_name: Name, via: str) -> None:
    """With an archive all that the seed has copied is compared all the same; without one nothing can be PASSED."""
    topic = unique_name("t")
    fill({topic: 1}, 50)
    lab = make_lab(
        [topic], seed={"via": via}, cutover={"sentinel": "end_offsets"}, validation={"before_cutover": False}
    )
    context = switched(lab)
    delete_records(lab.source_cluster, topic, 0, 50)
    assert validate.run(context).details["outcome"] == ("PASSED" if via == "s3" else "WARNING")
    found = check(context, "content")
    row = found.partitions[0]
    if via == "s3":
        assert found.outcome is Outcome.PASSED
        assert (row["compared"], row["archive_records"], row["uncompared"]) == (50, 50, [])
        assert "50 of them compared with the archive" in found.summary
    else:
        assert found.outcome is Outcome.WARNING
        assert (row["compared"], row["uncompared"], row["uncompared_records"]) == (0, [[0, 50]], 50)
        assert f"{topic}-0: source offsets 0..49 were deleted" in found.findings[0]
        assert "NOT COMPARED: 50 records in 1 partitions" in found.summary


def test_records_written_to_the_source_after_the_boundary_fail(
    make_lab: MakeLab, fill: Fill, unique_name: Name
) -> None:
    topic = unique_name("t")
    fill({topic: 2}, 20)
    lab = make_lab([topic])
    context = switched(lab)
    assert late_writes.read(context.record, context.source).problem == ""
    producer = Producer(lab.source_cluster.client_config())
    for number in range(3):
        producer.produce(topic, b"late %d" % number, partition=1)
    assert producer.flush(60) == 0
    with pytest.raises(ApprovalRefused, match=f"{topic}-1: 3 records"):
        lab.approve(context, "client_switch")
    with pytest.raises(ValidationFailed, match="counts_and_offsets"):
        validate.run(context)
    finding = check(context, "counts_and_offsets").findings
    assert len(finding) == 1
    assert finding[0].startswith(f"{topic}-1: 3 records were written to the source after the cutover")
    assert context.journal.find_step("deleting_restored") is None
    # A person has brought the records over, and says so.
    changed = {**lab.spec.model_dump(mode="json"), "validation": {"on_late_writes": "note"}}
    lab.spec = parse_spec(changed)
    again = lab.context()
    assert validate.run(again).details["outcome"] == "WARNING"
    assert check(again, "counts_and_offsets").outcome is Outcome.WARNING
