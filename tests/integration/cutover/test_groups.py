"""Consumer groups on real brokers: consumers that move resume with exactly the records they had not read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from cutover_support import Lab

from airflow_provider_kafka_migration.approvals import answers
from airflow_provider_kafka_migration.documents.cutover import GroupResult, Translation
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import GroupsIncomplete, WaitsForOperator
from airflow_provider_kafka_migration.groups import commit, final
from airflow_provider_kafka_migration.phases import client_switch, floor_guard, groups
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from harness import clients, compare
from harness.brokers import KafkaCluster
from harness.clients import GroupReader
from harness.load import Kind, TopicLoad, load

pytestmark = pytest.mark.integration

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]


def to_commit(lab: Lab, context: PhaseContext) -> None:
    """The cutover up to the step before commit_groups."""
    from cutover_support import CUTOVER_STEPS

    lab.enter_cutover(context)
    for step in CUTOVER_STEPS[:4]:
        step(context)
    lab.join_tail()


def results(context: PhaseContext) -> dict[str, GroupResult]:
    found = context.record.groups()
    assert found is not None
    return {item.group: item for item in found.groups}


def unread(
    cluster: KafkaCluster, group: str, topics: Sequence[str], **settings: Any
) -> dict[Any, list[tuple[Any, ...]]]:
    """What a consumer of the group gets when it starts on a cluster: (key, value) by partition, in order."""
    ends = compare.bounds(cluster.client_config(), topics)
    found: dict[Any, list[tuple[Any, ...]]] = {}
    consumer = Consumer(
        {
            **cluster.client_config(),
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **settings,
        }
    )
    consumer.subscribe(list(topics))
    done: set[tuple[str, int]] = set()
    total = sum(len(numbers) for numbers in ends.values())
    deadline = time.monotonic() + 120
    try:
        while len(done) < total:
            assert time.monotonic() < deadline, f"{len(done)} of {total} partitions at their end"
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                if message.error().code() == -191:  # _PARTITION_EOF
                    done.add((message.topic(), message.partition()))
                    continue
                raise AssertionError(message.error())
            found.setdefault((message.topic(), message.partition()), []).append((message.key(), message.value()))
    finally:
        consumer.close()
    return found


@contextmanager
def member(cluster: KafkaCluster, group: str, topic: str, **settings: Any) -> Iterator[GroupReader]:
    """A live member of a group: it has joined, and has its partitions."""
    with GroupReader(cluster.client_config(), group, [topic], **settings) as reader:
        deadline = time.monotonic() + 120
        admin = cluster.admin()
        while str(admin.describe_consumer_groups([group])[group].result().state.name) != "STABLE":
            assert time.monotonic() < deadline, "the member did not join"
            time.sleep(0.1)
        yield reader


def test_a_group_that_is_left_out_is_shown_to_the_person_and_named_in_the_evidence(
    make_lab: MakeLab, fill: Fill, unique_name: Name
) -> None:
    # The approval cuts a long table, and the tests of this run share a cluster: these names come first.
    topic, other, late = unique_name("t"), unique_name("0-outside"), unique_name("0-late")
    fill({topic: 1}, 10)
    lab = make_lab([topic])
    section = lab.spec.topics.model_copy(update={"include": [topic.replace(".", r"\.")]})
    lab.spec = lab.spec.model_copy(update={"topics": section})
    context = lab.begin()
    lab.start_tail()
    # After the plan: neither is in it.
    fill({other: 1}, 1)
    clients.commit_offsets(lab.source_cluster.client_config(), late, {(topic, 0): 5})
    lab.enter_cutover(context)
    shown = context.journal.find_step("approval")
    assert shown is not None
    rows = [line.replace("\\", "") for line in shown.details["body_shown"].splitlines()]
    assert f"| group | {late} | not in groups.include; it has offsets in {topic} |" in rows
    assert f"| topic | {other} | not in topics.include |" in rows
    lab.advance(context)
    bundle = json.loads(json.loads(context.evidence_store.get(context.key("evidence.json")) or b"")["bundle_json"])
    left = {(item["kind"], item["name"]): item["reason"] for item in bundle["not_copied"]}
    assert left["group", late] == f"not in groups.include; it has offsets in {topic}"
    assert left["topic", other] == "not in topics.include"
    assert left["topic", "__consumer_offsets"].startswith("internal topic")


# The classic protocol: test_java_consumers.py.
@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.soak), "consumer"])
def test_groups_of_every_kind_of_topic_resume_with_exactly_the_unread_records(
    make_lab: MakeLab, unique_name: Name, protocol: str
) -> None:
    """Committed at the start, after each record, after markers, into holes, at the end: nothing twice, nothing lost."""
    stem = unique_name("g")
    verdicts = {
        f"{stem}.plain": Verdict.EQUAL,
        f"{stem}.tx": Verdict.EQUAL,
        f"{stem}.tx2": Verdict.MAPPED,
        f"{stem}.head": Verdict.SHIFTED,
        f"{stem}.compact": Verdict.MAPPED,
        f"{stem}.empty": Verdict.EQUAL,
        f"{stem}.appended": Verdict.EQUAL,
    }
    kinds = [
        Kind.PLAIN,
        Kind.TRANSACTIONAL,
        Kind.TRANSACTIONAL,
        Kind.HEAD_DELETED,
        Kind.COMPACTED,
        Kind.EMPTY_PARTITION,
        Kind.LOG_APPEND_TIME,
    ]
    lab = make_lab(list(verdicts), verdicts=verdicts)
    load(lab.source_cluster, [TopicLoad(n, k, 2, 200, 60) for n, k in zip(verdicts, kinds, strict=True)])
    context = lab.begin()
    lab.start_tail()
    config = lab.source_cluster.client_config()
    names = []
    for number, fraction in enumerate((0.0, 0.1, 0.33, 0.5, 0.77, 0.999, 1.0)):
        name = f"{lab.migration_id}.{number}"
        clients.commit_offsets(config, name, clients.positions(config, lab.topics, fraction))
        names.append(name)
    to_commit(lab, context)
    assert "FAILED" not in groups.commit_groups(context).summary
    floor_guard.run(context)
    settings = {"group.protocol": "consumer"} if protocol == "consumer" else {}
    for name in names:
        wanted = unread(lab.source_cluster, name, lab.topics)
        assert unread(lab.target_cluster, name, lab.topics, **settings) == wanted
    kinds_seen = {item.translation for group in results(context).values() for item in group.offsets}
    assert kinds_seen >= {Translation.EQUAL, Translation.EXACT, Translation.HOLE_FORWARD}


def test_each_committed_offset_of_a_mapped_partition(make_lab: MakeLab, unique_name: Name) -> None:
    """Every offset that a group can have, in and around holes: one group each."""
    topic = unique_name("c")
    lab = make_lab([topic], verdicts={topic: Verdict.MAPPED})
    load(lab.source_cluster, [TopicLoad(topic, Kind.COMPACTED, 1, 60, 40)])
    context = lab.begin()
    lab.start_tail()
    to_commit(lab, context)
    config = lab.source_cluster.client_config()
    end = compare.bounds(config, [topic])[topic][0].end
    records = compare.read_records(config, topic)[0]
    copied = compare.read_records(lab.target_cluster.client_config(), topic)[0]
    translator = commit.GroupTranslator.final(context.record, context.target)
    from airflow_provider_kafka_migration.documents.cutover import CommittedOffset, GroupSnapshot

    for offset in range(end + 1):
        snapshot = GroupSnapshot(
            group="g",
            type="classic",
            state="Empty",
            offsets=[CommittedOffset(topic=topic, partition=0, offset=offset)],
        )
        found = translator.translate(snapshot)[0].target_offset
        assert found is not None
        wanted = [(record.key, record.value) for record in records if record.offset >= offset]
        assert [(record.key, record.value) for record in copied if record.offset >= found] == wanted


def test_a_thousand_records_in_one_millisecond(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("ms")
    lab = make_lab([topic])
    lab.source_cluster.create_topics({topic: (1, {"retention.ms": "-1"})})
    producer = Producer({**lab.source_cluster.client_config(), "linger.ms": 20})
    for number in range(1000):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=1_700_000_000_000)
    producer.flush(20)
    config = lab.source_cluster.client_config()
    clients.commit_offsets(config, lab.group, {(topic, 0): 617})
    context = lab.begin()
    lab.start_tail()
    to_commit(lab, context)
    groups.commit_groups(context)
    rest = unread(lab.target_cluster, lab.group, [topic])[topic, 0]
    assert [value for _, value in rest][:-1] == [b"%d" % number for number in range(617, 1000)]
    assert rest[-1][0] == b"__kbe_sentinel__"


def test_one_bad_group_never_blocks_the_others(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic, other = unique_name("t"), unique_name("other")
    fill({topic: 2, other: 1})
    lab = make_lab([topic])
    config, target = lab.source_cluster.client_config(), lab.target_cluster.client_config()
    good, busy, ahead, mixed, elsewhere, half = (
        f"{lab.migration_id}.{name}" for name in ("good", "busy", "ahead", "mixed", "elsewhere", "half")
    )
    for group in (good, busy, ahead):
        clients.commit_offsets(config, group, {(topic, 0): 7, (topic, 1): 8})
    clients.commit_offsets(config, mixed, {(topic, 0): 3, (topic, 1): 3, (other, 0): 5})
    clients.commit_offsets(config, elsewhere, {(other, 0): 5})
    clients.commit_offsets(config, half, {(topic, 1): 20})
    context = lab.begin()
    lab.start_tail()
    to_commit(lab, context)
    clients.commit_offsets(target, ahead, {(topic, 0): 9, (topic, 1): 2})
    with member(lab.target_cluster, busy, topic):
        groups.commit_groups(context)
        found = results(context)
        assert "members on the target" in found[busy].skipped_reason
        assert clients.committed_offsets(target, good, [topic]) == {(topic, 0): 7, (topic, 1): 8}
        assert clients.committed_offsets(target, ahead, [topic]) == {(topic, 0): 9, (topic, 1): 8}
        assert clients.committed_offsets(target, mixed, [topic]) == {(topic, 0): 3, (topic, 1): 3}
        assert clients.committed_offsets(target, half, [topic]) == {(topic, 1): 20}
        assert "set back" in found[ahead].offsets[0].reason
        snapshot = {item.group: item for item in context.record.groups_snapshot().groups}
        assert snapshot[mixed].other_topics == [other]
        assert found[elsewhere].skipped_reason
        assert set(found) == {good, busy, ahead, mixed, elsewhere, half}


def test_a_commit_that_is_refused_is_reported_with_all_the_others_done(
    make_lab: MakeLab, fill: Fill, unique_name: Name
) -> None:
    """Metadata larger than the broker takes: that group alone fails; healed, the same task goes on."""
    topic = unique_name("t")
    fill({topic: 1})
    lab = make_lab([topic])
    good, bad = f"{lab.migration_id}.a-bad", f"{lab.migration_id}.b-good"
    good, bad = bad, good
    config = lab.source_cluster.client_config()
    clients.commit_offsets(config, good, {(topic, 0): 4})
    consumer = Consumer({**config, "group.id": bad})
    consumer.commit(offsets=[TopicPartition(topic, 0, 5, metadata="m" * 4000)], asynchronous=False)
    consumer.close()
    context = lab.begin()
    lab.start_tail()
    to_commit(lab, context)
    original = context.target.admin.alter_group_offsets

    def refusing(group: str, offsets: Any) -> Any:
        from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError

        if group == bad:
            return dict.fromkeys(offsets, ItemError(12, "OFFSET_METADATA_TOO_LARGE"))
        return original(group, offsets)

    context.target.admin.alter_group_offsets = refusing  # type: ignore[method-assign]
    with pytest.raises(GroupsIncomplete, match="1 groups") as caught:
        groups.commit_groups(context)
    assert list(caught.value.details["groups"]) == [bad]
    assert clients.committed_offsets(lab.target_cluster.client_config(), good, [topic]) == {(topic, 0): 4}
    assert context.journal.tip_state is State.CUTOVER, "there is still time: the freeze is kept"
    again = lab.context()
    groups.commit_groups(again)
    assert clients.committed_offsets(lab.target_cluster.client_config(), bad, [topic]) == {(topic, 0): 5}


def test_metadata_is_kept_and_the_leader_epoch_is_not(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 1})
    lab = make_lab([topic])
    consumer = Consumer({**lab.source_cluster.client_config(), "group.id": lab.group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 5, metadata="checkpoint-17 ü")], asynchronous=False)
    consumer.close()
    context = lab.begin()
    lab.start_tail()
    to_commit(lab, context)
    groups.commit_groups(context)
    before = context.source.admin.group_offsets(lab.group).offsets[topic, 0]
    assert before.metadata.startswith("checkpoint-17 ü")
    found = context.target.admin.group_offsets(lab.group).offsets[topic, 0]
    assert (found.offset, found.metadata, found.leader_epoch) == (5, before.metadata, -1)


def test_consumers_that_read_on_are_followed_until_the_switch(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 1}, 200)
    lab = make_lab([topic])
    context = lab.begin()
    lab.start_tail()
    source, target = lab.source_cluster.client_config(), lab.target_cluster.client_config()
    clients.commit_offsets(source, lab.group, {(topic, 0): 10})
    to_commit(lab, context)
    groups.commit_groups(context)
    floor_guard.run(context)
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    assert clients.committed_offsets(target, lab.group, [topic]) == {(topic, 0): 10}
    clients.commit_offsets(source, lab.group, {(topic, 0): 50})
    final.sync_groups(context)
    assert clients.committed_offsets(target, lab.group, [topic]) == {(topic, 0): 50}
    clients.commit_offsets(source, lab.group, {(topic, 0): 40})
    final.sync_groups(context)
    assert clients.committed_offsets(target, lab.group, [topic]) == {(topic, 0): 50}, "forward only"
    clients.commit_offsets(source, lab.group, {(topic, 0): 201})
    lab.approve(context, "client_switch")
    assert clients.committed_offsets(target, lab.group, [topic]) == {(topic, 0): 201}
    assert answers.answered(context, "client_switch") is not None
    assert groups.sync_until_switch(context).already_done


@pytest.mark.parametrize("policy", ["note", "stop"])
def test_groups_still_active_on_the_source_are_named(
    make_lab: MakeLab, fill: Fill, unique_name: Name, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers.switch_clients, "__kwdefaults__", {"wait_seconds": 0.0, "sleep": time.sleep})
    topic = unique_name("t")
    fill({topic: 1}, 50)
    lab = make_lab([topic], groups={"on_active_source": policy})
    context = lab.begin()
    lab.start_tail()
    clients.commit_offsets(lab.source_cluster.client_config(), lab.group, {(topic, 0): 10})
    to_commit(lab, context)
    groups.commit_groups(context)
    floor_guard.run(context)
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    with member(lab.source_cluster, lab.group, topic):
        if policy == "stop":
            with pytest.raises(WaitsForOperator, match=lab.group):
                lab.approve(context, "client_switch")
        else:
            lab.approve(context, "client_switch")
            assert lab.group in client_switch.run(context).summary
    if policy == "stop":
        lab.approve(context, "client_switch")
