"""Groups of a migration follow before its cutover, and the cutover is as exact as if they had not."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from phase_support import SIGNING_SEED
from phase_world.admin import BUSY, GROUP_NOT_PERMITTED, SimAdmin
from phase_world.cluster import Group
from phase_world.outside import Killed
from phase_world.world import KEYS, ORDER, SIGNING_KEY, World, Worlds, without_probes

from airflow_provider_kafka_migration.approvals import request
from airflow_provider_kafka_migration.documents.cutover import GroupResult
from airflow_provider_kafka_migration.errors import DocumentUnreadable, PermissionMissing
from airflow_provider_kafka_migration.evidence.bundle import not_copied
from airflow_provider_kafka_migration.freeze import frozen
from airflow_provider_kafka_migration.groups import early, final
from airflow_provider_kafka_migration.groups.written import OwnWrites
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset, GroupOffsets
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.phases import tail
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import copy_settings
from airflow_provider_kafka_migration.validation import topics
from harness.processes import wait_for

ON: dict[str, Any] = {"groups": {"early_sync": True, "early_sync_interval": "1h"}}
ORDERS = ("orders", 0)


@pytest.fixture(scope="module")
def shared_worlds() -> Worlds:
    return Worlds()


@pytest.fixture
def worlds(shared_worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> Worlds:
    monkeypatch.setenv(SIGNING_KEY, SIGNING_SEED)
    monkeypatch.setattr(topics, "CONFIGS_VISIBLE_SECONDS", 0.0)
    without_probes(monkeypatch)
    return shared_worlds


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A migration that has caught up; ``billing`` is at 2 of ``orders-0`` on the source."""
    return worlds.at("drain_ready", **ON)


def follow(world: World) -> None:
    """What the tail does each time that its task wakes up."""
    tail.JOB_PHASE.follow(world.context(), {})


def offset(world: World, group: str = "billing") -> int | None:
    found = world.target.groups.get(group)
    return None if found is None or ORDERS not in found.offsets else found.offsets[ORDERS].offset


def committed(world: World) -> dict[str, dict[tuple[str, int], tuple[int, str]]]:
    return {
        name: {place: (item.offset, item.metadata) for place, item in group.offsets.items()}
        for name, group in world.target.groups.items()
    }


def move(world: World, to: int) -> None:
    world.source.groups["billing"].offsets[ORDERS] = GroupOffset(to, 0, f"at {to}")


def to_the_switch(world: World) -> World:
    for phase in ORDER[ORDER.index("drain_ready") : ORDER.index("approve_switch")]:
        world.clock.sleep(1)
        world.run(phase)
    return world


def early_groups(world: World) -> list[dict[str, Any]]:
    data = world.stored(keys.result(keys.EARLY_GROUPS))
    assert data is not None
    return list(json.loads(data)["groups"])


def named(world: World) -> dict[str, str]:
    """Groups that the last pass has left alone, with the reason."""
    return {item["group"]: item["skipped_reason"] for item in early_groups(world) if item["skipped_reason"]}


def test_idle_groups_follow_forward_only_and_never_beyond_the_copy(world: World) -> None:
    copied = world.target.log(*ORDERS).end
    follow(world)
    assert offset(world) == 2
    move(world, 4)
    world.source.group("late", orders_0=3)
    follow(world)
    assert (offset(world), offset(world, "late")) == (4, 3)
    world.source.log(*ORDERS).write(b"not", b"yet")
    move(world, copied + 2)
    follow(world)
    assert offset(world) == copied, "held at the end of the copy"
    move(world, 3)
    follow(world)
    assert offset(world) == copied, "forward only"


def test_a_group_is_not_set_behind_what_is_replicated(world: World) -> None:
    """Copiers have confirmed more, and a broker that takes over may have less: an offset there is out of range."""
    log = world.target.log(*ORDERS)
    log.lagging = 1
    move(world, log.end)
    follow(world)
    assert offset(world) == log.end - 1
    log.lagging = 0
    follow(world)
    assert offset(world) == log.end


