"""Share groups (KIP-932) and streams groups (KIP-1071) between clusters that have them, and to one that has not."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import streams_schemas
from cutover_support import Lab, closing
from kafka.protocol.api_message import ApiMessage

from airflow_provider_kafka_migration.checks import access
from airflow_provider_kafka_migration.documents.cutover import GroupResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.groups import final
from airflow_provider_kafka_migration.groups import offsets as group_offsets
from airflow_provider_kafka_migration.groups import offsets as plan_groups
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.phases import floor_guard, groups
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from harness.brokers import KafkaCluster
from harness.jars.kafka_jars import NEWEST

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Fill = Callable[..., None]
SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"


class StreamsGroupHeartbeatRequest(ApiMessage, load_json=streams_schemas):  # type: ignore[misc,call-arg]
    """What a Kafka Streams member says (api 88)."""


class StreamsGroupHeartbeatResponse(ApiMessage, load_json=streams_schemas):  # type: ignore[misc,call-arg]
    """Answer of api 88."""


def newer(folder: Path) -> KafkaCluster:
    """A Kafka that has all kinds of groups."""
    return KafkaCluster(
        folder,
        NEWEST,
        authorizer=False,
        sasl=False,
        config={
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 2,
        },
    )


@pytest.fixture(scope="module")
def new_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with newer(tmp_path_factory.mktemp("new-source")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def new_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with newer(tmp_path_factory.mktemp("new-target")) as cluster:
        yield cluster


def write(cluster: KafkaCluster, topic: str, count: int, *, shift: int = 0) -> None:
    """One partition; with a shift the log starts there, so that offsets differ on a target that starts at 0."""
    from confluent_kafka import Producer, TopicPartition

    cluster.create_topics({topic: (1, {})})
    producer = Producer({**cluster.client_config(), "linger.ms": 5})
    for number in range(-shift, count):
        producer.produce(topic, b"value-%d" % number, partition=0)
    assert producer.flush(120) == 0
    if shift:
        admin = cluster.admin()  # must outlive the call
        for future in admin.delete_records([TopicPartition(topic, 0, shift)]).values():
            future.result(20)


def share_read(cluster: KafkaCluster, group: str, topic: str, count: int) -> list[str]:
    """The next records that Java's share consumer gets and acknowledges."""
    text = cluster.tool(
        SHARE_CONSUMER,
        *("--topic", topic, "--group", group, "--max-messages", str(count), "--timeout-ms", "20000"),
        timeout_seconds=60,
    )
    return re.findall(r"^value--?\d+$", text, re.MULTILINE)


def commit_groups(lab: Lab, context: PhaseContext) -> dict[str, GroupResult]:
    from cutover_support import CUTOVER_STEPS

    lab.enter_cutover(context)
    for step in CUTOVER_STEPS[:4]:
        step(context)
    lab.join_tail()
    groups.commit_groups(context)
    floor_guard.run(context)
    found = context.record.groups()
    assert found is not None
    return {item.group: item for item in found.groups}


def start_of(context: PhaseContext, side: str, group: str, topic: str) -> int | None:
    admin = context.source.admin if side == "source" else context.target.admin
    offsets = admin.share_group_offsets([group])[group]
    assert offsets.error is None
    found = offsets.offsets.get((topic, 0))
    return None if found is None else found.offset


def test_share_groups_go_on_with_what_they_had_not_finished(
    tmp_path: Path, new_source: KafkaCluster, new_target: KafkaCluster
) -> None:
    """Java's share consumer reads 30 of 100 on the source, and gets the other 70 on the target, at other offsets."""
    topic = f"share-{uuid.uuid4().hex[:8]}"
    write(new_source, topic, 100, shift=7)
    with closing(Lab(tmp_path, new_source, new_target, [topic], verdicts={topic: Verdict.SHIFTED})) as lab:
        lab.spec = lab.spec.model_copy(
            update={"cutover": lab.spec.cutover.model_copy(update={"sentinel": "end_offsets"})}
        )
        context = lab.begin()
        lab.start_tail()
        # A new share group starts at the end of the log unless it is told to start elsewhere.
        assert context.source.admin.alter_share_group_offsets(lab.group, {(topic, 0): GroupOffset(7)}) == {
            (topic, 0): None
        }
        assert share_read(new_source, lab.group, topic, 30) == [f"value-{n}" for n in range(30)]
        assert start_of(context, "source", lab.group, topic) == 37
        planned = plan_groups.plan_groups(context.spec, context.source, [topic], {(topic, 0): 107}, {})
        assert [(item.type, item.lag) for item in planned] == [("share", 70)]

        result = commit_groups(lab, context)[lab.group]
        assert (result.type, result.committed, result.failures, result.skipped_reason) == ("share", 1, [], "")
        assert [(item.source_offset, item.target_offset) for item in result.offsets] == [(37, 30)]
        assert start_of(context, "target", lab.group, topic) == 30

        # Again: nothing to do; and it is never set back.
        assert final.sync_groups(context).groups[0].unchanged == 1
        context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
        assert share_read(new_target, lab.group, topic, 50) == [f"value-{n}" for n in range(30, 80)]
        again = final.sync_groups(context).groups[0]
        assert again.committed == 0
        assert "never set back" in again.offsets[0].reason
        assert share_read(new_target, lab.group, topic, 20) == [f"value-{n}" for n in range(80, 100)]


