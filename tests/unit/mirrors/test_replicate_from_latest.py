"""A mirror that copies only what comes after its start (``mirror.start: latest``), as MirrorMaker 2 can."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.logs import Log
from phase_world.outside import Killed
from phase_world.world import World, Worlds
from test_mirror_phase import ask, mirror_until

from airflow_provider_kafka_migration.documents.plan import Plan, Verdict
from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.mirrors import retention
from airflow_provider_kafka_migration.planning import follow, make, mirror_starts
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.translate import Translator
from airflow_provider_kafka_migration.way_back import fail_back

ORDERS = ("orders", 0)


def sections(**more: Any) -> dict[str, Any]:
    return {
        "kind": "mirror",
        "mirror": {"source_alias": "A", "target_alias": "B", "start": "latest"},
        "topology": {"follow_new": True, "on_source_drift": "note"},
        **more,
    }


@pytest.fixture(autouse=True)
def _passes_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow.Follower, "_run", lambda _self: None)


def starts(plan: Plan) -> dict[tuple[str, int], int]:
    return {
        (topic.name, item.partition): item.source_start_offset for topic in plan.topics for item in topic.partitions
    }


def copied(world: World, topic: str, partition: int = 0) -> dict[int, bytes | None]:
    return world.target.log(f"A.{topic}", partition).values()


def test_only_what_comes_later_is_copied_at_equal_offsets(worlds: Worlds) -> None:
    world = worlds.at("precheck", **sections())
    plan = world.context().record.plan()
    assert starts(plan) == {("orders", 0): 5, ("orders", 1): 10, ("state", 0): 5}
    parts = [item for topic in plan.topics for item in topic.partitions]
    assert {item.verdict for item in parts} == {Verdict.EQUAL}
    assert all(item.target_start_offset == item.source_start_offset for item in parts)
    assert {item.log_start_offset for item in plan.topic("orders").partitions} == {0, 5}, "what the source has"
    assert "the mirror starts at 5, which is filled" in parts[0].reason
    assert any("mirror.start: latest" in note for note in plan.notes)
    assert plan.estimate is not None
    assert plan.estimate.copy_bytes in (0, -1)

    world.source.log(*ORDERS).write(b"between plan and seed")
    for phase in ("precheck", "topology_copy", "seed"):
        world.run(phase)
    assert copied(world, "orders") == {5: b"between plan and seed"}
    assert world.target.log("A.orders").start == 5, "the fillers are deleted"
    assert (world.target.log("A.state").start, world.target.log("A.state").end) == (5, 5)
    world.source.log(*ORDERS).write(b"live")
    mirror_until(world, lambda: ask(world, "promoted"))
    assert copied(world, "orders") == {5: b"between plan and seed", 6: b"live"}
    assert copied(world, "state") == {}


def test_a_plan_that_is_made_again_begins_where_the_first_one_did(worlds: Worlds) -> None:
    world = worlds.at("precheck", **sections())
    first = world.context().record.plan()
    world.source.log(*ORDERS).write(b"later", b"later")
    world.restart()
    world.run("plan")
    again = world.context().record.plan()
    assert starts(again) == starts(first)
    assert again.topic("orders").partitions[0].end_offset == 7
    assert len(world.steps(steps.MIRROR_STARTS)) == 1


@pytest.mark.parametrize("changes", range(6))
def test_a_process_that_dies_while_it_plans(worlds: Worlds, changes: int) -> None:
    """Whatever the journal has counts; without an entry nothing has begun yet."""
    world = worlds.at("plan", **sections())
    world.context()
    world.outside.dies_after = changes
    try:
        world.run("plan")
    except Killed:
        pass
    else:
        assert changes > 2, "it was killed at no change at all"
    world.restart()
    kept = world.steps(steps.MIRROR_STARTS)
    world.source.log(*ORDERS).write(b"later")
    world.run("plan")
    (entry,) = world.steps(steps.MIRROR_STARTS)
    assert entry.details["topics"]["orders"]["offsets"] == ([5, 10] if kept else [6, 10])
    assert starts(world.context().record.plan())[ORDERS] == entry.details["topics"]["orders"]["offsets"][0]


def test_of_two_tasks_that_plan_at_the_same_time_the_first_entry_counts(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("plan", **sections())
    context, make_plans = world.context(), make.make_plans

    def overtaken(given: Any) -> Any:
        monkeypatch.setattr(make, "make_plans", make_plans)
        assert mirror_starts.keep(context.record, make_plans(given).plan.topics), "the other task's entry"
        world.source.log(*ORDERS).write(b"later")
        known = mirror_starts.are_known
        monkeypatch.setattr(mirror_starts, "are_known", lambda _: False)
        slow = make_plans(given)
        monkeypatch.setattr(mirror_starts, "are_known", known)
        assert starts(slow.plan)[ORDERS] == 6, "it had read the ends before it saw the entry"
        return slow

    monkeypatch.setattr(make, "make_plans", overtaken)
    world.run("plan")
    assert starts(world.context().record.plan())[ORDERS] == 5


def test_topics_and_partitions_that_come_later_begin_at_their_beginning(worlds: Worlds) -> None:
    world = worlds.at("precheck", **sections())
    # One between plan and topology_copy, the others while it mirrors.
    world.source.topics["orders"].logs.append(Log(0, 0))
    world.source.log("orders", 2).write(b"grown early")
    for phase in ("precheck", "topology_copy", "seed"):
        world.run(phase)
    context = world.context

    def changes() -> None:
        world.source.topics["state"].logs.append(Log(0, 0))
        world.source.log("state", 1).write(b"grown")
        world.source.create("invoices").logs[0].write(b"new")
        follow.follow(context())
        ask(world, "paused")

    mirror_until(world, changes)
    ask(world, "run")
    world.restart()
    mirror_until(world, lambda: ask(world, "promoted"))
    assert copied(world, "orders", 2) == {0: b"grown early"}
    assert copied(world, "state", 1) == {0: b"grown"}
    assert copied(world, "invoices") == {0: b"new"}
    assert copied(world, "orders") == {}


def test_a_topic_that_is_new_by_its_id_begins_at_its_beginning(worlds: Worlds) -> None:
    world = worlds.at("precheck", **sections())
    world.source.create("orders").logs[0].write(b"another topic")
    world.source.create("late").logs[0].write(b"late")
    world.restart()
    world.run("plan")
    assert starts(world.context().record.plan()) == {("orders", 0): 0, ("late", 0): 0, ("state", 0): 5}


@pytest.mark.parametrize(("kept", "now"), [("", "id"), ("id", ""), ("", "")])
def test_without_ids_the_name_counts(worlds: Worlds, kept: str, now: str) -> None:
    world = worlds.at("precheck", **sections())
    (entry,) = world.steps(steps.MIRROR_STARTS)
    entry.details["topics"]["orders"]["topic_id"] = kept
    record = world.context().record
    record.journal.find_step = lambda *_: entry  # type: ignore[method-assign]
    assert mirror_starts.kept(record, {"orders": now})[ORDERS] == 5
    assert ("orders", 0) not in mirror_starts.kept(record, {"state": now}), "it is not there any more"


def test_what_retention_has_deleted_behind_the_start_is_not_waited_for(worlds: Worlds) -> None:
    world = worlds.at("precheck", **sections())
    world.source.log(*ORDERS).write(b"later", b"later")
    world.source.log(*ORDERS).cut(6)
    world.restart()
    world.run("plan")
    assert starts(world.context().record.plan())[ORDERS] == 6


def test_it_begins_at_the_first_offset_of_an_open_transaction(worlds: Worlds) -> None:
    """It may commit later: then all of it is copied."""
    world = worlds.begin(**sections())
    world.source.log(*ORDERS).open_from = 3
    world.run("plan")
    part = world.context().record.plan().topic("orders").partitions[0]
    assert (part.source_start_offset, part.end_offset, part.high_watermark) == (3, 3, 5)


def test_beyond_the_budget_of_fillers_it_is_shifted(worlds: Worlds) -> None:
    world = worlds.at("precheck", **sections(offsets={"max_filler_offsets": 7}))
    parts = world.context().record.plan().topic("orders").partitions
    assert [item.verdict for item in parts] == [Verdict.EQUAL, Verdict.SHIFTED]
    assert [item.target_start_offset for item in parts] == [5, 0]
    assert "the mirror starts at 10, more than offsets.max_filler_offsets" in parts[1].reason


def test_groups_below_the_start_are_reset_to_it(worlds: Worlds) -> None:
    world = worlds.at("tail", **sections())
    world.source.log(*ORDERS).write(b"live", b"live")
    world.source.group("ahead", orders_0=6)
    mirror_until(world, lambda: ask(world, "promoted"))
    assert world.target.groups["ahead"].offsets["A.orders", 0].offset == 6
    assert world.target.groups["billing"].offsets["A.orders", 0].offset == 5, "it was at 2"
    assert world.target.groups["billing"].offsets["A.orders", 1].offset == 10, "it was at the end, and is"
    with Translator(world.context()) as translator:
        below, at = translator.offset("orders", 0, 2), translator.offset("orders", 0, 5)
    assert (below.to_offset, below.how) == (5, "reset_to_start")
    assert (at.to_offset, at.how) == (5, "equal")


def test_retention_below_the_start_changes_nothing_on_the_target(worlds: Worlds) -> None:
    world = worlds.at("tail", **sections())
    world.source.log(*ORDERS).write(b"live")
    world.source.log(*ORDERS).write(b"live")

    def cut(start: int) -> int:
        world.source.log(*ORDERS).cut(start)
        retention.retain_once(world.context())
        return world.target.log("A.orders").start

    seen: list[int] = []
    mirror_until(world, lambda: (seen.extend(map(cut, (3, 6))), ask(world, "paused")))
    assert seen == [5, 6]


def test_a_mirror_back_begins_where_this_one_has_ended(worlds: Worlds) -> None:
    """Topics that are new on the promoted side go back as a whole."""
    world = worlds.at("tail", **sections())
    mirror_until(world, lambda: ask(world, "promoted"))
    assert fail_back.derive(world.context().record).mirror.start == "earliest"
    first = world.context().record.spec
    assert fail_back.derive(world.context().record, first=first).mirror.start == "earliest"


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"adopt": {"from": "mirrormaker2"}}, "mirror.start"),
        ({"kind": "migration"}, "mirror"),
        (
            {
                "mirror": {
                    "source_alias": "A",
                    "target_alias": "B",
                    "start": "latest",
                    "naming": "identity",
                    "two_way": True,
                    "sync_groups": False,
                },
                "offsets": {"mode": "transactional"},
                "acls": {"policy": "skip", "quotas": "skip"},
            },
            "mirror.start",
        ),
    ],
)
def test_what_does_not_go_together(more: dict[str, Any], path: str) -> None:
    data = {
        "migration_id": "m",
        "source": {"conn_id": "a"},
        "target": {"conn_id": "b"},
        "storage": {"journal": "s3://bucket/j"},
        **sections(**more),
    }
    with pytest.raises(SpecInvalid) as error:
        parse_spec(data)
    assert path in {item["path"] for item in error.value.details["mistakes"]}