def test_groups_follow_while_the_seed_runs(worlds: Worlds) -> None:
    """``audit`` has read all of ``state``, of which three records are on the target."""
    world = worlds.at("seed", groups={"early_sync": True, "early_sync_interval": "20ms"})
    world.copiers.leaves[KEYS[2]] = 3

    def then() -> None:
        def at() -> int | None:
            found = world.target.groups.get("audit")
            return None if found is None else found.offsets["state", 0].offset

        wait_for("the group", lambda: at() == 3, 60.0)
        world.copiers.leaves.clear()
        world.copiers.copy(world.copiers.submitted[-1])

    world.copiers.then = then
    world.run("seed")
    assert world.state is State.SEED


def test_a_group_with_members_on_the_target_is_left_alone_and_named(world: World) -> None:
    there = world.target.group("billing")
    there.members, there.state = ("rehearsal",), "Stable"
    follow(world)
    assert offset(world) is None
    assert named(world) == {"billing": "it has members on the target (state Stable)"}


@pytest.mark.parametrize("place", [ORDERS, ("elsewhere", 3)])
def test_a_group_with_offsets_of_others_is_left_alone_and_named(world: World, place: tuple[str, int]) -> None:
    world.target.group("billing").offsets[place] = GroupOffset(1, 0, "a rehearsal")
    follow(world)
    assert committed(world)["billing"] == {place: (1, "a rehearsal")}
    assert list(named(world)) == ["billing"]
    assert f"others use it on the target: its offset there in {place[0]}-{place[1]}, 1," in named(world)["billing"]
    assert committed(world)["audit"] == {("state", 0): (5, "at 5")}, "others follow"


@pytest.mark.parametrize("place", [ORDERS, ("elsewhere", 3)])
def test_a_group_whose_offset_on_the_target_cannot_be_read_is_left_alone_and_named(
    world: World, place: tuple[str, int]
) -> None:
    """It may be one of others."""
    world.target.group("billing", orders_1=4)
    error = ItemError(88, "UNSTABLE_OFFSET_COMMIT", retriable=True)
    unread = GroupOffsets("billing", {}, {place: error})
    world.outside.fail(
        "target.admin.groups_offsets", lambda found: {**found, "billing": unread} if "billing" in found else found
    )
    follow(world)
    assert committed(world)["billing"] == {("orders", 1): (4, "at 4")}
    [item] = [item for item in early_groups(world) if item["group"] == "billing"]
    if place == ORDERS:
        assert item["failures"][0]["what"].startswith("the offset that the group has cannot be read")
    else:
        assert item["skipped_reason"].startswith("its offset on the target in elsewhere-3 cannot be read")
    assert committed(world)["audit"] == {("state", 0): (5, "at 5")}, "others follow"


