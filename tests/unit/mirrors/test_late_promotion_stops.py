"""Requests of a planned promotion that stop producers after it was called off: nobody stays stopped for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from phase_world.cluster import SimCluster
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.world import World, Worlds
from test_mirror_phase import SECTIONS, ask
from test_promotion_freeze import frozen_world, go, nothing

from airflow_provider_kafka_migration.errors import ClaimLost
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.lanes import slices
from airflow_provider_kafka_migration.mirrors import last_looks, promotion_freeze, requests
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.changes import open_changes
from airflow_provider_kafka_migration.state import State

FREEZE = {**SECTIONS, "cutover": {"freeze": "acl"}}


@pytest.fixture
def world(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(slices.Identity, "is_known_dead", lambda _self: True)
    found = worlds.at("tail", **FREEZE)
    time = SimpleNamespace(sleep=found.clock.sleep, monotonic=found.clock.seconds)
    for module in (promotion_freeze, last_looks):
        monkeypatch.setattr(module, "time", time)
    return found


def resumes_by_takeover(world: World) -> None:
    """Another person's `mirror resume --takeover`."""
    ask(world, "run")
    journal = Journal.create_or_open(
        world.journal_store,
        MIGRATION,
        Fingerprint("source-id", "target-id"),
        owner=Owner("cli", "somebody", "somebody"),
        takeover=True,
        clock=world.clock.now,
    )
    context = replace(
        world.context(),
        journal=journal,
        source=SimCluster("source", world.source, world.outside),  # type: ignore[arg-type]
        target=SimCluster("target", world.target, world.outside),  # type: ignore[arg-type]
    )
    promotion_freeze.settle(context, requests.read(world.journal_store, MIGRATION))
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.lifted
    journal.release("done")


def late(monkeypatch: pytest.MonkeyPatch, world: World, act: Callable[[Any, Any], None]) -> None:
    """Let something happen once between the sending of a request for ACLs and its effect."""
    admin = type(world.context().source.admin)
    create, left = admin.create_acls, [act]

    def create_acls(self: Any, bindings: Any) -> Any:
        if left:
            left.pop()(self, bindings)
        return create(self, bindings)

    monkeypatch.setattr(admin, "create_acls", create_acls)


def test_acls_that_are_created_after_a_takeover_has_called_the_promotion_off_are_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(world, "promoted")
    late(monkeypatch, world, lambda *_: resumes_by_takeover(world))
    with pytest.raises(ClaimLost):
        go(world, nothing)
    assert world.denied == set()
    assert world.steps(steps.FREEZE_VERIFIED) == []


def test_a_dead_lifter_frees_nobody_of_the_next_promotion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request to remove the ACLs arrives while the next promotion begins, which waits for that."""
    frozen_world(world)
    ask(world, "run")
    admin = type(world.context().source.admin)
    delete, sent = admin.delete_acls, []

    def dies(_: Any, bindings: Any) -> None:
        sent.append(bindings)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(admin, "delete_acls", dies)
        with pytest.raises(Killed):
            promotion_freeze.settle(world.context(), requests.read(world.journal_store, MIGRATION))
    world.restart()
    promotion_freeze.settle(world.context(), requests.read(world.journal_store, MIGRATION))
    assert len(open_changes(world.context().journal, "1/free")) == 1
    assert world.denied == set()
    world.restart()

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        if sent:
            assert len(world.steps(steps.FREEZE_REQUESTED)) == 1
            delete(SimCluster("source", world.source, world.outside).admin, sent.pop())

    world.context().sleep = sleep
    ask(world, "promoted")
    go(world, nothing)
    assert not sent, "it waited"
    assert (world.state, world.denied) == (State.PROMOTED, {"User:shop"})


@pytest.mark.parametrize("arrival", ["before the lift", "while it waits"])
def test_acls_of_a_dead_process_deny_nobody(world: World, monkeypatch: pytest.MonkeyPatch, arrival: str) -> None:
    ask(world, "promoted")
    admin = type(world.context().source.admin)
    create = admin.create_acls
    sent: list[Any] = []

    def dies(_: Any, bindings: Any) -> None:
        sent.extend(bindings)
        world.outside.dies_after = 0
        raise Killed

    with monkeypatch.context() as patch:
        late(patch, world, dies)
        with pytest.raises(Killed):
            go(world, nothing)
    world.restart()

    def arrives() -> None:
        create(SimCluster("source", world.source, world.outside).admin, sent)
        assert world.denied == {"User:shop"}

    journal = world.context().journal
    assert len(open_changes(journal, "1")) == 1
    ask(world, "run")
    left = [arrives]
    if arrival == "before the lift":
        left.pop()()

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        if left:
            left.pop()()

    world.context().sleep = sleep
    promotion_freeze.settle(world.context(), requests.read(world.journal_store, MIGRATION))
    assert not left, "it waited for the request"
    assert world.denied == set()
