"""Producers are kept out of the old cluster by ACLs that are journaled first, and let in again at the end."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from phase_support import attempt_at
from phase_world.world import World, new_world

from airflow_provider_kafka_migration.approvals import way_back as approval_facts
from airflow_provider_kafka_migration.checks import access
from airflow_provider_kafka_migration.errors import FreezeFailed, PermissionMissing, TopologyRefused
from airflow_provider_kafka_migration.freeze import stops
from airflow_provider_kafka_migration.freeze.without_acls import CONFIG
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclListing, acl_row
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.phases import rollback
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.way_back import guard
from harness.webhook import FreezeWebhook as Receiver

FIRST = "the-first"
SHOP = Acl("TOPIC", "orders", "LITERAL", "User:shop", "*", "WRITE", "ALLOW")


def _way_back(world: World, **section: Any) -> PhaseContext:
    """The world's migration as a way back; its target is the old cluster."""
    context = world.context()
    data = context.spec.model_dump(mode="json", by_alias=True)
    data |= {"adopt": {"from": "way_back", "migration_id": FIRST}, "way_back": section}
    return replace(context, spec=parse_spec(data))


@pytest.fixture
def world() -> World:
    """A planned migration whose target has a principal that may write."""
    made = new_world()
    made.run("plan")
    assert made.target.acls is not None
    made.target.acls.add(SHOP)
    return made


def _denied(world: World) -> set[str]:
    return {acl.principal for acl in world.target.acls or () if acl.permission == "DENY"}


def test_producers_of_the_old_cluster_are_denied_and_let_in_again(world: World) -> None:
    context = _way_back(world, freeze_old="acl")
    before = set(world.target.acls or ())
    assert guard.put(context, context.record.plan()) == {"deny_acls": 1}
    assert _denied(world) == {"User:shop"}, "not the migration's own principal"
    assert guard.put(context, context.record.plan()) == {"deny_acls": 1}
    assert len(world.steps(steps.OLD_CLUSTER_GUARDED)) == 1, "nothing was missing the second time"
    assert guard.remove(context)["deny_acls_removed"] == 1
    assert world.target.acls == before
    assert guard.remove(context)["deny_acls_removed"] == 1, "idempotent"