@pytest.mark.parametrize("how", ["commits", "joins", "is not answered for"])
def test_a_group_that_others_use_while_a_pass_writes_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its turn comes minutes after the look at all groups."""
    follow(world)
    move(world, 3)
    world.source.groups["audit"].offsets["state", 0] = GroupOffset(4, 0, "x")
    real = early._is_time
    calls: list[int] = []

    def is_time(record: Any) -> bool:
        calls.append(1)
        there = world.target.groups["billing"]
        if len(calls) == 4 and how == "commits":
            there.offsets[ORDERS] = GroupOffset(5, 0, "a standby client")
        elif len(calls) == 4 and how == "joins":
            there.members, there.state = ("standby",), "Stable"
        elif len(calls) == 4:
            world.outside.fail("target.admin.groups_offsets", lambda _: {})
        return real(record)

    world.source.groups["aa"] = Group({ORDERS: GroupOffset(1)})
    monkeypatch.setattr(early, "_is_time", is_time)
    early.sync_once(world.context())
    assert offset(world, "aa") == 1, "its turn was before"
    assert offset(world) == (5 if how == "commits" else 2)
    assert named(world)["billing"].startswith("it was used on the target")


def test_a_refresh_behind_the_cutover_sets_no_client_back_that_has_begun_meanwhile(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    move(world, 3)

    def begin(found: Any) -> Any:
        world.target.groups["billing"].offsets[ORDERS] = GroupOffset(5, 0, "a client")
        return found

    world.outside.fail("target.admin.groups_offsets", begin, times=1)
    found = final.sync_groups(world.context())
    assert offset(world) == 5
    [item] = [item for item in found.groups if item.group == "billing"]
    assert item.committed == 0


def test_a_group_that_others_have_moved_since_is_left_alone_and_never_set_back(world: World) -> None:
    follow(world)
    world.target.groups["billing"].offsets[ORDERS] = GroupOffset(4, 0, "a rehearsal")
    move(world, 5)
    follow(world)
    assert offset(world) == 4
    assert list(named(world)) == ["billing"]
    move(world, 3)
    assert offset(to_the_switch(world)) == 4
    [found] = [item for item in world.context().record.groups().groups if item.group == "billing"]  # type: ignore[union-attr]
    assert any("the target is ahead: it has 4" in item.reason for item in found.offsets)


@pytest.mark.parametrize("position", [1, 3, 5])
def test_the_cutover_is_exact_for_a_group_that_was_reset_meanwhile(worlds: Worlds, position: int) -> None:
    """Whatever was written before, the cutover ends where it would have ended without."""
    expected, synced = worlds.at("drain_ready"), worlds.at("drain_ready", **ON)
    move(synced, 4)
    follow(synced)
    assert offset(synced) == 4
    for world in (expected, synced):
        move(world, position)
        to_the_switch(world)
    assert committed(synced) == committed(expected)
    assert offset(synced) == position


def test_the_cutover_commits_once_more_what_is_right_already(world: World) -> None:
    """Offsets expire some time after they were committed, and nobody has joined these groups."""
    follow(world)
    before = committed(world)
    world.target.commits.clear()
    to_the_switch(world)
    assert committed(world) == before
    assert sorted(group for group, _ in world.target.commits) == ["audit", "billing"]
    step = next(item for item in world.steps(steps.CUTOVER_STEP) if str(item.step_key).endswith(steps.COMMIT_GROUPS))
    assert (step.details["committed"], step.details["unchanged"]) == (3, 0)


def test_the_cutover_commits_once_more_after_the_sync_was_switched_off(world: World) -> None:
    move(world, 4)
    follow(world)
    world.change_spec(groups={"early_sync": False})
    follow(world)
    move(world, 3)
    assert offset(to_the_switch(world)) == 3


def without_and_with(worlds: Worlds) -> tuple[World, World]:
    """A migration whose groups do not follow before the cutover, and one whose groups have followed."""
    return worlds.at("drain_ready"), worlds.at("drain_ready", **ON)


def final_result(world: World, group: str) -> GroupResult:
    found = world.context().record.groups()
    assert found is not None
    [result] = [item for item in found.groups if item.group == group]
    return result


def test_the_cutover_takes_back_what_the_source_has_no_longer(worlds: Worlds) -> None:
    """A group, and a single offset: their consumers would skip records."""
    expected, synced = without_and_with(worlds)
    follow(synced)
    assert sorted(synced.target.groups) == ["audit", "billing"]
    for world in (expected, synced):
        del world.source.groups["audit"]
        del world.source.groups["billing"].offsets[ORDERS]
        to_the_switch(world)
    assert committed(synced) == committed(expected)
    assert list(committed(synced)["billing"]) == [("orders", 1)]
    assert final_result(synced, "billing").not_undone == []


def test_the_cutover_gives_back_the_offset_that_a_group_had_before(worlds: Worlds) -> None:
    """The group has offsets of its own there, and its record says that the migration has written over one."""
    world = worlds.at("drain_ready", **ON)
    world.target.group("billing", orders_0=1)
    before = committed(world)["billing"][ORDERS]
    written = OwnWrites(world.context(), steps.GROUPS_WRITTEN, "a test")
    there = dict(world.target.groups["billing"].offsets)
    written.about_to_write({"billing": {ORDERS: GroupOffset(2)}}, {"billing": there})
    world.target.groups["billing"].offsets[ORDERS] = GroupOffset(2)
    del world.source.groups["billing"]
    to_the_switch(world)
    assert committed(world)["billing"] == {ORDERS: before}


def test_the_cutover_leaves_what_others_have_committed_meanwhile(world: World) -> None:
    follow(world)
    world.target.groups["billing"].offsets[ORDERS] = GroupOffset(4, 0, "a rehearsal")
    del world.source.groups["billing"]
    to_the_switch(world)
    assert committed(world)["billing"] == {ORDERS: (4, "a rehearsal")}


@pytest.mark.parametrize("why", ["raised", "answered", "members"])
def test_what_cannot_be_taken_back_is_named_to_the_approval_and_in_the_evidence(
    world: World, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(world)
    del world.source.groups["billing"]
    there = world.target.groups["billing"]
    if why == "members":
        there.members, there.state = ("reader",), "Stable"
    elif why == "raised":
        world.outside.fail("target.admin.delete_group_offsets", PermissionMissing("not permitted"))
    else:
        monkeypatch.setattr(
            SimAdmin, "delete_group_offsets", lambda _admin, _group, places: dict.fromkeys(places, GROUP_NOT_PERMITTED)
        )
    to_the_switch(world)
    assert offset(world) == 2
    result = final_result(world, "billing")
    assert [(item.topic, item.partition, item.offset) for item in result.not_undone] == [
        ("orders", 0, 2),
        ("orders", 1, 10),
    ]
    assert "cannot be taken back: " in result.not_undone[0].reason
    plan = world.context().record.plan()
    left = [item for item in not_copied(world.context().record, plan) if "orders-0" in item["name"]]
    assert [(item["kind"], item["name"], item["offset"]) for item in left] == [("group_offset", "billing: orders-0", 2)]
    facts = request._client_switch_facts(world.context().record, world.context().source)
    [line] = [item for item in facts["groups"] if item["group"] == "billing"]
    assert line["failures"][0].startswith("orders-0 stays at 2: it was written before the cutover")
    world.outside.heal()
    monkeypatch.undo()
    there.members, there.state = (), "Empty"
    final.sync_groups(world.context())
    assert offset(world) is None, "the next refresh takes it back"


def test_a_group_that_the_commit_left_alone_follows_afterwards_as_without_the_sync(worlds: Worlds) -> None:
    """It was reset on the source, and had members on the target at the cutover."""
    expected, synced = without_and_with(worlds)
    for world in (expected, synced):
        move(world, 4)
        follow(world)
        move(world, 1)
        for phase in ORDER[ORDER.index("drain_ready") : ORDER.index("cutover.commit_groups")]:
            world.clock.sleep(1)
            world.run(phase)
        there = world.target.groups.get("billing") or world.target.group("billing")
        there.members, there.state = ("rehearsal",), "Stable"
        world.run("cutover.commit_groups")
        world.run("cutover.floor_guard")
        there.members, there.state = (), "Empty"
        final.sync_groups(world.context())
        assert offset(world) == 1
        move(world, 0)
        final.sync_groups(world.context())
        assert offset(world) == 1, "after its commit it is never set back"
    assert committed(synced) == committed(expected)


def test_what_the_cutover_has_committed_is_neither_set_back_nor_taken_back(worlds: Worlds) -> None:
    expected, synced = without_and_with(worlds)
    for world in (expected, synced):
        follow(world)
        to_the_switch(world)
        move(world, 1)
        del world.source.groups["audit"]
        final.sync_groups(world.context())
        assert offset(world) == 2
        assert "audit" in world.target.groups
    assert committed(synced) == committed(expected)


def test_an_early_outcome_is_no_outcome_of_the_cutover(world: World) -> None:
    follow(world)
    assert world.stored(keys.result(keys.EARLY_GROUPS)) is not None
    assert world.context().record.groups() is None
    assert world.stored(keys.result(keys.GROUPS)) is None
    assert len(world.steps(steps.GROUPS_WRITTEN)) == 1


def test_nothing_is_written_without_the_switch(worlds: Worlds) -> None:
    world = worlds.at("drain_ready")
    follow(world)
    assert world.target.groups == {}
    assert world.steps(steps.GROUPS_WRITTEN) == []


def test_nothing_is_written_once_producers_are_being_stopped(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels", **ON)
    assert early.sync_once(world.context()) is None
    assert world.target.groups == {}


def test_nothing_is_written_while_producers_are_still_frozen_behind_a_cutover(worlds: Worlds) -> None:
    """A lift leaves the cutover first, and frees producers then."""
    world = worlds.at("cutover.sentinels", **ON)
    frozen.back_to_tail(world.context().record, "the limit is over")
    world.journal_store.objects.pop(f"{world.migration_id}/{keys.TAIL_STOP}", None)
    assert world.state is State.TAIL
    assert early.sync_once(world.context()) is None
    assert world.target.groups == {}


def test_nothing_is_written_once_a_rollback_has_stopped_the_tail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report would not have it."""
    follow(world)
    move(world, 4)
    passes: list[Any] = []
    real = copy_settings.restore_for_rollback

    def meet(*arguments: Any) -> Any:
        passes.append((world.state, early.sync_once(world.context())))
        return real(*arguments)

    monkeypatch.setattr(copy_settings, "restore_for_rollback", meet)
    world.run("rollback")
    assert passes == [(State.TAIL, None)]
    assert early.sync_once(world.context()) is None
    assert offset(world) == 2


