"""A source topic goes away, or comes back as another one: the others go on, and a person decides about its copy."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from phase_world.admin import NOT_PERMITTED
from phase_world.logs import Log
from phase_world.world import World, Worlds
from test_mirror_phase import ask, mirror_until

from airflow_provider_kafka_migration.documents.mirror import TopicDeletions
from airflow_provider_kafka_migration.errors import ApprovalRefused, PermissionMissing, SpecInvalid
from airflow_provider_kafka_migration.mirrors import deletions, requests
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import topics_gone
from harness.processes import wait_for

AT = "2026-04-24T10:40:00Z"


def sections(policy: str) -> dict[str, Any]:
    return {
        "kind": "mirror",
        "mirror": {"source_alias": "A", "target_alias": "B"},
        "topology": {"follow_new": True, "on_topic_deleted": policy, "refresh_interval": "1h"},
    }


@pytest.fixture(autouse=True)
def _passes_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_gone, "PAUSE_SECONDS", 0.0)
    # Each test says itself when a pass runs.
    monkeypatch.setattr(follow.Follower, "_run", lambda _self: None)


def once(world: World, act: Any) -> None:
    """Mirror, do something meanwhile, and pause."""
    if world.state is State.PAUSED:
        ask(world, "run")
        world.restart()
    mirror_until(world, lambda: (act(), ask(world, "paused")))


def without_orders(worlds: Worlds, policy: str = "repair") -> World:
    """The mirror has noticed that ``orders`` is gone."""
    world = worlds.at("tail", **sections(policy))
    once(world, lambda: None)
    del world.source.topics["orders"]
    once(world, lambda: follow.follow(world.context()))
    return world


def approve(world: World, found: list[Any] | None = None) -> TopicDeletions:
    record = world.context().record
    shown = deletions.waiting(record, world.context().target) if found is None else found
    return deletions.approve(record, shown, deletions.code(record.migration_id, shown), by="ann", at=AT)


def fails(error: BaseException) -> Any:
    def method(*_: Any) -> Any:
        raise error

    return method


def passes(world: World, raises: tuple[type[BaseException], ...] = ()) -> None:
    """Run the passes that a mirror runs, in their order; with an error that one of them may end with."""
    for one_pass in follow.Follower(world.context(), None, deletions.carry_out)._passes():
        with contextlib.suppress(*raises):
            one_pass(world.context())


def carry_out(world: World) -> list[str]:
    names: list[str] = []
    once(world, lambda: names.extend(deletions.carry_out(world.context())))
    return names


@pytest.mark.parametrize("policy", ["note", "repair"])
def test_the_others_go_on_and_the_copy_stays(worlds: Worlds, policy: str) -> None:
    world = without_orders(worlds, policy)
    world.source.log("state").write(b"more")
    once(world, lambda: None)
    assert world.target.log("A.state").values() == world.source.log("state").values()
    assert world.target.log("A.orders").end == 5
    assert carry_out(world) == []
    shown = deletions.waiting(world.context().record, world.context().target)
    assert [(item.remote_topic, item.log_end_offsets) for item in shown] == [("A.orders", [5, 10])]


def test_it_is_deleted_once_a_person_has_approved_it(worlds: Worlds) -> None:
    world = without_orders(worlds)
    approve(world)
    assert carry_out(world) == ["A.orders"]
    assert set(world.target.topics) == {"A.state"}
    entry = world.steps(steps.REMOTE_TOPIC_DELETING)[-1]
    assert (entry.details["approved_by"], entry.details["log_end_offsets"]) == ("ann", [5, 10])
    assert carry_out(world) == []
    once(world, lambda: follow.follow(world.context()))
    assert set(world.target.topics) == {"A.state"}


def test_the_mirror_itself_carries_it_out(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = without_orders(worlds)
    approve(world)
    monkeypatch.setattr(follow.Follower, "_run", follow.Follower.once)
    once(world, lambda: wait_for("the deletion", lambda: "A.orders" not in world.target.topics, 30.0))


def test_a_topic_that_was_written_to_since_stays(worlds: Worlds) -> None:
    world = without_orders(worlds)
    approve(world)
    world.target.log("A.orders").write(b"a client's")
    assert carry_out(world) == []
    assert "A.orders" in world.target.topics


@pytest.mark.parametrize("how", ["written", "created again"])
def test_a_topic_that_changes_until_the_last_moment_stays(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    world = without_orders(worlds)
    approve(world)
    real = deletions.forget_proven

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(deletions, "forget_proven", real)
        if how == "created again":
            del world.target.topics["A.orders"]
            world.target.create("A.orders", 2)
        world.target.log("A.orders").write(b"a client's")
        real(*arguments)

    monkeypatch.setattr(deletions, "forget_proven", late)
    assert carry_out(world) == []
    assert b"a client's" in world.target.log("A.orders").values().values()


def test_a_request_that_comes_too_late_deletes_no_other_topic(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody deletes the topic and creates one of that name between the last look and the request."""
    world = without_orders(worlds)
    approve(world)
    real = deletions._read_ends

    def late(*arguments: Any) -> Any:
        found = real(*arguments)
        del world.target.topics["A.orders"]
        world.target.create("A.orders", 2)
        return found

    monkeypatch.setattr(deletions, "_read_ends", late)
    carry_out(world)
    assert "A.orders" in world.target.topics


