"""The freeze: when it begins, when it is verified, and when producers are freed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from phase_world.admin import CLUSTER_NOT_PERMITTED, REFUSED
from phase_world.logs import NOW_MS
from phase_world.world import PRODUCER_ACL, World, Worlds

from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    BrokerUnreachable,
    FreezeFailed,
    MigrationError,
    PermissionMissing,
    StillFrozen,
    TopicRecreated,
)
from airflow_provider_kafka_migration.freeze.without_acls import CONFIG
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.producers import PartitionProducers, ProducerState
from airflow_provider_kafka_migration.kafka.admin.topics import Configs
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import lags, topics_gone

FREEZE = "cutover.freeze"
AWAY = BrokerUnreachable("no broker of the source answers")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "SMALL_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(topics_gone, "PAUSE_SECONDS", 0.0)


def assert_not_begun(world: World) -> None:
    """No producer was stopped, and nothing says that one was."""
    assert not world.steps("freeze_requested")
    assert not world.denied


def assert_lifted(world: World) -> None:
    """Producers are free, and the copy continues."""
    assert [entry.step_key for entry in world.steps("freeze_lifted")] == ["1"]
    assert world.state is State.TAIL
    assert not world.denied
    assert PRODUCER_ACL in (world.source.acls or ())


def verified(world: World) -> dict[str, Any]:
    (entry,) = world.steps("freeze_verified")
    return dict(entry.details["result"])


def test_producers_are_stopped_and_the_ends_are_those_of_the_source(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    world.run(FREEZE)
    assert world.denied == {"User:shop"}
    assert verified(world)["ends"] == {"orders-0": 5, "orders-1": 10, "state-0": 5}
    assert world.state is State.CUTOVER
    began = world.outside.calls.count("source.admin.create_acls")
    assert world.run(FREEZE).already_done
    assert world.outside.calls.count("source.admin.create_acls") == began


def test_groups_of_other_topics_come_and_go_without_a_new_approval(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    world.source.create("unrelated")
    world.source.group("anonymous.5f3c-2", unrelated_0=0)
    world.run(FREEZE)
    assert world.denied == {"User:shop"}


def test_the_migration_s_own_principal_is_not_denied(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    assert world.source.acls is not None
    world.source.acls.add(Acl("TOPIC", "ord", "PREFIXED", "User:migration", "*", "WRITE", "ALLOW"))
    world.source.acls.add(Acl("TOPIC", "st", "PREFIXED", "User:other", "*", "ALL", "ALLOW"))
    world.run(FREEZE)
    assert world.denied == {"User:shop", "User:other"}


# -- refusals before the first producer is stopped --------------------------------------------------------------------


def without_approval(world: World) -> None:
    """The world is at the freeze, but the approval is too old."""
    world.clock.sleep(16 * 60)


def lag_grows(world: World) -> None:
    for _ in range(11):
        world.source.log("orders").write(b"1", b"2", b"3", b"4", b"5")


def partition_appears(world: World) -> None:
    world.source.topics["orders"].logs.append(world.source.create("other").logs[0])


def topic_is_recreated(world: World) -> None:
    logs = world.source.topics["orders"].logs
    world.source.create("orders").logs[:] = logs


def target_is_ahead(world: World) -> None:
    world.target.log("orders").write(b"foreign")


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (without_approval, ApprovalRefused),
        (lag_grows, FreezeFailed),
        (partition_appears, FreezeFailed),
        (topic_is_recreated, TopicRecreated),
        (target_is_ahead, MigrationError),
    ],
)
def test_a_freeze_does_not_begin_when_the_copy_is_not_ready_for_it(
    worlds: Worlds, happens: Any, error: type[MigrationError]
) -> None:
    world = worlds.at(FREEZE)
    happens(world)
    with pytest.raises(error):
        world.run(FREEZE)
    assert_not_begun(world)
    assert world.state is State.TAIL, "a cutover that did not begin can be rolled back"


def test_a_freeze_needs_an_approval(worlds: Worlds) -> None:
    world = worlds.at("approve_cutover")
    world.enter(State.DRAIN_READY)
    with pytest.raises(ApprovalRefused, match="nobody has approved"):
        world.run(FREEZE)
    assert_not_begun(world)


def test_one_partition_above_the_limit_is_named(worlds: Worlds) -> None:
    world = worlds.at(FREEZE, tail={"drain_stable_window": "10s", "drain_max_partition_lag": 2})
    world.source.log("orders", 1).write(b"1", b"2")
    world.run(FREEZE)
    world = worlds.at(FREEZE, tail={"drain_stable_window": "10s", "drain_max_partition_lag": 2})
    world.source.log("orders", 1).write(b"1", b"2", b"3")
    with pytest.raises(FreezeFailed, match="the lag has risen since the approval") as caught:
        world.run(FREEZE)
    assert (caught.value.where.topic, caught.value.where.partition) == ("orders", 1)


@pytest.mark.parametrize("call", ["source.admin.describe_topics", "source.wire.list_offsets.stable", "target.wire.*"])
def test_a_cluster_that_is_away_before_the_freeze_only_delays_it(worlds: Worlds, call: str) -> None:
    world = worlds.at(FREEZE)
    world.outside.fail(call, AWAY)
    with pytest.raises(BrokerUnreachable):
        world.run(FREEZE)
    assert_not_begun(world)
    assert world.state is State.CUTOVER
    world.outside.heal()
    world.run(FREEZE)
    assert world.denied == {"User:shop"}


# -- ACLs that cannot stop producers ----------------------------------------------------------------------------------


def test_acls_of_which_some_are_refused_free_everybody_again(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    assert world.source.acls is not None
    world.source.acls.add(Acl("TOPIC", "state", "LITERAL", "User:second", "*", "WRITE", "ALLOW"))

    def second_refused(answers: dict[Acl, Any]) -> dict[Acl, Any]:
        refused = next(acl for acl in answers if acl.principal == "User:second")
        assert world.source.acls is not None
        world.source.acls.discard(refused)
        return {**answers, refused: REFUSED}

    world.outside.fail("source.admin.create_acls", second_refused)
    with pytest.raises(FreezeFailed, match="1 of 2 ACLs could not be created"):
        world.run(FREEZE)
    assert_lifted(world)


def test_a_missing_right_is_named_and_the_freeze_lifted(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    world.outside.fail("source.admin.create_acls", lambda answers: dict.fromkeys(answers, CLUSTER_NOT_PERMITTED))
    with pytest.raises(PermissionMissing, match="ACLs cannot be created on the source"):
        world.run(FREEZE)
    assert_lifted(world)


def test_acls_that_cannot_be_removed_leave_a_freeze_that_a_person_is_told_of(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    world.outside.fail("source.admin.create_acls", lambda answers: dict.fromkeys(answers, REFUSED))
    world.outside.fail("source.admin.delete_acls", AWAY)
    with pytest.raises(StillFrozen):
        world.run(FREEZE)
    assert world.state is State.TAIL, "no step of the cutover runs while it is unknown whether producers are free"
    assert not world.steps("freeze_lifted")
    world.outside.heal()
    with pytest.raises(FreezeFailed, match="given up earlier"):
        world.run(FREEZE)
    assert_lifted(world)


@pytest.mark.parametrize(
    ("acls", "why"),
    [
        (None, "no authorizer"),
        ({Acl("TOPIC", "*", "LITERAL", "User:*", "*", "WRITE", "ALLOW")}, r"User:\* may write to 2 topics"),
    ],
)
def test_a_source_on_which_acls_stop_nobody_is_refused(worlds: Worlds, acls: set[Acl] | None, why: str) -> None:
    world = worlds.at(FREEZE, acls={"policy": "skip"})
    world.source.acls = acls
    with pytest.raises(FreezeFailed, match=why):
        world.run(FREEZE)
    assert world.state is State.TAIL
    assert not world.denied


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("true", "broker 1 has allow.everyone.if.no.acl.found=true"),
        (None, "broker 1 has set allow.everyone.if.no.acl.found, whose value brokers do not show"),
        ("unreadable", r"cannot be read \(CLUSTER_AUTHORIZATION_FAILED\)"),
    ],
)
def test_topics_without_acls_that_may_be_open_to_everybody_are_refused(
    worlds: Worlds, value: str | None, why: str
) -> None:
    """``state`` has no ACL, so there is nobody whom a DENY for one principal would stop."""
    world = worlds.at(FREEZE, acls={"policy": "skip"})
    world.source.acls = {PRODUCER_ACL}
    if value == "unreadable":
        world.outside.fail("source.admin.broker_configs", lambda answer: Configs("1", error=CLUSTER_NOT_PERMITTED))
    else:
        world.source.broker_configs[CONFIG] = value
    with pytest.raises(FreezeFailed, match=f"no ACL names 1 topics, among them state, and .*{why}"):
        world.run(FREEZE)
    assert world.state is State.TAIL
    assert not world.denied


@pytest.mark.parametrize("value", ["false", ""])
def test_topics_without_acls_that_nobody_may_use_need_no_denial(worlds: Worlds, value: str) -> None:
    world = worlds.at(FREEZE, acls={"policy": "skip"})
    world.source.acls = set()
    if value:
        world.source.broker_configs[CONFIG] = value
    world.run(FREEZE)
    assert not world.denied
    [planned] = world.steps("freeze_acls")
    assert planned.reason == "0 principals to deny"
    assert planned.details["acls"] == []


def test_topics_with_acls_are_closed_to_everybody_else(worlds: Worlds) -> None:
    world = worlds.at(FREEZE, acls={"policy": "skip"})
    world.source.acls = {PRODUCER_ACL, Acl("TOPIC", "sta", "PREFIXED", "User:reader", "*", "READ", "ALLOW")}
    world.source.broker_configs[CONFIG] = "true"
    world.run(FREEZE)
    assert world.denied == {"User:shop"}


# -- verification -----------------------------------------------------------------------------------------------------


def keep_writing(world: World, *, until: float = float("inf"), producer_id: int = 7) -> None:
    """A producer writes whenever the source's log ends are read."""
    began = world.clock.seconds()

    def write(answer: Any) -> Any:
        if world.clock.seconds() - began < until:
            world.source.log("orders").write(b"late", producer_id=producer_id)
        return answer

    world.outside.fail("source.wire.list_offsets.log_end", write)


