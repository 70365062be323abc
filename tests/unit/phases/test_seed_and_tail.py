"""Seed and tail: the brokers decide what is copied, whatever the job says, and a run continues where one died."""

from __future__ import annotations

import json
from typing import Any

import pytest
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.world import KEYS, World, Worlds

from airflow_provider_kafka_migration.documents.copy import CopyJob, StopAt
from airflow_provider_kafka_migration.errors import BrokerUnreachable, CopyFailed, FreezeFailed, Terminal, Transient
from airflow_provider_kafka_migration.state import State

STOP = f"{MIGRATION}/control/tail-stop.json"


def job(world: World, name: str) -> CopyJob:
    data = world.stored(f"jobs/{name}.json")
    assert data is not None
    return CopyJob.parse(data)


def until(world: World) -> dict[tuple[str, int], int | None]:
    return {item.key: item.until_offset for item in job(world, "seed").partitions}


# -- seed -------------------------------------------------------------------------------------------------------------


def test_the_seed_copies_up_to_the_stable_ends_of_its_first_start(worlds: Worlds) -> None:
    world = worlds.at("seed")
    world.source.log("orders").open_from = 3
    world.run("seed")
    assert until(world) == {("orders", 0): 3, ("orders", 1): 10, ("state", 0): 5}
    assert world.target.log("orders").end == 3
    world.source.log("orders").open_from = -1
    assert world.run("seed").already_done
    assert len(world.copiers.submitted) == 1


def test_a_seed_that_copied_too_little_is_not_done(worlds: Worlds) -> None:
    world = worlds.at("seed")
    world.copiers.leaves["orders", 1] = 8
    with pytest.raises(CopyFailed, match="1 partitions have not reached their stop offsets; the first is at 8 of 10"):
        world.run("seed")
    assert not world.steps("seed_done")
    world.copiers.leaves.clear()
    world.restart()
    world.run("seed")
    assert {key: world.target.log(*key).end for key in KEYS} == {("orders", 0): 5, ("orders", 1): 10, ("state", 0): 5}


def test_the_stop_offsets_stay_and_the_limits_are_the_present_ones(worlds: Worlds) -> None:
    world = worlds.at("seed")
    world.copiers.leaves["orders", 1] = 8
    with pytest.raises(CopyFailed):
        world.run("seed")
    first = until(world)
    world.source.log("orders").write(b"later")
    world.copiers.leaves.clear()
    world.change_spec(seed={"max_bytes_per_second": 1234567}, offsets={"on_source_gap": "note"})
    world.run("seed")
    assert until(world) == first
    assert job(world, "seed").max_bytes_per_second == 1234567
    assert job(world, "seed").on_source_gap == "note"


def test_a_target_that_lost_records_after_the_seed_is_copied_again(worlds: Worlds) -> None:
    world = worlds.at("seed")
    world.run("seed")
    log = world.target.log("orders")
    log.batches.pop()
    log.end = 3
    assert not world.run("seed").already_done
    assert log.end == 5


@pytest.mark.parametrize("generation", [True, False])
def test_the_failures_that_a_job_reported_say_more_than_its_exit(worlds: Worlds, generation: bool) -> None:
    world = worlds.at("seed")
    world.copiers.fails["state", 0] = {
        "code": "BROKER_REFUSED", "kind": "terminal", "what": "the batch is too large", "next_step": "raise the limit"
    }  # fmt: skip
    if not generation:
        # The report is that of an earlier owner: it says nothing about this run.
        key = f"{MIGRATION}/progress/seed.json"
        world.journal_store.answers[key] = lambda data: json.dumps(
            {**json.loads(data or b"{}"), "generation": 99}
        ).encode()
    with pytest.raises(CopyFailed if generation else Transient) as caught:
        world.run("seed")
    assert ("the first is state-0: the batch is too large" in str(caught.value)) is generation
    assert not world.steps("seed_done")


def test_without_producer_ids_nothing_is_copied(worlds: Worlds) -> None:
    world = worlds.at("topology_copy")
    world.enter(State.TOPOLOGY_COPY)
    with pytest.raises(Terminal, match="producer ids of the migration are not allocated"):
        world.run("seed")
    assert not world.copiers.submitted


@pytest.mark.parametrize("call", ["source.wire.list_offsets.stable", "target.wire.list_offsets.log_end"])
def test_a_cluster_that_is_away_is_not_one_without_records(worlds: Worlds, call: str) -> None:
    world = worlds.at("seed")
    world.outside.fail(call, BrokerUnreachable("away"))
    with pytest.raises(BrokerUnreachable):
        world.run("seed")
    assert not world.steps("seed_done")


def test_through_the_archive_the_seed_ends_with_a_manifest(worlds: Worlds) -> None:
    world = worlds.at("seed", seed={"via": "s3"})
    details = world.run("seed").details
    assert job(world, "seed").via == "s3"
    assert details["manifest"]["uri"].endswith(f"{MIGRATION}/manifest.json")
    assert world.archive_store.get(f"{MIGRATION}/manifest.json") is not None


