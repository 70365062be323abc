"""Consumer groups: what is read and committed, what is never moved backwards; failures that name their group."""

from __future__ import annotations

import json
from typing import Any

import pytest
from phase_world.admin import BUSY, GROUP_NOT_PERMITTED, NOT_PERMITTED
from phase_world.cluster import Group
from phase_world.jobs import MIGRATION
from phase_world.world import ORDER, World, Worlds

from airflow_provider_kafka_migration.approvals import request
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    DocumentUnreadable,
    FreezeFailed,
    GroupsIncomplete,
    PermissionMissing,
)
from airflow_provider_kafka_migration.evidence import bundle
from airflow_provider_kafka_migration.groups.final import sync_groups
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset, GroupOffsets
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.state import State

SNAPSHOT, COMMIT = "cutover.snapshot_groups", "cutover.commit_groups"
UNSTABLE = ItemError(88, "UNSTABLE_OFFSET_COMMIT", retriable=True)
COMMITTED = {"billing": {("orders", 0): 2, ("orders", 1): 10}, "audit": {("state", 0): 5}}


def snapshot(world: World) -> dict[str, Any]:
    data = world.stored("results/groups-snapshot.json")
    assert data is not None
    return {item["group"]: item for item in json.loads(data)["groups"]}


def result(world: World) -> dict[str, Any]:
    data = world.stored("results/groups.json")
    assert data is not None
    return {item["group"]: item for item in json.loads(data)["groups"]}


def on_target(world: World) -> dict[str, dict[tuple[str, int], int]]:
    return {
        name: {key: item.offset for key, item in group.offsets.items()} for name, group in world.target.groups.items()
    }


# -- snapshot ---------------------------------------------------------------------------------------------------------


def test_the_snapshot_has_all_groups_with_offsets_and_metadata(worlds: Worlds) -> None:
    world = worlds.at(SNAPSHOT)
    world.run(SNAPSHOT)
    found = snapshot(world)
    assert sorted(found) == ["audit", "billing"]
    assert found["billing"]["offsets"][0] == {"topic": "orders", "partition": 0, "offset": 2, "metadata": "at 2"}
    world.source.groups["billing"].offsets["orders", 0] = GroupOffset(4, -1, "")
    assert world.run(SNAPSHOT).already_done
    assert snapshot(world) == found


def test_a_snapshot_that_was_lost_is_taken_again(worlds: Worlds) -> None:
    world = worlds.at(SNAPSHOT)
    world.run(SNAPSHOT)
    world.journal_store.lose(f"{MIGRATION}/results/groups-snapshot.json")
    assert not world.run(SNAPSHOT).already_done
    assert sorted(snapshot(world)) == ["audit", "billing"]


def test_a_group_that_the_answer_omits_is_a_failure_and_not_a_group_without_offsets(worlds: Worlds) -> None:
    world = worlds.at(SNAPSHOT)
    world.outside.fail("source.admin.groups_offsets", lambda found: {"audit": found["audit"]})
    taken = world.run(SNAPSHOT)
    assert taken.details["unread"] == ["billing"]
    world.outside.heal()
    with pytest.raises(GroupsIncomplete, match="billing: the broker's answer does not contain the group's offsets"):
        world.run(COMMIT)
    assert on_target(world) == {"audit": COMMITTED["audit"]}


@pytest.mark.parametrize(
    "answer",
    [
        GroupOffsets("billing", error=GROUP_NOT_PERMITTED),
        GroupOffsets("billing", {("orders", 0): GroupOffset(2)}, {("orders", 1): NOT_PERMITTED}),
    ],
    ids=["group", "partition"],
)
def test_offsets_that_may_not_be_read_are_never_nothing(worlds: Worlds, answer: GroupOffsets) -> None:
    world = worlds.at(SNAPSHOT)
    world.outside.fail("source.admin.groups_offsets", lambda found: {**found, "billing": answer})
    world.run(SNAPSHOT)
    world.outside.heal()
    with pytest.raises(GroupsIncomplete, match="billing: the group's offsets cannot be read on the source"):
        world.run(COMMIT)
    assert on_target(world) == {"audit": COMMITTED["audit"]}, "one bad group does not block the others"


def test_an_error_in_a_topic_that_is_not_migrated_is_no_failure(worlds: Worlds) -> None:
    world = worlds.at(SNAPSHOT)
    answer = GroupOffsets("billing", {("orders", 0): GroupOffset(2)}, {("other", 1): NOT_PERMITTED})
    world.outside.fail("source.admin.groups_offsets", lambda found: {**found, "billing": answer})
    assert world.run(SNAPSHOT).details["unread"] == []


