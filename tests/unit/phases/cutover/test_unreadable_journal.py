"""A journal that cannot be trusted while producers are stopped: nobody frees them blindly, and people learn how to."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.errors import JournalTampered, MigrationError, StillFrozen
from airflow_provider_kafka_migration.freeze.watchdog import FreezePatience
from airflow_provider_kafka_migration.journal.entries import Owner
from airflow_provider_kafka_migration.migration import FreezeWatch, Migration
from airflow_provider_kafka_migration.phases import freeze_limit
from airflow_provider_kafka_migration.references import Resolver

COMMAND = "--deny-principal 'User:shop' --operation Write --topic 'orders'"


def loses_the_last_entry(world: World) -> Callable[[], None]:
    """A store lists an entry and does not return it; returns what brings it back."""
    journal = world.context().journal
    journal.refresh()
    assert journal.tip is not None
    name = f"{journal.tip.seq + 1:020d}.json"
    other = world._new_context()
    other.journal.step("noted")
    other.journal.step("noted")
    fault = world.outside.fail(f"journal_store.get.{name}", lambda _: None)
    return lambda: world.outside.faults.remove(fault)


def patience(world: World) -> FreezePatience:
    return FreezePatience(world.spec, world.context, lambda _: None, sleep=world.clock.sleep, now=world.clock.now)


def test_a_step_and_the_watch_say_how_people_free_the_producers(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels")
    back = loses_the_last_entry(world)
    with pytest.raises(StillFrozen, match="is missing") as caught:
        patience(world).run(lambda: world.run("cutover.sentinels"))
    assert COMMAND in caught.value.next_step
    world.clock.sleep(120)
    with pytest.raises(StillFrozen) as caught:
        freeze_limit.run(world.context())
    assert COMMAND in caught.value.next_step
    assert freeze_limit.check_limit(world.context().record)["ready"]
    back()
    with pytest.raises(MigrationError, match="was lifted"):
        freeze_limit.run(world.context())
    assert world.denied == set()


def test_before_a_freeze_it_is_what_it_is(worlds: Worlds) -> None:
    world = worlds.at("cutover.freeze")
    loses_the_last_entry(world)
    with pytest.raises(JournalTampered):
        patience(world).run(lambda: world.run("cutover.freeze"))
    with pytest.raises(JournalTampered):
        freeze_limit.run(world.context())


def opened(world: World) -> Migration:
    """What a new process opens: it has read nothing of the journal yet."""
    made = Migration(world.spec, Owner("cli", "tester", "tester"), Resolver())
    made.__dict__["journal_store"] = world.journal_store
    return made


@pytest.mark.parametrize("phase", ["cutover.freeze_limit", "rollback"])
def test_a_new_process_that_knows_nothing_says_where_the_commands_are(worlds: Worlds, phase: str) -> None:
    world = worlds.at("cutover.sentinels")
    loses_the_last_entry(world)
    with pytest.raises((StillFrozen, JournalTampered)) as caught:
        opened(world).run(phase)
    assert isinstance(caught.value, StillFrozen) == (phase == "cutover.freeze_limit"), "the watch never ends by it"
    assert "under 'Producers are stopped'" in caught.value.next_step
    assert "the journal's last step" not in caught.value.next_step


def test_the_watch_of_a_trigger_knows_the_freeze_that_it_has_seen(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels")
    watch = FreezeWatch(opened(world))
    watch._migration._now = world.clock.now  # type: ignore[method-assign, assignment]
    before = FreezeWatch(opened(world))
    before.see(world.context().record.freeze())
    watch.follow(before)
    loses_the_last_entry(world)
    with pytest.raises(JournalTampered):
        watch.check()
    world.clock.sleep(120)
    assert watch.check()["ready"]


def test_when_the_freeze_is_made_the_log_says_how_to_end_it_by_hand(
    worlds: Worlds, caplog: pytest.LogCaptureFixture
) -> None:
    world = worlds.at("cutover.freeze")
    with caplog.at_level(logging.WARNING):
        world.run("cutover.freeze")
    lines = [line for line in caplog.messages if line.startswith("Producers are stopped")]
    assert len(lines) == 1
    assert COMMAND in lines[0]