def test_a_binding_is_journaled_before_it_exists(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    context = _way_back(world, freeze_old="acl")

    until: list[float] = []

    def die(_acls: Any) -> Any:
        until.append(context.target.admin.send_until)
        raise KeyboardInterrupt

    monkeypatch.setattr(context.target.admin, "create_acls", die)
    with pytest.raises(KeyboardInterrupt):
        guard.put(context, context.record.plan())
    assert [math.isfinite(moment) for moment in until] == [True], "it is sent no later than whoever undoes it waits"
    monkeypatch.undo()
    assert {acl.principal for acl in guard.bindings(context.journal)} == {"User:shop"}
    guard.put(context, context.record.plan())
    assert _denied(world) == {"User:shop"}


def test_a_principal_that_comes_later_is_denied_by_the_next_pass(world: World) -> None:
    context = _way_back(world, freeze_old="acl")
    guard.put(context, context.record.plan())
    assert world.target.acls is not None
    world.target.acls.add(replace(SHOP, principal="User:late"))
    assert guard.put(context, context.record.plan()) == {"deny_acls": 2}
    assert _denied(world) == {"User:shop", "User:late"}


def _known_as(context: PhaseContext, principal: str | None) -> PhaseContext:
    """A way back whose connection to the old cluster has no user name: mTLS, Kerberos, a token."""
    context.target.config = replace(context.target.config, username=None)
    target = context.spec.target.model_copy(update={"principal": principal})
    return replace(context, spec=context.spec.model_copy(update={"target": target}))


def test_a_migration_that_does_not_know_its_own_principal_denies_nobody(world: World) -> None:
    """One of those that may write may be its own, and DENY overrides ALLOW."""
    context = _known_as(_way_back(world, freeze_old="acl"), None)
    with pytest.raises(TopologyRefused, match="own principal on the target is not known") as refused:
        guard.put(context, context.record.plan())
    assert "set source.principal in the first migration's spec" in str(refused.value.next_step)
    assert not world.steps(steps.OLD_CLUSTER_GUARDED)
    assert not _denied(world)
    assert world.target.acls is not None
    world.target.acls.discard(SHOP)
    writers = {acl for acl in world.target.acls if acl.operation in ("WRITE", "ALL") and acl.resource_type == "TOPIC"}
    world.target.acls -= writers
    assert guard.put(context, context.record.plan()) == {"deny_acls": 0}, "nobody is denied, so nobody is in doubt"


def test_the_spec_names_its_own_principal(world: World) -> None:
    assert world.target.acls is not None
    world.target.acls.add(replace(SHOP, principal="User:CN=migrator,O=Example"))
    context = _known_as(_way_back(world, freeze_old="acl"), "User:CN=migrator,O=Example")
    guard.put(context, context.record.plan())
    assert "User:CN=migrator,O=Example" not in _denied(world)
    assert "User:shop" in _denied(world)


def test_the_precheck_of_a_way_back_says_so_before_anything_is_touched(world: World) -> None:
    context = _way_back(world, freeze_old="acl")
    assert not list(access.check_denials(context, context.record.plan()))
    context = _known_as(context, None)
    [found] = access.check_denials(context, context.record.plan())
    assert (found.code, found.subject) == ("B042", "target")
    assert "source.principal in the first migration's spec" in found.fix
    world.target.acls = None
    [found] = access.check_denials(context, context.record.plan())
    assert "no authorizer" in found.seen


def _frozen_by_acl(world: World, *, is_way_back: bool) -> PhaseContext:
    """A migration that is to stop the producers of its source by ACLs, and does not know its principal there."""
    context = _way_back(world, freeze_old="none") if is_way_back else world.context()
    assert world.source.acls is not None
    world.source.acls.add(SHOP)
    context.source.config = replace(context.source.config, username=None)
    cutover = context.spec.cutover.model_copy(update={"freeze": "acl", "sentinel": "record"})
    return replace(context, spec=context.spec.model_copy(update={"cutover": cutover}))


@pytest.mark.parametrize(
    ("is_way_back", "setting"),
    [(False, "set source.principal in the spec"), (True, "set target.principal in the first migration's spec")],
)
def test_the_advice_names_the_section_of_the_spec_that_people_write(
    world: World, is_way_back: bool, setting: str
) -> None:
    """In the precheck and in the freeze; the new cluster is the source of a way back, and the first one's target."""
    context = _frozen_by_acl(world, is_way_back=is_way_back)
    [found] = access.check_denials(context, context.record.plan())
    assert (found.code, found.subject) == ("B042", "source")
    assert setting in found.fix
    with pytest.raises(FreezeFailed, match="own principal on the source is not known") as refused:
        stops.freeze(context, attempt_at(context, "acl"))
    assert setting in str(refused.value.next_step)
    assert not world.denied


def test_an_old_topic_that_is_open_to_everybody_is_refused_before_anything_is_touched(world: World) -> None:
    """It has no ACL, so nobody would be denied; topics that the way back creates itself are nobody's yet."""
    world.target.acls = set()
    world.target.broker_configs[CONFIG] = "true"
    context = _way_back(world, freeze_old="acl")
    assert not list(access.check_denials(context, context.record.plan())), "the old cluster has none of these topics"
    world.target.create("orders", 2)
    world.run("plan")
    context = _way_back(world, freeze_old="acl")
    [found] = access.check_denials(context, context.record.plan())
    assert (found.code, found.subject) == ("B042", "target")
    assert "no ACL names 1 topics, among them orders" in found.seen
    assert "name the producers in the old cluster's ACLs" in found.fix
    with pytest.raises(TopologyRefused, match=f"broker 1 has {CONFIG}=true"):
        guard.put(context, context.record.plan())
    assert not world.steps(steps.OLD_CLUSTER_GUARDED)
    world.target.acls = {replace(SHOP, operation="READ")}
    assert not list(access.check_denials(context, context.record.plan())), "any ACL closes the topic to all others"
    assert guard.put(context, context.record.plan()) == {"deny_acls": 0}
    assert guard.put(context, context.record.plan()) == {"deny_acls": 0}
    [entry] = world.steps(steps.OLD_CLUSTER_GUARDED)
    assert entry.reason == "0 further principals to deny on the old cluster"


@pytest.mark.parametrize(("sentinel", "count"), [("record", 1), ("end_offsets", 0)])
def test_a_frozen_source_that_is_only_read_needs_no_principal(world: World, sentinel: str, count: int) -> None:
    context = world.context()
    assert world.source.acls is not None
    world.source.acls.add(SHOP)
    context.source.config = replace(context.source.config, username=None)
    cutover = context.spec.cutover.model_copy(update={"freeze": "acl", "sentinel": sentinel})
    context = replace(context, spec=context.spec.model_copy(update={"cutover": cutover}))
    assert len(list(access.check_denials(context, context.record.plan()))) == count


def test_a_broker_that_is_behind_hides_no_denial(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the listing lacks is removed all the same."""
    context = _way_back(world, freeze_old="acl")
    guard.put(context, context.record.plan())
    monkeypatch.setattr(context.target.admin, "describe_acls", lambda: AclListing(authorizer=True))
    guard.remove(context)
    assert not _denied(world)


@pytest.mark.parametrize("section", [{"freeze_old": "none"}, {}])
def test_without_the_policy_nothing_is_set(world: World, section: dict[str, Any]) -> None:
    context = _way_back(world, **section)
    assert guard.put(context, context.record.plan()) == {"deny_acls": 0}
    assert not _denied(world)


def test_other_migrations_are_left_alone(world: World) -> None:
    context = world.context()
    assert guard.put(context, context.record.plan()) == {"deny_acls": 0}
    assert guard.open_for_return(context) is None
    guard.check_settings(context.record, context.target, context.record.plan())


def test_a_cluster_without_an_authorizer_is_refused(world: World) -> None:
    world.target.acls = None
    context = _way_back(world, freeze_old="acl")
    with pytest.raises(TopologyRefused, match="no authorizer") as refused:
        guard.put(context, context.record.plan())
    assert "freeze_old: none" in str(refused.value.next_step)


def test_everybody_cannot_be_denied(world: World) -> None:
    assert world.target.acls is not None
    world.target.acls.add(replace(SHOP, principal="User:*"))
    context = _way_back(world, freeze_old="acl")
    with pytest.raises(TopologyRefused, match=r"User:\* may write") as refused:
        guard.put(context, context.record.plan())
    assert "freeze_old: none" in str(refused.value.next_step)
    assert not world.steps(steps.OLD_CLUSTER_GUARDED)


def test_a_return_also_removes_the_acls_with_which_the_first_migration_froze(world: World) -> None:
    frozen = replace(SHOP, principal="User:old-shop", permission="DENY")
    foreign = replace(SHOP, principal="User:nobody", permission="DENY")
    assert world.target.acls is not None
    world.target.acls |= {frozen, foreign}
    first = Journal.create_or_open(
        world.journal_store, FIRST, Fingerprint("target-id", "source-id"), owner=Owner("cli", "tester", "tester")
    )
    first.step(steps.FREEZE_ACLS, key="1", details={"acls": [acl_row(frozen)]})
    context = _way_back(world, freeze_old="acl")
    guard.put(context, context.record.plan())
    opened = guard.open_for_return(context)
    assert opened is not None
    assert (opened["returns_to"], opened["deny_acls_removed"]) == (FIRST, 2)
    assert _denied(world) == {"User:nobody"}, "what others have denied stays"
    assert guard.open_for_return(context) == opened
    assert len(world.steps(steps.READY_FOR_CLIENT_RETURN)) == 1


def _frozen_first(world: World, method: str, *, is_way_back: bool = False) -> None:
    """The first migration, which has stopped the producers of what is now the old cluster."""
    first = Journal.create_or_open(
        world.journal_store, FIRST, Fingerprint("target-id", "source-id"), owner=Owner("cli", "tester", "tester")
    )
    at = iso(world.clock.now())
    first.step(steps.FREEZE_REQUESTED, key="1", details={"method": method, "requested_at": at, "deadline": at})
    first.step(steps.READY, key="1", details={})
    if is_way_back:
        first.step(steps.READY_FOR_CLIENT_RETURN, details={})


def _by_webhook(world: World, url: str) -> PhaseContext:
    context = _way_back(world)
    data = context.spec.model_dump(mode="json", by_alias=True)
    # The new cluster's producers may be stopped in another way.
    data["cutover"] |= {"freeze": "acl", "producer_freeze_webhook": url, "webhook_secret": "env:HOOK_SECRET"}
    return replace(context, spec=parse_spec(data))


class _Held:
    """A producer of the old cluster that the first migration's freeze has stopped."""

    frozen = True

    def freeze(self) -> None:
        raise AssertionError("nothing is to be stopped")

    def unfreeze(self) -> None:
        self.frozen = False


@pytest.mark.parametrize("is_way_back", [False, True])
def test_a_return_frees_what_the_webhook_of_the_first_migration_holds(
    world: World, monkeypatch: pytest.MonkeyPatch, is_way_back: bool
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "hunter2")
    _frozen_first(world, "webhook", is_way_back=is_way_back)
    producer = _Held()
    with Receiver(producer, secret="hunter2") as receiver:
        context = _by_webhook(world, receiver.url)
        opened = guard.open_for_return(context)
        assert guard.open_for_return(context) == opened
    assert not producer.frozen
    (sent,) = receiver.calls
    assert (sent.body["migration_id"], sent.body["action"]) == (FIRST, "unfreeze")
    assert sent.body.get("direction", "") == ("back" if is_way_back else ""), "as in the first migration's own requests"
    assert opened is not None
    assert opened["webhook"] == {"status": 200, "attempts": 1, "signed": True}


def test_a_receiver_that_does_not_free_them_is_named_and_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "hunter2")
    _frozen_first(world, "webhook")
    producer = _Held()
    answers: list[tuple[int, dict[str, Any]] | None] = [(404, {}), None]
    with Receiver(producer, secret="hunter2", answer=lambda _: answers.pop(0)) as receiver:
        context = _by_webhook(world, receiver.url)
        with pytest.raises(FreezeFailed, match=f"which migration {FIRST} has stopped") as failed:
            guard.open_for_return(context)
        assert "clear cutover.floor_guard" in failed.value.next_step
        assert f'`unfreeze` of "{FIRST}"' in failed.value.next_step
        assert not world.steps(steps.READY_FOR_CLIENT_RETURN)
        guard.open_for_return(context)
    assert not producer.frozen
    assert len(world.steps(steps.READY_FOR_CLIENT_RETURN)) == 1


def test_a_webhook_that_the_spec_no_longer_has_is_named(world: World) -> None:
    _frozen_first(world, "webhook")
    with pytest.raises(FreezeFailed, match="no longer has its address") as failed:
        guard.open_for_return(_way_back(world))
    assert "producer_freeze_webhook" in failed.value.next_step
    assert not world.steps(steps.READY_FOR_CLIENT_RETURN)


def test_producers_that_were_stopped_by_hand_are_a_persons(world: World) -> None:
    _frozen_first(world, "manual")
    context = _way_back(world)
    opened = guard.open_for_return(context)
    assert opened is not None
    assert opened["todo"] == "start the producers of the old cluster"
    assert world.steps(steps.READY_FOR_CLIENT_RETURN)[-1].details["todo"] == opened["todo"]
    assert approval_facts.facts(context.record)["todo"] == opened["todo"]


def test_settings_are_refused_by_policy_with_what_would_be_needed(world: World) -> None:
    world.target.create("orders", 2, retention_ms="1000", cleanup_policy="compact")
    world.run("plan")
    context = _way_back(world, source_settings="refuse")
    with pytest.raises(TopologyRefused, match=r"orders: cleanup\.policy=delete") as refused:
        guard.check_settings(context.record, context.target, context.record.plan())
    assert refused.value.details["topics"]["orders"]["retention.ms"] == "-1"
    guard.check_settings(_way_back(world).record, context.target, context.record.plan())


def test_keeping_removes_the_acls_and_journals_the_release(world: World) -> None:
    context = _way_back(world, freeze_old="acl")
    guard.put(context, context.record.plan())
    result = rollback.run(context, reason="all is well", code=approval_facts.keep_code(context.record))
    assert not _denied(world)
    assert "old_cluster_released" in result.summary
    entry = world.steps(steps.OLD_CLUSTER_RELEASED)[-1]
    assert (entry.details["deny_acls_removed"], entry.details["reason"]) == (1, "all is well")
    assert str(world.state) == "rolled_back"


def test_nothing_is_released_while_an_acl_cannot_be_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    context = _way_back(world, freeze_old="acl")
    guard.put(context, context.record.plan())

    def refuse(acls: list[Acl]) -> dict[Acl, ItemError]:
        return dict.fromkeys(acls, ItemError(31, "CLUSTER_AUTHORIZATION_FAILED"))

    monkeypatch.setattr(context.target.admin, "delete_acls", refuse)
    with pytest.raises(PermissionMissing, match="could not be removed"):
        rollback.run(context, reason="all is well", code=approval_facts.keep_code(context.record))
    assert str(world.state) == "planned", "the journal stays open, so that it can be tried again"
    monkeypatch.undo()
    rollback.run(context, reason="all is well", code=approval_facts.keep_code(context.record))
    assert not _denied(world)


def test_the_first_migration_is_only_read(world: World) -> None:
    first = guard.first_migration(_way_back(world).record)
    assert (first.migration_id, first.journal.exists) == (FIRST, False)
