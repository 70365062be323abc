"""Access settings are made on the target: in a safe order, once, under the policy, and counted over all runs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from phase_world.admin import CLUSTER_NOT_PERMITTED, REFUSED
from phase_world.outside import Killed
from phase_world.world import PRODUCER_ACL, World, Worlds

from airflow_provider_kafka_migration.access import apply, left
from airflow_provider_kafka_migration.documents.target import AccessResult
from airflow_provider_kafka_migration.errors import PermissionMissing, TopologyRefused
from airflow_provider_kafka_migration.kafka.admin.access import Acl, QuotaEntity
from airflow_provider_kafka_migration.record import keys

READING = Acl("TOPIC", "orders", "LITERAL", "User:reports", "*", "READ", "ALLOW")
NARROWED = Acl("TOPIC", "orders", "LITERAL", "User:reports", "10.0.0.9", "READ", "DENY")
SHOP: QuotaEntity = (("user", "shop"),)
BANK: QuotaEntity = (("user", "bank"),)


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A migration before its access is copied: the source has an ALLOW with a DENY that narrows it, a user, a quota."""
    world = worlds.at("topology_copy", acls={"users": {"shop": "env:SHOP_SECRET"}})
    world.source.acls = {*(world.source.acls or ()), READING, NARROWED}
    world.source.users["shop"] = (("SCRAM-SHA-512", 4096),)
    world.source.quotas[SHOP] = {"producer_byte_rate": 1000.0}
    return world


def result(world: World) -> AccessResult:
    data = world.context().record.result(keys.ACCESS)
    assert data is not None
    return AccessResult.parse(data)


def test_a_deny_is_there_before_the_allow_that_it_narrows(world: World) -> None:
    """Whoever dies in between must not have opened a door."""
    seen: list[set[Acl]] = []

    def look(answers: Any) -> Any:
        seen.append({READING, NARROWED} & (world.target.acls or set()))
        return answers

    world.outside.fail("target.admin.create_acls", look)
    apply.run(world.context())
    assert seen == [{NARROWED}, {READING, NARROWED}]


def test_without_the_deny_there_is_no_allow(world: World) -> None:
    world.outside.fail("target.admin.create_acls", lambda answers: dict.fromkeys(answers, REFUSED), times=1)
    with pytest.raises(TopologyRefused, match="1 access settings could not be set") as caught:
        apply.run(world.context())
    assert READING not in (world.target.acls or ())
    assert [item["name"] for item in caught.value.details["failures"]] == [str(NARROWED)]


def test_everything_possible_is_done_before_the_task_fails(world: World) -> None:
    world.outside.fail("target.admin.create_acls", lambda answers: dict.fromkeys(answers, CLUSTER_NOT_PERMITTED))
    with pytest.raises(PermissionMissing, match="grant Alter"):
        apply.run(world.context())
    assert world.target.quotas == {SHOP: {"producer_byte_rate": 1000.0}}
    assert "shop" in world.target.users


def test_a_second_run_changes_nothing(world: World) -> None:
    apply.run(world.context())
    first = result(world)
    world.restart()
    assert apply.run(world.context()).already_done
    assert [name for name in world.outside.changes if name.startswith("target")] == []
    assert result(world) == first


@pytest.mark.parametrize("after", range(1, 12))
def test_counts_are_of_all_runs(world: World, after: int) -> None:
    """A run that was killed has made some; for the next one they exist, and yet they are the migration's own."""
    world.context()
    world.outside.revive()
    world.outside.dies_after = after
    with suppress(Killed):
        apply.run(world.context())
    world.restart()
    apply.run(world.context())
    found = result(world)
    assert sorted(found.created) == sorted(map(str, (NARROWED, READING, PRODUCER_ACL)))
    assert found.existed == [str(Acl("TOPIC", "*", "LITERAL", "User:migration", "*", "ALL", "ALLOW"))]
    assert found.users_created == ["shop"]
    assert found.quotas_set == ["user shop"]
    (entry,) = world.steps("acls_copied")[-1:]
    assert (entry.details["created"], entry.details["existed"]) == (3, 1)


def test_what_the_target_had_is_not_the_migrations(world: World) -> None:
    world.target.acls = {*(world.target.acls or ()), READING}
    apply.run(world.context())
    assert str(READING) in result(world).existed
    assert str(READING) not in result(world).created


def refuse(world: World, call: str) -> None:
    """Let the brokers refuse a kind of change until :meth:`Outside.heal`."""
    state = world.target
    before = (set(state.acls or ()), dict(state.users), {key: dict(item) for key, item in state.quotas.items()})

    def refused(answers: dict[Any, Any]) -> dict[Any, Any]:
        state.acls, state.users, state.quotas = set(before[0]), dict(before[1]), dict(before[2])
        return dict.fromkeys(answers, REFUSED)

    world.outside.fail(f"target.admin.{call}", refused)


def runs_in_vain(world: World, call: str) -> None:
    refuse(world, call)
    with pytest.raises(TopologyRefused):
        apply.run(world.context())
    world.outside.heal()


