"""The final drain: the brokers decide when the target has everything, and nothing else ends up in the offset map."""

from __future__ import annotations

import json
from typing import Any

import pytest
from phase_world.jobs import MIGRATION
from phase_world.world import World, Worlds
from source_logs import marker, record

from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    DrainTimeout,
    ForeignData,
    FreezeFailed,
    MigrationError,
    RecordsWithheld,
)
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.store import RunLog
from airflow_provider_kafka_migration.state import State

DRAIN = "cutover.final_drain"
STOP = f"{MIGRATION}/control/tail-stop.json"
#: exclusive ends of the source, each behind its sentinel
ENDS = {"orders-0": 6, "orders-1": 11, "state-0": 6}
CONTINUE = {"cutover": {"freeze": "acl", "on_bypass": "note"}}


def offset_map(world: World) -> dict[str, Any] | None:
    data = world.evidence_store.get(f"{MIGRATION}/offset-map.json")
    return None if data is None else dict(json.loads(data))


def stop(world: World) -> dict[str, int]:
    data = world.journal_store.get(STOP)
    return {} if data is None else dict(StopAt.parse(data).offsets)


def assert_lifted(world: World) -> None:
    assert world.state is State.TAIL
    assert not world.denied
    assert stop(world) == {}, "the tail must go on"
    found = offset_map(world)
    assert found is None or not found["complete"]


