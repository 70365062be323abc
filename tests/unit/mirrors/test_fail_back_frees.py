"""Failing back: who returns to the former source may write there again, though its promotion had stopped everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import test_promotion_freeze as promotions
from phase_world.admin import REFUSED, SimAdmin
from phase_world.outside import Killed
from phase_world.world import World, Worlds
from test_fail_back import KEYS, REMOTE, MirrorBack, check_adoption, precheck
from test_mirror_phase import ask
from test_promotion_freeze import DENY, _dead_copiers_are_known, go, nothing, timed

from airflow_provider_kafka_migration.documents.mirror import Promotion
from airflow_provider_kafka_migration.mirrors import requests
from airflow_provider_kafka_migration.state import State
from harness.webhook import FreezeWebhook as Receiver

__all__ = ["_dead_copiers_are_known", "timed"]

SECTIONS: dict[str, Any] = {"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}


class Ways:
    """A mirror that was promoted with a freeze, and the one that fails back from it."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, timed: Callable[[World], World]) -> None:
        ask(world, "promoted")
        go(world, nothing)
        assert world.state is State.PROMOTED
        for key in KEYS:
            world.target.log(*REMOTE[key]).write(b"new", b"newer")
        self.world = world
        self.back = timed(MirrorBack(world).seeded())
        assert isinstance(self.back, MirrorBack)
        monkeypatch.setattr(promotions, "MIGRATION", self.back.migration_id)

    def promote(self) -> Any:
        store, name = self.back.journal_store, self.back.migration_id
        requests.write(store, name, "promoted", by="ann", at="2026-04-24T10:40:00Z")
        return go(self.back, nothing)

    def stored(self) -> Promotion:
        return Promotion.parse(self.back.stored("results/promotion.json") or b"")


@pytest.fixture
def make(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, timed: Callable[[World], World]
) -> Callable[[dict[str, Any]], Ways]:
    monkeypatch.setattr(precheck, "CHECKS", {"adopted partitions": check_adoption})
    return lambda cutover: Ways(timed(worlds.at("tail", **SECTIONS, cutover=cutover)), monkeypatch, timed)


def test_the_acls_of_the_first_promotion_are_gone(make: Callable[[dict[str, Any]], Ways]) -> None:
    ways = make({"freeze": "acl"})
    assert ways.world.denied == {"User:shop"}
    result = ways.promote()
    assert ways.back.state is State.PROMOTED
    assert ways.world.denied == set()
    assert result.details["problems"] == []
    assert ways.stored().former_stopped == []


def test_whoever_completes_the_promotion_removes_them(make: Callable[[dict[str, Any]], Ways]) -> None:
    ways = make({"freeze": "acl"})

    def die(_admin: SimAdmin, _acls: Any) -> Any:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimAdmin, "delete_acls", die)
        with pytest.raises(Killed):
            ways.promote()
    ways.back.restart()
    assert ways.back.state is not State.PROMOTED, "clients must not be told to go there yet"
    ways.back.run("mirror")
    assert (ways.back.state, ways.world.denied) == (State.PROMOTED, set())


def test_what_the_target_refuses_is_named_with_commands_and_tried_again(
    make: Callable[[dict[str, Any]], Ways], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = make({"freeze": "acl"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimAdmin, "delete_acls", lambda _admin, acls: dict.fromkeys(acls, REFUSED))
        result = ways.promote()
        assert ways.back.state is State.PROMOTED
        [problem] = result.details["problems"]
        assert "kafka-acls.sh --bootstrap-server TARGET --remove --force --deny-principal 'User:shop'" in problem
        assert problem in result.summary
        ways.back.restart()
        again = ways.back.run("finish")
        assert [problem] == again.details["problems_now"]
    assert DENY in ways.world.source.acls
    ways.back.restart()
    again = ways.back.run("finish")
    assert (again.details["problems_now"], again.already_done) == ([], False)
    assert ways.world.denied == set()
    assert (ways.stored().former_stopped, ways.stored().problems) == ([], [])
    # From here on another promotion may deny the same principals: nothing is removed a second time.
    ways.world.source.acls.add(DENY)
    ways.back.restart()
    assert ways.back.run("finish").already_done
    assert DENY in ways.world.source.acls


@pytest.fixture
def receiver() -> Any:
    with Receiver() as running:
        yield running


def test_the_webhook_frees_the_producers_of_the_first_promotion(
    make: Callable[[dict[str, Any]], Ways], receiver: Receiver
) -> None:
    ways = make({"freeze": "webhook", "producer_freeze_webhook": receiver.url})
    first, back = ways.world.migration_id, ways.back.migration_id
    ways.promote()
    assert ways.back.state is State.PROMOTED
    sent = [(call.body["migration_id"], call.body["action"]) for call in receiver.calls]
    assert sent[-1] == (first, "unfreeze")
    assert (back, "unfreeze") not in sent, "producers of the cluster that clients leave stay stopped"


def test_a_receiver_that_refuses_is_named_and_asked_again(
    make: Callable[[dict[str, Any]], Ways], receiver: Receiver
) -> None:
    ways = make({"freeze": "webhook", "producer_freeze_webhook": receiver.url})
    receiver.answer = lambda call: (409, {}) if call.action == "unfreeze" else None
    result = ways.promote()
    [problem] = result.details["problems"]
    assert "are not free" in problem
    assert '"action": "unfreeze"' in problem
    receiver.answer = None
    ways.back.restart()
    assert ways.back.run("finish").details["problems_now"] == []
