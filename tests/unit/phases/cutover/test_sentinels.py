"""One sentinel per source partition, whatever dies, and no boundary behind which records appear."""

from __future__ import annotations

import json
from typing import Any

import pytest
from phase_world.logs import sentinels_in
from phase_world.outside import Killed
from phase_world.world import KEYS, World, Worlds

from airflow_provider_kafka_migration.errors import (
    BrokerRefused,
    BrokerUnreachable,
    FreezeFailed,
    MigrationError,
    RecordsWithheld,
)
from airflow_provider_kafka_migration.journal.spec_guard import guard_spec
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.state import State

SENTINELS = "cutover.sentinels"
ENDS = {("orders", 0): 5, ("orders", 1): 10, ("state", 0): 5}


def sentinels(world: World) -> dict[tuple[str, int], list[int]]:
    return {key: sentinels_in(world.source.log(*key)) for key in KEYS}


def boundary(world: World) -> dict[str, Any]:
    data = world.stored("results/boundary.json")
    assert data is not None
    return dict(json.loads(data))


def test_each_partition_has_one_at_its_frozen_end(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS)
    world.run(SENTINELS)
    assert sentinels(world) == {key: [end] for key, end in ENDS.items()}
    assert boundary(world)["ends"] == {f"{topic}-{number}": end + 1 for (topic, number), end in ENDS.items()}
    writes = world.outside.calls.count("source.wire.produce")
    assert world.run(SENTINELS).already_done
    assert world.outside.calls.count("source.wire.produce") == writes


def test_nothing_is_written_while_nothing_is_frozen(worlds: Worlds) -> None:
    world = worlds.at("cutover.freeze")
    world.enter(State.CUTOVER)
    with pytest.raises(FreezeFailed, match="the freeze is not verified"):
        world.run(SENTINELS)
    assert not any(sentinels(world).values())


def test_a_producer_that_wrote_since_is_named_before_the_first_sentinel(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS)
    world.source.log("orders").write(b"late", producer_id=7)
    with pytest.raises(FreezeFailed, match="orders-0 got offsets 5 to 5 from producer id 7"):
        world.run(SENTINELS)
    assert not any(sentinels(world).values())
    assert not world.denied
    assert world.state is State.TAIL


def killed_after_writing(world: World) -> None:
    """The sentinels are in the logs, the journal knows only their producer id."""
    world.context()
    world.outside.revive()
    world.outside.dies_after = 3
    with pytest.raises(Killed):
        world.run(SENTINELS)
    assert all(sentinels(world).values())
    assert not world.outside.faults
    world.restart()
    assert not world.steps("sentinels_written")


def test_a_broker_that_has_forgotten_the_producer_gets_no_second_sentinel(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS)
    killed_after_writing(world)
    for key in KEYS:
        world.source.log(*key).sequences.clear()
    world.run(SENTINELS)
    assert sentinels(world) == {key: [end] for key, end in ENDS.items()}


def test_an_empty_answer_does_not_mean_that_there_is_no_sentinel(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS)
    killed_after_writing(world)
    for key in KEYS:
        world.source.log(*key).sequences.clear()
    world.outside.fail(
        "source.wire.fetch_once", lambda found: [item._replace(records=memoryview(b"")) for item in found]
    )
    with pytest.raises(RecordsWithheld):
        world.run(SENTINELS)
    assert sentinels(world) == {key: [end] for key, end in ENDS.items()}, "and nothing was written"
    assert world.denied, "another try may help, so producers stay stopped"
    world.outside.heal()
    world.run(SENTINELS)
    assert sentinels(world) == {key: [end] for key, end in ENDS.items()}


def test_an_answer_that_omits_partitions_does_not_mean_that_there_is_no_sentinel(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS)
    killed_after_writing(world)
    for key in KEYS:
        world.source.log(*key).sequences.clear()
    world.outside.fail("source.wire.fetch_once", lambda _: [], times=1)
    world.run(SENTINELS)
    assert sentinels(world) == {key: [end] for key, end in ENDS.items()}


def test_a_sentinel_whose_answer_was_lost_is_not_written_again(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS)

    def lost(_: Any) -> Any:
        raise BrokerUnreachable("the connection was lost")

    world.outside.fail("source.wire.produce", lost, times=2)
    world.run(SENTINELS)
    assert sentinels(world) == {key: [end] for key, end in ENDS.items()}