def test_the_tail_stops_at_the_boundary_and_the_map_ends_there(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    result = world.run(DRAIN)
    assert stop(world) == ENDS
    found = offset_map(world)
    assert found is not None
    assert found["complete"]
    ends = {f"{item['topic']}-{item['partition']}": item["source_end_offset"] for item in found["partitions"]}
    assert ends == ENDS
    assert {item["lag"] for item in result.details["partitions"]} == {0}
    assert world.run(DRAIN).already_done


def test_a_map_that_was_lost_is_made_again(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    world.run(DRAIN)
    first = offset_map(world)
    world.evidence_store.lose(f"{MIGRATION}/offset-map.json")
    assert not world.run(DRAIN).already_done
    assert offset_map(world) == first


def test_a_late_update_of_the_tail_does_not_replace_the_finished_map(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    before = world.evidence_store.get(f"{MIGRATION}/offset-map.json")
    world.run(DRAIN)
    finished = offset_map(world)
    assert before is not None
    world.evidence_store.put(f"{MIGRATION}/offset-map.json", before)
    assert world.run(DRAIN).already_done
    assert offset_map(world) == finished


def test_it_needs_the_sentinels_of_this_very_freeze(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels")
    with pytest.raises(FreezeFailed, match="sentinels were not written"):
        world.run(DRAIN)
    assert_lifted(world)


def test_the_boundary_of_an_earlier_freeze_does_not_count(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    data = json.loads(world.stored("results/boundary.json") or b"")
    world.journal_store.put(f"{MIGRATION}/results/boundary.json", json.dumps({**data, "attempt": 7}).encode())
    with pytest.raises(FreezeFailed, match="the sentinels of this freeze are not written yet"):
        world.run(DRAIN)
    assert_lifted(world)


def test_a_tail_that_does_not_finish_lifts_the_freeze_and_goes_on(worlds: Worlds) -> None:
    world = worlds.at(DRAIN, cutover={"freeze": "acl", "max_producer_freeze": "10m", "drain_timeout": "1m"})
    world.copiers.leaves["orders", 1] = 10
    with pytest.raises(DrainTimeout, match="1 partitions are not drained after 60 s; the largest lag is 1 at orders-1"):
        world.run(DRAIN)
    assert_lifted(world)


def test_the_limit_of_the_freeze_ends_the_wait_first(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    world.copiers.leaves["orders", 1] = 10
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(DRAIN)
    assert_lifted(world)


def test_records_that_the_target_has_not_replicated_are_not_there(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    world.target.log("orders").lagging = 1
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(DRAIN)
    assert_lifted(world)


def test_a_target_that_ends_beyond_the_source_is_somebody_else_s(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    world.while_tail_runs()(0)
    world.target.log("orders").write(b"foreign")
    with pytest.raises(ForeignData, match="ends 1 offsets beyond the source's end"):
        world.run(DRAIN)
    assert_lifted(world)


def test_a_source_that_was_written_to_while_the_tail_finished_is_named(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    world.source.log("state").write(b"late", producer_id=7)
    with pytest.raises(FreezeFailed, match="state-0 got offsets 6 to 6 from producer id 7"):
        world.run(DRAIN)
    assert_lifted(world)


@pytest.mark.parametrize("call", ["target.wire.list_offsets.log_end", "target.wire.list_offsets.latest"])
def test_a_target_that_is_away_keeps_the_freeze_while_there_is_time(worlds: Worlds, call: str) -> None:
    world = worlds.at(DRAIN)
    world.outside.fail(call, BrokerUnreachable("away"))
    with pytest.raises(BrokerUnreachable):
        world.run(DRAIN)
    assert world.denied
    assert world.state is State.CUTOVER
    world.outside.heal()
    world.run(DRAIN)
    assert stop(world) == ENDS


def test_the_stop_of_somebody_else_is_not_overwritten(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    other = StopAt(migration_id=MIGRATION, offsets={**ENDS, "state-0": 4}).canonical()
    world.journal_store.put(STOP, other)
    with pytest.raises(FreezeFailed, match="another stop of the tail, at other offsets, is already in force"):
        world.run(DRAIN)
    assert not world.denied


def test_a_stop_that_was_withdrawn_is_replaced(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    world.journal_store.put(STOP, StopAt(migration_id=MIGRATION, offsets={}).canonical())
    world.run(DRAIN)
    assert stop(world) == ENDS


def test_with_continue_the_boundary_moves_to_where_the_tail_stopped(worlds: Worlds) -> None:
    world = worlds.at(DRAIN, **CONTINUE)
    world.source.log("orders").write(b"late", producer_id=7)
    # The tail copies past the boundary before it reads its stop.
    target = world.target.log("orders")
    for data in world.source.log("orders").batches[-2:]:
        target.put(data, target.end)
    result = world.run(DRAIN)
    assert json.loads(world.stored("results/boundary.json") or b"")["ends"] == {**ENDS, "orders-0": 7}
    found = offset_map(world)
    assert found is not None
    ends = {f"{item['topic']}-{item['partition']}": item["target_end_offset"] for item in found["partitions"]}
    assert ends == {**ENDS, "orders-0": 7}
    assert result.details["bypasses"] == []


def test_with_continue_what_was_written_behind_the_boundary_is_named(worlds: Worlds) -> None:
    world = worlds.at(DRAIN, **CONTINUE)
    world.source.log("state").write(b"late", producer_id=7)
    result = world.run(DRAIN)
    (bypass,) = result.details["bypasses"]
    assert (bypass["topic"], bypass["from_offset"], bypass["to_offset"]) == ("state", 6, 7)
    assert offset_map(world) is not None


def test_a_partition_that_appeared_after_the_boundary_ends_the_cutover(worlds: Worlds) -> None:
    world = worlds.at(DRAIN)
    data = json.loads(world.stored("results/boundary.json") or b"")
    del data["ends"]["state-0"]
    world.journal_store.put(f"{MIGRATION}/results/boundary.json", json.dumps(data).encode())
    with pytest.raises(MigrationError, match="1 partitions appeared after the freeze; the first is state-0"):
        world.run(DRAIN)
    assert_lifted(world)


# -- partitions whose holes are not filled ----------------------------------------------------------------------------


def mapped(worlds: Worlds, *, last_is_record: bool) -> World:
    """``orders-0`` has holes at 5 and, unless a record is there, at 7; its sentinel moved from offset 6 to 5."""
    world = worlds.at(DRAIN)
    world.while_tail_runs()(0)
    log = world.source.log("orders")
    sentinel = log.batches.pop()
    log.put(marker(0, 7, commit=True), 5)
    log.put(sentinel, 6)
    log.put(encode_batch([record(0)], 0) if last_is_record else marker(0, 7, commit=True), 7)
    data = json.loads(world.stored("results/boundary.json") or b"")
    data["ends"]["orders-0"] = 8
    world.journal_store.put(f"{MIGRATION}/results/boundary.json", json.dumps(data).encode())
    topic_id = world.source.topics["orders"].topic_id
    runs = RunLog(world.journal_store, MIGRATION, "orders", 0, OffsetRange(0, 0), topic_id=topic_id)
    runs.take_over(5)
    runs.write_ahead([OffsetRange(6, 5)])
    world.copiers.leaves["orders", 0] = 0
    return world


def test_holes_at_the_end_of_a_mapped_partition_are_no_lag(worlds: Worlds) -> None:
    world = mapped(worlds, last_is_record=False)
    result = world.run(DRAIN)
    assert result.details["verdicts"] == {"equal": 2, "mapped": 1}
    found = offset_map(world)
    assert found is not None
    (item,) = [item for item in found["partitions"] if (item["topic"], item["partition"]) == ("orders", 0)]
    assert (item["verdict"], item["source_end_offset"], item["target_end_offset"]) == ("mapped", 8, 6)


def test_a_record_at_the_end_of_a_mapped_partition_is_waited_for(worlds: Worlds) -> None:
    world = mapped(worlds, last_is_record=True)
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(DRAIN)
    assert_lifted(world)


def test_what_a_transaction_hides_at_the_end_of_a_mapped_partition_is_no_hole(worlds: Worlds) -> None:
    world = mapped(worlds, last_is_record=False)
    world.source.log("orders").open_from = 7
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        world.run(DRAIN)
    assert_lifted(world)


def test_an_empty_answer_is_no_hole_at_the_end_of_a_mapped_partition(worlds: Worlds) -> None:
    world = mapped(worlds, last_is_record=True)
    world.outside.fail(
        "source.wire.fetch_once", lambda found: [item._replace(records=memoryview(b"")) for item in found]
    )
    with pytest.raises(RecordsWithheld):
        world.run(DRAIN)
    assert world.denied
    assert not any(entry.step_key == "1/final_drain" for entry in world.steps("cutover_step"))
