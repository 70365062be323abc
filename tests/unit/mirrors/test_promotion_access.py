"""Who may write to the remote topics: nobody but the mirror, until it is promoted."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.world import PRODUCER_ACL, World, Worlds
from test_mirror_phase import ask, mirror_until

from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.phases.mirrors import finish
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.state import State

OWNER = Acl("TOPIC", "orders", "LITERAL", "User:owner", "*", "ALL", "ALLOW")


def sections(policy: str) -> dict[str, Any]:
    return {
        "kind": "mirror",
        "mirror": {"source_alias": "A", "target_alias": "B"},
        "acls": {"write_grants": policy},
        "topology": {"on_source_drift": "follow"},
    }


def rights(world: World) -> set[tuple[str, str]]:
    """(principal, operation) of all bindings on the remote topic."""
    return {(acl.principal, acl.operation) for acl in world.target.acls or () if acl.resource_name == "A.orders"}


def of(worlds: Worlds, policy: str) -> World:
    world = worlds.at("tail", **sections(policy))
    assert world.source.acls is not None
    world.source.acls.add(OWNER)
    mirror_until(world, lambda: (take_over.follow(world.context()), ask(world, "paused")))
    ask(world, "run")
    world.restart()
    return world


@pytest.mark.parametrize("source_gone", [False, True])
def test_write_is_granted_at_the_promotion(worlds: Worlds, source_gone: bool) -> None:
    """Also what appeared since the plan, and without asking a source that is gone."""
    world = of(worlds, "at_cutover")
    assert rights(world) == {("User:owner", "READ")}, "ALL is READ while it is mirrored"
    if source_gone:
        mirror_until(world, lambda: ask(world, "paused"))
        ask(world, "promoted", source_gone=True)
        world.restart()
        world.source.acls = None
        result = finish.run(world.context())
    else:
        result = mirror_until(world, lambda: ask(world, "promoted"))
    assert result.details["problems"] == []
    assert result.details["write_grants"] == 2
    assert {("User:shop", "WRITE"), ("User:owner", "ALL")} <= rights(world)


def test_what_was_withdrawn_is_not_granted(worlds: Worlds) -> None:
    world = of(worlds, "at_cutover")
    assert world.source.acls is not None
    world.source.acls.remove(PRODUCER_ACL)
    mirror_until(world, lambda: (take_over.follow(world.context()), ask(world, "paused")))
    ask(world, "promoted", source_gone=True)
    world.restart()
    finish.run(world.context())
    assert rights(world) == {("User:owner", "READ"), ("User:owner", "ALL")}


def test_never_is_never(worlds: Worlds) -> None:
    """The rule of MirrorMaker 2."""
    world = of(worlds, "never")
    mirror_until(world, lambda: ask(world, "promoted"))
    assert rights(world) == {("User:owner", "READ")}


def test_a_withdrawal_reaches_the_target_while_it_mirrors(worlds: Worlds) -> None:
    """A migration holds it back: it may be how producers are stopped. A mirror goes on for years."""
    world = of(worlds, "at_once")
    assert rights(world) == {("User:shop", "WRITE"), ("User:owner", "ALL")}
    assert world.source.acls is not None
    world.source.acls.remove(PRODUCER_ACL)
    mirror_until(world, lambda: (take_over.follow(world.context()), ask(world, "paused")))
    assert rights(world) == {("User:owner", "ALL")}


def test_a_grant_that_is_refused_is_named_and_the_promotion_goes_on(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = of(worlds, "at_cutover")
    mirror_until(world, lambda: ask(world, "paused"))
    ask(world, "promoted", source_gone=True)
    world.restart()
    refused = ItemError(31, "CLUSTER_AUTHORIZATION_FAILED", "no Alter")
    monkeypatch.setattr(world.context().target.admin, "create_acls", lambda acls: dict.fromkeys(acls, refused))
    result = finish.run(world.context())
    assert len(result.details["problems"]) == 2
    assert "User:owner" in result.details["problems"][0]
    assert "create it by hand" in result.details["problems"][0]
    assert world.steps(steps.WRITE_GRANTS)[-1].details["granted"] == 0


@pytest.mark.parametrize("policy", ["at_once", "at_cutover"])
@pytest.mark.parametrize("how", ["revoked", "denied"])
def test_producers_that_were_stopped_by_acls_may_write_after_the_promotion(
    worlds: Worlds, policy: str, how: str
) -> None:
    """The mirror was paused before, as the documentation asks for; its next run promotes it."""
    world = of(worlds, policy)
    mirror_until(world, lambda: ask(world, "paused"))
    assert world.source.acls is not None
    if how == "revoked":
        world.source.acls.remove(PRODUCER_ACL)
    else:
        world.source.acls.add(Acl("TOPIC", "orders", "LITERAL", "User:shop", "*", "WRITE", "DENY"))
    ask(world, "promoted")
    world.restart()
    mirror_until(world, lambda: take_over.follow(world.context()))
    assert world.state is State.PROMOTED
    assert ("User:shop", "WRITE") in rights(world)
    assert not [acl for acl in world.target.acls or () if acl.permission == "DENY"]