def test_a_partition_whose_leader_moved_is_tried_again(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS)

    def not_leader(found: list[Any]) -> list[Any]:
        # The leader refused this one, so it is not in its log.
        key = ("orders", 1)
        world.source.log(*key).end = 10
        world.source.log(*key).batches.pop()
        world.source.log(*key).sequences.popitem()
        return [item if item[0] != key else (key, error_codes.NOT_LEADER_OR_FOLLOWER, -1) for item in found]

    world.outside.fail("source.wire.produce", not_leader, times=1)
    world.run(SENTINELS)
    assert sentinels(world) == {key: [end] for key, end in ENDS.items()}


def test_a_refused_sentinel_lifts_the_freeze(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS)
    refused = error_codes.TOPIC_AUTHORIZATION_FAILED
    world.outside.fail("source.wire.produce", lambda found: [(key, refused, -1) for key, _, _ in found])
    with pytest.raises(MigrationError, match="the sentinel cannot be written"):
        world.run(SENTINELS)
    assert world.state is State.TAIL
    assert not world.denied


def test_the_way_without_sentinels_is_open_once_one_was_refused(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS)
    guard_spec(world.context().journal, world.spec.model_dump(mode="json"))
    refused = 43  # UNSUPPORTED_FOR_MESSAGE_FORMAT
    world.outside.fail("source.wire.produce", lambda found: [(key, refused, -1) for key, _, _ in found])
    with pytest.raises(BrokerRefused) as caught:
        world.run(SENTINELS)
    assert "cutover.sentinel: end_offsets" in caught.value.next_step
    world.outside.heal()
    world.change_spec(cutover={"sentinel": "end_offsets"})
    assert "cutover.sentinel" in guard_spec(world.context().journal, world.spec.model_dump(mode="json"))


def test_a_source_that_is_away_until_the_limit_lifts_the_freeze(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS)
    world.outside.fail("source.wire.produce", BrokerUnreachable("away"))
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(SENTINELS)
    assert not world.denied
    assert not world.steps("cutover_step")


def test_end_offsets_writes_nothing(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS, cutover={"freeze": "acl", "sentinel": "end_offsets"})
    world.run(SENTINELS)
    assert not any(sentinels(world).values())
    assert "source.wire.produce" not in world.outside.calls
    assert boundary(world)["ends"] == {f"{topic}-{number}": end for (topic, number), end in ENDS.items()}


@pytest.mark.parametrize("what", ["not replicated", "open transaction"])
def test_the_boundary_waits_until_all_of_the_source_can_be_copied(worlds: Worlds, what: str) -> None:
    world = worlds.at(SENTINELS)
    log = world.source.log("orders")

    def hold_back(answer: Any) -> Any:
        if what == "not replicated":
            log.lagging = 1
        else:
            log.open_from = 5
        return answer

    world.outside.fail("source.wire.produce", hold_back, times=1)
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(SENTINELS)
    assert world.stored("results/boundary.json") is None
    assert not world.denied


def test_with_continue_the_boundary_is_behind_the_sentinels_though_records_follow(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS, cutover={"freeze": "acl", "on_bypass": "note"})
    log = world.source.log("orders")

    def write(answer: Any) -> Any:
        log.write(b"late")
        return answer

    world.outside.fail("source.wire.list_offsets.stable", write)
    world.run(SENTINELS)
    (offset,) = sentinels(world)["orders", 0]
    assert offset < boundary(world)["ends"]["orders-0"] <= log.end


def test_the_sentinel_of_a_lifted_attempt_directly_before_the_end_still_counts(worlds: Worlds) -> None:
    world = worlds.at("cutover.final_drain")
    world.clock.sleep(61)
    with pytest.raises(FreezeFailed):
        world.run("cutover.freeze")
    world.while_tail_runs()(1)
    for phase in ("drain_ready", "approve_cutover", "cutover.freeze", SENTINELS):
        world.clock.sleep(1)
        world.run(phase)
    assert sentinels(world) == {key: [end] for key, end in ENDS.items()}
    assert boundary(world)["attempt"] == 2


def test_with_end_offsets_what_is_not_replicated_is_no_end(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS, cutover={"freeze": "acl", "sentinel": "end_offsets"})
    world.source.log("state").lagging = 1
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(SENTINELS)
    assert world.stored("results/boundary.json") is None


def test_with_continue_a_transaction_that_hides_the_sentinel_is_waited_for(worlds: Worlds) -> None:
    world = worlds.at(SENTINELS, cutover={"freeze": "acl", "on_bypass": "note"})
    world.source.log("orders").open_from = 5
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(SENTINELS)
    assert sentinels(world)["orders", 0] == [5]
    assert world.stored("results/boundary.json") is None
