"""A mirror that stood still for longer than its source keeps tombstones says so when it goes on."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.documents.copy import LaneReading, PartitionReading
from airflow_provider_kafka_migration.mirrors import requests
from airflow_provider_kafka_migration.mirrors.missed_tombstones import last_risk
from airflow_provider_kafka_migration.phases.mirrors import mirror

SECTIONS: dict[str, Any] = {
    "kind": "mirror",
    "mirror": {"source_alias": "A", "target_alias": "B", "naming": "rename"},
}
DAY_SECONDS = 86400.0


@pytest.fixture
def world(worlds: Worlds) -> World:
    return worlds.at("tail", **SECTIONS)


def stood_still(world: World, seconds: float, topic: str = "state") -> World:
    """Run the mirror once so long after it was at the end of the source."""
    reading = PartitionReading(topic=topic, partition=0, caught_up_at=world.clock.now().timestamp() - seconds)
    document = LaneReading(migration_id="m1", lane=0, partitions=[reading])
    world.journal_store.put("m1/reading/lane-000000.json", document.canonical())
    requests.write(world.journal_store, "m1", "run", by="ann", at="2026-04-24T10:40:00Z")

    def pause() -> None:
        requests.write(world.journal_store, "m1", "paused", by="ann", at="2026-04-24T10:40:00Z")

    world.copiers.then = pause
    mirror.run(world.context())
    world.restart()
    return world


def test_a_long_pause_is_journaled_once(world: World) -> None:
    stood_still(world, 3 * DAY_SECONDS)
    found = last_risk(world.context().record)
    assert found is not None
    assert found["partitions"]["state-0"]["delete_retention_seconds"] == DAY_SECONDS
    assert "state-0 was last at the source's end at" in found["reason"]
    mirror.run(world.context())
    assert len(world.steps("tombstones_at_risk")) == 1


@pytest.mark.parametrize(("seconds", "topic"), [(DAY_SECONDS / 2, "state"), (3 * DAY_SECONDS, "orders")])
def test_a_short_pause_or_a_topic_without_tombstones_is_no_risk(world: World, seconds: float, topic: str) -> None:
    stood_still(world, seconds, topic)
    assert last_risk(world.context().record) is None