@pytest.mark.parametrize("answers", [[True, False], [True, True, False], [True, True, True, False]])
def test_a_pass_that_has_slept_until_the_cutover_writes_nothing_more(
    world: World, monkeypatch: pytest.MonkeyPatch, answers: list[bool]
) -> None:
    """It has read and translated everything before; groups are written in the order of their names."""
    found = iter(answers)
    monkeypatch.setattr(early, "_is_time", lambda _record: next(found))
    assert early.sync_once(world.context()) is None
    assert list(world.target.groups) == ["audit", "billing"][: max(len(answers) - 3, 0)]
    assert world.stored(keys.result(keys.EARLY_GROUPS)) is None


def test_a_cutover_whose_freeze_was_lifted_counts_as_ours(worlds: Worlds) -> None:
    """The group was reset on the source between both cutovers."""
    world = worlds.at("cutover.floor_guard", **ON)
    assert offset(world) == 2
    kept = world.context().record.written_groups()
    assert kept is not None
    assert [item.former_offset for item in kept.groups["billing"]] == [None, None]


def test_a_rollback_lists_the_offsets_and_how_to_remove_them(world: World) -> None:
    world.source.group("it's", orders_0=1)
    follow(world)
    result = world.run("rollback")
    assert ", 4 offsets of groups on the target" in result.summary
    data = world.evidence_store.get(f"{world.migration_id}/rollback-report.json")
    assert data is not None
    report = json.loads(data)
    assert [(item["group"], item["topic"], item["partition"], item["offset"]) for item in report["groups_left"]] == [
        ("audit", "state", 0, 5),
        ("billing", "orders", 0, 2),
        ("billing", "orders", 1, 10),
        ("it's", "orders", 0, 1),
    ]
    tool = "kafka-consumer-groups.sh --bootstrap-server TARGET"
    assert report["clean_up"][0] == f"{tool} --group audit --topic state:0 --delete-offsets"
    assert report["clean_up"][3] == f"{tool} --group 'it'\"'\"'s' --topic orders:0 --delete-offsets"
    assert report["clean_up"][4].startswith("kafka-topics.sh ")
    assert offset(world) == 2, "data on the target is never touched"


