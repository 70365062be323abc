"""A topic to which strangers wrote on the old cluster is left out of the way back, by a person; the others go on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from phase_support import SIGNING_SEED
from phase_world.logs import Log
from phase_world.outside import Killed
from phase_world.returning import Returns
from phase_world.world import ORDER, SIGNING_KEY, World, Worlds, without_probes

from airflow_provider_kafka_migration.approvals import way_back
from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    BrokerBusy,
    BrokerUnreachable,
    CopyFailed,
    ForeignData,
    IllegalTransition,
    SpecInvalid,
    TargetTopicMissing,
)
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.groups.written import left_there
from airflow_provider_kafka_migration.pages import rendering
from airflow_provider_kafka_migration.planning import growth, leave_out
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import lags, target_topics, topics_gone
from airflow_provider_kafka_migration.validation import topics
from airflow_provider_kafka_migration.way_back import old_groups

SECTION: dict[str, Any] = {"freeze_old": "acl"}
ERROR = {
    "kind": "terminal",
    "code": "FOREIGN_DATA",
    "what": "somebody else has written here",
    "next_step": "stop that producer",
}


@pytest.fixture(scope="module")
def shared_returns() -> Returns:
    """Ways back that the tests of this file share."""
    return Returns(Worlds())


@pytest.fixture
def returns(shared_returns: Returns, monkeypatch: pytest.MonkeyPatch) -> Returns:
    """Copies of ways back at the beginning of any phase."""
    monkeypatch.setenv(SIGNING_KEY, SIGNING_SEED)
    monkeypatch.setattr(topics, "CONFIGS_VISIBLE_SECONDS", 0.0)
    without_probes(monkeypatch)
    return shared_returns


def spoil(world: World) -> None:
    """A stranger writes to ``orders-0`` on the old cluster; its copier stops there, and nothing is overwritten."""
    world.target.log("orders").write(b"a stranger's")
    world.copiers.fails = {("orders", 0): ERROR}
    world.copiers.leaves = {("orders", 0): world.target.log("orders").end}


def leave(world: World, *names: str) -> None:
    context = world.context()
    named = leave_out.named(context.record, names)
    way_back.check_leave_out(context.record, named, way_back.leave_out_code(context.record, named))
    leave_out.leave_out(context, named, by="ann", code=way_back.leave_out_code(context.record, named))
    world.restart()
    world.copiers.fails, world.copiers.leaves = {}, {}


def to_the_end(world: World, phase: str) -> None:
    for name in ORDER[ORDER.index(phase) :]:
        world.clock.sleep(1)
        world.run(name)


@pytest.mark.parametrize("phase", ["topology_copy", "seed", "tail", "drain_ready"])
def test_the_others_go_back_and_the_evidence_names_it(returns: Returns, phase: str) -> None:
    before = {name: dict(topic.configs) for name, topic in returns.at(ORDER[0], way_back=SECTION).target.topics.items()}
    world = returns.at(phase, way_back=SECTION)
    spoil(world)
    if phase == "topology_copy":
        with pytest.raises(ForeignData, match=r"cannot be adopted any more; orders-0") as stopped:
            world.run(phase)
        assert "leave-out FILE orders`" in str(stopped.value.next_step)
        world.restart()
    if phase == "seed":
        with pytest.raises(CopyFailed, match="somebody else has written here"):
            world.run(phase)
        world.restart()
    old = [dict(log.values()) for log in world.target.topics["orders"].logs]
    leave(world, "orders")
    world.source.log("orders").write(b"stays on the new one")
    world.source.log("state").write(b"comes back")
    to_the_end(world, phase)
    assert world.state is State.FINALIZED
    assert [log.values() for log in world.target.topics["orders"].logs] == old
    assert world.target.log("state").values() == world.source.log("state").values()
    assert {name: topic.configs for name, topic in world.target.topics.items()} == before, "settings of its own"
    assert not [acl for acl in world.target.acls or () if acl.permission == "DENY"]
    data = world.evidence_store.get(f"{world.migration_id}/evidence.json")
    assert data is not None
    bundle = verify_evidence(data).bundle
    [reason] = bundle.way_back["left_out"].values()
    assert reason.startswith("left out of the way back by ann at ")
    if phase == "seed":
        assert "orders-0: [FOREIGN_DATA] somebody else has written here" in reason
    assert {"kind": "topic", "name": "orders", "reason": reason} in bundle.not_copied


def test_partitions_that_appear_after_the_decision_join_the_others(returns: Returns) -> None:
    world = returns.at("topology_copy", way_back=SECTION)
    spoil(world)
    world.enter(State.TOPOLOGY_COPY)
    leave(world, "orders")
    world.source.topics["state"].logs.append(Log())
    context = world.context()
    topology = context.spec.topology.model_copy(update={"follow_new": True})
    context = replace(context, spec=context.spec.model_copy(update={"topology": topology}))
    growth.follow(context, context.record.plan())
    world.restart()
    plan = world.context().record.plan()
    assert [(topic.name, len(topic.partitions)) for topic in plan.topics] == [("state", 2)]
    growth.check_is_of(world.context().record, plan)


def test_a_plan_that_was_made_after_the_decision_has_to_be_checked(returns: Returns) -> None:
    world = returns.at("topology_copy", way_back=SECTION)
    world.enter(State.TOPOLOGY_COPY)
    leave(world, "orders")
    plan = world.context().record.plan()
    growth.check_is_of(world.context().record, plan)
    with pytest.raises(IllegalTransition, match="newer than its precheck"):
        growth.check_is_of(world.context().record, plan.model_copy(update={"notes": ["another one"]}))


@pytest.mark.parametrize(
    ("names", "name", "meant"),
    [
        ({"a": "a.old", "a.v2": "a", "z": "z"}, "a", "a"),
        ({"a.v2": "b", "b": "b.old", "z": "z"}, "b", "b"),
        ({"a.v2": "b", "b": "b.old", "z": "z"}, "b.old", "b"),
        ({"a.v2": "a", "z": "z"}, "a", "a.v2"),
    ],
)
def test_a_name_of_two_topics_is_that_of_the_new_cluster(
    returns: Returns, names: dict[str, str], name: str, meant: str
) -> None:
    world = returns.at("seed", way_back=SECTION)
    record = world.context().record
    plan = record.plan()
    renamed = [plan.topics[0].model_copy(update={"name": new, "target_name": old}) for new, old in names.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(record), "plan", lambda _self: plan.model_copy(update={"topics": renamed}))
        assert [item.name for item in leave_out.named(record, [name])] == [meant]


@pytest.mark.parametrize("foreign", [False, True])
def test_the_advice_has_the_name_on_the_new_cluster(returns: Returns, foreign: bool) -> None:
    """With renames, the name on the old cluster may be that of another topic on the new one."""
    world = returns.at("topology_copy", way_back=SECTION)
    record, target = world.context().record, world.context().target
    plan = record.plan()
    named = [item.model_copy(update={"name": f"{item.name}.v2"}) for item in plan.topics]
    if foreign:
        named = [
            item.model_copy(
                update={"partitions": [part.model_copy(update={"adopted": None}) for part in item.partitions]}
            )
            for item in named
        ]
    renamed = plan.model_copy(update={"topics": named})
    world.target.log("orders").write(b"a stranger's")
    with pytest.raises(ForeignData) as stopped:
        target_topics.refuse(record, renamed, target_topics.read_presence(record, target, renamed))
    assert "leave-out FILE orders.v2`" in str(stopped.value.next_step)


def test_without_a_decision_its_partition_stops_the_seed_again_and_again(returns: Returns) -> None:
    world = returns.at("seed", way_back=SECTION)
    spoil(world)
    for _ in range(2):
        with pytest.raises(CopyFailed):
            world.run("seed")
        world.restart()
    assert leave_out.left_out(world.context().record) == {}


def test_the_code_stands_for_these_topics_of_this_plan(returns: Returns) -> None:
    world = returns.at("drain_ready", way_back=SECTION)
    record = world.context().record
    orders, state = ([item] for item in leave_out.named(record, ["orders"]) + leave_out.named(record, ["state"]))
    assert way_back.leave_out_code(record, orders) != way_back.leave_out_code(record, state)
    for wrong in ("", "00000000", way_back.leave_out_code(record, state), way_back.keep_code(record)):
        with pytest.raises(ApprovalRefused, match="does not leave these topics out"):
            way_back.check_leave_out(record, orders, wrong)
    world.source.log("orders").write(b"meanwhile")
    way_back.check_leave_out(record, orders, f" {way_back.leave_out_code(record, orders).upper()} ")
    former = way_back.keep_code(record)
    leave(world, "orders")
    assert way_back.keep_code(world.context().record) != former, "a question that was asked before is asked again"


def test_what_a_person_is_shown(returns: Returns) -> None:
    world = returns.at("seed", way_back=SECTION)
    spoil(world)
    with pytest.raises(CopyFailed):
        world.run("seed")
    world.restart()
    context = world.context()
    named = leave_out.named(context.record, ["orders"])
    [shown] = leave_out.facts(context.record, context.source, context.target, named)
    first, second = shown["partitions"]
    assert first["error"] == {"code": "FOREIGN_DATA", "what": "somebody else has written here"}
    assert second["error"] == {}
    assert first["new_end_offset"] == world.source.log("orders").end
    assert first["old_end_offset"] == world.target.log("orders").end
    leave(world, "orders")
    page = rendering.render(
        "approval_way_back.md.j2", way_back=way_back.facts(world.context().record), boundary_is_known=False
    )
    assert "1 topics do not go back" in page
    assert "orders: left out of the way back by ann" in page


def test_a_topic_that_was_deleted_on_the_old_cluster_can_be_left_out(
    returns: Returns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_gone, "time", SimpleNamespace(sleep=lambda _seconds: None))
    world = returns.at("drain_ready", way_back=SECTION)
    del world.target.topics["orders"]
    with pytest.raises(TargetTopicMissing, match="somebody has deleted orders") as stopped:
        world.run("drain_ready")
    assert "leave-out FILE orders`" in stopped.value.next_step
    world.restart()
    context = world.context()
    named = leave_out.named(context.record, ["orders"])
    [shown] = leave_out.facts(context.record, context.source, context.target, named)
    assert (shown["new_unread"], shown["old_unread"]) == ("", "it does not exist")
    first = shown["partitions"][0]
    assert (first["new_end_offset"], first["old_end_offset"]) == (world.source.log("orders").end, None)
    leave(world, "orders")
    to_the_end(world, "drain_ready")
    assert world.state is State.FINALIZED


@pytest.mark.parametrize("step", [steps.TOPICS_RECOPIED, steps.TOPICS_MADE_AGAIN])
def test_a_topic_that_the_tail_copies_again_is_waited_for(
    returns: Returns, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The migration has deleted it itself, and creates it again; nobody else has to do anything."""
    monkeypatch.setattr(topics_gone, "time", SimpleNamespace(sleep=lambda _seconds: None))
    world = returns.at("drain_ready", way_back=SECTION)
    del world.target.topics["orders"]
    names: Any = {"orders": "id-1"} if step == steps.TOPICS_RECOPIED else ["orders"]
    world.context().journal.step(step, key="tail/r1", details={"run": "r1", "topics": names, "partitions": {}})
    with pytest.raises(BrokerBusy):
        lags.measure(world.context().record, world.context().source, world.context().target)
    world.context().journal.step(steps.TOPICS_MADE_AGAIN_DONE, key="tail", details={"topics": ["orders"]})
    with pytest.raises(TargetTopicMissing, match="somebody has deleted orders"):
        lags.measure(world.context().record, world.context().source, world.context().target)


