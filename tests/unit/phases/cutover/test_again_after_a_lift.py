"""After a freeze was lifted, each text names one set of tasks, and clearing exactly these begins the cutover again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.approvals import request
from airflow_provider_kafka_migration.dag import TASK_DOCS, build_migration_dag
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    FreezeFailed,
    IllegalTransition,
    MigrationError,
    StillFrozen,
    StorageUnavailable,
)
from airflow_provider_kafka_migration.freeze import one_task
from airflow_provider_kafka_migration.jobs import tail_health
from airflow_provider_kafka_migration.phase_table import CUTOVER
from airflow_provider_kafka_migration.record import handover, steps
from airflow_provider_kafka_migration.record.freeze_attempt import AGAIN, lifted_resume
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import lags

LIMIT = "cutover.freeze_limit"
STEPS = [row.id for row in CUTOVER]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "SMALL_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(tail_health, "_LOOK_AGAIN_SECONDS", 0.0)


def _lifted(worlds: Worlds, phase: str = "cutover.commit_groups") -> tuple[World, MigrationError]:
    """A migration whose freeze the watch has lifted, and what its task says."""
    world = worlds.at(phase)
    world.clock.sleep(120)
    with pytest.raises(FreezeFailed) as caught:
        world.run(LIMIT)
    return world, caught.value


@pytest.mark.parametrize("phase", STEPS[1:])
def test_every_red_task_names_the_tasks_to_clear(worlds: Worlds, phase: str) -> None:
    world, by_the_watch = _lifted(worlds, phase)
    assert AGAIN in by_the_watch.next_step
    with pytest.raises(FreezeFailed) as of_the_step:
        world.run(phase)
    assert AGAIN in of_the_step.value.next_step
    with pytest.raises(IllegalTransition) as cleared_alone:
        world.migration().run(phase)
    assert AGAIN in cleared_alone.value.next_step


def test_a_step_that_lifts_it_itself_names_the_same_tasks(worlds: Worlds) -> None:
    world = worlds.at("cutover.final_drain")
    world.clock.sleep(61)
    with pytest.raises(FreezeFailed, match="longer than max_producer_freeze") as caught:
        world.run("cutover.final_drain")
    assert AGAIN in caught.value.next_step


def test_these_tasks_have_the_watch_and_the_approval_among_them() -> None:
    dag = build_migration_dag()
    below = dag.get_task("drain_ready").get_flat_relative_ids(upstream=False)
    assert {"approve_cutover", LIMIT, *STEPS} <= below
    for task_id in (LIMIT, *STEPS[:-1]):
        assert "clear `drain_ready` and everything below it (`tail`, too, if it has ended)" in TASK_DOCS[task_id], (
            task_id
        )


def test_clearing_them_begins_the_cutover_again(worlds: Worlds) -> None:
    """The task of the tail has waited at its stop, and goes on by itself; nobody clears it."""
    world, _ = _lifted(worlds)
    world.source.log("orders", 0).write(b"after the lift")
    assert one_task.tail_goes_on(world.context())
    world.run("tail")
    for phase in (
        "drain_ready",
        LIMIT,
        "approve_cutover",
        "cutover.freeze",
        "cutover.sentinels",
        "cutover.final_drain",
    ):
        world.run(phase)
    world.run("tail", to_its_stop=True)
    for phase in ("cutover.snapshot_groups", "cutover.commit_groups", "cutover.floor_guard"):
        world.run(phase)
    assert world.state is State.AWAITING_CLIENT_SWITCH
    assert [entry.step_key for entry in world.steps(steps.FREEZE_REQUESTED)] == ["1", "2"]
    assert not one_task.tail_goes_on(world.context()), "clients may switch: the tail's task ends"


def test_the_status_names_them_until_a_new_cutover_is_approved(worlds: Worlds) -> None:
    world, _ = _lifted(worlds)
    migration = world.migration()
    migration.__dict__["journal_store"] = world.journal_store
    resume = migration.status().resume
    assert resume is not None
    assert AGAIN in resume.reason
    assert "kafka-migration resume FILE" in resume.reason
    world.run("tail")
    world.approve("cutover")
    assert lifted_resume(world.context().journal) is None


def test_an_approval_says_that_no_tail_runs(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail had ended at its stop, long before its freeze was lifted."""
    world, _ = _lifted(worlds)
    heard: dict[tuple[str, str], tail_health.Heartbeats] = {}
    monkeypatch.setattr(tail_health, "_KNOWN", heard)
    last = world.context().record.job_progress("tail")
    monkeypatch.setattr(type(world.context().record), "job_progress", lambda *_: last)
    assert "**The tail may not run: " in request.make_facts(world.context(), "cutover").body