def rollback_report(world: World) -> dict[str, Any]:
    world.run("rollback")
    data = world.evidence_store.get(f"{world.migration_id}/rollback-report.json")
    assert data is not None
    return dict(json.loads(data))


def places(rows: list[dict[str, Any]]) -> list[tuple[str, str, int, int]]:
    return [(row["group"], row["topic"], row["partition"], row["offset"]) for row in rows]


def commands_for(report: dict[str, Any], group: str) -> list[str]:
    return [command for command in report["clean_up"] if f"--group {group} " in command]


def test_a_rollback_advises_nothing_against_offsets_of_others(world: World) -> None:
    follow(world)
    world.target.groups["billing"].offsets[ORDERS] = GroupOffset(4, 0, "a standby application")
    report = rollback_report(world)
    assert places(report["groups_left"]) == [("audit", "state", 0, 5), ("billing", "orders", 1, 10)]
    assert places(report["groups_of_others"]) == [("billing", "orders", 0, 4)]
    assert len(commands_for(report, "billing")) == 1


def test_a_rollback_does_not_list_what_was_recorded_and_never_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([True, True, False])
    monkeypatch.setattr(early, "_is_time", lambda _record: next(found))
    assert early.sync_once(world.context()) is None
    assert world.context().record.written_groups() is not None
    report = rollback_report(world)
    assert "groups_left" not in report
    assert not commands_for(report, "billing")


