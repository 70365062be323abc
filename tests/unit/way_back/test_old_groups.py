"""Groups follow on the old cluster while records come back, and the return is as exact as if they had not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from phase_support import SIGNING_SEED
from phase_world.outside import Killed
from phase_world.returning import Returns, keep
from phase_world.world import ORDER, SIGNING_KEY, World, Worlds, without_probes

from airflow_provider_kafka_migration.documents.way_back import WrittenGroups
from airflow_provider_kafka_migration.errors import DocumentUnreadable
from airflow_provider_kafka_migration.groups import final
from airflow_provider_kafka_migration.groups.commit import read_groups
from airflow_provider_kafka_migration.groups.sync import HeldTranslator
from airflow_provider_kafka_migration.groups.written import left_there
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.phases import rollback, tail
from airflow_provider_kafka_migration.planning import leave_out
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.validation import topics
from airflow_provider_kafka_migration.way_back import old_groups

CASE = Path(__file__).parents[2] / "cases" / "way_back" / "v1" / "groups-written.json"
SECTION: dict[str, Any] = {"freeze_old": "acl"}
ORDERS = ("orders", 0)


@pytest.fixture(scope="module")
def shared_returns() -> Returns:
    """Ways back that the tests of this file share."""
    return Returns(Worlds())


@pytest.fixture
def all_returns(shared_returns: Returns, monkeypatch: pytest.MonkeyPatch) -> Returns:
    """Copies of ways back at the beginning of any phase."""
    monkeypatch.setenv(SIGNING_KEY, SIGNING_SEED)
    monkeypatch.setattr(topics, "CONFIGS_VISIBLE_SECONDS", 0.0)
    without_probes(monkeypatch)
    return shared_returns


@pytest.fixture
def world(all_returns: Returns) -> World:
    """A way back that has caught up; ``billing`` was at 2 on both clusters when clients switched."""
    return all_returns.at("drain_ready", way_back=SECTION)


def follow(world: World) -> None:
    """What the tail does each time that its task wakes up."""
    tail.JOB_PHASE.follow(world.context(), {})


def old_offset(world: World, group: str = "billing") -> int:
    return world.target.groups[group].offsets[ORDERS].offset


def to_the_end(world: World) -> World:
    for phase in ORDER[ORDER.index("drain_ready") :]:
        world.clock.sleep(1)
        world.run(phase)
    return world


def committed(world: World) -> dict[str, dict[tuple[str, int], tuple[int, str]]]:
    """Offsets and metadata on the old cluster; the leader epoch of what is written is never known."""
    return {
        name: {place: (item.offset, item.metadata) for place, item in group.offsets.items()}
        for name, group in world.target.groups.items()
    }


def move(world: World, offset: int) -> None:
    world.source.groups["billing"].offsets[ORDERS] = GroupOffset(offset, 0, f"at {offset}")


def test_the_return_gives_back_what_a_group_had_where_the_new_cluster_has_none_any_more(world: World) -> None:
    former = committed(world)
    move(world, 5)
    follow(world)
    assert old_offset(world) == 5
    del world.source.groups["billing"]
    for phase in ORDER[ORDER.index("drain_ready") : ORDER.index("approve_switch")]:
        world.clock.sleep(1)
        world.run(phase)
    assert committed(world)["billing"] == former["billing"]


def test_idle_groups_follow_forward_only_and_never_beyond_the_copy(world: World) -> None:
    copied = world.target.log(*ORDERS).end
    move(world, 4)
    follow(world)
    assert old_offset(world) == 4
    world.source.log(*ORDERS).write(b"not", b"yet")
    move(world, copied + 2)
    follow(world)
    assert old_offset(world) == copied, "held at the end of the copy"
    move(world, 3)
    follow(world)
    assert old_offset(world) == copied, "forward only"
    world.target.groups["billing"].members = ("forgotten",)
    world.target.groups["billing"].state = "Stable"
    move(world, copied + 1)
    follow(world)
    assert old_offset(world) == copied, "a group with members on the old cluster is left alone"


def test_groups_do_not_follow_if_the_spec_says_so(all_returns: Returns) -> None:
    world = all_returns.at("drain_ready", way_back={**SECTION, "sync_groups": False})
    move(world, 4)
    follow(world)
    assert old_offset(world) == 2
    assert world.steps(steps.OLD_GROUPS_WRITTEN) == []


def test_other_migrations_write_no_groups_while_they_copy(all_returns: Returns) -> None:
    assert all_returns, "its environment"
    world = Worlds().at("drain_ready")
    follow(world)
    assert world.target.groups == {}


@pytest.mark.parametrize("position", [3, 5])
def test_the_return_is_exact_for_a_group_that_was_reset_meanwhile(all_returns: Returns, position: int) -> None:
    """Whatever was written while records came back, the return ends where it would have ended without."""
    expected, synced = (all_returns.at("drain_ready", way_back=SECTION) for _ in range(2))
    move(synced, 6)
    follow(synced)
    assert old_offset(synced) == 6
    for world in (expected, synced):
        move(world, position)
        to_the_end(world)
    assert committed(synced) == committed(expected)
    assert old_offset(synced) == position


def test_the_return_never_goes_below_what_was_there_before_the_way_back(world: World) -> None:
    move(world, 6)
    follow(world)
    move(world, 1)
    assert old_offset(to_the_end(world)) == 2
    kept = world.target.groups["billing"].offsets[ORDERS]
    assert kept.metadata == "at 2", "its metadata, too"


def test_what_others_have_committed_is_not_set_back(world: World) -> None:
    move(world, 4)
    follow(world)
    world.target.groups["billing"].offsets[ORDERS] = GroupOffset(5, 0, "a person")
    follow(world)
    move(world, 3)
    assert old_offset(to_the_end(world)) == 5


def test_nothing_is_written_once_producers_are_being_stopped(all_returns: Returns) -> None:
    world = all_returns.at("cutover.sentinels", way_back=SECTION)
    move(world, 6)
    assert old_groups.sync_once(world.context()) is None
    assert old_offset(world) == 2


def test_a_pass_that_has_slept_until_the_return_writes_nothing(
    all_returns: Returns, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = all_returns.at("drain_ready", way_back=SECTION)
    move(world, 6)
    answers = iter([True, False])
    monkeypatch.setattr(old_groups, "_is_time", lambda _record: next(answers))
    assert old_groups.sync_once(world.context()) is None
    assert old_offset(world) == 2
    assert world.stored(keys.result(keys.WRITTEN_GROUPS)) is None


@pytest.mark.parametrize("position", [1, 4])
def test_killed_after_any_change_the_groups_follow_and_the_return_is_exact(all_returns: Returns, position: int) -> None:
    def at() -> World:
        world = all_returns.at("drain_ready", way_back=SECTION)
        move(world, 6)
        world.context()
        world.outside.revive()
        return world

    whole = at()
    follow(whole)
    count = len(whole.outside.changes)
    assert count >= 4, whole.outside.changes
    without = all_returns.at("drain_ready", way_back=SECTION)
    move(without, position)
    expected = committed(to_the_end(without))
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
            assert committed(to_the_end(world)) == expected, f"killed after change {number}"


def test_keeping_leaves_the_offsets_and_reports_each_with_the_former_one(world: World) -> None:
    move(world, 4)
    follow(world)
    keep(world)
    assert old_offset(world) == 4
    report = world.evidence_store.get(f"{world.migration_id}/rollback-report.json")
    assert report is not None
    assert b'"former_offset":2,"group":"billing","offset":4,"partition":0,"topic":"orders"' in report
    released = world.steps(steps.OLD_CLUSTER_RELEASED)[-1].details
    assert released["group_offsets_left"] == len(left_there(world.context().record)) == 1


def test_nothing_is_written_once_keeping_has_begun(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the report nor the signed evidence would have it."""
    move(world, 3)
    follow(world)
    passes: list[Any] = []
    real = rollback.sign_end

    def meet(context: Any, outcome: Any) -> Any:
        move(world, 4)
        passes.append(old_groups.sync_once(world.context()))
        return real(context, outcome)

    monkeypatch.setattr(rollback, "sign_end", meet)
    keep(world)
    assert passes == [None]
    assert old_offset(world) == 3


