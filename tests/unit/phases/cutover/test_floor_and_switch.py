"""The last step of the cutover and the client switch: clients only switch to a target that has everything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from phase_world.admin import REFUSED
from phase_world.jobs import MIGRATION
from phase_world.world import KEYS, World, Worlds

from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    BrokerUnreachable,
    FloorViolated,
    FreezeFailed,
    GroupsIncomplete,
    PermissionMissing,
    TopologyRefused,
    WaitsForOperator,
)
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.state import State

CUTOVER_STEPS = tuple(
    f"cutover.{name}"
    for name in ("freeze", "sentinels", "final_drain", "snapshot_groups", "commit_groups", "floor_guard")
)
FLOOR, SWITCH = "cutover.floor_guard", "client_switch"


def assert_not_ready(world: World) -> None:
    assert not world.steps("ready_for_client_switch")
    assert [entry.step_key for entry in world.steps("freeze_lifted")] == ["1"]
    assert world.state is State.TAIL
    assert not world.denied


def lose_first_records(world: World) -> None:
    world.target.log("orders", 1).cut(6)


def lose_last_records(world: World) -> None:
    log = world.target.log("state")
    log.batches.pop()
    log.end -= 1


# -- floor guard ------------------------------------------------------------------------------------------------------


def test_clients_may_switch_once_and_copiers_are_fenced(worlds: Worlds) -> None:
    world = worlds.at(FLOOR)
    ends = {key: world.target.log(*key).end for key in KEYS}
    result = world.run(FLOOR)
    assert world.state is State.AWAITING_CLIENT_SWITCH
    assert [entry.step_key for entry in world.steps("ready_for_client_switch")] == ["1"]
    assert {key: world.target.log(*key).end for key in KEYS} == {key: end + 1 for key, end in ends.items()}
    assert result.details["fence"]["unfenced"] == []
    assert world.denied, "from here on producers stay stopped on the source"
    assert world.run(FLOOR).already_done
    assert {key: world.target.log(*key).end for key in KEYS} == {key: end + 1 for key, end in ends.items()}


def test_producer_visible_configs_are_back_and_deleting_ones_are_not(worlds: Worlds) -> None:
    world = worlds.at(FLOOR)
    assert world.target.topics["orders"].configs["max.message.bytes"] == str(16 * 1024 * 1024)
    world.run(FLOOR)
    configs = world.target.topics["orders"].configs
    assert "max.message.bytes" not in configs
    assert configs["retention.ms"] == "-1"
    assert "max.compaction.lag.ms" in world.target.topics["state"].configs, "compaction still waits"


@pytest.mark.parametrize(
    ("loses", "text"),
    [
        (lose_first_records, "orders-1 starts at 6, the first copied offset is 5"),
        (lose_last_records, "state-0 ends at 5, the copied range ends at 6"),
    ],
)
def test_a_target_that_has_lost_records_is_no_place_to_switch_to(worlds: Worlds, loses: Any, text: str) -> None:
    world = worlds.at(FLOOR)
    loses(world)
    with pytest.raises(FloorViolated, match=f"1 target partitions have lost copied records: {text}"):
        world.run(FLOOR)
    assert_not_ready(world)


def test_it_needs_the_committed_groups(worlds: Worlds) -> None:
    world = worlds.at("cutover.commit_groups")
    with pytest.raises(FreezeFailed, match="the groups are not committed yet"):
        world.run(FLOOR)
    assert_not_ready(world)


def test_it_needs_the_offset_map(worlds: Worlds) -> None:
    world = worlds.at(FLOOR)
    for store in (world.evidence_store, world.journal_store):
        store.answers[f"{MIGRATION}/offset-map.json"] = lambda _: None
    with pytest.raises(FreezeFailed, match=r"there is no offset-map\.json"):
        world.run(FLOOR)
    assert_not_ready(world)


def test_a_source_that_was_written_to_is_not_left(worlds: Worlds) -> None:
    world = worlds.at(FLOOR)
    world.source.log("orders").write(b"late", producer_id=7)
    with pytest.raises(FreezeFailed, match="orders-0 got offsets 6 to 6 from producer id 7"):
        world.run(FLOOR)
    assert_not_ready(world)


def test_configs_that_are_refused_lift_the_freeze(worlds: Worlds) -> None:
    world = worlds.at(FLOOR)
    world.outside.fail("target.admin.alter_topic_configs", lambda answers: dict.fromkeys(answers, REFUSED))
    with pytest.raises(TopologyRefused, match="configs of 2 target topics could not be set"):
        world.run(FLOOR)
    assert_not_ready(world)


def test_a_target_that_is_away_is_not_one_that_has_lost_nothing(worlds: Worlds) -> None:
    world = worlds.at(FLOOR)
    world.outside.fail("target.wire.list_offsets.earliest", BrokerUnreachable("away"))
    with pytest.raises(BrokerUnreachable):
        world.run(FLOOR)
    assert not world.steps("ready_for_client_switch")
    assert world.denied


def test_a_topic_that_lost_records_is_copied_again_as_the_error_says(worlds: Worlds) -> None:
    world = worlds.at(FLOOR)
    lose_first_records(world)
    with pytest.raises(FloorViolated) as caught:
        world.run(FLOOR)
    assert "delete these topics on the target, and clear tail, and drain_ready" in caught.value.next_step
    del world.target.topics["orders"]
    world.restart()
    for phase in ("tail", "drain_ready"):
        world.run(phase)
    world.approve("cutover")
    for phase in CUTOVER_STEPS:
        world.run(phase)
    assert world.state is State.AWAITING_CLIENT_SWITCH
    for key in KEYS:
        source = world.source.log(*key).values()
        target = world.target.log(*key).values()
        assert {offset: target.get(offset) for offset in source} == source


def test_behind_the_limit_nobody_is_ready_any_more(worlds: Worlds) -> None:
    world = worlds.at(FLOOR)

    def slow(answer: Any) -> Any:
        world.clock.sleep(61)
        return answer

    world.outside.fail("target.wire.list_offsets.latest", slow, times=1)
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(FLOOR)
    assert_not_ready(world)


def test_write_grants_are_given_only_now(worlds: Worlds) -> None:
    section = {"acls": {"write_grants": "at_cutover"}}
    world = worlds.at(FLOOR, **section)
    grant = Acl("TOPIC", "orders", "LITERAL", "User:shop", "*", "WRITE", "ALLOW")
    assert grant not in (world.target.acls or ())
    world.run(FLOOR)
    assert grant in (world.target.acls or ())
    world = worlds.at(FLOOR, **section)
    world.outside.fail("target.admin.create_acls", lambda answers: dict.fromkeys(answers, REFUSED))
    with pytest.raises(TopologyRefused, match="1 of 1 write grants could not be created"):
        world.run(FLOOR)
    assert_not_ready(world)


def test_a_partition_that_cannot_be_fenced_is_named_and_holds_up_nothing(worlds: Worlds) -> None:
    world = worlds.at(FLOOR)
    world.outside.fail("target.wire.write_markers", PermissionMissing("ClusterAction is missing"))
    result = world.run(FLOOR)
    assert len(result.details["fence"]["unfenced"]) == 3
    assert world.state is State.AWAITING_CLIENT_SWITCH


def test_after_ready_a_loss_is_still_a_loss_until_clients_have_switched(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    lose_first_records(world)
    with pytest.raises(FloorViolated):
        world.run(FLOOR)
    assert not world.steps("freeze_lifted"), "behind READY no freeze is lifted"
    world = worlds.at("validate")
    lose_first_records(world)
    assert world.run(FLOOR).details["moved_starts"][0]["seen"] == 6
    log = world.target.log("state")
    log.end = 5
    with pytest.raises(FloorViolated, match="lost records at their ends"):
        world.run(FLOOR)


# -- the switch -------------------------------------------------------------------------------------------------------


def test_the_last_sync_moves_what_groups_have_read_since(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    world.source.groups["billing"].offsets["orders", 0] = GroupOffset(4, -1, "")
    world.approve("client_switch")
    assert world.target.groups["billing"].offsets["orders", 0].offset == 4
    (entry,) = world.steps("client_switch_acknowledged")
    assert entry.details["approved_by"] == ["ann"]
    commits = len(world.target.commits)
    assert world.run(SWITCH).already_done
    assert len(world.target.commits) == commits
    assert world.stored("results/groups-final.json") is not None


def test_nobody_switches_before_ready(worlds: Worlds) -> None:
    world = worlds.at(FLOOR)
    with pytest.raises(WaitsForOperator, match="has not reached READY_FOR_CLIENT_SWITCH yet"):
        world.run(SWITCH)
    assert not world.steps("client_switch_acknowledged")


def test_nobody_switches_without_an_approval(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    with pytest.raises(ApprovalRefused, match="nobody has approved the client switch"):
        world.run(SWITCH)
    assert not world.steps("client_switch_acknowledged")


@pytest.mark.parametrize("policy", ["stop", "note"])
def test_groups_that_still_read_the_source(worlds: Worlds, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_kafka_migration.approvals import answers

    monkeypatch.setattr(answers.switch_clients, "__kwdefaults__", {"wait_seconds": 0.0, "sleep": lambda _: None})
    world = worlds.at("approve_switch", groups={"on_active_source": policy})
    world.source.groups["audit"].members = ("app",)
    if policy == "note":
        world.approve("client_switch")
        (entry,) = world.steps("client_switch_acknowledged")
        assert entry.details["active_on_source"] == ["audit"]
        return
    with pytest.raises(WaitsForOperator, match="1 groups still have members on the source: audit"):
        world.approve("client_switch")
    assert not world.steps("client_switch_acknowledged")


def test_a_group_that_fails_in_the_last_sync_stops_the_switch(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    world.source.groups["billing"].offsets["orders", 0] = GroupOffset(4, -1, "")
    world.outside.fail("target.admin.alter_group_offsets", PermissionMissing("not permitted"))
    with pytest.raises(GroupsIncomplete, match="billing: not permitted"):
        world.approve("client_switch")
    assert not world.steps("client_switch_acknowledged")
    assert world.stored("results/groups-final.json") is None
    world.outside.heal()
    world.run(SWITCH)
    assert world.target.groups["billing"].offsets["orders", 0].offset == 4


def test_records_behind_the_boundary_stop_the_switch(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    world.source.log("orders").write(b"late", producer_id=7)
    with pytest.raises(ApprovalRefused, match="orders-0: 1 records were written to the source after the cutover"):
        world.approve("client_switch")
    assert not world.steps("client_switch_acknowledged")


def test_a_source_log_that_was_truncated_is_not_one_without_late_records(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    log = world.source.log("orders")
    log.batches.pop()
    log.end -= 1
    with pytest.raises(ApprovalRefused, match="the source ends at offset 5, before the boundary 6"):
        world.approve("client_switch")
    assert not world.steps("client_switch_acknowledged")


def test_a_source_that_cannot_be_read_is_not_one_without_late_records(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    world.outside.fail("source.wire.list_offsets.latest", BrokerUnreachable("away"))
    with pytest.raises(ApprovalRefused, match="the source could not be checked"):
        world.approve("client_switch")


def test_the_final_groups_are_those_of_the_last_sync(worlds: Worlds) -> None:
    world = worlds.at("validate")
    data = json.loads(world.stored("results/groups-final.json") or b"")
    assert [item["group"] for item in data["groups"]] == ["audit", "billing"]