def test_share_groups_are_reported_where_the_target_has_none(
    tmp_path: Path, new_source: KafkaCluster, target_cluster: KafkaCluster
) -> None:
    """Kafka 4.1: share groups are off, and it could not set their offsets. Nothing fails, and every report says why."""
    topic = f"share-{uuid.uuid4().hex[:8]}"
    write(new_source, topic, 10)
    with closing(Lab(tmp_path, new_source, target_cluster, [topic])) as lab:
        context = lab.begin()
        lab.start_tail()
        context.source.admin.alter_share_group_offsets(lab.group, {(topic, 0): GroupOffset(4)})
        plan = lab.plan(context).model_copy(
            update={"groups": plan_groups.plan_groups(context.spec, context.source, [topic], {(topic, 0): 10}, {})}
        )
        found = [item for item in access.check_groups(context, plan) if item.code == "W071"]
        assert [item.subject for item in found] == [lab.group]
        assert "does not offer start offsets of share groups" in found[0].seen
        result = commit_groups(lab, context)[lab.group]
        assert "does not offer start offsets of share groups" in result.skipped_reason
        assert (result.committed, result.failures) == (0, [])
        assert [item.target_offset for item in result.offsets] == [4], "what would be set is told all the same"


class StreamsMember:
    """A member of a streams group, by heartbeats, as a Streams application with the new protocol sends them."""

    def __init__(self, context: PhaseContext, side: str, group: str, topic: str) -> None:
        self._cluster = context.source if side == "source" else context.target
        self._group, self._topic = group, topic
        self._member, self._epoch = str(uuid.uuid4()), 0

    def beat(self, epoch: int | None = None) -> Any:
        kind = StreamsGroupHeartbeatRequest.Topology
        joining = self._epoch == 0 and epoch is None
        part = kind.Subtopology(
            subtopology_id="0",
            source_topics=[self._topic],
            source_topic_regex=[],
            state_changelog_topics=[],
            repartition_sink_topics=[],
            repartition_source_topics=[],
            copartition_groups=[],
        )
        request = StreamsGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._member,
            member_epoch=self._epoch if epoch is None else epoch,
            endpoint_information_epoch=0,
            rebalance_timeout_ms=60_000 if joining else -1,
            topology=kind(epoch=0, subtopologies=[part]) if joining else None,
            active_tasks=[] if joining else None,
            standby_tasks=[] if joining else None,
            warmup_tasks=[] if joining else None,
            process_id=str(uuid.uuid4()) if joining else None,
            client_tags=[] if joining else None,
        )
        broker = self._cluster.admin.coordinators([self._group])[self._group]
        answer = self._cluster.wire.request(request, broker_id=broker, version=0)
        assert answer.error_code == 0, answer
        self._epoch = answer.member_epoch
        return answer

    def __enter__(self) -> StreamsMember:
        self.beat()
        deadline = time.monotonic() + 120
        while self._state() == "Empty":
            assert time.monotonic() < deadline
            self.beat()
            time.sleep(0.1)
        return self

    def _state(self) -> str:
        return self._cluster.admin.list_groups()[self._group].state

    def __exit__(self, *_: object) -> None:
        self.beat(-1)


def test_streams_groups_get_their_offsets_once_the_application_has_joined_on_the_target(
    tmp_path: Path, new_source: KafkaCluster, new_target: KafkaCluster
) -> None:
    topic = f"streams-{uuid.uuid4().hex[:8]}"
    write(new_source, topic, 100)
    with closing(Lab(tmp_path, new_source, new_target, [topic])) as lab:
        context = lab.begin()
        lab.start_tail()
        with StreamsMember(context, "source", lab.group, topic):
            listing = context.source.admin.list_groups()[lab.group]
            assert listing.type == "streams"
            described = context.source.admin.describe_groups([lab.group])[lab.group]
            assert len(described.members) == 1
            assert not described.is_empty
        assert context.source.admin.alter_group_offsets(
            lab.group, {(topic, 0): GroupOffset(42, metadata="AgAAAY")}
        ) == {(topic, 0): None}
        plan = lab.plan(context).model_copy(
            update={"groups": plan_groups.plan_groups(context.spec, context.source, [topic], {(topic, 0): 100}, {})}
        )
        told = [item for item in access.check_groups(context, plan) if item.code == "W071"]
        assert [item.subject for item in told] == [lab.group]
        result = commit_groups(lab, context)[lab.group]
        assert (result.type, result.committed, result.failures) == ("streams", 0, [])
        assert "does not have it as a streams group" in result.skipped_reason
        assert [item.target_offset for item in result.offsets] == [42]
        assert lab.group not in context.target.admin.list_groups(), "the application could not join another kind"

        with StreamsMember(context, "target", lab.group, topic):
            refused = final.sync_groups(context).groups[0]
            assert "members on the target" in refused.skipped_reason
        done = final.sync_groups(context).groups[0]
        assert (done.committed, done.failures, done.skipped_reason) == (1, [], "")
        with StreamsMember(context, "target", lab.group, topic):
            state = group_offsets.target_states(context.target, {lab.group: "streams"})[lab.group]
            assert state.offsets == {(topic, 0): GroupOffset(42, -1, "AgAAAY")}
            assert not state.is_empty
            assert context.target.admin.list_groups()[lab.group].type == "streams"