def test_a_cluster_that_does_not_answer_is_named_in_what_a_person_is_shown(returns: Returns) -> None:
    world = returns.at("drain_ready", way_back=SECTION)
    context = world.context()
    named = leave_out.named(context.record, ["orders"])
    world.outside.fail("target.*", BrokerUnreachable("the old cluster is down"))
    [shown] = leave_out.facts(context.record, context.source, context.target, named)
    assert shown["old_unread"] == "the old cluster is down"
    assert shown["partitions"][0]["old_end_offset"] is None


def test_a_person_is_shown_the_groups_that_stay_where_they_were_set(returns: Returns) -> None:
    """Nobody sets them back once their topic is left out."""
    world = returns.at("drain_ready", way_back=SECTION)
    world.source.group("billing", orders_0=4)
    old_groups.sync_once(world.context())
    context = world.context()
    written = left_there(context.record)
    named = leave_out.named(context.record, ["orders"])
    [shown] = leave_out.facts(context.record, context.source, context.target, named)
    assert shown["group_offsets"] == [item for item in written if item["topic"] == "orders"] != []


def test_names_that_are_none_and_a_way_back_of_nothing_are_refused(returns: Returns) -> None:
    world = returns.at("drain_ready", way_back=SECTION)
    record = world.context().record
    with pytest.raises(SpecInvalid, match="topic order is not part of the way back"):
        leave_out.named(record, ["order"])
    with pytest.raises(SpecInvalid, match="no topic would be left"):
        leave_out.named(record, ["orders", "state"])
    leave(world, "orders")
    with pytest.raises(SpecInvalid, match="not part of the way back: left out"):
        leave_out.named(world.context().record, ["orders"])


