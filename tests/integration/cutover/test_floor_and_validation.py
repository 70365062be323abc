"""What was cut, lost or altered on the target is found before clients switch, and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from cutover_support import CUTOVER_STEPS, Lab

from airflow_provider_kafka_migration.errors import FloorViolated, ForeignData, ValidationFailed
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.phases import floor_guard, groups, validate
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from harness import clients
from harness.brokers import KafkaCluster

pytestmark = pytest.mark.integration

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]


def delete_records(cluster: KafkaCluster, topic: str, partition: int, before: int) -> None:
    admin = cluster.admin()
    for future in admin.delete_records([Place(topic, partition, before)]).values():
        future.result()


def to_guard(lab: Lab, context: PhaseContext) -> None:
    """The cutover up to the step before floor_guard."""
    lab.enter_cutover(context)
    for step in CUTOVER_STEPS[:5]:
        if step is groups.commit_groups:
            lab.join_tail()
        step(context)


def switched(lab: Lab, context: PhaseContext) -> None:
    """The cutover and the client switch."""
    to_guard(lab, context)
    floor_guard.run(context)
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    lab.approve(context, "client_switch")
    context.journal.transition(State.VALIDATING, "lab")


@pytest.fixture
def lab(make_lab: MakeLab, fill: Fill, unique_name: Name) -> Lab:
    """One topic, two partitions, one group in the middle."""
    topic = unique_name("t")
    fill({topic: 2}, 50)
    # What is compared before the switch is proven: here everything is left to the validation.
    made = make_lab([topic], validation={"before_cutover": False})
    clients.commit_offsets(made.source_cluster.client_config(), made.group, {(topic, 0): 20, (topic, 1): 30})
    return made


def test_a_truncated_target_blocks_the_switch(lab: Lab) -> None:
    context = lab.begin()
    lab.start_tail()
    to_guard(lab, context)
    delete_records(lab.target_cluster, lab.topics[0], 1, 3)
    with pytest.raises(FloorViolated, match=f"{lab.topics[0]}-1 starts at 3, the first copied offset is 0") as caught:
        floor_guard.run(context)
    assert [item["partition"] for item in caught.value.details["violations"]] == [1]
    assert context.journal.tip_state is State.TAIL, "the freeze is lifted"


def test_truncation_after_ready_is_seen_when_the_guard_is_asked_again(lab: Lab) -> None:
    context = lab.begin()
    lab.start_tail()
    to_guard(lab, context)
    assert not floor_guard.run(context).already_done
    assert floor_guard.run(context).already_done
    delete_records(lab.target_cluster, lab.topics[0], 0, 1)
    with pytest.raises(FloorViolated):
        floor_guard.run(context)
    assert context.journal.find_step("freeze_lifted") is None, "after READY nobody unfreezes the source"


def test_a_foreign_record_on_the_target_stops_the_final_drain(lab: Lab) -> None:
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    for step in CUTOVER_STEPS[:3]:
        step(context)
    lab.join_tail()
    producer = Producer(lab.target_cluster.client_config())
    producer.produce(lab.topics[0], b"foreign", partition=0)
    producer.flush(10)
    again = lab.context()
    (lab.folder / "evidence" / lab.migration_id / "offset-map.json").unlink()
    with pytest.raises(ForeignData, match="beyond the source's end"):
        CUTOVER_STEPS[2](again)


def outcomes(context: PhaseContext) -> dict[str, str]:
    result = context.record.validation()
    assert result is not None
    return {check.name: check.outcome.value for check in result.checks}


def lose_records(lab: Lab) -> None:
    delete_records(lab.target_cluster, lab.topics[0], 0, 10)


def forget_a_config(lab: Lab) -> None:
    admin = lab.target_cluster.admin()
    resource = ConfigResource(ConfigResource.Type.TOPIC, lab.topics[0])
    resource.add_incremental_config(
        ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)  # type: ignore[arg-type]
    )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def move_a_group_back(lab: Lab) -> None:
    config = lab.target_cluster.client_config()
    clients.commit_offsets(config, lab.group, {(lab.topics[0], 0): 3})


def move_a_group_ahead(lab: Lab) -> None:
    config = lab.target_cluster.client_config()
    clients.commit_offsets(config, lab.group, {(lab.topics[0], 0): 25})


@pytest.mark.parametrize(
    ("harm", "check", "outcome"),
    [
        (lose_records, "content", "FAILED"),
        pytest.param(lose_records, "counts_and_offsets", "FAILED", marks=pytest.mark.soak),
        pytest.param(forget_a_config, "topic_parity", "PASSED", marks=pytest.mark.soak),
        (move_a_group_back, "groups", "FAILED"),
        pytest.param(move_a_group_ahead, "groups", "WARNING", marks=pytest.mark.soak),
    ],
)
def test_harm_done_after_the_switch_is_found(lab: Lab, harm: Callable[[Lab], None], check: str, outcome: str) -> None:
    context = lab.begin()
    lab.start_tail()
    switched(lab, context)
    harm(lab)
    if outcome == "FAILED":
        with pytest.raises(ValidationFailed) as caught:
            validate.run(context)
        assert check in caught.value.what
        attempts = [
            info.key
            for info in context.evidence_store.list(context.key("evidence-attempts/"))
            if "-FAILED-" in info.key and info.key.endswith(".json")
        ]
        assert len(attempts) == 1
        data = context.evidence_store.get(attempts[0])
        assert data is not None
        assert verify_evidence(data).bundle.validation["outcome"] == "FAILED"
    else:
        assert not validate.run(context).already_done
    found = outcomes(context)
    assert found[check] == outcome
    if check in ("content", "counts_and_offsets"):
        assert found["topic_parity"] == "FAILED", "what deletes data is not put back"
        assert context.journal.find_step("deleting_restored") is None


def test_a_healed_validation_is_checked_anew_and_passes(lab: Lab) -> None:
    context = lab.begin()
    lab.start_tail()
    switched(lab, context)
    move_a_group_back(lab)
    with pytest.raises(ValidationFailed):
        validate.run(context)
    clients.commit_offsets(lab.target_cluster.client_config(), lab.group, {(lab.topics[0], 0): 20})
    assert validate.run(lab.context()).details["outcome"] == "PASSED"
    assert validate.run(lab.context()).already_done


def test_clients_that_write_on_the_target_do_not_disturb(lab: Lab) -> None:
    context = lab.begin()
    lab.start_tail()
    switched(lab, context)
    producer = Producer(lab.target_cluster.client_config())
    for number in range(20):
        producer.produce(lab.topics[0], b"new life %d" % number, partition=number % 2)
    producer.flush(10)
    clients.commit_offsets(lab.target_cluster.client_config(), lab.group, {(lab.topics[0], 1): 30})
    result: Any = validate.run(context)
    assert result.details["outcome"] == "PASSED", result.details


def test_end_offsets_mode_writes_nothing_to_the_topics(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 2}, 50)
    lab = make_lab([topic], cutover={"sentinel": "end_offsets"})
    context = lab.begin()
    lab.start_tail()
    before = context.source.wire.list_offsets([(topic, 0), (topic, 1)], "log_end")
    lab.enter_cutover(context)
    lab.advance(context)
    assert context.source.wire.list_offsets([(topic, 0), (topic, 1)], "log_end") == before
    # One control marker more on the target: the copiers' fence.
    fenced = {key: end + 1 for key, end in before.items()}
    assert context.target.wire.list_offsets([(topic, 0), (topic, 1)], "log_end") == fenced
    lab.check_equal()
