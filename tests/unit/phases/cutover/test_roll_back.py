"""The rollback: producers first, the rest as far as possible, and never once clients may have switched."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from phase_world.admin import BUSY, REFUSED, UNKNOWN_TOPIC, SimAdmin
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.world import PRODUCER_ACL, World, Worlds

from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import BrokerUnreachable, ClaimLost, IllegalTransition, StillFrozen
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
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
    assert len(found["clean_up"]) == len(world.target.topics)
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
    assert result.summary.endswith(f"topics stay on the target{told}")


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
