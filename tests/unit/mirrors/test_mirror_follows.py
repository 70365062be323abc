"""What a mirror takes over from its source for as long as it runs: topics, partitions and configs, under its names."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.logs import Log
from phase_world.world import World, Worlds
from test_mirror_phase import ask, mirror_until

from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.state import State


def sections(**topology: Any) -> dict[str, Any]:
    return {
        "kind": "mirror",
        "mirror": {"source_alias": "A", "target_alias": "B"},
        "topology": {"follow_new": True, "on_source_drift": "repair", **topology},
    }


@pytest.fixture(autouse=True)
def _passes_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each test says itself when a pass runs.
    monkeypatch.setattr(follow.Follower, "_run", lambda _self: None)


def mirrored(world: World, want: Any) -> None:
    """Mirror, let one pass run, and do what is wanted."""
    if world.state is State.PAUSED:
        ask(world, "run")
        world.restart()
    context = world.context
    mirror_until(world, lambda: (follow.follow(context()), take_over.follow(context()), ask(world, want)))


def test_new_topics_and_partitions(worlds: Worlds) -> None:
    world = worlds.at("tail", **sections())
    mirrored(world, "paused")
    world.source.topics["orders"].logs.append(Log(0, 0))
    world.source.log("orders", 2).write(b"grown")
    world.source.create("invoices").logs[0].write(b"new")
    world.source.create("B.orders").logs[0].write(b"has come from B")
    mirrored(world, "paused")
    mirrored(world, "promoted")
    assert list(world.target.log("A.orders", 2).values().values()) == [b"grown"]
    assert list(world.target.log("A.invoices").values().values()) == [b"new"]
    assert set(world.target.topics) == {"A.orders", "A.state", "A.invoices"}, "no cycle"


def test_configs_follow_and_excluded_ones_stay(worlds: Worlds) -> None:
    """Those that delete records on the target wait for the promotion; MirrorMaker 2's list of exclusions is ours."""
    world = worlds.at("tail", **sections())
    mirrored(world, "paused")
    configs = world.source.topics["orders"].configs
    configs.update({"retention.ms": "1000", "segment.bytes": "2000000"})
    configs["follower.replication.throttled.replicas"] = "*"
    mirrored(world, "paused")
    there = world.target.topics["A.orders"].configs
    assert there["retention.ms"] == "-1", "nothing is deleted while it is mirrored"
    mirrored(world, "promoted")
    assert there["retention.ms"] == "1000"
    assert there["segment.bytes"] == "2000000"
    assert "follower.replication.throttled.replicas" not in there


def test_a_config_that_is_removed_goes_on_the_target(worlds: Worlds) -> None:
    world = worlds.at("tail", **sections())
    mirrored(world, "paused")
    world.source.topics["orders"].configs["segment.bytes"] = "2000000"
    mirrored(world, "paused")
    del world.source.topics["orders"].configs["segment.bytes"]
    mirrored(world, "promoted")
    assert "segment.bytes" not in world.target.topics["A.orders"].configs


def test_a_list_of_exclusions_in_the_spec(worlds: Worlds) -> None:
    world = worlds.at("tail", **sections(config_exclude=["retention\\..*"]))
    mirrored(world, "paused")
    world.source.topics["orders"].configs["retention.ms"] = "1000"
    mirrored(world, "promoted")
    assert "retention.ms" not in world.target.topics["A.orders"].configs