@pytest.mark.parametrize("error", [BrokerUnreachable("away"), PermissionMissing("not permitted")])
def test_groups_that_cannot_be_listed_are_not_no_groups(worlds: Worlds, error: Exception) -> None:
    world = worlds.at(SNAPSHOT)
    world.outside.fail("source.admin.list_groups", error)
    with pytest.raises(type(error)):
        world.run(SNAPSHOT)
    assert world.stored("results/groups-snapshot.json") is None
    assert bool(world.denied) is isinstance(error, BrokerUnreachable), "a missing right ends the freeze"


# -- commit -----------------------------------------------------------------------------------------------------------


def test_every_offset_is_committed_with_its_metadata_and_without_an_epoch(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.run(COMMIT)
    assert on_target(world) == COMMITTED
    assert world.target.groups["billing"].offsets["orders", 1] == GroupOffset(10, -1, "at 10")
    assert world.run(COMMIT).already_done
    assert len(world.target.commits) == 2


def test_nothing_is_committed_before_the_target_has_everything(worlds: Worlds) -> None:
    world = worlds.at("cutover.final_drain")
    world.run(SNAPSHOT)
    with pytest.raises(FreezeFailed, match="so no offset is final"):
        world.run(COMMIT)
    assert not world.target.commits
    assert world.state is State.TAIL


@pytest.mark.parametrize(("data", "error"), [(None, FreezeFailed), (b'{"groups": 3}', DocumentUnreadable)])
def test_without_a_readable_snapshot_nothing_is_committed(
    worlds: Worlds, data: bytes | None, error: type[Exception]
) -> None:
    world = worlds.at(COMMIT)
    world.journal_store.answers[f"{MIGRATION}/results/groups-snapshot.json"] = lambda _: data
    with pytest.raises(error):
        world.run(COMMIT)
    assert not world.target.commits


def test_a_group_that_is_ahead_on_the_target_is_not_set_back(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.target.group("billing", orders_0=4, orders_1=6)
    world.run(COMMIT)
    assert on_target(world)["billing"] == {("orders", 0): 4, ("orders", 1): 10}
    ahead = result(world)["billing"]["offsets"][0]
    assert ahead["reason"] == "the target is ahead: it has 4; a group is never set back"


@pytest.mark.parametrize("metadata", ["at 2", "older"])
def test_an_offset_that_is_there_is_written_only_for_other_metadata(worlds: Worlds, metadata: str) -> None:
    world = worlds.at(COMMIT)
    world.target.groups["billing"] = Group(
        {("orders", 0): GroupOffset(2, -1, metadata), ("orders", 1): GroupOffset(10, -1, "at 10")}
    )
    world.run(COMMIT)
    assert ("billing" in dict(world.target.commits)) is (metadata == "older")


def test_a_group_with_members_on_the_target_is_left_alone(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.target.group("billing", orders_0=0)
    world.target.groups["billing"].state = "Stable"
    world.target.groups["billing"].members = ("app",)
    done = world.run(COMMIT)
    assert on_target(world)["billing"] == {("orders", 0): 0}
    assert done.details["left_alone"] == {"billing": "it has members on the target (state Stable)"}


def test_a_target_group_that_cannot_be_read_is_not_an_empty_one(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.target.group("billing", orders_0=4)
    busy = GroupOffsets("billing", error=BUSY)
    world.outside.fail("target.admin.groups_offsets", lambda found: {**found, "billing": busy} if found else found)
    with pytest.raises(GroupsIncomplete, match="billing"):
        world.run(COMMIT)
    assert on_target(world)["billing"] == {("orders", 0): 4}


def test_a_target_group_that_the_answer_omits_is_not_written(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.target.group("billing", orders_0=4)
    world.outside.fail("target.admin.describe_groups", lambda _: {})
    with pytest.raises(GroupsIncomplete, match="billing: the group cannot be read: NO_ANSWER"):
        world.run(COMMIT)
    assert "billing" not in dict(world.target.commits)


def test_a_target_group_whose_offsets_the_answer_omits_is_not_written(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.target.group("billing", orders_0=4)
    world.outside.fail(
        "target.admin.groups_offsets", lambda found: {name: found[name] for name in found if name != "billing"}
    )
    with pytest.raises(GroupsIncomplete, match="billing: the group cannot be read: NO_ANSWER"):
        world.run(COMMIT)
    assert on_target(world)["billing"] == {("orders", 0): 4}


def unstable(found: dict[str, GroupOffsets], place: tuple[str, int]) -> dict[str, GroupOffsets]:
    """An open transaction holds the offset of ``billing`` in a partition."""
    if "billing" not in found:
        return found
    offsets = {key: item for key, item in found["billing"].offsets.items() if key != place}
    return {**found, "billing": GroupOffsets("billing", offsets, {place: UNSTABLE})}


def test_an_offset_on_the_target_that_cannot_be_read_is_not_set_back(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.target.group("billing", orders_0=4)
    world.outside.fail("target.admin.groups_offsets", lambda found: unstable(found, ("orders", 0)))
    with pytest.raises(GroupsIncomplete, match="billing: the offset that the group has cannot be read"):
        world.run(COMMIT)
    assert on_target(world) == {"billing": {("orders", 0): 4}, "audit": COMMITTED["audit"]}
    assert result(world)["billing"]["failures"][0]["where"]["partition"] == 0


def test_an_offset_in_another_topic_that_cannot_be_read_holds_up_no_commit(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.target.group("billing")
    world.outside.fail("target.admin.groups_offsets", lambda found: unstable(found, ("elsewhere", 0)))
    world.run(COMMIT)
    assert on_target(world) == COMMITTED


def test_a_target_group_that_no_broker_lists_is_not_written_over(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.target.group("billing", orders_0=4)
    world.outside.fail("target.admin.list_groups", lambda _: {})
    with pytest.raises(GroupsIncomplete, match="billing: the group cannot be read: NOT_LISTED"):
        world.run(COMMIT)
    assert on_target(world)["billing"] == {("orders", 0): 4}


def test_a_partition_that_is_refused_is_a_failure_and_only_the_rest_is_repeated(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)

    def refused(answers: dict[Any, Any]) -> dict[Any, Any]:
        if ("orders", 1) in answers:
            world.target.groups["billing"].offsets.pop(("orders", 1))
            return {**answers, ("orders", 1): NOT_PERMITTED}
        return answers

    world.outside.fail("target.admin.alter_group_offsets", refused)
    with pytest.raises(GroupsIncomplete, match="1 groups could not be moved") as caught:
        world.run(COMMIT)
    assert "groups.exclude" not in caught.value.next_step, "no cutover may change it any more"
    assert world.denied, "a person may correct this while producers are still stopped"
    assert world.steps("groups_incomplete")
    assert result(world)["billing"]["failures"][0]["where"]["partition"] == 1
    world.outside.heal()
    world.run(COMMIT)
    assert on_target(world) == COMMITTED
    assert [name for name, _ in world.target.commits] == ["audit", "billing", "billing"]
    assert world.target.commits[-1] == ("billing", {("orders", 1): 10})


def test_a_failure_that_lasts_until_the_limit_frees_the_producers(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.outside.fail("target.admin.alter_group_offsets", PermissionMissing("not permitted"))
    with pytest.raises(GroupsIncomplete):
        world.run(COMMIT)
    assert world.denied
    world.clock.sleep(61)
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(COMMIT)
    assert not world.denied


def test_a_commit_that_fails_as_a_whole_does_not_stop_the_next_group(worlds: Worlds) -> None:
    world = worlds.at(COMMIT)
    world.outside.fail("target.admin.alter_group_offsets", PermissionMissing("not permitted"), times=1)
    with pytest.raises(GroupsIncomplete, match="audit: not permitted"):
        world.run(COMMIT)
    assert on_target(world) == {"billing": COMMITTED["billing"]}


# -- until the switch -------------------------------------------------------------------------------------------------


def test_groups_are_synced_until_clients_switch_and_only_forward(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    offsets = world.source.groups["billing"].offsets
    rounds: list[float] = []

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        rounds.append(seconds)
        offsets["orders", 0] = GroupOffset(4 if len(rounds) == 1 else 3, -1, "")
        if len(rounds) == 3:
            world.approve("client_switch")

    done = world.run("sync_groups", sleep=sleep)
    assert done.details["rounds"] == 3
    assert set(rounds) == {world.spec.groups.sync_interval.total_seconds()}
    assert on_target(world)["billing"]["orders", 0] == 4


def test_after_the_switch_nothing_is_synced(worlds: Worlds) -> None:
    world = worlds.at("validate")
    commits = len(world.target.commits)
    world.source.groups["billing"].offsets["orders", 0] = GroupOffset(4)
    assert world.run("sync_groups").already_done
    assert len(world.target.commits) == commits


# -- partitions without a commit --------------------------------------------------------------------------------------

SWITCH = "sync_groups"
ORDERS_1 = [{"topic": "orders", "partition": 1}]


def reading(world: World, name: str = "idle", **offsets: int) -> Group:
    """A group that reads both partitions of ``orders`` on the source."""
    group = world.source.group(name, **offsets)
    group.state, group.members, group.assigned = "Stable", ("c1",), (("orders", 0), ("orders", 1))
    return group


def until_ready(world: World) -> None:
    for phase in (SNAPSHOT, COMMIT, "cutover.floor_guard"):
        world.run(phase)


def test_partitions_that_members_read_without_a_commit_are_named(worlds: Worlds) -> None:
    """librdkafka's clients commit nothing where they have read nothing; on the target they begin at the end."""
    world = worlds.at(SNAPSHOT)
    reading(world, "idle", orders_0=2)
    reading(world, "never")
    world.source.group("stopped", orders_0=2)
    told = "no commit on the source in orders-1: consumers begin there by auto.offset.reset"
    assert told in request.make_facts(world.context(), "cutover").body
    until_ready(world)
    found = snapshot(world)
    assert found["idle"]["uncommitted"] == ORDERS_1
    assert found["never"]["uncommitted"] == [{"topic": "orders", "partition": 0}, *ORDERS_1]
    assert "uncommitted" not in found["stopped"], "on the source it would begin the same way"
    assert result(world)["idle"]["uncommitted"] == ORDERS_1
    assert told in request.make_facts(world.context(), "client_switch").body
    rows = {row["name"]: row["reason"] for row in bundle._groups_left(world.context().record)}
    assert "by auto.offset.reset" in rows["idle: orders-1"]


def test_by_default_nothing_is_committed_there(worlds: Worlds) -> None:
    world = worlds.at(SNAPSHOT)
    group = reading(world, orders_0=2)
    until_ready(world)
    group.state, group.members = "Empty", ()
    sync_groups(world.context())
    assert on_target(world)["idle"] == {("orders", 0): 2}
    assert result(world)["idle"]["uncommitted"] == ORDERS_1, "it has no members any more, and is still named"


def test_the_boundary_is_committed_once_the_group_has_left_the_source(worlds: Worlds) -> None:
    world = worlds.at(SNAPSHOT, groups={"uncommitted": "boundary"})
    group = reading(world, orders_0=2)
    end = world.source.log("orders", 1).end
    until_ready(world)
    sync_groups(world.context())
    assert ("orders", 1) not in on_target(world)["idle"], "its members may still commit an earlier offset"
    assert result(world)["idle"]["uncommitted"] == ORDERS_1
    group.state, group.members = "Empty", ()
    sync_groups(world.context())
    assert on_target(world)["idle"] == {("orders", 0): 2, ("orders", 1): end}
    assert "uncommitted" not in result(world)["idle"]


def test_what_a_group_commits_before_it_leaves_is_what_counts(worlds: Worlds) -> None:
    world = worlds.at(SNAPSHOT, groups={"uncommitted": "boundary"})
    group = reading(world, orders_0=2)
    until_ready(world)
    group.offsets["orders", 1] = GroupOffset(8, -1, "")
    group.state, group.members = "Empty", ()
    sync_groups(world.context())
    assert on_target(world)["idle"] == {("orders", 0): 2, ("orders", 1): 8}


def test_a_group_without_any_commit_gets_the_boundary_though_it_disappears(worlds: Worlds) -> None:
    world = worlds.at(SNAPSHOT, groups={"uncommitted": "boundary"})
    reading(world, "never")
    ends = {("orders", number): world.source.log("orders", number).end for number in (0, 1)}
    until_ready(world)
    del world.source.groups["never"]
    sync_groups(world.context())
    assert on_target(world)["never"] == ends


def test_a_group_that_is_only_not_listed_gets_none(worlds: Worlds) -> None:
    world = worlds.at(SNAPSHOT, groups={"uncommitted": "boundary"})
    reading(world, "never")
    until_ready(world)
    world.outside.fail("source.admin.list_groups", lambda found: {k: v for k, v in found.items() if k != "never"})
    sync_groups(world.context())
    assert "never" not in on_target(world)


def test_the_group_with_the_empty_id_is_left_out_and_named(worlds: Worlds) -> None:
    """Kafka 3 takes its commits; where it exists, the tools of Kafka 4 fail for all groups."""
    world = worlds.begin()
    world.source.group("", orders_0=2)
    for phase in ORDER[: ORDER.index(COMMIT) + 1]:
        world.clock.sleep(1)
        world.run(phase)
    assert "" not in on_target(world)
    assert on_target(world) == COMMITTED
    (group,) = [item for item in world.context().record.plan().excluded_groups if item.group == ""]
    assert group.topics_in_scope == ["orders"]
    assert "the empty group id" in group.reason
