"""A mirror tries again for ever; its journal does not grow with each try."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.errors import BrokerUnreachable, CopyFailed, StorageUnavailable
from airflow_provider_kafka_migration.mirrors.failures import REPEATED_WITHIN, is_repeated
from airflow_provider_kafka_migration.state import State

SECTIONS: dict[str, Any] = {
    "kind": "mirror",
    "mirror": {"source_alias": "A", "target_alias": "B", "naming": "rename"},
}


@pytest.fixture
def world(worlds: Worlds) -> World:
    return worlds.at("tail", **SECTIONS)


def test_an_outage_of_a_day_is_journaled_once_an_hour(world: World) -> None:
    journal = world.context().journal
    journal.transition(State.TAIL, "mirroring starts")
    error, before = BrokerUnreachable("no broker answers"), len(journal.entries())
    for _ in range(2880):
        if journal.tip_state is State.FAILED:
            journal.transition(State.TAIL, "mirror is run again")
        if not is_repeated(journal, error, world.clock.now()):
            journal.fail(error)
        world.clock.sleep(30)
    assert 2 * 23 <= len(journal.entries()) - before <= 2 * 25


def test_failures_of_several_kinds_that_take_turns_are_journaled_once_an_hour_each(world: World) -> None:
    journal = world.context().journal
    journal.transition(State.TAIL, "mirroring starts")
    before = len(journal.entries())
    kinds = (BrokerUnreachable, StorageUnavailable)
    for number in range(480):
        error = kinds[number % 2]("away")
        if journal.tip_state is State.FAILED:
            journal.transition(State.TAIL, "mirror is run again")
        if not is_repeated(journal, error, world.clock.now()):
            journal.fail(error)
        world.clock.sleep(30)
    found = [item for item in journal.entries()[before:] if item.to_state is State.FAILED]
    assert {str(item.details["error"]["code"]) for item in found} == {kind.code for kind in kinds}
    assert len(found) <= 2 * 5, "four hours"


def test_what_is_new_is_journaled_at_once(world: World) -> None:
    journal = world.context().journal
    now = world.clock.now()
    assert not is_repeated(journal, BrokerUnreachable("the first"), now)
    journal.fail(BrokerUnreachable("the first"))
    assert is_repeated(journal, BrokerUnreachable("again"), world.clock.now())
    assert not is_repeated(journal, StorageUnavailable("another one"), world.clock.now())
    assert not is_repeated(journal, BrokerUnreachable("later"), world.clock.now() + REPEATED_WITHIN)
    assert not is_repeated(journal, BrokerUnreachable("a clock went back"), now - timedelta(days=1))
    journal.transition(State.SEED, "again", from_states={State.FAILED})
    journal.fail(CopyFailed("for a person"))
    assert not is_repeated(journal, CopyFailed("for a person"), world.clock.now()), "a person clears it"