def test_nothing_is_written_from_the_first_step_of_keep_on(world: World) -> None:
    """The copy may go on for a while before it is told to stop: the old cluster may not answer."""
    move(world, 3)
    follow(world)
    world.context().journal.step(steps.ROLLBACK_BEGUN, details={"reason": "kept"})
    assert world.context().record.tail_stop() is None
    move(world, 4)
    assert old_groups.sync_once(world.context()) is None
    assert old_offset(world) == 3


@pytest.mark.parametrize("is_used", [False, True])
def test_the_return_leaves_the_groups_of_topics_that_were_left_out(world: World, is_used: bool) -> None:
    """A person was shown that they stay, and sets them back by hand where they are to be used."""
    move(world, 4)
    follow(world)
    context = world.context()
    named = leave_out.named(context.record, ["orders"])
    leave_out.leave_out(context, named, by="ann", code="c")
    world.restart()
    if not is_used:
        del world.source.groups["billing"]
    to_the_end(world)
    assert old_offset(world) == 4


def test_a_document_that_is_missing_is_no_proof_that_nothing_was_written(world: World) -> None:
    move(world, 4)
    follow(world)
    del world.journal_store.objects[f"{world.migration_id}/{keys.result(keys.WRITTEN_GROUPS)}"]
    with pytest.raises(DocumentUnreadable, match="groups-written"):
        final.own_writes(world.context())


def test_a_document_that_version_1_has_written_stays_readable() -> None:
    data = CASE.read_bytes()
    document = WrittenGroups.parse(data)
    assert document.groups["audit"][0].former_offset is None
    assert document.canonical() == data


@pytest.mark.parametrize("adopted", [True, False])
def test_a_group_is_held_at_the_boundary_where_nothing_has_come_back_yet(world: World, adopted: bool) -> None:
    """The old log has records below it; a partition that begins with fillers has nothing to be held at."""
    record = world.context().record
    live = HeldTranslator.live(record, world.context().target)
    item = record.partitions()[ORDERS].model_copy(update={"adopted": adopted})
    ends = {**live.ends, ORDERS: item.target_start_offset}
    translator = replace(live, partitions={**live.partitions, ORDERS: item}, ends=ends)
    [group] = [item for item in read_groups(record, world.context().source) if item.group == "billing"]
    offsets = [item.model_copy(update={"offset": world.source.log(*ORDERS).end}) for item in group.offsets[:1]]
    [found] = translator.translate(group.model_copy(update={"offsets": offsets}))
    assert found.target_offset == (item.target_start_offset if adopted else None)
