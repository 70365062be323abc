"""The rollback: producers first, the rest as far as possible, and never once clients may have switched."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from phase_world.admin import BUSY, REFUSED, UNKNOWN_TOPIC, SimAdmin
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.world import ORDER, PRODUCER_ACL, World, Worlds

from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    ClaimLost,
    FreezeFailed,
    IllegalTransition,
    PhaseOver,
    StillFrozen,
)
from airflow_provider_kafka_migration.kafka.admin.access import Acl, QuotaEntity
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.phases import freeze_limit, rollback
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import topics_gone

COPY_TIME = str(16 * 1024 * 1024)


def report(world: World) -> dict[str, Any]:
    data = world.evidence_store.get(f"{MIGRATION}/rollback-report.json")
    assert data is not None
    return dict(json.loads(data))


def stop(world: World) -> StopAt | None:
    return StopAt.in_force(world.journal_store.get(f"{MIGRATION}/control/tail-stop.json"))


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("spark_check", State.PLANNED),
        ("seed", State.TOPOLOGY_COPY),
        ("tail", State.SEED),
        ("drain_ready", State.TAIL),
        ("cutover.freeze", State.DRAIN_READY),
    ],
)
def test_before_the_cutover_everything_that_was_set_is_undone(worlds: Worlds, phase: str, state: State) -> None:
    world = worlds.at(phase)
    values = {name: [log.values() for log in topic.logs] for name, topic in world.target.topics.items()}
    world.run("rollback", reason="not today")
    assert world.state is State.ROLLED_BACK
    found = report(world)
    assert found["rolled_back_from"] == state
    assert found["reason"] == "not today"
    assert found["problems"] == []
    assert sorted(item["topic"] for item in found["left_on_target"]) == sorted(world.target.topics)
    deletions = [command for command in found["clean_up"] if command.startswith("kafka-topics.sh")]
    assert len(deletions) == len(world.target.topics)
    for topic in world.target.topics.values():
        assert topic.configs.get("max.message.bytes") != COPY_TIME
    assert {name: [log.values() for log in topic.logs] for name, topic in world.target.topics.items()} == values
    if phase != "spark_check":
        found_stop = stop(world)
        assert found_stop is not None
        assert set(found_stop.offsets.values()) == {0}
    assert world.run("rollback").already_done


@pytest.mark.parametrize("error", [UNKNOWN_TOPIC, BUSY, REFUSED], ids=["unknown", "busy", "refused"])
def test_a_topic_that_one_broker_does_not_describe_is_not_gone(
    worlds: Worlds, error: ItemError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started does not know all topics, and rights may be withdrawn by now."""
    world = worlds.at("drain_ready")
    described = SimAdmin.describe_topics

    def by_one_broker(self: SimAdmin, names: Any = None, **options: Any) -> dict[str, TopicFacts]:
        return {name: TopicFacts(name, error=error) for name in described(self, names, **options)}

    monkeypatch.setattr(SimAdmin, "describe_topics", by_one_broker)
    world.run("rollback")
    found = report(world)
    assert found["problems"] == []
    assert [item["unread"] for item in found["left_on_target"]] == [str(error)] * len(world.target.topics)
    for topic in world.target.topics.values():
        assert topic.configs.get("max.message.bytes") != COPY_TIME