def test_a_target_topic_that_was_deleted_is_created_and_copied_again(worlds: Worlds) -> None:
    world = worlds.at("seed")
    world.run("seed")
    del world.target.topics["orders"]
    world.run("seed")
    assert {number: world.target.log("orders", number).end for number in (0, 1)} == {0: 5, 1: 10}
    assert world.target.log("orders", 1).start == 5


# -- tail -------------------------------------------------------------------------------------------------------------


def stopped(worlds: Worlds, **sections: Any) -> World:
    """A migration whose tail has a stop, and has copied up to it."""
    world = worlds.at("cutover.snapshot_groups", **sections)
    assert StopAt.in_force(world.journal_store.get(STOP)) is not None
    return world


def test_the_tail_ends_at_its_stop_and_journals_that_once(worlds: Worlds) -> None:
    world = stopped(worlds)
    assert not world.steps("tail_done")
    world.run("tail", to_its_stop=True)
    assert len(world.steps("tail_done")) == 1
    runs = len(world.copiers.submitted)
    assert world.run("tail", to_its_stop=True).already_done
    assert len(world.steps("tail_done")) == 1
    assert len(world.copiers.submitted) == runs


def test_a_tail_that_died_before_its_journal_entry_only_journals(worlds: Worlds) -> None:
    world = stopped(worlds)

    def die() -> None:
        raise Killed

    world.copiers.reported = die
    with pytest.raises(Killed):
        world.run("tail", to_its_stop=True)
    world.restart()
    runs = len(world.copiers.submitted)
    assert world.run("tail", to_its_stop=True).already_done
    assert len(world.steps("tail_done")) == 1
    assert len(world.copiers.submitted) == runs


def test_a_tail_behind_its_stop_is_not_done(worlds: Worlds) -> None:
    world = worlds.at("cutover.final_drain")
    ends = {"orders-0": 6, "orders-1": 11, "state-0": 6}
    world.journal_store.put(STOP, StopAt(migration_id=MIGRATION, offsets=ends).canonical())
    world.copiers.leaves["orders", 0] = 5
    with pytest.raises(CopyFailed, match="1 partitions have not reached their stop offsets; the first is at 5 of 6"):
        world.run("tail", to_its_stop=True)
    assert not world.steps("tail_done")
    world.copiers.leaves.clear()
    world.run("tail", to_its_stop=True)
    assert len(world.steps("tail_done")) == 1


def test_a_job_that_ends_without_a_stop_has_failed(worlds: Worlds) -> None:
    world = worlds.at("drain_ready")
    with pytest.raises(CopyFailed, match="no stop was set for it"):
        world.run("tail", to_its_stop=True)


def test_a_stop_that_was_withdrawn_while_the_tail_ended_at_it_makes_it_run_again(worlds: Worlds) -> None:
    world = worlds.at("cutover.snapshot_groups")
    runs: list[int] = []

    def lift_then_stop() -> None:
        runs.append(len(world.copiers.submitted))
        if len(runs) == 1:
            world.clock.sleep(61)
            with pytest.raises(FreezeFailed):
                world.run("cutover.freeze")
            assert StopAt.in_force(world.journal_store.get(STOP)) is None
        else:
            # A stop belongs to a freeze: without one, the tail withdraws it.
            for phase in ("drain_ready", "approve_cutover", "cutover.freeze"):
                world.run(phase)
            ends = {f"{topic}-{number}": world.source.log(topic, number).end for topic, number in KEYS}
            world.journal_store.put(STOP, StopAt(migration_id=MIGRATION, offsets=ends).canonical())

    world.copiers.then = lift_then_stop
    world.run("tail", to_its_stop=True)
    assert len(runs) == 2, runs


def test_the_rollback_ends_the_tail_without_a_failure(worlds: Worlds) -> None:
    world = worlds.at("drain_ready")

    def roll_back() -> None:
        world.run("rollback")

    world.copiers.then = roll_back
    assert world.run("tail", to_its_stop=True).summary == "stopped by the rollback"
    assert not world.steps("tail_done")
    assert world.state is State.ROLLED_BACK


def test_after_the_cutover_nothing_is_copied_any_more(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    ends = world.target.log("orders").end
    assert world.run("tail", to_its_stop=True).already_done
    world.journal_store.lose(STOP)
    with pytest.raises(Terminal, match="the cutover is over"):
        world.run("tail", to_its_stop=True)
    assert world.target.log("orders").end == ends


def test_without_a_seed_there_is_no_tail(worlds: Worlds) -> None:
    world = worlds.at("seed")
    with pytest.raises(Terminal, match="there is no seed job"):
        world.run("tail", to_its_stop=True)


def test_a_target_that_is_away_is_not_a_tail_that_is_done(worlds: Worlds) -> None:
    world = stopped(worlds)
    world.outside.fail("target.wire.list_offsets.log_end", BrokerUnreachable("away"))
    with pytest.raises(BrokerUnreachable):
        world.run("tail", to_its_stop=True)
    assert not world.steps("tail_done")