# -- the tail's task waits at its stop --------------------------------------------------------------------------------


def _wait(world: World, *then: Callable[[], object]) -> bool:
    """Wait for the end of the cutover; between two looks the next thing happens. Asking for more is a failure."""
    left = list(then)
    found = one_task.tail_goes_on(world.context(), sleep=lambda _: left.pop(0)())
    assert not left
    return found


def test_it_ends_if_the_cutover_waits_for_its_end(worlds: Worlds) -> None:
    """As in the graph of a release before: both would wait until the limit lifts the freeze."""
    world = worlds.at("cutover.commit_groups")
    looks: list[bool] = [False, True, True, False, *[True] * one_task.WAITED_FOR_LOOKS]
    before = list(looks)
    found = one_task.tail_goes_on(world.context(), sleep=lambda _: None, is_waited_for=lambda: looks.pop(0))
    assert found is False
    assert looks == [], f"a scheduler needs a moment: only {one_task.WAITED_FOR_LOOKS} looks in a row count: {before}"
    world.run("cutover.commit_groups")
    world.run("cutover.floor_guard")
    assert world.state is State.AWAITING_CLIENT_SWITCH


def test_where_tasks_start_slowly_it_waits_longer(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """A next task that has only not been started yet waits for nobody, and a lift would find no tail any more."""
    world = worlds.at("cutover.commit_groups")
    monkeypatch.setattr(handover, "of", lambda _: handover.Handover((3.0, 20.0, 40.0), 5))
    looks: list[bool] = [*[True] * (20 - 1), False, *[True] * 20]
    found = one_task.tail_goes_on(world.context(), sleep=lambda _: None, is_waited_for=lambda: looks.pop(0))
    assert (found, looks) == (False, []), "twice 20 seconds are 20 looks"


def test_it_waits_while_producers_are_frozen_and_goes_on_once_they_are_free(worlds: Worlds) -> None:
    world = worlds.at("cutover.commit_groups")

    def lift() -> None:
        world.clock.sleep(120)
        world.outside.heal()
        with pytest.raises(FreezeFailed):
            world.run(LIMIT)

    def cannot_lift() -> None:
        world.clock.sleep(120)
        world.outside.fail("source.admin.delete_acls", BrokerUnreachable("away"))
        with pytest.raises(StillFrozen):
            world.run(LIMIT)

    assert _wait(world, lambda: None, cannot_lift, lift)


def test_it_ends_when_clients_may_switch(worlds: Worlds) -> None:
    world = worlds.at("cutover.floor_guard")
    assert not _wait(world, lambda: world.run("cutover.floor_guard"))


def test_a_journal_that_is_away_for_a_moment_does_not_end_the_wait(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("cutover.floor_guard")
    journal = world.context().journal
    refresh = journal.refresh
    failures = [StorageUnavailable("away")]

    def sometimes() -> None:
        if failures:
            raise failures.pop()
        refresh()

    monkeypatch.setattr(journal, "refresh", sometimes)
    assert not _wait(world, lambda: None, lambda: world.run("cutover.floor_guard"))


def test_a_rollback_that_lifts_the_freeze_leaves_nothing_to_copy(worlds: Worlds) -> None:
    world = worlds.at("cutover.floor_guard")
    assert not _wait(world, lambda: world.run("rollback"))
    assert world.state is State.ROLLED_BACK