@pytest.mark.parametrize("why", ["raises", "answers"])
def test_a_rollback_advises_nothing_while_the_target_does_not_answer(world: World, why: str) -> None:
    follow(world)
    busy = GroupOffsets("billing", error=BUSY)
    if why == "raises":
        world.outside.fail("target.admin.list_groups", PermissionMissing("not permitted"))
    else:
        world.outside.fail("target.admin.groups_offsets", lambda found: {**found, "billing": busy} if found else found)
    report = rollback_report(world)
    assert [row["group"] for row in report["groups_left"]] == ["audit", "billing", "billing"]
    assert all(row["unread"] for row in report["groups_left"] if row["group"] == "billing")
    assert not commands_for(report, "billing")
    assert bool(commands_for(report, "audit")) is (why == "answers")


def test_a_rollback_has_no_command_for_share_groups(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(world)
    world.target.groups["billing"].type = "share"
    offsets = GroupOffsets("billing", dict(world.target.groups["billing"].offsets))
    monkeypatch.setattr(SimAdmin, "share_group_offsets", lambda _admin, _names: {"billing": offsets}, raising=False)
    report = rollback_report(world)
    assert len([row for row in report["groups_left"] if row["group"] == "billing"]) == 2
    assert not commands_for(report, "billing")


def test_a_former_offset_is_given_back_by_the_command() -> None:
    left = [{"group": "g", "topic": "t", "partition": 1, "former_offset": 7, "offset": 9}]
    [command] = early.clean_up(left)
    assert command.endswith("--group g --topic t:1 --reset-offsets --to-offset 7 --execute")


def test_a_document_that_is_missing_is_no_proof_that_nothing_was_written(world: World) -> None:
    follow(world)
    del world.journal_store.objects[f"{world.migration_id}/{keys.result(keys.WRITTEN_GROUPS)}"]
    with pytest.raises(DocumentUnreadable, match="groups-written"):
        early.own_writes(world.context())
    with pytest.raises(DocumentUnreadable, match="groups-written"):
        early.sync_once(world.context())


@pytest.mark.parametrize("dies", [True, False])
def test_a_process_that_slept_before_it_recorded_loses_nothing_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """The first one has checked that it is time, sleeps, and then stores; the second one has written meanwhile."""
    follow(world)
    world.source.group("late", orders_0=1)
    move(world, 3)
    first, second = world.context(), world._new_context()
    real = OwnWrites._put
    asleep: list[bool] = []

    def sleep(self: OwnWrites) -> None:
        if self._context.journal is not first.journal or asleep:
            real(self)
            return
        asleep.append(True)
        move(world, 5)
        assert early.sync_once(second) is not None
        real(self)
        if dies:
            raise RuntimeError("killed")

    monkeypatch.setattr(OwnWrites, "_put", sleep)
    with pytest.raises(RuntimeError) if dies else nullcontext():
        early.sync_once(first)
    monkeypatch.undo()
    assert offset(world) == 5
    follow(world)
    assert named(world) == {}, "all offsets there are known to be written here"
    move(world, 3)
    assert offset(to_the_switch(world)) == 3


@pytest.mark.parametrize("position", [1, 4])
def test_killed_after_any_change_groups_follow_and_the_cutover_is_exact(worlds: Worlds, position: int) -> None:
    def at() -> World:
        world = worlds.at("drain_ready", **ON)
        move(world, 3)
        world.context()
        world.outside.revive()
        return world

    whole = at()
    follow(whole)
    count = len(whole.outside.changes)
    assert count >= 4, whole.outside.changes
    without = worlds.at("drain_ready")
    move(without, position)
    expected = committed(to_the_switch(without))
    for number in range(count):
        killed = at()
        killed.outside.dies_after = number
        with pytest.raises(Killed):
            follow(killed)
        killed.restart()
        straight = killed.fork()
        follow(killed)
        assert committed(killed) == committed(whole), f"killed after change {number}"
        for world in (straight, killed):
            move(world, position)
            assert committed(to_the_switch(world)) == expected, f"killed after change {number}"