def test_the_copy_of_a_topic_that_is_back_stays(worlds: Worlds) -> None:
    """The source had lost sight of it, and has it again under the same id."""
    world = worlds.at("tail", **sections("delete"))
    once(world, lambda: None)
    kept = world.source.topics.pop("orders")
    once(world, lambda: follow.follow(world.context()))
    approve(world)
    world.source.topics["orders"] = kept
    assert carry_out(world) == []
    assert world.target.log("A.orders").end == 5
    assert world.steps(steps.REMOTE_TOPIC_DELETING) == []
    del world.source.topics["orders"]
    assert carry_out(world) == ["A.orders"]


def test_a_topic_of_others_stays(worlds: Worlds) -> None:
    """Somebody has deleted the remote topic and created one of that name."""
    world = without_orders(worlds)
    shown = deletions.waiting(world.context().record, world.context().target)
    del world.target.topics["A.orders"]
    world.target.create("A.orders", 2)
    approve(world, shown)
    assert deletions.waiting(world.context().record, world.context().target) == []
    assert carry_out(world) == []
    assert "A.orders" in world.target.topics


def test_other_codes_and_other_policies_delete_nothing(worlds: Worlds) -> None:
    world = without_orders(worlds)
    record = world.context().record
    shown = deletions.waiting(record, world.context().target)
    with pytest.raises(ApprovalRefused, match="does not approve what would be deleted now: 1 remote topics"):
        deletions.approve(record, shown, "00000000", by="ann", at=AT)
    with pytest.raises(ApprovalRefused):
        deletions.approve(record, [], deletions.code("m1", []), by="ann", at=AT)
    kept = without_orders(worlds, "note")
    with pytest.raises(ApprovalRefused, match="on_topic_deleted is note"):
        approve(kept)
    with pytest.raises(SpecInvalid, match="repair is for mirrors"):
        parse_spec(
            {
                "migration_id": "m",
                "source": {"conn_id": "env:S"},
                "target": {"conn_id": "env:T"},
                "storage": {"journal": "file:///j"},
                "topology": {"on_topic_deleted": "repair"},
            }
        )


def test_a_topic_that_was_created_again_is_mirrored_afresh(worlds: Worlds) -> None:
    """Not before the old copy is gone: the new topic's records have nothing to do with it."""
    world = without_orders(worlds)
    world.source.create("orders", 3)
    world.source.log("orders", 2).write(b"anew")
    once(world, lambda: follow.follow(world.context()))
    assert world.target.log("A.orders").end == 5
    approve(world)
    assert carry_out(world) == ["A.orders"]
    once(world, lambda: follow.follow(world.context()))
    once(world, lambda: None)
    assert [log.end for log in world.target.topics["A.orders"].logs] == [0, 0, 1]
    assert list(world.target.log("A.orders", 2).values().values()) == [b"anew"]
    # What was gone once does not keep the mirror from being promoted.
    requests.write(world.journal_store, "m1", "run", by="ann", at=AT)
    world.restart()
    mirror_until(world, lambda: ask(world, "promoted"))
    assert world.state is State.PROMOTED