def test_a_producer_that_continues_is_named_and_the_freeze_lifted(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    keep_writing(world)
    with pytest.raises(FreezeFailed, match=r"orders-0 got offsets 5 to \d+ from producer id 7"):
        world.run(FREEZE)
    assert_lifted(world)


def test_a_producer_that_the_broker_does_not_name_is_not_nobody(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    keep_writing(world)
    world.outside.fail("source.admin.producers", lambda _: {})
    with pytest.raises(FreezeFailed, match="a producer without idempotence, which the broker does not name"):
        world.run(FREEZE)
    assert_lifted(world)


def test_a_producer_that_stops_soon_is_waited_for(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    keep_writing(world, until=4.0)
    world.run(FREEZE)
    assert verified(world)["ends"]["orders-0"] == world.source.log("orders").end > 5
    assert not verified(world)["bypasses"]


@pytest.mark.parametrize("window", ["2s", "20s"])
def test_a_longer_window_waits_longer_for_a_producer(worlds: Worlds, window: str) -> None:
    cutover = {"freeze": "acl", "freeze_stable_window": window, "max_producer_freeze": "5m"}
    world = worlds.at(FREEZE, cutover=cutover)
    keep_writing(world, until=8.0)
    if window == "2s":
        with pytest.raises(FreezeFailed, match="were written to after the freeze") as caught:
            world.run(FREEZE)
        assert "cutover.freeze_stable_window" in caught.value.next_step
        assert_lifted(world)
        return
    world.run(FREEZE)
    assert not verified(world)["bypasses"]


def test_with_note_the_writer_is_in_the_result(worlds: Worlds) -> None:
    world = worlds.at(FREEZE, cutover={"freeze": "acl", "on_bypass": "note"})
    keep_writing(world)
    world.run(FREEZE)
    (bypass,) = verified(world)["bypasses"]
    assert (bypass["topic"], bypass["from_offset"], bypass["producers"][0]["producer_id"]) == ("orders", 5, 7)
    assert world.denied


def when_producers_are_asked_to_stop(world: World, happens: Callable[[], None]) -> None:
    """Have something happen right after the DENY bindings were created."""

    def then(answers: Any) -> Any:
        happens()
        return answers

    world.outside.fail("source.admin.create_acls", then)


def test_an_open_transaction_is_named_after_its_wait(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    log = world.source.log("orders")

    def begin() -> None:
        log.open_from = log.end
        log.write(b"1", b"2")

    when_producers_are_asked_to_stop(world, begin)
    state = ProducerState(99, 0, 0, NOW_MS, 0, 5)
    world.outside.fail("source.admin.producers", lambda found: {key: PartitionProducers((state,)) for key in found})
    with pytest.raises(FreezeFailed, match=r"open transactions after the freeze: producer ids \[99\]"):
        world.run(FREEZE)
    assert_lifted(world)


def test_an_open_transaction_that_ends_is_waited_for(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    log = world.source.log("orders")
    began = world.clock.seconds()

    def begin() -> None:
        log.open_from = log.end
        log.write(b"1", b"2")

    def end(answer: Any) -> Any:
        if world.clock.seconds() - began > 20:
            log.open_from = -1
        return answer

    when_producers_are_asked_to_stop(world, begin)
    world.outside.fail("source.wire.list_offsets.log_end", end)
    world.run(FREEZE)
    assert world.clock.seconds() - began > 22, "the window begins again when the transaction has ended"


def test_records_that_are_not_replicated_are_not_verified(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    log = world.source.log("state")

    def write() -> None:
        log.write(b"1")
        log.lagging = 1

    when_producers_are_asked_to_stop(world, write)
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(FREEZE)
    assert not world.steps("freeze_verified")
    assert_lifted(world)


def test_a_source_that_goes_away_while_it_is_verified_keeps_the_freeze(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    world.outside.fail("source.wire.list_offsets.latest", AWAY)
    with pytest.raises(BrokerUnreachable):
        world.run(FREEZE)
    assert world.denied == {"User:shop"}
    assert not world.steps("freeze_lifted")
    world.outside.heal()
    world.restart()
    world.run(FREEZE)
    assert [entry.step_key for entry in world.steps("freeze_requested")] == ["1"]
    assert [entry.step_key for entry in world.steps("freeze_verified")] == ["1"]


def test_behind_the_limit_the_same_outage_frees_the_producers(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    world.outside.fail("source.wire.list_offsets.latest", AWAY)
    with pytest.raises(BrokerUnreachable):
        world.run(FREEZE)
    world.clock.sleep(61)
    with pytest.raises(FreezeFailed, match="longer than max_producer_freeze"):
        world.run(FREEZE)
    assert_lifted(world)


def test_a_verified_freeze_ends_at_its_limit_too(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels")
    world.clock.sleep(61)
    with pytest.raises(FreezeFailed, match="longer than max_producer_freeze"):
        world.run(FREEZE)
    assert_lifted(world)


def test_after_a_lifted_freeze_the_next_attempt_needs_a_new_approval(worlds: Worlds) -> None:
    world = worlds.at(FREEZE)
    keep_writing(world)
    with pytest.raises(FreezeFailed):
        world.run(FREEZE)
    world.outside.heal()
    world.restart()
    world.while_tail_runs()(1)
    world.run("drain_ready")
    with pytest.raises(ApprovalRefused, match="nobody has approved"):
        world.run(FREEZE)
    world.run("drain_ready")
    world.clock.sleep(1)
    world.run("approve_cutover")
    world.run(FREEZE)
    assert [entry.step_key for entry in world.steps("freeze_requested")] == ["1", "2"]
    assert world.denied == {"User:shop"}


def test_by_hand_the_freeze_counts_from_the_approval(worlds: Worlds) -> None:
    world = worlds.at(FREEZE, cutover={"freeze": "manual"})
    approved = world.clock.now()
    world.clock.sleep(30)
    world.run(FREEZE)
    (entry,) = world.steps("freeze_requested")
    assert entry.details["stopped_at"] < entry.details["requested_at"]
    assert entry.details["stopped_at"][:19] <= approved.isoformat()[:19]
    assert not world.denied, "nobody but the person stops producers"
