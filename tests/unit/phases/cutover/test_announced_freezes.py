"""People are told when producers are stopped, with what frees them by hand, and how that has ended."""

from __future__ import annotations

import pytest
from phase_support import SIGNING_SEED
from phase_world.world import SIGNING_KEY, World, Worlds

from airflow_provider_kafka_migration.freeze import frozen
from harness.webhook import FreezeWebhook as Receiver


def listen(world: World) -> list[str]:
    told: list[str] = []
    world.context().announce = told.append
    return told


def test_a_freeze_by_acls_is_told_with_the_commands_that_remove_them(worlds: Worlds) -> None:
    world = worlds.at("cutover.freeze")
    told = listen(world)
    world.run("cutover.freeze")
    [text] = told
    assert text.startswith("Producers are stopped (freeze 1, by DENY WRITE ACLs on the source) until clients may")
    assert "kafka-acls.sh --bootstrap-server SOURCE --remove --force --deny-principal 'User:shop'" in text
    assert "Do not do it if the journal has the step ready_for_client_switch" in text


@pytest.mark.parametrize(
    ("method", "expected"), [("webhook", '"action": "unfreeze"'), ("manual", "tell the producers' owners")]
)
def test_the_other_methods_are_told_too(worlds: Worlds, method: str, expected: str) -> None:
    with Receiver() as receiver:
        cutover = {"freeze": method, **({"producer_freeze_webhook": receiver.url} if method == "webhook" else {})}
        world = Worlds().at("cutover.freeze", cutover=cutover)
        told = listen(world)
        world.run("cutover.freeze")
        assert expected in told[0]
        attempt = world.context().record.freeze()
        assert attempt is not None
        frozen.lift(world.context(), attempt, reason="its step has failed")
        assert told[1].startswith("Freeze 1 is lifted after ")
        assert "(its step has failed): " in told[1]
        assert len(told) == 2


def test_ready_is_told_with_the_way_out(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIGNING_KEY, SIGNING_SEED)
    world = worlds.at("cutover.floor_guard")
    told = listen(world)
    world.run("cutover.floor_guard")
    [text] = told
    assert text.startswith("Freeze 1 has ended with ready_for_client_switch: producers stay stopped until")
    assert "kafka-migration abandon FILE" in text


def test_a_receiver_that_refuses_has_stopped_nobody(worlds: Worlds) -> None:
    with Receiver() as receiver:
        receiver.answer = lambda _call: (500, {})
        cutover = {"freeze": "webhook", "producer_freeze_webhook": receiver.url}
        world = Worlds().at("cutover.freeze", cutover=cutover)
        told = listen(world)
        receiver.answer = lambda call: (400, {}) if call.action == "freeze" else None
        with pytest.raises(Exception, match="webhook"):
            world.run("cutover.freeze")
        assert [text[:19] for text in told] == ["Freeze 1 is lifted "]