def test_a_recreated_topic_is_named_and_left_alone(worlds: Worlds) -> None:
    world = worlds.at("tail", **sections("fail"))
    once(world, lambda: None)
    world.source.topics["orders"].topic_id = "another"
    world.source.topics["orders"].logs = [Log(0, 0), Log(0, 0)]
    named: list[Any] = []
    once(world, lambda: (follow.follow(world.context()), named.extend(world.steps(steps.SOURCE_TOPIC_GONE))))
    assert ["deleted and created again" in entry.details["why"] for entry in named] == [True]
    assert world.target.log("A.orders").end == 5


@pytest.mark.parametrize("how", ["killed", "refused"])
def test_a_new_topic_is_not_mixed_with_the_old_copy(worlds: Worlds, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The deletion is journaled, and the topic is still there: the new topic of that name waits."""
    world = without_orders(worlds)
    world.source.create("orders", 2)
    world.source.log("orders", 0).write(*[b"new"] * 7)
    approve(world)
    admin = type(world.context().target.admin)
    with monkeypatch.context() as broken:
        if how == "killed":
            broken.setattr(admin, "delete_topic_with_id", fails(KeyboardInterrupt()))
        else:
            broken.setattr(admin, "delete_topic_with_id", lambda *_: NOT_PERMITTED)
        once(world, lambda: passes(world, raises=(KeyboardInterrupt, PermissionMissing)))
    assert len(world.steps(steps.REMOTE_TOPIC_DELETING)) == 1
    assert world.steps(steps.REMOTE_TOPIC_DELETED) == []
    # A pass that follows the source in between does not take the old copy for the new topic's.
    once(world, lambda: follow.follow(world.context()))
    assert world.target.log("A.orders").end == 5
    once(world, lambda: passes(world))
    once(world, lambda: None)
    assert [log.end for log in world.target.topics["A.orders"].logs] == [7, 0]
    assert set(world.target.log("A.orders").values().values()) == {b"new"}
    assert len(world.steps(steps.REMOTE_TOPIC_DELETED)) == 1


def test_a_deletion_counts_once_the_brokers_have_done_it(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers answer before they have deleted."""
    world = without_orders(worlds)
    world.source.create("orders", 2)
    approve(world)
    with monkeypatch.context() as slow:
        slow.setattr(type(world.context().target.admin), "delete_topic_with_id", lambda *_: None)
        assert carry_out(world) == []
        once(world, lambda: follow.follow(world.context()))
    assert [topic.name for topic in world.context().record.plan().topics] == ["state"]
    # It is gone when somebody looks again, and nobody sends another request.
    del world.target.topics["A.orders"]
    assert carry_out(world) == ["A.orders"]
    assert carry_out(world) == []


def test_each_generation_of_a_topic_has_its_own_approval(worlds: Worlds) -> None:
    """What was deleted once says nothing about the copy of the topic that came after it."""
    world = without_orders(worlds)
    world.source.create("orders", 2)
    approve(world)
    assert carry_out(world) == ["A.orders"]
    once(world, lambda: follow.follow(world.context()))
    world.source.log("orders").write(b"second")
    once(world, lambda: None)
    del world.source.topics["orders"]
    world.source.create("orders", 2)
    world.source.topics["orders"].topic_id = "third"
    once(world, lambda: follow.follow(world.context()))
    world.source.log("orders").write(b"third", b"third")
    once(world, lambda: follow.follow(world.context()))
    assert list(world.target.log("A.orders").values().values()) == [b"second"]
    approve(world)
    assert carry_out(world) == ["A.orders"]
    once(world, lambda: follow.follow(world.context()))
    once(world, lambda: None)
    assert list(world.target.log("A.orders").values().values()) == [b"third", b"third"]


@pytest.mark.parametrize("dies_after", range(3))
def test_a_deletion_that_dies_is_completed(worlds: Worlds, dies_after: int) -> None:
    world = without_orders(worlds)
    approve(world)
    ask(world, "run")
    world.restart()

    def killed() -> None:
        world.outside.revive()
        world.outside.dies_after = dies_after
        try:
            deletions.carry_out(world.context())
        finally:
            world.outside.revive()

    with pytest.raises(BaseException):  # noqa: B017 - Killed is not an Exception
        mirror_until(world, killed)
    world.copiers.then = lambda: None
    world.restart()
    carry_out(world)
    assert set(world.target.topics) == {"A.state"}
    assert len(world.steps(steps.REMOTE_TOPIC_DELETING)) == 1
