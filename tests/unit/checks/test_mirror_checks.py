"""Topics of heartbeats behind aliases that a mirror does not know, and topics that are only called like them."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.logs import NOW_MS
from phase_world.world import World, Worlds, without_probes

from airflow_provider_kafka_migration.checks.mirrors import check_heartbeats
from airflow_provider_kafka_migration.documents.plan import Finding, Severity
from airflow_provider_kafka_migration.errors import BrokerUnreachable
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.mirror_maker.formats import Heartbeat
from airflow_provider_kafka_migration.phases import precheck

BEAT = tuple(Heartbeat("B", "A", NOW_MS).encode())
ALL_CHECKS = dict(precheck.CHECKS)
MIRROR = {"source_alias": "B", "target_alias": "C"}


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


@pytest.fixture(autouse=True)
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)


def planned(worlds: Worlds, topics: dict[str, list[tuple[bytes, bytes | None]]], **mirror: Any) -> World:
    """The second flow of a chain, planned for a source that has these topics, too: name -> (key, value)."""
    world = worlds.at("plan", kind="mirror", mirror={**MIRROR, **mirror}, topics={"include": [".*"]})
    for name, items in topics.items():
        log = world.source.create(name).logs[0]
        if items:
            log.append(encode_batch([Record(index, NOW_MS, *item, []) for index, item in enumerate(items)]))
    world.run("plan")
    return world


def found(world: World) -> list[Finding]:
    context = world.context()
    return list(check_heartbeats(context, context.record.plan()))


def test_heartbeats_behind_an_unknown_alias_are_named_with_the_alias_to_add(worlds: Worlds) -> None:
    world = planned(worlds, {"A.heartbeats": [BEAT], "X.A.heartbeats": [BEAT, BEAT]}, known_aliases=["X"])
    listed = found(world)
    assert [(item.code, item.subject, item.details["aliases"]) for item in listed] == [
        ("W044", "A.heartbeats", ["A"]),
        ("W044", "X.A.heartbeats", ["A"]),
    ]
    assert all(item.severity is Severity.WARNING for item in listed)
    assert all("heartbeats of B -> A" in item.seen and "add A to mirror.known_aliases" in item.fix for item in listed)
    assert ALL_CHECKS["heartbeats behind unknown aliases"] is check_heartbeats


def test_with_all_aliases_known_nothing_is_mirrored_and_nothing_named(worlds: Worlds) -> None:
    world = planned(worlds, {"A.heartbeats": [BEAT], "heartbeats": [BEAT]}, known_aliases=["A"])
    assert found(world) == []
    assert [topic.name for topic in world.context().record.plan().topics] == ["orders", "state"]


def test_the_separator_counts(worlds: Worlds) -> None:
    world = planned(worlds, {"D.heartbeats": [BEAT], "A_heartbeats": [BEAT]}, separator="_")
    assert [item.subject for item in found(world)] == ["A_heartbeats"]


@pytest.mark.parametrize("naming", ["identity", "default"])
def test_under_every_naming(worlds: Worlds, naming: str) -> None:
    """Also with identity names, heartbeats have the alias in front."""
    assert [item.subject for item in found(planned(worlds, {"A.heartbeats": [BEAT]}, naming=naming))] == [
        "A.heartbeats"
    ]


@pytest.mark.parametrize(
    "items",
    [[(b"pump-1", b"72 bpm")], [BEAT, (b"pump-1", b"72 bpm")], [(BEAT[0], None)]],
    ids=["other records", "other records among them", "a tombstone"],
)
def test_a_topic_of_your_own_with_such_a_name_is_told_by_its_records(
    worlds: Worlds, items: list[tuple[bytes, bytes | None]]
) -> None:
    world = planned(worlds, {"pumps.heartbeats": items, "my-heartbeats": [BEAT]})
    assert found(world) == []
    assert {"pumps.heartbeats", "my-heartbeats"} <= {topic.name for topic in world.context().record.plan().topics}


def test_a_topic_without_records_may_become_one_of_heartbeats(worlds: Worlds) -> None:
    (item,) = found(planned(worlds, {"A.heartbeats": []}))
    assert (item.code, item.subject) == ("W044", "A.heartbeats")
    assert "no records that could show what it is" in item.seen


def test_one_that_cannot_be_read_is_a_failed_check_and_never_harmless(worlds: Worlds) -> None:
    world = planned(worlds, {"A.heartbeats": [BEAT]})
    world.outside.fail("source.wire.list_offsets.*", BrokerUnreachable("nobody answers"))
    with pytest.raises(BrokerUnreachable):
        found(world)


def test_a_migration_has_no_aliases(worlds: Worlds) -> None:
    world = worlds.at("plan", topics={"include": [".*"]})
    world.source.create("A.heartbeats").logs[0].append(encode_batch([Record(0, NOW_MS, *BEAT, [])]))
    world.run("plan")
    assert "A.heartbeats" in {topic.name for topic in world.context().record.plan().topics}
    assert found(world) == []
