"""What is deleted on the target of a mirror while it is mirrored, and which settings its topics have."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from phase_world.outside import Killed
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.errors import ClaimLost, PermissionMissing, TopologyRefused
from airflow_provider_kafka_migration.mirrors import requests, retention
from airflow_provider_kafka_migration.mirrors.retention import TargetRetention, retain_once
from airflow_provider_kafka_migration.phases.mirrors import finish, mirror
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.topics import copy_settings
from airflow_provider_kafka_migration.topics.target_topics import check_permissions

MIRROR: dict[str, Any] = {"source_alias": "A", "target_alias": "B", "naming": "rename"}
SECTIONS: dict[str, Any] = {"kind": "mirror", "mirror": MIRROR}
ORDERS, CUT, STATE = ("orders", 0), ("orders", 1), ("state", 0)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_CATCH_UP_SECONDS", 0.0)


def mirrored(
    worlds: Worlds, policy: str = "source", act: Callable[[World], object] = lambda _: None, **sections: Any
) -> World:
    """A mirror that has copied everything, and still mirrors by its journal."""
    world = worlds.at("tail", kind="mirror", mirror={**MIRROR, "target_retention": policy}, **sections)
    act(world)

    def die() -> None:
        raise Killed

    world.copiers.reported = die
    with pytest.raises(Killed):
        mirror.run(world.context())
    world.copiers.reported = lambda: None
    world.restart()
    return world


def configs(world: World, topic: str) -> dict[str, str]:
    return dict(world.target.topics[topic].configs)


@pytest.mark.parametrize("policy", ["source", "own", "keep"])
def test_the_settings_of_topics_once_they_are_copied(worlds: Worlds, policy: str) -> None:
    world = mirrored(worlds, policy)
    before = configs(world, "orders"), configs(world, "state")
    assert before[0]["retention.ms"] == "-1"
    assert before[1]["cleanup.policy"] == "delete"
    done = retain_once(world.context())
    after = configs(world, "orders"), configs(world, "state")
    if policy == "keep":
        assert (after, done.begun, world.steps(steps.TARGET_RETENTION)) == (before, [], [])
        return
    assert done.begun == ["orders", "state"]
    assert after[0]["retention.ms"] == ("86400000" if policy == "own" else "-1")
    assert after[1]["cleanup.policy"] == "compact"
    for name in ("message.timestamp.type", "message.timestamp.before.max.ms", "max.message.bytes", "compression.type"):
        assert after[0][name] == before[0][name], "records still arrive from the source"
    assert str(retain_once(world.context())) == "", "there is nothing left to do"
    assert len(world.steps(steps.TARGET_RETENTION)) == 1


def test_the_target_deletes_what_the_source_has_deleted(worlds: Worlds) -> None:
    world = mirrored(worlds)
    retain_once(world.context())
    log = world.target.log(*ORDERS)
    assert log.start == 0
    world.source.log(*ORDERS).cut(2)
    assert retain_once(world.context()).moved == {ORDERS: 2}
    assert sorted(log.values()) == [2, 3, 4]
    world.source.log(*ORDERS).cut(3)
    retain_once(world.context())
    assert log.start == 3
    assert sorted(log.values()) == [3, 4]


def test_the_last_batch_stays(worlds: Worlds) -> None:
    """The source is empty. A copier finds on the target where it was."""
    world = mirrored(worlds)
    world.source.log(*ORDERS).cut(5)
    memory: dict[Any, Any] = {}
    assert retain_once(world.context(), memory).moved == {ORDERS: 3}
    log = world.target.log(*ORDERS)
    assert (log.start, sorted(log.values())) == (3, [3, 4])
    read_before = sum("fetch" in name for name in world.outside.calls)
    assert retain_once(world.context(), memory).moved == {}
    assert sum("fetch" in name for name in world.outside.calls) == read_before, "it is not searched for again"


def test_a_compacted_topic_keeps_its_log_start(worlds: Worlds) -> None:
    """Brokers refuse DeleteRecords there, and the cleaner does not move log starts."""
    world = mirrored(worlds)
    world.source.log(*STATE).cut(3)
    retain_once(world.context())
    assert world.target.log(*STATE).start == 0


@pytest.mark.parametrize("policy", ["own", "keep"])
def test_log_starts_are_the_brokers_matter(worlds: Worlds, policy: str) -> None:
    world = mirrored(worlds, policy)
    world.source.log(*ORDERS).cut(5)
    assert retain_once(world.context()).moved == {}
    assert world.target.log(*ORDERS).start == 0


def test_a_topic_that_is_not_copied_yet_waits(worlds: Worlds) -> None:
    world = mirrored(worlds)
    world.source.log(*ORDERS).write(b"not", b"yet")
    assert retain_once(world.context()).begun == ["state"]
    assert configs(world, "orders")["retention.ms"] == "-1"


def test_a_topic_that_is_made_again_begins_anew(worlds: Worlds) -> None:
    world = mirrored(worlds, "own")
    retain_once(world.context())
    settings = world.context().record.copy_settings()
    assert settings is not None
    del world.target.topics["orders"]
    world.target.create("orders", 2)
    world.source.log(*ORDERS).write(b"more")
    wanted = copy_settings.in_force(world.context().record, world.context().target, settings, ["orders", "state"])
    assert wanted["orders"] == settings.topics["orders"].copy_time
    assert wanted["state"]["cleanup.policy"] == "compact"
    assert retain_once(world.context()).begun == []
    assert configs(world, "orders") == settings.topics["orders"].copy_time


def test_nothing_changes_while_it_is_paused(worlds: Worlds) -> None:
    world = mirrored(worlds)
    requests.write(world.journal_store, "m1", "paused", by="ann", at="2026-04-24T10:40:00Z")
    mirror.run(world.context())
    before = len(world.outside.changes)
    assert str(retain_once(world.context())) == ""
    assert len(world.outside.changes) == before


def test_the_policy_may_change_while_it_mirrors(worlds: Worlds) -> None:
    world = mirrored(worlds, "own")
    retain_once(world.context())
    world.change_spec(mirror={**MIRROR, "target_retention": "keep"})
    assert retain_once(world.context()).changed == ["orders", "state"]
    assert configs(world, "orders")["retention.ms"] == "-1"
    assert configs(world, "state")["cleanup.policy"] == "delete"


def test_operators_set_the_retention_that_is_not_copied(worlds: Worlds) -> None:
    world = mirrored(worlds, "own", topology={"config_exclude": ["retention.ms"]})
    retain_once(world.context())
    assert "retention.ms" not in configs(world, "orders"), "the -1 of the copy is gone"
    world.target.topics["orders"].configs |= {"retention.ms": "7776000000", "retention.bytes": "5"}
    assert retain_once(world.context()).changed == ["orders"], "retention.bytes is copied from the source"
    assert configs(world, "orders")["retention.ms"] == "7776000000"
    assert "retention.bytes" not in configs(world, "orders")
    assert retain_once(world.context()).changed == []
    world.change_spec(mirror={**MIRROR, "target_retention": "source"})
    retain_once(world.context())
    assert configs(world, "orders")["retention.ms"] == "-1", "with source the mirror deletes"


def test_a_process_that_dies_after_any_change(worlds: Worlds) -> None:
    def cut(world: World) -> None:
        world.source.log(*ORDERS).cut(3)

    whole = mirrored(worlds)
    cut(whole)
    whole.context()
    whole.outside.revive()
    retain_once(whole.context())
    total = len(whole.outside.changes)
    assert total >= 3, "a step, configs, log starts"
    for number in range(total):
        world = mirrored(worlds)
        cut(world)
        world.context()
        world.outside.revive()
        world.outside.dies_after = number
        with pytest.raises(Killed):
            retain_once(world.context())
        world.restart()
        retain_once(world.context())
        assert configs(world, "orders") == configs(whole, "orders"), f"killed after change {number}"
        assert configs(world, "state") == configs(whole, "state")
        assert world.target.log(*ORDERS).start == whole.target.log(*ORDERS).start == 3
        assert len(world.steps(steps.TARGET_RETENTION)) == 1


def test_a_problem_is_reported_once(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world, memory = mirrored(worlds), dict[str, Any]()

    def refused(*_: object) -> None:
        raise PermissionMissing("records cannot be deleted")

    monkeypatch.setattr(type(world.context().target.wire), "delete_records", refused)
    world.source.log(*ORDERS).cut(3)
    TargetRetention(world.context()).once(memory)
    assert memory == {"retention": "log starts: records cannot be deleted"}
    stored = retention.last_problems(world.context().record)
    assert stored is not None
    assert (stored.count, stored.problems) == (1, {"log starts": "records cannot be deleted"})
    monkeypatch.undo()
    monkeypatch.setattr(retention, "_CATCH_UP_SECONDS", 0.0)
    TargetRetention(world.context()).once({})  # another process
    assert retention.last_problems(world.context().record) is None


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_partition_without_a_leader_stops_only_itself(worlds: Worlds, side: str) -> None:
    world = mirrored(worlds)
    cluster = world.source if side == "source" else world.target
    cluster.leaderless = {STATE}
    done = retain_once(world.context())
    assert (done.begun, done.problems) == (["orders"], {})
    world.source.log(*ORDERS).cut(2)
    cluster.leaderless = {CUT}
    done = retain_once(world.context())
    assert (done.begun, done.moved) == (["state"], {ORDERS: 2})
    assert list(done.problems) == ["orders-1"]
    assert done.problem == "orders-1: the partition has no leader"


def test_log_starts_move_although_settings_cannot_be_set(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = mirrored(worlds)
    retain_once(world.context())

    def refused(*_: object) -> None:
        raise TopologyRefused("configs of 1 target topics could not be set")

    monkeypatch.setattr(copy_settings, "apply_configs", refused)
    world.source.log(*ORDERS).cut(2)
    done = retain_once(world.context())
    assert done.moved == {ORDERS: 2}
    assert done.problem == "topic settings: configs of 1 target topics could not be set"


def test_the_job_says_what_copiers_have_to_expect(worlds: Worlds) -> None:
    job = mirrored(worlds).context().record.job("tail")
    assert job is not None
    assert (job.target_deletes, job.target_compacts) == (True, ["state"])


def test_the_right_to_delete_is_checked_before_the_copy(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = mirrored(worlds)
    admin = type(world.context().target.admin)
    real = admin.describe_topics

    def described(self: Any, names: Any = None, **more: Any) -> Any:
        import dataclasses

        rights = frozenset({"ALTER_CONFIGS", "DESCRIBE_CONFIGS", "READ", "WRITE"})
        return {name: dataclasses.replace(item, operations=rights) for name, item in real(self, names, **more).items()}

    monkeypatch.setattr(admin, "describe_topics", described)
    record = world.context().record
    with pytest.raises(PermissionMissing, match="DELETE on 2 topics"):
        check_permissions(record, world.context().target, record.plan())


# -- records of others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source_gone", [True, False])
def test_a_pass_that_hangs_during_a_promotion_changes_nothing(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, source_gone: bool
) -> None:
    """It was stuck in a request; meanwhile its process promoted, and clients wrote."""
    world = mirrored(worlds)
    context = world.context()
    retain_once(context)
    real = retention._partitions
    seen: dict[str, Any] = {}

    def slow(*args: Any) -> Any:
        found = real(*args)
        if source_gone:
            requests.write(world.journal_store, "m1", "promoted", by="ann", at="2026-04-24T10:40:00Z", source_gone=True)
            finish.run(context)
            assert world.state == "promoted"
        else:
            # The settings are put back before the journal has the promotion; only the stop says that it begins.
            copy_settings.restore_deleting(context.record, context.target)
        world.target.log(*ORDERS).write(b"client-1", b"client-2")
        world.source.log(*ORDERS).write(*[b"old"] * 5)
        world.source.log(*ORDERS).cut(9)
        seen.update(values=dict(world.target.log(*ORDERS).values()), configs=configs(world, "orders"))
        return found

    monkeypatch.setattr(retention, "_partitions", slow)
    stop = iter([False, True, True, True])
    done = retain_once(context, is_stopped=lambda: not source_gone and next(stop))
    assert (done.changed, done.moved) == ([], {})
    assert world.target.log(*ORDERS).values() == seen["values"]
    assert configs(world, "orders") == seen["configs"]


@pytest.mark.parametrize("when", ["before", "under way"])
def test_once_a_promotion_is_journaled_nothing_is_deleted(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its process has died before the state followed, so the mirror still mirrors by its state: clients may write."""
    world = mirrored(worlds)
    context = world.context()
    retain_once(context)
    world.source.log(*ORDERS).cut(3)
    real = retention._log_starts_to_move

    def promoted(*args: Any) -> Any:
        found = real(*args)
        assert found, "there is something to delete"
        context.journal.step(steps.PROMOTED)
        return found

    if when == "before":
        context.journal.step(steps.PROMOTED)
    else:
        monkeypatch.setattr(retention, "_log_starts_to_move", promoted)
    assert world.state == "tail"
    assert retain_once(context).moved == {}
    assert world.target.log(*ORDERS).start == 0


