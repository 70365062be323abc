"""The watch on the limit of a freeze, on a source whose producers are really stopped."""

from __future__ import annotations

import pytest
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.errors import BrokerUnreachable, FreezeFailed, StillFrozen, StorageUnavailable
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.phases import freeze_limit
from airflow_provider_kafka_migration.state import State

LIMIT = "cutover.freeze_limit"


def overdue(worlds: Worlds, phase: str = "cutover.commit_groups") -> World:
    world = worlds.at(phase)
    world.clock.sleep(120)
    return world


def test_an_overdue_freeze_is_lifted_and_its_producers_may_write(worlds: Worlds) -> None:
    world = overdue(worlds)
    assert freeze_limit.check_limit(world.context().record)["ready"]
    with pytest.raises(FreezeFailed, match="freeze 1 was lifted after"):
        world.run(LIMIT)
    assert not world.denied
    assert world.state is State.TAIL
    assert world.run(LIMIT).details == {"watch": True, "nothing_to_lift": True}
    with pytest.raises(FreezeFailed, match="the freeze was lifted"):
        world.run("cutover.commit_groups")
    assert not world.target.commits


@pytest.mark.parametrize(("seconds", "ready"), [(0, False), (57, False), (64, True)])
def test_it_waits_for_the_limit_and_a_little_longer(worlds: Worlds, seconds: float, ready: bool) -> None:
    world = worlds.at("cutover.sentinels")
    (entry,) = world.steps("freeze_requested")
    began = world.clock.now().isoformat()
    assert entry.details["requested_at"][:16] == began[:16]
    world.clock.sleep(seconds)
    assert freeze_limit.check_limit(world.context().record)["ready"] is ready
    if not ready:
        assert world.run(LIMIT).summary == "no freeze is overdue"
        assert world.denied


def test_producers_that_cannot_be_freed_are_still_frozen_and_the_next_check_tries_again(worlds: Worlds) -> None:
    world = overdue(worlds)
    world.outside.fail("source.admin.delete_acls", BrokerUnreachable("away"))
    with pytest.raises(StillFrozen):
        world.run(LIMIT)
    assert world.state is State.TAIL
    world.outside.heal()
    assert freeze_limit.check_limit(world.context().record)["ready"]
    with pytest.raises(FreezeFailed):
        world.run(LIMIT)
    assert not world.denied


def test_a_watch_that_is_killed_anywhere_leaves_a_freeze_that_the_next_one_lifts(worlds: Worlds) -> None:
    for number in range(4):
        world = overdue(worlds)
        world.context()
        world.outside.revive()
        world.outside.dies_after = number
        with pytest.raises((Killed, FreezeFailed)):
            world.run(LIMIT)
        world.restart()
        if not world.steps("freeze_lifted"):
            with pytest.raises(FreezeFailed):
                world.run(LIMIT)
        assert not world.denied, number
        assert len(world.steps("freeze_lifted")) == 1, number
        assert world.state is State.TAIL, number


def test_behind_ready_the_watch_frees_nobody(worlds: Worlds) -> None:
    world = overdue(worlds, "approve_switch")
    assert freeze_limit.check_limit(world.context().record)["ready"]
    assert world.run(LIMIT).already_done
    assert world.denied


def test_between_ready_and_the_end_of_the_step_it_only_watches(worlds: Worlds) -> None:
    world = worlds.at("cutover.floor_guard")
    world.outside.fail("target.wire.metadata", Killed("behind READY"))
    with pytest.raises(Killed):
        world.run("cutover.floor_guard")
    world.outside.heal()
    world.restart()
    world.clock.sleep(120)
    assert not freeze_limit.check_limit(world.context().record)["ready"]
    assert world.run(LIMIT).details == {"watch": True, "nothing_to_lift": True}
    assert world.denied


def test_ready_that_is_journaled_in_this_very_moment_wins(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = overdue(worlds)
    journal = world.context().journal
    refresh, calls = journal.refresh, []

    def refresh_too_early() -> None:
        refresh()
        calls.append("refresh")
        if len(calls) == 2:  # the watch is about to leave the cutover
            owner = Owner("cli", "tester", "tester")
            other = Journal.create_or_open(
                world.journal_store,
                MIGRATION,
                Fingerprint("source-id", "target-id"),
                owner=owner,
                clock=world.clock.now,
            )
            other.step("ready_for_client_switch", key="1")

    monkeypatch.setattr(journal, "refresh", refresh_too_early)
    assert world.run(LIMIT).details == {"watch": True, "nothing_to_lift": True}
    assert len(calls) >= 2
    assert world.denied
    assert world.state is State.CUTOVER


def test_a_journal_that_is_away_hides_no_overdue_freeze(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.at("cutover.sentinels")
    context = world.context()

    def away() -> None:
        raise StorageUnavailable("503")

    monkeypatch.setattr(context.journal, "refresh", away)
    with pytest.raises(StorageUnavailable):
        freeze_limit.check_limit(context.record)
    world.clock.sleep(120)
    found = freeze_limit.check_limit(context.record)
    assert found["ready"]
    assert "the journal cannot be read" in found["summary"]


def test_a_watch_without_a_journal_says_so(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels")
    error = freeze_limit.journal_unreachable(world.spec, StorageUnavailable("503"))
    assert freeze_limit.is_journal_unreachable(error)
    assert not freeze_limit.is_journal_unreachable(StorageUnavailable("503"))


def test_is_overdue_is_what_the_journal_says(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels")
    assert not freeze_limit.is_overdue(world.context())
    world.clock.sleep(120)
    assert freeze_limit.is_overdue(world.context())
    with pytest.raises(FreezeFailed):
        world.run(LIMIT)
    assert not freeze_limit.is_overdue(world.context())