@pytest.mark.parametrize(
    ("phase", "advice"), [("precheck", "way_back.exclude"), ("cutover.sentinels", "has begun"), ("validate", "ended")]
)
def test_it_is_too_early_or_too_late(returns: Returns, phase: str, advice: str) -> None:
    world = returns.at(phase, way_back=SECTION)
    with pytest.raises(IllegalTransition) as refused:
        leave_out.check_allowed(world.context().record)
    assert advice in str(refused.value.next_step)


def test_killed_after_each_change_the_decision_is_made_or_not(returns: Returns) -> None:
    def at() -> World:
        world = returns.at("drain_ready", way_back=SECTION)
        world.context()
        world.outside.revive()
        return world

    whole = at()
    leave_out.leave_out(whole.context(), leave_out.named(whole.context().record, ["orders"]), by="ann", code="c")
    count = len(whole.outside.changes)
    assert count >= 2
    for number in range(count):
        world = at()
        named = leave_out.named(world.context().record, ["orders"])
        world.outside.dies_after = number
        with pytest.raises(Killed):
            leave_out.leave_out(world.context(), named, by="ann", code="c")
        world.restart()
        if not leave_out.left_out(world.context().record):
            leave(world, "orders")
        assert list(leave_out.left_out(world.context().record)) == ["orders"]
        assert len(world.steps(steps.PLAN_SUPPLEMENTED)) == 1
        to_the_end(world, "tail")
        assert world.state is State.FINALIZED, f"killed after change {number}"