def test_a_holder_that_lost_its_claim_changes_nothing(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = mirrored(worlds)
    context = world.context()
    retain_once(context)
    world.source.log(*ORDERS).cut(3)
    real = retention._log_starts_to_move

    def slow(*args: Any) -> Any:
        found = real(*args)
        assert found
        monkeypatch.setattr(context.journal, "check_holds", lost)
        return found

    def lost(**_: Any) -> None:
        raise ClaimLost("somebody else has the mirror")

    monkeypatch.setattr(retention, "_log_starts_to_move", slow)
    with pytest.raises(ClaimLost):
        retain_once(context)
    assert world.target.log(*ORDERS).start == 0


def test_a_late_deletion_leaves_what_others_wrote(worlds: Worlds) -> None:
    """Even the request that was under way. Clients have failed over without a promotion, say."""
    world = mirrored(worlds)
    retain_once(world.context())
    log, mirrored_until = world.target.log(*ORDERS), world.target.log(*ORDERS).end
    log.write(b"client-1")
    log.write(b"client-2")
    log.write(b"client-3")
    world.source.log(*ORDERS).write(*[b"s"] * 20)
    world.source.log(*ORDERS).cut(20)
    assert retain_once(world.context()).moved == {ORDERS: mirrored_until}
    assert sorted(str(value) for value in log.values().values()) == ["b'client-1'", "b'client-2'", "b'client-3'"]


@pytest.mark.parametrize("change", [{"failed": True}, {"source_offset": -1}, {"target_offset": -1}])
def test_nothing_is_deleted_where_nobody_knows_what_the_copy_wrote(worlds: Worlds, change: dict[str, Any]) -> None:
    world = mirrored(worlds)
    world.source.log(*ORDERS).cut(2)
    progress = world.context().record.job_progress("tail")
    changed = {**progress, "partitions": [{**row, **change} for row in progress["partitions"]]}
    for document in (changed, {**progress, "generation": -7}):
        data = json.dumps(document).encode()
        world.journal_store.answers["m1/progress/tail.json"] = lambda _, data=data: data
        assert retain_once(world.context()).moved == {}
    del world.journal_store.answers["m1/progress/tail.json"]
    assert retain_once(world.context()).moved == {ORDERS: 2}


def test_nobody_leaves_while_a_pass_is_under_way(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leaves the block may promote."""
    world = mirrored(worlds)
    begun, may_end = threading.Event(), threading.Event()
    limits: list[Any] = []

    def stuck(*_: Any, **__: Any) -> retention.Pass:
        begun.set()
        assert may_end.wait(30)
        return retention.Pass()

    class Patient(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            if self.name == "target-retention":
                limits.append(timeout)
                may_end.set()
            super().join(timeout)

    monkeypatch.setattr(retention, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(retention, "retain_once", stuck)
    monkeypatch.setattr(threading, "Thread", Patient)
    with TargetRetention(world.context()):
        assert begun.wait(30)
    assert limits == [None]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_topic_that_was_created_again_purges_nothing(worlds: Worlds, side: str) -> None:
    """The copy of the deleted topic may be all that is left of it."""
    world = mirrored(worlds)
    retain_once(world.context())
    cluster = world.source if side == "source" else world.target
    del cluster.topics["orders"]
    cluster.create("orders", 2)
    for _ in range(9):
        cluster.log(*ORDERS).write(b"n")
    world.source.log(*ORDERS).cut(4)
    if side == "target":
        world.source.log(*ORDERS).write(*[b"more"] * 9)  # it is not copied again yet
    before = dict(world.target.log(*ORDERS).values())
    assert retain_once(world.context()).moved == {}
    assert world.target.log(*ORDERS).values() == before