def test_a_user_that_a_person_makes_after_ours_was_refused_is_theirs(world: World) -> None:
    runs_in_vain(world, "create_scram_credentials")
    world.target.users["shop"] = (("SCRAM-SHA-512", 4096),)
    apply.run(world.context())
    assert result(world).users_created == []
    left.withdraw(world.context().record, world.context().target)
    assert "shop" in world.target.users


@pytest.mark.parametrize("iterations", [4096, 8192])
def test_a_user_of_a_killed_run_has_its_credentials(world: World, iterations: int) -> None:
    """Whether the killed run has created it is not known: a user with other credentials was made by somebody else."""
    world.outside.fail("target.admin.create_scram_credentials", Killed())
    with pytest.raises(Killed):
        apply.run(world.context())
    world.outside.heal()
    world.restart()
    world.target.users["shop"] = (("SCRAM-SHA-512", iterations),)
    apply.run(world.context())
    assert result(world).users_created == (["shop"] if iterations == 4096 else [])


def test_a_user_that_was_withdrawn_and_made_again_by_a_person_is_theirs(world: World) -> None:
    apply.run(world.context())
    left.withdraw(world.context().record, world.context().target)
    world.target.users["shop"] = (("SCRAM-SHA-512", 4096),)
    apply.run(world.context())
    left.withdraw(world.context().record, world.context().target)
    assert "shop" in world.target.users


def test_acls_that_a_person_makes_after_ours_were_refused_are_theirs(world: World) -> None:
    runs_in_vain(world, "create_acls")
    world.target.acls = {*(world.target.acls or ()), READING, NARROWED}
    apply.run(world.context())
    assert {str(READING), str(NARROWED)} <= set(result(world).existed)
    left.withdraw(world.context().record, world.context().target)
    assert {READING, NARROWED} <= (world.target.acls or set())


def test_a_quota_that_a_person_sets_after_ours_was_refused_is_theirs(world: World) -> None:
    runs_in_vain(world, "alter_quotas")
    world.target.quotas[SHOP] = {"producer_byte_rate": 1000.0}
    apply.run(world.context())
    left.withdraw(world.context().record, world.context().target)
    assert world.target.quotas[SHOP] == {"producer_byte_rate": 1000.0}


def test_a_quota_whose_former_value_was_refused_gets_it_at_the_next_try(world: World) -> None:
    world.target.quotas[SHOP] = {"producer_byte_rate": 7.0}
    apply.run(world.context())
    context = world.context()
    refuse(world, "alter_quotas")
    with pytest.raises(TopologyRefused):
        left.restore_quotas(context.record, context.target)
    world.outside.heal()
    assert left.restore_quotas(context.record, context.target) == ["user shop"]
    assert world.target.quotas[SHOP] == {"producer_byte_rate": 7.0}


@pytest.mark.parametrize("side", ["source", "target"])
def test_refused_quotas_stop_on_either_side(worlds: Worlds, side: str) -> None:
    """A quota that only the target has is a difference, too."""
    world = worlds.at("topology_copy", acls={"quotas": "refuse"})
    cluster = world.source if side == "source" else world.target
    cluster.quotas[BANK] = {"consumer_byte_rate": 5.0}
    acls = set(world.target.acls or ())
    with pytest.raises(TopologyRefused, match=r"client quotas of 1 entities differ: user bank"):
        apply.run(world.context())
    assert world.target.acls == acls, "before anything is changed"


def test_equal_quotas_are_not_refused(worlds: Worlds) -> None:
    world = worlds.at("topology_copy", acls={"quotas": "refuse"})
    for cluster in (world.source, world.target):
        cluster.quotas[BANK] = {"consumer_byte_rate": 5.0}
    apply.run(world.context())


@pytest.mark.parametrize(
    ("on_source", "on_target", "told"),
    [({READING}, set(), "1 only on the source, 0 only"), (set(), {READING}, "0 only on the source, 1 only")],
)
def test_refused_acls_stop_on_either_side(worlds: Worlds, on_source: set[Acl], on_target: set[Acl], told: str) -> None:
    world = worlds.at("topology_copy", acls={"policy": "refuse"})
    same = {PRODUCER_ACL, *(world.target.acls or ())}
    world.source.acls, world.target.acls = same | on_source, same | on_target
    with pytest.raises(TopologyRefused, match=told):
        apply.run(world.context())


def test_a_quota_of_the_target_is_kept_where_the_policy_says_so(worlds: Worlds) -> None:
    world = worlds.at("topology_copy", acls={"quotas": "keep_target"})
    world.source.quotas[SHOP] = {"producer_byte_rate": 1000.0, "consumer_byte_rate": 3.0}
    world.target.quotas[SHOP] = {"producer_byte_rate": 70.0}
    apply.run(world.context())
    assert world.target.quotas[SHOP] == {"producer_byte_rate": 70.0, "consumer_byte_rate": 3.0}
    assert [item.name for item in result(world).quotas_left] == ["user shop"]
