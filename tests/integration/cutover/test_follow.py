"""Topics and partitions that appear, grow and vanish on the source while the tail runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import ConfigResource, NewPartitions
from cutover_support import Lab

from airflow_provider_kafka_migration.errors import FreezeFailed, TopicRecreated, ValidationFailed
from airflow_provider_kafka_migration.phases import freeze
from airflow_provider_kafka_migration.planning import follow, tail_job
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import bring, lags
from harness import clients
from harness.brokers import KafkaCluster
from harness.processes import wait_for

pytestmark = pytest.mark.integration

Fill = Callable[[Mapping[str, int], int], None]


@pytest.fixture
def following(make_lab: Callable[..., Lab], unique_name: Callable[[str], str], fill: Fill) -> Callable[..., Lab]:
    """Makes labs that follow everything below a prefix (``lab.topics[0]`` without its last part)."""

    def make(topics: Mapping[str, int], via: str = "direct", **topology: Any) -> Lab:
        stem = unique_name("f")
        fill({f"{stem}.{name}": count for name, count in topics.items()}, 20)
        lab = make_lab(
            [f"{stem}.{name}" for name in topics],
            topology={"follow_new": True, "refresh_interval": "400ms", **topology},
            tail={"slice_seconds": 2, "segment_linger": "100ms"},
            seed={"via": via},
        )
        selected = lab.spec.topics.model_copy(update={"include": [stem.replace(".", r"\.") + r"\..*"]})
        lab.spec = lab.spec.model_copy(update={"topics": selected})
        return lab

    return make


def begin(lab: Lab) -> PhaseContext:
    """The migration stands in ``tail``; its topics on the target are known to be its own."""
    context = lab.begin()
    facts = context.target.admin.describe_topics(lab.topics)
    context.journal.step("topic_created", details={"topics": {name: item.topic_id for name, item in facts.items()}})
    return context


def write(cluster: KafkaCluster, topic: str, partition: int, count: int) -> None:
    producer = Producer({**cluster.client_config(), "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, b"value-%d" % number, b"key-%d" % number, partition)
    assert producer.flush(120) == 0


def create(cluster: KafkaCluster, topic: str) -> bool:
    """Create a topic; False while its namesake is still being deleted."""
    try:
        cluster.create_topic(topic, 1)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def copied(context: PhaseContext, topic: str, partition: int, count: int) -> bool:
    key = (topic, partition)
    if key not in context.record.partitions():
        return False
    return context.target.wire.list_offsets([key], "log_end")[key] >= count


@pytest.mark.parametrize("via", ["direct", pytest.param("split", marks=pytest.mark.soak)])
def test_new_topics_and_partitions_are_copied_cut_over_and_proved(following: Callable[..., Lab], via: str) -> None:
    lab = following({"old": 2, "calm": 1}, via=via)
    old, calm = lab.topics[1], lab.topics[0]
    context = begin(lab)
    lab.start_tail()
    new = old.removesuffix("old") + "new"
    lab.source_cluster.create_topic(new, 3, config={"retention.ms": "864000000", "max.message.bytes": "2000000"})
    for number in range(3):
        write(lab.source_cluster, new, number, 30)
    admin = lab.source_cluster.admin()
    for future in admin.create_partitions([NewPartitions(old, 4)]).values():
        future.result()
    wait_for(
        "the new partitions in the metadata",
        lambda: len(context.source.admin.describe_topics([old])[old].partitions) == 4,
        20,
    )
    write(lab.source_cluster, old, 3, 25)
    wait_for("the new topic on the target", lambda: all(copied(context, new, number, 30) for number in range(3)), 40)
    wait_for("the new partition on the target", lambda: copied(context, old, 3, 25), 40)
    lab.topics = sorted([*lab.topics, new])
    group = f"{lab.migration_id}.late"
    places = clients.positions(lab.source_cluster.client_config(), [new, old], 0.5)
    clients.commit_offsets(lab.source_cluster.client_config(), group, places)

    lab.enter_cutover(context)
    lab.advance(context)
    assert context.journal.tip_state is State.FINALIZED
    lab.check_equal()
    assert clients.committed_offsets(lab.target_cluster.client_config(), group, [new, old]) == places
    plan = json.loads(context.journal_store.get(context.key("plan.json")) or b"")
    assert new not in {topic["name"] for topic in plan["topics"]}, "plan.json itself never changes"
    evidence = json.loads(context.evidence_store.get(context.key("evidence.json")) or b"")
    bundle = json.loads(evidence["bundle_json"])
    proved = {topic["name"]: len(topic["partitions"]) for topic in bundle["plan"]["topics"]}
    assert proved == {calm: 1, old: 4, new: 3}
    names = [name for entry in context.journal.steps("plan_supplemented") for name in entry.details["partitions"]]
    assert sorted(names) == sorted([f"{old}-2", f"{old}-3", *(f"{new}-{number}" for number in range(3))])
    resource = ConfigResource(ConfigResource.Type.TOPIC, new)
    admin = lab.target_cluster.admin()
    configs = admin.describe_configs([resource])[resource].result()
    assert (configs["retention.ms"].value, configs["max.message.bytes"].value) == ("864000000", "2000000")


def test_a_pass_that_was_killed_is_completed_by_the_next_one(
    following: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, fill: Fill
) -> None:
    lab = following({"old": 1})
    context = begin(lab)
    tail_job.write(context.record, context.source, None)
    new = lab.topics[0].removesuffix("old") + "new"
    fill({new: 2}, 10)

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    for module, place in ((follow, "_take_up"), (bring, "set_log_starts"), (follow, "lanes_with")):
        with monkeypatch.context() as patch:
            patch.setattr(module, place, killed)
            with pytest.raises(Killed):
                follow.follow(lab.context())
        assert (new, 0) not in context.record.partitions()
    assert follow.follow(lab.context()) == [(new, 0), (new, 1)]
    assert follow.follow(lab.context()) == []
    context.journal.refresh()
    assert len(context.journal.steps("plan_supplemented")) == 1
    assert sum(new in entry.details["topics"] for entry in context.journal.steps("topic_created")) == 1
    assert {(new, 0), (new, 1)} < context.record.partitions().keys()


@pytest.mark.parametrize(
    "recreated", [pytest.param(False, marks=pytest.mark.soak, id="deleted"), pytest.param(True, id="recreated")]
)
def test_a_topic_that_goes_away_stops_the_cutover_by_name(
    following: Callable[..., Lab], fill: Fill, recreated: bool
) -> None:
    lab = following({"keep": 1, "lost": 1})
    keep, lost = lab.topics
    context = begin(lab)
    lab.start_tail()
    lab.source_cluster.delete_topics([lost])
    if recreated:
        wait_for("the topic to be created again", lambda: create(lab.source_cluster, lost), 120)
        write(lab.source_cluster, lost, 0, 20)

    def named() -> bool:
        context.journal.refresh()
        return bool(context.journal.steps(steps.SOURCE_TOPIC_GONE))

    wait_for("the journal to name it", named, 120)
    with pytest.raises(TopicRecreated, match="deleted") as caught:
        lags.check(context.record, context.source, context.target)
    assert caught.value.where.topic == lost
    # By policy it is left behind, and everything else goes on.
    lab.kill_tail()
    lab.spec = lab.spec.model_copy(
        update={"topology": lab.spec.topology.model_copy(update={"on_topic_deleted": "note"})}
    )
    context = lab.context()
    lab.start_tail()

    def dropped() -> bool:
        context.journal.refresh()
        return (lost, 0) not in context.record.partitions()

    wait_for("it to be dropped", dropped, 120)
    write(lab.source_cluster, keep, 0, 15)
    lab.enter_cutover(context)
    lab.advance(context)
    lab.topics = [keep]
    lab.check_equal()
    evidence = json.loads(context.evidence_store.get(context.key("evidence.json")) or b"")
    left = {
        item["name"]: item["reason"]
        for item in json.loads(evidence["bundle_json"])["not_copied"]
        if item["kind"] == "topic"
    }
    assert "deleted" in left[lost]


def test_nothing_is_followed_while_producers_are_frozen(
    following: Callable[..., Lab], fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_job, "Follower", lambda *_: nullcontext())  # passes are made by hand
    lab = following({"old": 1})
    context = begin(lab)
    lab.start_tail()
    early, late = (lab.topics[0].removesuffix("old") + name for name in ("early", "late"))
    wait_for("the tail's job", lambda: context.journal_store.get(context.key("jobs/tail.json")), 120)
    fill({early: 1}, 5)
    lab.enter_cutover(context)
    with pytest.raises(FreezeFailed, match=r"1 partitions appeared on the source and are not copied yet.*early"):
        freeze.run(context)
    assert context.journal.tip_state is State.TAIL, "nothing was frozen"
    assert follow.follow(lab.context()) == [(early, 0)]
    wait_for("the early topic to be copied", lambda: copied(context, early, 0, 5), 120)
    lab.enter_cutover(context)
    freeze.run(context)
    fill({late: 1}, 5)
    assert follow.follow(lab.context()) == []
    assert follow.name_born_late(context.record, context.source, "2") == [f"{late}-0"]
    context.journal.refresh()
    assert context.journal.steps(steps.BORN_AFTER_FREEZE)[-1].details["partitions"] == [f"{late}-0"]


def grow(lab: Lab, context: PhaseContext, topic: str, partitions: int) -> None:
    """Give a source topic more partitions, and wait until its metadata shows them."""
    admin = lab.source_cluster.admin()  # futures die with their client
    for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        future.result()
    wait_for(
        "the new partitions in the metadata",
        lambda: len(context.source.admin.describe_topics([topic])[topic].partitions) == partitions,
        60,
    )


def test_partitions_that_nobody_follows_stop_the_cutover_until_they_are_taken_up(following: Callable[..., Lab]) -> None:
    """``topology.follow_new: false`` must not mean that records of a migrated topic are left behind."""
    lab = following({"old": 1}, follow_new=False)
    (old,) = lab.topics
    context = begin(lab)
    lab.start_tail()
    grow(lab, context, old, 3)
    write(lab.source_cluster, old, 2, 25)
    lab.enter_cutover(context)
    with pytest.raises(FreezeFailed, match=rf"2 partitions .* not copied.*{old}-1") as caught:
        freeze.run(context)
    assert "topology.follow_new: true" in caught.value.next_step
    assert context.journal.tip_state is State.TAIL, "nothing was frozen"
    lab.kill_tail()
    topology = lab.spec.topology.model_copy(update={"follow_new": True})
    lab.spec = lab.spec.model_copy(update={"topology": topology})
    context = lab.context()
    lab.start_tail()
    wait_for("the new partition on the target", lambda: copied(context, old, 2, 25), 120)
    lab.enter_cutover(context)
    lab.advance(context)
    lab.check_equal()


@pytest.mark.parametrize("on_bypass", ["stop", "note"])
def test_partitions_born_in_the_freeze_are_never_passed_over(following: Callable[..., Lab], on_bypass: str) -> None:
    lab = following({"old": 1}, follow_new=False)
    section = lab.spec.cutover.model_copy(update={"on_bypass": on_bypass})
    lab.spec = lab.spec.model_copy(update={"cutover": section})
    (old,) = lab.topics
    context = begin(lab)
    lab.start_tail()
    lab.enter_cutover(context)
    freeze.run(context)
    grow(lab, context, old, 3)
    assert follow.name_born_late(context.record, context.source, "1") == [f"{old}-1", f"{old}-2"]
    write(lab.source_cluster, old, 2, 5)
    late = pytest.raises(ValidationFailed, match="topic_parity") if on_bypass == "stop" else nullcontext()
    with late:
        lab.advance(context)
    result = context.record.validation()
    assert result is not None
    parity = result.check("topic_parity")
    assert parity.outcome.value == ("FAILED" if on_bypass == "stop" else "WARNING")
    assert any(f"{old}-2" in finding and "5 offsets" in finding for finding in parity.findings)
    assert any(f"{old}-1" in finding and "empty" in finding for finding in parity.findings)


def test_a_partition_that_was_late_once_and_then_taken_up_counts(following: Callable[..., Lab]) -> None:
    lab = following({"old": 1})
    (old,) = lab.topics
    context = begin(lab)
    context.journal.step(steps.BORN_AFTER_FREEZE, key="1", details={"partitions": [f"{old}-0", f"{old}-1"]})
    assert follow.born_late(context.record) == {f"{old}-1"}


def test_a_config_that_changes_after_the_plan_is_cut_over_and_proved(following: Callable[..., Lab]) -> None:
    lab = following({"old": 1}, follow_new=False)
    (old,) = lab.topics
    context = begin(lab)
    lab.start_tail()
    admin = context.source.admin
    assert admin.alter_topic_configs({old: {"retention.ms": "864000000"}}) == {old: None}

    def followed() -> bool:
        context.journal.refresh()
        return context.record.plan().topic(old).source_configs.get("retention.ms") == "864000000"

    wait_for("the tail to take it over", followed, 120)
    lab.enter_cutover(context)
    shown = context.journal.find_step("approval")
    assert shown is not None
    assert "864000000" in shown.details["body_shown"]
    lab.advance(context)
    result = context.record.validation()
    assert result is not None
    assert result.check("source_drift").outcome.value == "PASSED"
    target = context.target.admin.topic_configs([old])[old]
    assert target.overrides["retention.ms"] == "864000000"
    evidence = json.loads(context.evidence_store.get(context.key("evidence.json")) or b"")
    (entry,) = json.loads(evidence["bundle_json"])["source_drift"]
    assert "retention.ms (default) -> 864000000" in entry["changes"][0]
