"""Producers choose timestamps and consumers choose offsets, from all 64 bits: no step of a cutover fails on them."""

from __future__ import annotations

import json

import pytest
from phase_world.world import Worlds

from airflow_provider_kafka_migration.errors import ApprovalRefused
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.state import State

MICROSECONDS, NANOSECONDS, LARGEST = 1_700_000_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1


@pytest.mark.parametrize("timestamp", [MICROSECONDS, NANOSECONDS, LARGEST])
@pytest.mark.parametrize("on_bypass", ["stop", "note"])
def test_a_late_record_is_named_with_its_timestamp(worlds: Worlds, timestamp: int, on_bypass: str) -> None:
    world = worlds.at("approve_switch", cutover={"freeze": "acl", "on_bypass": on_bypass})
    world.source.log("orders").append(encode_batch([Record(0, timestamp, b"k", b"late", [])]))
    if on_bypass == "stop":
        with pytest.raises(ApprovalRefused, match=f"the first at timestamp {timestamp}"):
            world.approve("client_switch")
    else:
        world.approve("client_switch")
        assert world.state is State.VALIDATING
        world.run("validate")
        assert f"timestamp {timestamp}".encode() in (world.stored("results/validation.json") or b"")


@pytest.mark.parametrize("offset", [2**53, LARGEST])
def test_a_committed_offset_of_64_bits_is_clamped(worlds: Worlds, offset: int) -> None:
    world = worlds.at("cutover.snapshot_groups")
    world.source.groups["billing"].offsets["orders", 0] = GroupOffset(offset, -1, "")
    world.run("cutover.snapshot_groups")
    world.run("cutover.commit_groups")
    assert world.target.groups["billing"].offsets["orders", 0].offset <= world.target.log("orders").end
    data = json.loads(world.stored("results/groups.json") or b"")
    assert str(offset) in json.dumps(data)