def test_a_deleted_topic_is_not_left(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.at("drain_ready")
    pauses: list[float] = []
    monkeypatch.setattr(topics_gone, "time", SimpleNamespace(sleep=pauses.append))
    del world.target.topics["orders"]
    world.run("rollback")
    found = report(world)
    assert found["problems"] == []
    assert [item["topic"] for item in found["left_on_target"]] == sorted(world.target.topics)
    assert len(pauses) == 6, "looked several times, for the configs and for the report"


@pytest.mark.parametrize(
    "phase",
    ["cutover.sentinels", "cutover.final_drain", "cutover.snapshot_groups", "cutover.commit_groups"],
)
def test_in_the_freeze_producers_are_freed_first(worlds: Worlds, phase: str) -> None:
    world = worlds.at(phase)
    assert world.denied
    world.run("rollback")
    assert world.state is State.ROLLED_BACK
    assert not world.denied
    assert PRODUCER_ACL in (world.source.acls or ())
    assert [entry.step_key for entry in world.steps("freeze_lifted")] == ["1"]
    assert State.TAIL in world.context().journal.history[-2:]


@pytest.mark.parametrize("phase", ["cutover.freeze", "cutover.commit_groups"])
def test_a_rollback_that_is_killed_anywhere_ends_all_the_same(worlds: Worlds, phase: str) -> None:
    world = worlds.at(phase)
    world.context()
    world.outside.revive()
    world.run("rollback")
    count = len(world.outside.changes)
    assert count > 3
    for number in range(count):
        world = worlds.at(phase)
        world.context()
        world.outside.revive()
        world.outside.dies_after = number
        with pytest.raises(Killed):
            world.run("rollback")
        world.restart()
        world.run("rollback")
        assert world.state is State.ROLLED_BACK, number
        assert not world.denied, number
        assert world.target.topics["orders"].configs.get("max.message.bytes") != COPY_TIME, number
        assert len(world.steps("freeze_lifted")) == (phase != "cutover.freeze"), number


@pytest.mark.parametrize("phase", ["approve_switch", "validate", "evidence"])
def test_once_clients_may_switch_it_is_too_late(worlds: Worlds, phase: str) -> None:
    world = worlds.at(phase)
    state = world.state
    with pytest.raises(IllegalTransition, match="cannot be rolled back") as caught:
        world.run("rollback")
    assert "clients may already use the target" in caught.value.next_step
    assert world.state is state
    assert world.denied
    assert world.evidence_store.get(f"{MIGRATION}/rollback-report.json") is None


def test_behind_ready_it_is_too_late_even_in_the_cutover(worlds: Worlds) -> None:
    world = worlds.at("cutover.floor_guard")
    world.outside.fail("target.wire.metadata", Killed("between READY and the end of the step"))
    with pytest.raises(Killed):
        world.run("cutover.floor_guard")
    world.outside.heal()
    world.restart()
    assert world.steps("ready_for_client_switch")
    assert world.state is State.CUTOVER
    with pytest.raises(IllegalTransition, match="cannot be rolled back"):
        world.run("rollback")
    assert world.denied


def test_a_finished_migration_is_not_rolled_back(worlds: Worlds) -> None:
    world = worlds.at("evidence")
    world.run("evidence")
    with pytest.raises(IllegalTransition) as caught:
        world.run("rollback")
    assert "the migration has ended" in caught.value.next_step


def test_while_producers_cannot_be_freed_nothing_else_is_undone(worlds: Worlds) -> None:
    world = worlds.at("cutover.commit_groups")
    world.outside.fail("source.admin.delete_acls", BrokerUnreachable("away"))
    with pytest.raises(StillFrozen):
        world.run("rollback")
    assert world.state is State.TAIL
    assert world.target.topics["orders"].configs["max.message.bytes"] == COPY_TIME
    assert stop(world) is None, "the tail goes on"
    world.outside.heal()
    world.run("rollback")
    assert world.state is State.ROLLED_BACK
    assert not world.denied


@pytest.mark.parametrize(
    ("call", "parts", "told"),
    [
        ("target.admin.alter_topic_configs", ["topics"], "; 1 parts could NOT be restored"),
        (
            "target.admin.describe_topics",
            ["topics", "inventory"],
            "; 1 parts could NOT be restored; 1 lists of what stays are not complete",
        ),
        ("target.wire.list_offsets.*", ["inventory"], "; 1 lists of what stays are not complete"),
        ("journal_store.put.tail-stop.json", ["tail"], "; 1 parts could NOT be restored"),
    ],
)
def test_a_part_that_fails_is_in_the_report_and_stops_no_other(
    worlds: Worlds, call: str, parts: list[str], told: str
) -> None:
    world = worlds.at("drain_ready")
    world.context()
    world.outside.fail(call, BrokerUnreachable("away"))
    result = world.run("rollback")
    assert world.state is State.ROLLED_BACK
    assert [item["part"] for item in report(world)["problems"]] == parts
    assert result.summary.endswith(f"topics stay on the target; 1 ACLs of the migration stay on the target{told}")


def test_configs_that_are_refused_are_a_problem_and_not_restored(worlds: Worlds) -> None:
    world = worlds.at("drain_ready")
    world.outside.fail("target.admin.alter_topic_configs", lambda answers: dict.fromkeys(answers, REFUSED))
    world.run("rollback")
    (problem,) = report(world)["problems"]
    assert "configs of 2 target topics could not be set" in problem["what"]


def test_a_topic_that_was_there_before_gets_its_own_configs_back(worlds: Worlds) -> None:
    world = worlds.at("topology_copy")
    world.target.create("orders", 2, retention_ms="5")
    world.outside.fail("target.admin.alter_topic_configs", lose_the_process, times=1)
    with pytest.raises(Killed):
        world.run("topology_copy")
    world.restart()
    assert world.target.topics["orders"].configs["retention.ms"] == "-1"
    world.run("topology_copy")
    world.run("rollback")
    assert world.target.topics["orders"].configs == {"retention.ms": "5"}
    assert world.target.topics["state"].configs == {"cleanup.policy": "compact"}


def lose_the_process(_answer: Any) -> Any:
    raise Killed("behind the change")


def test_whoever_has_lost_the_migration_touches_nothing(worlds: Worlds) -> None:
    world = worlds.at("cutover.commit_groups")
    context = world.context()
    from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
    from airflow_provider_kafka_migration.journal.journal import Journal

    other = Owner("cli", "other", "other")
    Journal.create_or_open(
        world.journal_store,
        MIGRATION,
        Fingerprint("source-id", "target-id"),
        owner=other,
        takeover=True,
        clock=world.clock.now,
    )
    with pytest.raises(ClaimLost):
        world.run("rollback")
    assert context is world.context()
    assert world.denied


def test_a_topic_that_is_no_longer_on_the_target_is_not_listed(worlds: Worlds) -> None:
    world = worlds.at("drain_ready")
    del world.target.topics["state"]
    world.run("rollback")
    assert [item["topic"] for item in report(world)["left_on_target"]] == ["orders"]
    assert report(world)["left_on_target"][0]["end_offsets"] == {"orders-0": 5, "orders-1": 10}


# -- access on the target --------------------------------------------------------------------------------------------

GRANT = PRODUCER_ACL
READING = Acl("TOPIC", "orders", "LITERAL", "User:reports", "*", "READ", "ALLOW")
NARROWED = Acl("TOPIC", "orders", "LITERAL", "User:reports", "10.0.0.9", "READ", "DENY")
OTHERS = Acl("TOPIC", "payments", "LITERAL", "User:bank", "*", "READ", "ALLOW")
SHOP: QuotaEntity = (("user", "shop"),)
BANK: QuotaEntity = (("user", "bank"),)
CLIENTS: QuotaEntity = (("client-id", None),)


def with_access(worlds: Worlds, phase: str, **sections: Any) -> World:
    """A migration that has copied two ACLs, a user and three quotas, of which the target had one with another value."""
    world = worlds.begin(**sections)
    world.source.acls = {*(world.source.acls or ()), READING, NARROWED}
    world.target.acls = {*(world.target.acls or ()), OTHERS}
    world.source.users["shop"] = (("SCRAM-SHA-512", 4096),)
    world.target.users["bank"] = (("SCRAM-SHA-512", 4096),)
    world.source.quotas = {SHOP: {"producer_byte_rate": 1000.0}, CLIENTS: {"producer_byte_rate": 50.0}}
    world.target.quotas = {BANK: {"producer_byte_rate": 7.0}, CLIENTS: {"producer_byte_rate": 70.0}}
    for name in ORDER[: ORDER.index(phase)]:
        world.clock.sleep(1)
        world.run(name)
    return world


def test_a_lifted_cutover_takes_its_write_grants_back(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit passes between the grant and READY: the copy goes on, so nobody may write to the target."""
    world = worlds.at("cutover.floor_guard", acls={"write_grants": "at_cutover"})
    granted = write_grants.grant

    def slowly(*arguments: Any) -> Any:
        found = granted(*arguments)
        assert GRANT in (world.target.acls or ())
        world.clock.sleep(120)
        return found

    monkeypatch.setattr(write_grants, "grant", slowly)
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run("cutover.floor_guard")
    assert world.state is State.TAIL
    assert not world.denied
    assert GRANT not in (world.target.acls or ())
    assert not world.context().record.are_writes_granted()


def test_the_next_cutover_gives_them_again(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.at("cutover.floor_guard", acls={"write_grants": "at_cutover"})
    context = world.context()
    write_grants.grant(context.record, context.source, context.target)
    world.clock.sleep(120)
    with pytest.raises(FreezeFailed):
        world.run("cutover.floor_guard")
    assert GRANT not in (world.target.acls or ())
    for name in ORDER[ORDER.index("tail") : ORDER.index("cutover.floor_guard") + 1]:
        world.clock.sleep(1)
        world.run(name)
    assert world.state is State.AWAITING_CLIENT_SWITCH
    assert GRANT in (world.target.acls or ())
    assert world.context().record.are_writes_granted()


def granted_and_dead(worlds: Worlds) -> World:
    """A step that was killed between the grant and READY."""
    world = worlds.at("cutover.floor_guard", acls={"write_grants": "at_cutover"})
    context = world.context()
    write_grants.grant(context.record, context.source, context.target)
    assert GRANT in (world.target.acls or ())
    world.restart()
    return world


def test_the_watch_on_the_limit_takes_them_back(worlds: Worlds) -> None:
    world = granted_and_dead(worlds)
    world.clock.sleep(120)
    with pytest.raises(FreezeFailed):
        freeze_limit.run(world.context())
    assert GRANT not in (world.target.acls or ())


def test_a_target_that_is_away_keeps_nobody_frozen_and_the_tail_takes_them_back(worlds: Worlds) -> None:
    world = granted_and_dead(worlds)
    world.clock.sleep(120)
    world.outside.fail("target.admin.delete_acls", BrokerUnreachable("away", next_step=""))
    with pytest.raises(FreezeFailed):
        freeze_limit.run(world.context())
    assert not world.denied
    assert GRANT in (world.target.acls or ())
    world.outside.heal()
    (in_tail,) = write_grants.passes(world.spec)
    in_tail(world.context())
    assert GRANT not in (world.target.acls or ())


def test_a_rollback_takes_them_back(worlds: Worlds) -> None:
    world = granted_and_dead(worlds)
    world.run("rollback")
    assert GRANT not in (world.target.acls or ())
    found = report(world)
    assert found["undone"]["write grants"] == [str(GRANT)]
    assert found["problems"] == []


def test_grants_that_arrive_after_a_rollback_are_removed_by_who_sent_them(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("cutover.floor_guard", acls={"write_grants": "at_cutover"})
    context = world.context()

    create = SimAdmin.create_acls

    def late(admin: SimAdmin, acls: Any) -> Any:
        rollback.run(world._new_context(), reason="the request is under way")
        return create(admin, acls)

    monkeypatch.setattr(SimAdmin, "create_acls", late)
    with pytest.raises(PhaseOver, match="they are removed again"):
        write_grants.grant(context.record, context.source, context.target)
    assert GRANT not in (world.target.acls or ())


def test_a_rollback_restores_quotas_and_lists_what_it_leaves(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", "s" * 20)
    world = with_access(worlds, "drain_ready", acls={"users": {"shop": "env:SHOP_SECRET"}})
    assert world.target.quotas[CLIENTS] == {"producer_byte_rate": 50.0}
    world.run("rollback")
    assert world.target.quotas[CLIENTS] == {"producer_byte_rate": 70.0}
    found = report(world)
    assert found["problems"] == []
    assert found["undone"]["quotas"] == ["client-id (default)"]
    assert [Acl(*row) for row in found["acls_left"]] == sorted([READING, NARROWED, GRANT])
    assert found["users_left"] == [{"user": "shop", "mechanisms": ["SCRAM-SHA-512"]}]
    assert found["quotas_left"] == [{"entity": [["user", "shop"]], "values": {"producer_byte_rate": 1000.0}}]
    commands = [item for item in found["clean_up"] if not item.startswith("kafka-topics.sh")]
    assert commands == [
        "kafka-acls.sh --bootstrap-server TARGET --remove --force --allow-principal 'User:reports' --allow-host '*' "
        "--operation Read --topic 'orders' --resource-pattern-type literal",
        "kafka-acls.sh --bootstrap-server TARGET --remove --force --allow-principal 'User:shop' --allow-host '*' "
        "--operation Write --topic 'orders' --resource-pattern-type literal",
        "kafka-acls.sh --bootstrap-server TARGET --remove --force --deny-principal 'User:reports' "
        "--deny-host '10.0.0.9' --operation Read --topic 'orders' --resource-pattern-type literal",
        "kafka-configs.sh --bootstrap-server TARGET --alter --delete-config 'SCRAM-SHA-512' --entity-type users "
        "--entity-name 'shop'",
        "kafka-configs.sh --bootstrap-server TARGET --alter --delete-config 'producer_byte_rate' --entity-type users "
        "--entity-name 'shop'",
    ]
    assert {READING, NARROWED, GRANT, OTHERS} <= (world.target.acls or set())
    assert set(world.target.users) == {"shop", "bank"}


def test_a_quota_that_somebody_has_changed_since_is_theirs(worlds: Worlds) -> None:
    world = with_access(worlds, "drain_ready")
    world.target.quotas[CLIENTS] = {"producer_byte_rate": 60.0}
    world.target.quotas[SHOP] = {"producer_byte_rate": 1.0}
    world.run("rollback")
    assert world.target.quotas == {
        BANK: {"producer_byte_rate": 7.0},
        CLIENTS: {"producer_byte_rate": 60.0},
        SHOP: {"producer_byte_rate": 1.0},
    }
    assert report(world).get("quotas_left", []) == []


@pytest.mark.parametrize("later", [False, True], ids=["with the rollback", "after it"])
def test_access_is_withdrawn_on_request(worlds: Worlds, monkeypatch: pytest.MonkeyPatch, later: bool) -> None:
    monkeypatch.setenv("SHOP_SECRET", "s" * 20)
    world = with_access(worlds, "drain_ready", acls={"users": {"shop": "env:SHOP_SECRET"}})
    if later:
        world.run("rollback")
    result = world.run("rollback", withdraw_access=True)
    assert result.details["problems"] == []
    assert (world.target.acls or set()) & {READING, NARROWED, GRANT, OTHERS} == {OTHERS}
    assert set(world.target.users) == {"bank"}
    assert world.target.quotas == {BANK: {"producer_byte_rate": 7.0}, CLIENTS: {"producer_byte_rate": 70.0}}
    if not later:
        assert "acls_left" not in report(world)


def test_an_allow_is_withdrawn_before_the_deny_that_narrows_it(worlds: Worlds) -> None:
    world = with_access(worlds, "drain_ready")
    world.outside.fail("target.admin.delete_acls", lambda answers: dict.fromkeys(answers, REFUSED))
    world.run("rollback", withdraw_access=True)
    world.outside.heal()
    (problem,) = report(world)["problems"]
    assert problem["part"] == "access"
    assert {item["name"] for item in problem["details"]["failures"]} == {str(GRANT), str(READING)}


def test_what_cannot_be_read_is_listed_from_the_journal(worlds: Worlds) -> None:
    world = with_access(worlds, "drain_ready")
    world.outside.fail("target.admin.describe_acls", BrokerUnreachable("away", next_step=""))
    world.run("rollback")
    found = report(world)
    assert [item["part"] for item in found["problems"]] == ["access inventory"]
    assert [Acl(*row) for row in found["acls_left"]] == sorted([READING, NARROWED, GRANT])
