"""Freezing on real brokers: who goes on writing is named, and whatever goes wrong the freeze is lifted."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Timer
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from cutover_support import CUTOVER_STEPS, Lab
from faults import Effects, Killed, counting

from airflow_provider_kafka_migration.access import apply
from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import ApprovalRefused, ClaimLost, DrainTimeout, FreezeFailed
from airflow_provider_kafka_migration.evidence import bundle as evidence_bundle
from airflow_provider_kafka_migration.freeze import frozen, stops
from airflow_provider_kafka_migration.journal.entries import Owner
from airflow_provider_kafka_migration.phases import final_drain, freeze, freeze_limit, sentinels
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.validation import source_drift as validated_drift
from harness import clients
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.webhook import FreezeWebhook

pytestmark = pytest.mark.integration

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]


def actions(webhook: FreezeWebhook) -> list[str]:
    return [call.action for call in webhook.calls]


def stop_offsets(context: PhaseContext) -> dict[str, int] | None:
    stop = StopAt.in_force(context.journal_store.get(context.key(keys.TAIL_STOP)))
    return None if stop is None else stop.offsets


def test_a_producer_that_goes_on_is_named_and_everything_is_lifted(
    make_lab: MakeLab, fill: Fill, unique_name: Name
) -> None:
    topic = unique_name("t")
    fill({topic: 2})
    with FreezeWebhook() as webhook:  # it answers "done" and stops nobody
        lab = make_lab([topic], cutover={"freeze": "webhook", "producer_freeze_webhook": webhook.url})
        context = lab.begin()
        lab.start_tail()
        with LiveProducer(lab.source_cluster.client_config(), {topic: [1]}, records_per_second=100) as producer:
            lab.enter_cutover(context)
            with pytest.raises(FreezeFailed) as caught:
                freeze.run(context)
        bypass = caught.value.details["bypasses"][0]
        assert (bypass["topic"], bypass["partition"]) == (topic, 1)
        assert [item["producer_id"] for item in bypass["producers"]], "an idempotent producer is known to the broker"
        assert f"{topic}-1" in caught.value.what
        assert actions(webhook) == ["freeze", "unfreeze"]
        assert context.journal.tip_state is State.TAIL
        assert lab.sentinels(lab.source_cluster) == {(topic, 0): [], (topic, 1): []}

        # The approval is used up: the same one does not start another freeze.
        context.journal.transition(State.DRAIN_READY, "lab")
        context.journal.transition(State.CUTOVER, "lab")
        with pytest.raises(ApprovalRefused):
            freeze.run(context)
        assert context.journal.tip_state is State.TAIL

        lab.enter_cutover(context)
        lab.advance(context)
        assert producer.count() > 0
        lab.check_equal()
        lifted = evidence_bundle.build(
            context.record,
            "PASSED",
            signed_at=context.now(),
            object_lock={},
            warnings=[],  # type: ignore[arg-type]
        ).cutover["lifted"]
        assert len(lifted) == 1


def test_on_bypass_note_names_what_is_not_copied(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 2})
    lab = make_lab([topic], cutover={"freeze": "manual", "on_bypass": "note"})
    context = lab.begin()
    lab.start_tail()
    with LiveProducer(lab.source_cluster.client_config(), {topic: [0]}, records_per_second=200):
        lab.enter_cutover(context)
        lab.advance(context)
    acknowledged = context.journal.find_step(steps.CLIENT_SWITCH_ACKNOWLEDGED)
    assert acknowledged is not None
    behind = acknowledged.details["behind_boundary"]
    assert list(behind["late"]) == [f"{topic}-0"]
    assert behind["records"] > 0
    assert behind["unchecked"] == {}
    bundle = evidence_bundle.build(context.record, "WARNING", signed_at=context.now(), object_lock={}, warnings=[])  # type: ignore[arg-type]
    assert bundle.validation["outcome"] == "WARNING"
    assert {item["name"] for item in bundle.not_copied if item["kind"] == "bypass"} == {f"{topic}-0"}
    counts = {check["name"]: check for check in bundle.validation["checks"]}["counts_and_offsets"]
    assert any("are not on the target" in finding for finding in counts["findings"])
    assert {check["name"]: check["outcome"] for check in bundle.validation["checks"]}["content"] == "PASSED"


@pytest.mark.soak
@pytest.mark.parametrize("stops", [True, False])
def test_a_longer_window_waits_for_the_producer_but_not_for_ever(
    make_lab: MakeLab, fill: Fill, unique_name: Name, stops: bool
) -> None:
    topic = unique_name("t")
    fill({topic: 2})
    with FreezeWebhook() as webhook:
        lab = make_lab(
            [topic],
            cutover={
                "freeze": "webhook",
                "producer_freeze_webhook": webhook.url,
                "freeze_stable_window": "6s",
                "max_producer_freeze": "10m",
            },
        )
        context = lab.begin()
        lab.start_tail()
        producer = LiveProducer(lab.source_cluster.client_config(), {topic: [0]}, records_per_second=100)
        begun = time.monotonic()
        with producer:
            lab.enter_cutover(context)
            if stops:
                # Longer than the default window bears it.
                Timer(5.0, producer.freeze).start()
                assert not freeze.run(context).already_done
                assert time.monotonic() - begun >= 5.0
            else:
                with pytest.raises(FreezeFailed, match="were written to after the freeze"):
                    freeze.run(context)
        if not stops:
            assert actions(webhook) == ["freeze", "unfreeze"]
            assert context.journal.tip_state is State.TAIL
            assert lab.sentinels(lab.source_cluster) == {(topic, 0): [], (topic, 1): []}
            return
        lab.advance(context)
        assert actions(webhook) == ["freeze", "freeze"]
        deadlines = [call.body["deadline"] for call in webhook.calls]
        assert deadlines[0] is not None
        assert deadlines[1] is None, "before READY: until it hears unfreeze"
        assert clients.lost_records(lab.target_cluster.client_config(), producer.acknowledged) == []
        lab.check_equal()


def test_an_open_transaction_is_named(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic, transactional_id = unique_name("t"), unique_name("tx")
    fill({topic: 1})
    lab = make_lab([topic], cutover={"max_open_transaction_wait": "500ms"}, tail={"drain_max_partition_lag": 100})
    context = lab.begin()
    lab.start_tail()
    producer = Producer({**lab.source_cluster.client_config(), "transactional.id": transactional_id})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(10)
    lab.enter_cutover(context)
    with pytest.raises(FreezeFailed, match=transactional_id) as caught:
        freeze.run(context)
    assert caught.value.details["partitions"] == [f"{topic}-0"]
    assert context.journal.tip_state is State.TAIL
    producer.abort_transaction(10)
    lab.enter_cutover(context)
    freeze.run(context)


def test_a_freeze_that_lasts_too_long_is_lifted_and_the_next_attempt_ends_well(
    make_lab: MakeLab, fill: Fill, unique_name: Name
) -> None:
    topic = unique_name("t")
    fill({topic: 2})
    with FreezeWebhook() as webhook:
        lab = make_lab(
            [topic],
            cutover={"freeze": "webhook", "producer_freeze_webhook": webhook.url, "max_producer_freeze": "10m"},
        )
        context = lab.begin()
        lab.start_tail()
        lab.enter_cutover(context)
        lab.kill_tail()
        freeze.run(context)
        sentinels.run(context)
        now = context.now

        def sleep(_: float) -> None:
            """While it waits for the tail, which has died, the limit passes."""
            context.now = lambda: now() + timedelta(minutes=11)

        with pytest.raises(FreezeFailed, match="max_producer_freeze"):
            final_drain.run(context, sleep=sleep)
        context.now = now
        assert actions(webhook) == ["freeze", "unfreeze"]
        assert context.journal.tip_state is State.TAIL
        assert stop_offsets(context) is None
        with pytest.raises(FreezeFailed, match="was lifted"):
            final_drain.run(context)

        lab.start_tail()
        # Between the attempts one partition goes on, the other one does not.
        producer = Producer(lab.source_cluster.client_config())
        producer.produce(topic, b"later", partition=0)
        producer.flush(10)
        lab.enter_cutover(context)
        lab.advance(context)
        found = lab.sentinels(lab.source_cluster)
        assert (len(found[topic, 0]), len(found[topic, 1])) == (2, 1)
        assert found == lab.sentinels(lab.target_cluster)
        lab.check_equal()


def test_a_drain_that_takes_too_long_is_lifted(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 1})
    lab = make_lab([topic], cutover={"drain_timeout": "1s"})
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    lab.kill_tail()
    freeze.run(context)
    sentinels.run(context)
    with pytest.raises(DrainTimeout, match=topic):
        final_drain.run(context)
    assert context.journal.tip_state is State.TAIL


def test_who_lost_the_migration_touches_nothing(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 1})
    with FreezeWebhook() as webhook:
        lab = make_lab([topic], cutover={"freeze": "webhook", "producer_freeze_webhook": webhook.url})
        context = lab.begin()
        lab.start_tail()
        lab.enter_cutover(context)
        freeze.run(context)
        other = lab.context()
        other.journal.claim(Owner("cli", "somebody else", "else"), takeover=True)
        with pytest.raises(ClaimLost):
            sentinels.run(context)
        assert actions(webhook) == ["freeze"], "the new owner decides about the freeze"
        assert lab.sentinels(lab.source_cluster) == {(topic, 0): []}


# -- ACLs ------------------------------------------------------------------------------------------------------------


def allow(cluster: KafkaCluster, user: str, topic: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


def may_write(cluster: KafkaCluster, user: str, topic: str) -> bool:
    """Whether a record of this user gets in."""
    errors: list[Any] = []
    producer = Producer({**cluster.client_config(user), "log_level": 0, "message.timeout.ms": 5000})
    producer.produce(topic, b"try", partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(10)
    assert errors
    if errors[0] is None:
        return True
    assert errors[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    return False


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def denials(cluster: KafkaCluster, context: PhaseContext, topic: str) -> list[str]:
    return [
        acl.principal
        for acl in context.source.admin.describe_acls().acls
        if acl.permission == "DENY" and acl.resource_name == topic
    ]


@pytest.fixture
def acl_lab(make_lab: MakeLab, fill: Fill, unique_name: Name, source_cluster: KafkaCluster) -> Lab:
    """alice may write, bob may not; the migration is admin."""
    topic = unique_name("t")
    fill({topic: 1})
    admin = source_cluster.admin()
    for operation in (AclOperation.WRITE, AclOperation.DESCRIBE):
        for future in admin.create_acls([allow(source_cluster, "alice", topic, operation)]).values():
            future.result()
    wait_for(lambda: may_write(source_cluster, "alice", topic))
    return make_lab([topic], user="admin", cutover={"freeze": "acl", "freeze_stable_window": "200ms"})


def test_acl_freeze_stops_who_may_write_and_only_them(acl_lab: Lab) -> None:
    lab = acl_lab
    topic = lab.topics[0]
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    freeze.run(context)
    assert not may_write(lab.source_cluster, "alice", topic)
    assert denials(lab.source_cluster, context, topic) == ["User:alice"]
    sentinels.run(context)  # our own principal may write
    attempt = context.record.freeze()
    assert attempt is not None
    frozen.lift(context, attempt, reason="test")
    assert denials(lab.source_cluster, context, topic) == []
    wait_for(lambda: may_write(lab.source_cluster, "alice", topic))
    assert frozen.lift(context, attempt, reason="again")["deny_acls_removed"] == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_acls_put_by_a_killed_task_are_removed(acl_lab: Lab, monkeypatch: pytest.MonkeyPatch, when: Any) -> None:
    # So long the lift waits for a request that may still be under way.
    monkeypatch.setattr(stops, "ACL_SECONDS", 2.0)
    lab = acl_lab
    topic = lab.topics[0]
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    with counting(Effects(name="create_acls", when=when)), pytest.raises(Killed):
        freeze.run(context)
    assert denials(lab.source_cluster, context, topic) == (["User:alice"] if when == "after" else [])
    context = lab.context()
    attempt = context.record.freeze()
    assert attempt is not None
    frozen.lift(context, attempt, reason="test")
    assert denials(lab.source_cluster, context, topic) == []
    wait_for(lambda: may_write(lab.source_cluster, "alice", topic))


def test_a_freeze_that_nobody_keeps_is_lifted_by_the_watch_on_its_limit(acl_lab: Lab) -> None:
    """The freezing task has died, its retry never comes: the DENY ACLs go all the same."""
    lab = acl_lab
    topic = lab.topics[0]
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    freeze.run(context)
    wait_for(lambda: not may_write(lab.source_cluster, "alice", topic))
    watch = lab.context(actor="watch")
    assert freeze_limit.run(watch).details["watch"] is True
    assert denials(lab.source_cluster, context, topic) == ["User:alice"]
    watch.now = lambda: datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(FreezeFailed, match="was lifted"):
        freeze_limit.run(watch)
    assert denials(lab.source_cluster, context, topic) == []
    wait_for(lambda: may_write(lab.source_cluster, "alice", topic))
    context.journal.refresh()
    assert context.journal.tip_state is State.TAIL
    with pytest.raises(FreezeFailed, match="was lifted"):
        sentinels.run(context)
    assert lab.sentinels(lab.source_cluster) == {(topic, 0): []}

    lab.enter_cutover(context)
    lab.advance(context)
    lab.check_equal()


def test_acls_cannot_stop_everybody(acl_lab: Lab) -> None:
    lab = acl_lab
    topic = lab.topics[0]
    binding = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:*",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    admin = lab.source_cluster.admin()
    for future in admin.create_acls([binding]).values():
        future.result()
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    try:
        with pytest.raises(FreezeFailed, match="everybody"):
            freeze.run(context)
    finally:
        lab.source_cluster.forget_rights("*")  # other tests look at what their users may not see
    assert denials(lab.source_cluster, context, topic) == []
    assert context.journal.tip_state is State.TAIL


def test_the_deadline_counts_from_the_request(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    """A task that comes back too late lifts the freeze before it does anything else."""
    topic = unique_name("t")
    fill({topic: 1})
    with FreezeWebhook() as webhook:
        lab = make_lab([topic], cutover={"freeze": "webhook", "producer_freeze_webhook": webhook.url})
        context = lab.begin()
        lab.start_tail()
        lab.enter_cutover(context)
        freeze.run(context)
        late = lab.context()
        now = late.now
        late.now = lambda: now() + timedelta(minutes=11)
        with pytest.raises(FreezeFailed, match="max_producer_freeze"):
            sentinels.run(late)
        assert actions(webhook) == ["freeze", "unfreeze"]
        assert lab.sentinels(lab.source_cluster) == {(topic, 0): []}


def test_write_is_granted_when_clients_may_switch_and_our_denials_stay_on_the_source(acl_lab: Lab) -> None:
    lab = acl_lab
    topic = lab.topics[0]
    only_alice = ["User:(?!alice$).*"]
    section = lab.spec.acls.model_copy(
        update={"policy": "merge", "write_grants": "at_cutover", "exclude_principals": only_alice}
    )
    lab.spec = lab.spec.model_copy(update={"acls": section})
    context = lab.begin()
    apply.run(context)
    lab.start_tail()
    assert not may_write(lab.target_cluster, "alice", topic)
    lab.enter_cutover(context)
    for step in CUTOVER_STEPS[:4]:
        step(context)
    lab.join_tail()
    CUTOVER_STEPS[4](context)
    assert not may_write(lab.target_cluster, "alice", topic)
    with counting(Effects(name="create_acls", when="after")), pytest.raises(Killed):
        CUTOVER_STEPS[5](lab.context())
    again = lab.context()
    CUTOVER_STEPS[5](again)
    assert again.journal.find_step("write_grants") is not None
    wait_for(lambda: may_write(lab.target_cluster, "alice", topic))
    # What stops producers stays on the source; it is no right that the target lacks.
    again.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    lab.advance(again)
    assert again.journal.tip_state is State.FINALIZED
    assert denials(lab.source_cluster, again, topic) == ["User:alice"]
    on_target = [acl for acl in again.target.admin.describe_acls().acls if acl.resource_name == topic]
    assert {acl.permission for acl in on_target} == {"ALLOW"}
    assert [
        finding
        for finding in validated_drift.check(again.record, again.source, again.target).findings
        if "ACL" in finding
    ] == []
    assert CUTOVER_STEPS[5](lab.context()).already_done
