"""Where a mirror's copy ends on the target: markers with which it has filled holes at the log end are its own."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.world import World, Worlds
from source_logs import marker
from test_mirror_phase import MIGRATION, ORDERS, SECTIONS, ask, mirror_until

from airflow_provider_kafka_migration.errors import BrokerUnreachable, ClaimLost
from airflow_provider_kafka_migration.kafka.admin.producers import TransactionFacts
from airflow_provider_kafka_migration.mirrors import ending
from airflow_provider_kafka_migration.mirrors.copy_ends import ends_so_far
from airflow_provider_kafka_migration.record.offset_maps import SourcePositions

LANE, OTHER = 501, 502
LISTING = "target.admin.list_transactions"


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A paused mirror that has copied five records of its first partition, as its copiers have confirmed."""
    made = worlds.at("tail", **SECTIONS)
    mirror_until(made, lambda: ask(made, "paused"))
    assert made.target.log(*ORDERS).end == 5
    made.restart()
    return made


def _facts(transactional_id: str, producer_id: int) -> TransactionFacts:
    return TransactionFacts(transactional_id, producer_id, "CompleteAbort", 1)


def _listed(world: World, *others: TransactionFacts) -> None:
    own = _facts(f"kafka-migration.{MIGRATION}.lane-0", LANE)
    world.outside.fail(LISTING, lambda _none: [own, *others])


def _put(world: World, *producers: int) -> None:
    log = world.target.log(*ORDERS)
    for producer in producers:
        log.put(marker(log.end, producer, commit=False), log.end)


def _end(world: World) -> int:
    context = world.context()
    positions = SourcePositions.load(context.record, context.target)
    log_ends = context.target.wire.list_offsets(list(positions.maps), "latest")
    return ends_so_far(context.record, context.target, positions.maps, log_ends)[ORDERS]


@pytest.mark.parametrize(
    ("producers", "end"),
    [((LANE,), 6), ((LANE, LANE), 7), ((OTHER, LANE), 7), ((LANE, OTHER), 6), ((OTHER,), 5)],
    ids=str,
)
def test_markers_of_the_lanes_are_the_mirrors_own(world: World, producers: tuple[int, ...], end: int) -> None:
    """Those of others are passed over; the copy ends behind the last one of its own."""
    _listed(world, _facts("kafka-migration.another.lane-0", OTHER))
    _put(world, *producers)
    assert _end(world) == end
    assert world.outside.calls.count(LISTING) == 1, "the target is asked once"


def test_the_copy_ends_before_the_first_record_of_others(world: World) -> None:
    _listed(world)
    _put(world, LANE)
    world.target.log(*ORDERS).write(b"a client's")
    _put(world, LANE)
    assert _end(world) == 6


@pytest.mark.parametrize("answer", [BrokerUnreachable("away"), lambda _list: None], ids=["error", "unknown"])
def test_markers_do_not_count_where_the_target_does_not_tell_their_producers(world: World, answer: Any) -> None:
    world.outside.fail(LISTING, answer)
    _put(world, LANE, LANE)
    own = world.context().record.producer_ids().data_producer_id
    assert _end(world) == 5
    world.target.log(*ORDERS).write(b"late", producer_id=own)
    assert _end(world) == 8, "the mirror's own record behind them counts"


def test_a_lost_claim_is_not_taken_for_an_empty_list(world: World) -> None:
    world.outside.fail(LISTING, ClaimLost("taken over"))
    _put(world, LANE)
    with pytest.raises(ClaimLost):
        _end(world)


def test_a_partition_that_joins_while_a_promotion_reads_the_ends_of_the_source_has_none(world: World) -> None:
    rows = ending._partitions(world.context(), {("orders", 1): 10, ("state", 0): 5}, is_complete=True)
    found = {(item.topic, item.partition): (item.mirrored_until, item.source_end_offset) for item in rows}
    assert found == {ORDERS: (5, -1), ("orders", 1): (10, 10), ("state", 0): (5, 5)}
