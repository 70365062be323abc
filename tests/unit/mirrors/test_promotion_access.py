"""Who may write to the remote topics: nobody but the mirror, until it is promoted."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.jobs import MIGRATION
from phase_world.world import PRODUCER_ACL, World, Worlds
from test_mirror_phase import ask, mirror_until

from airflow_provider_kafka_migration.access import created_access
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.errors import TopologyRefused
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclListing
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.phases.mirrors import finish
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.state import State

#: Its own right on the source: ALL on all topics, which are those behind the alias on the target.
OWN = Acl("TOPIC", "A.", "PREFIXED", "User:migration", "*", "ALL", "ALLOW")
OWNER = Acl("TOPIC", "orders", "LITERAL", "User:owner", "*", "ALL", "ALLOW")


@pytest.fixture(autouse=True)
def _passes_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each test says itself when a pass runs.
    monkeypatch.setattr(follow.Follower, "_run", lambda _self: None)


def sections(policy: str) -> dict[str, Any]:
    return {
        "kind": "mirror",
        "mirror": {"source_alias": "A", "target_alias": "B"},
        "acls": {"write_grants": policy},
        "topology": {"on_source_drift": "repair"},
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
    assert result.details["write_grants"] == 3
    assert {("User:shop", "WRITE"), ("User:owner", "ALL")} <= rights(world)
    assert OWN in (world.target.acls or ())


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
    assert len(result.details["problems"]) == 3
    assert "User:owner" in result.details["problems"][1]
    assert "create it by hand" in result.details["problems"][1]
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


@pytest.mark.parametrize("died", [False, True])
def test_a_request_counts_whose_author_died_before_it_was_known_everywhere(worlds: Worlds, died: bool) -> None:
    """The numbered request is there, and the object with the last one still has the request before it."""
    world = of(worlds, "at_once")
    mirror_until(world, lambda: ask(world, "paused"))
    place = f"{MIGRATION}/{keys.MIRROR_REQUEST}"
    before = world.journal_store.get(place)
    assert before is not None
    ask(world, "promoted")
    if died:
        world.journal_store.put(place, before)
    assert world.source.acls is not None
    world.source.acls.remove(PRODUCER_ACL)
    world.restart()
    mirror_until(world, lambda: take_over.follow(world.context()))
    assert world.state is State.PROMOTED
    assert ("User:shop", "WRITE") in rights(world)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_promotion_that_is_no_longer_asked_for_holds_nothing_back(worlds: Worlds, is_known: bool) -> None:
    world = of(worlds, "at_once")
    ask(world, "promoted")
    place = f"{MIGRATION}/{keys.MIRROR_REQUEST}"
    before = world.journal_store.get(place)
    assert before is not None
    assert world.context().record.is_being_promoted()
    ask(world, "run")
    if not is_known:
        world.journal_store.put(place, before)
    assert not world.context().record.is_being_promoted()


# -- what proves no withdrawal ----------------------------------------------------------------------------------------


def follow_and(world: World, act: Any = lambda: None) -> Any:
    """Let the mirror run, do something beside it, let it take over what has changed, and pause it."""
    if world.state is State.PAUSED:
        ask(world, "run")
        world.restart()
    return mirror_until(world, lambda: (act(), take_over.follow(world.context()), ask(world, "paused")))


def promote(world: World, *, source_gone: bool = True) -> None:
    if world.state is not State.PAUSED:
        mirror_until(world, lambda: ask(world, "paused"))
    ask(world, "promoted", source_gone=source_gone)
    world.restart()
    finish.run(world.context())
    assert world.state is State.PROMOTED


@pytest.mark.parametrize("shown", [AclListing(authorizer=False), AclListing(authorizer=True)])
def test_a_source_that_shows_no_acls_withdraws_nothing(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, shown: AclListing
) -> None:
    """Its authorizer was switched off, or its broker has just started: a promotion gives all that was held back."""
    world = of(worlds, "at_cutover")
    before = set(world.target.acls or ())

    def pass_without_acls() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(world.context().source.admin, "describe_acls", lambda **_: shown)
            with pytest.raises(TopologyRefused, match="no longer lists any ACLs"):
                take_over.follow(world.context())

    mirror_until(world, lambda: (pass_without_acls(), ask(world, "paused")))
    assert set(world.target.acls or ()) == before
    promote(world)
    assert {("User:shop", "WRITE"), ("User:owner", "ALL")} <= rights(world)


def test_the_last_acl_of_the_source_is_withdrawn_by_hand_or_once_another_one_proves_it(worlds: Worlds) -> None:
    world = of(worlds, "at_once")
    assert world.source.acls is not None
    assert world.target.acls is not None
    there = set(world.target.acls)
    world.source.acls.clear()

    def refused() -> None:
        with pytest.raises(TopologyRefused, match="no longer lists any ACLs") as caught:
            take_over.follow(world.context())
        assert "add any ACL to the source" in caught.value.next_step

    mirror_until(world, lambda: (refused(), ask(world, "paused")))
    assert set(world.target.acls) == there
    ask(world, "run")
    world.restart()
    other = world.fork()
    assert other.target.acls is not None
    other.target.acls.clear()
    mirror_until(other, lambda: (take_over.follow(other.context()), ask(other, "paused")))
    assert world.source.acls is not None
    world.source.acls.add(Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:admin", "*", "DESCRIBE", "ALLOW"))
    mirror_until(world, lambda: (take_over.follow(world.context()), ask(world, "paused")))
    # The mirror's own right on the target was there before.
    assert {(acl.principal, acl.resource_name) for acl in world.target.acls} == {
        ("User:admin", "kafka-cluster"),
        ("User:migration", "*"),
    }


def test_one_broker_that_knows_fewer_acls_withdraws_nothing(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = of(worlds, "at_cutover")
    assert world.source.acls is not None
    everything = AclListing(True, tuple(sorted(world.source.acls)))
    fewer = AclListing(True, tuple(acl for acl in everything.acls if acl.principal == "User:migration"))

    def patched() -> None:
        admin = world.context().source.admin
        monkeypatch.setattr(
            admin, "describe_acls", lambda *, broker_id=None: fewer if broker_id is None else everything
        )

    follow_and(world, patched)
    monkeypatch.undo()
    assert ("User:owner", "READ") in rights(world)
    promote(world)
    assert {("User:shop", "WRITE"), ("User:owner", "ALL")} <= rights(world)


def test_a_target_without_an_authorizer_is_named_and_what_is_held_back_stays_so(worlds: Worlds) -> None:
    world = of(worlds, "at_cutover")
    acls = world.target.acls

    def unguarded() -> None:
        world.target.acls = None

    follow_and(world, unguarded)
    named = [entry.details["what"] for entry in world.steps(steps.DRIFT_NAMED)]
    assert named == ["ACLs of the target"]
    world.target.acls = acls
    promote(world)
    assert {("User:shop", "WRITE"), ("User:owner", "ALL")} <= rights(world)


# -- whose ACLs they are ----------------------------------------------------------------------------------------------


def test_an_acl_that_a_person_puts_there_stays_although_a_removal_was_killed_before(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal was done and not journaled. What has the same form later is a person's."""
    world = of(worlds, "at_once")
    there = Acl("TOPIC", "A.orders", "LITERAL", "User:shop", "*", "WRITE", "ALLOW")
    assert world.source.acls is not None
    assert world.target.acls is not None
    world.source.acls.remove(PRODUCER_ACL)

    class Died(BaseException):
        pass

    def removal_that_dies() -> None:
        journal = world.context().journal
        step = journal.step

        def dies(name: str, *args: Any, **options: Any) -> Any:
            if name == steps.ACLS_REMOVED:
                raise Died
            return step(name, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(journal, "step", dies)
            with pytest.raises(Died):
                take_over.follow(world.context())

    follow_and(world, removal_that_dies)
    assert there not in world.target.acls
    assert there not in created_access.created_acls(world.context().record), "the next pass has completed it"

    def person() -> None:
        assert world.target.acls is not None
        world.target.acls.add(there)

    follow_and(world, person)
    assert there in world.target.acls
