"""A mirror that has ended is handed over to MirrorMaker 2: which positions are written, and when none is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from phase_world.admin import UNKNOWN_TOPIC, SimAdmin
from phase_world.logs import Log
from phase_world.world import World, Worlds, without_probes
from test_mirror_phase import ask, mirror_until

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.errors import BrokerRefused, IllegalTransition, PermissionMissing
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch
from airflow_provider_kafka_migration.mirror_maker.state_writer import StateMessage
from airflow_provider_kafka_migration.mirrors import hand_over as module
from airflow_provider_kafka_migration.mirrors.hand_over import hand_over
from airflow_provider_kafka_migration.phases.mirrors import finish
from airflow_provider_kafka_migration.record.offset_maps import closed_maps
from airflow_provider_kafka_migration.record.partition_names import target_key

SECTIONS: dict[str, Any] = {"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}
ORDERS, CUT, STATE = ("orders", 0), ("orders", 1), ("state", 0)
TOPIC = "mm2-offsets.A.internal"
#: partition 1 of orders begins at offset 5
POSITIONS = {ORDERS: 4, CUT: 9, STATE: 4}


class Sender:
    """Writes to the simulated target, as Connect's keys are spread: all to one partition here."""

    world: World
    sent: list[StateMessage]
    loses: bool = False

    def __init__(self, _config: object, _wire: object) -> None:
        pass

    def send(self, items: list[StateMessage]) -> None:
        type(self).sent += items
        for item in items:
            if not self.loses:
                _write(self.world, item.topic, item.key, item.value)


def _write(world: World, topic: str, key: bytes, value: bytes | None) -> None:
    world.target.log(topic).append(encode_batch([Record(0, 1, key, value, [])]))


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


def partition(world: World, key: tuple[str, int]) -> CopyPartition:
    return world.context().record.partitions()[key]


def target_log(world: World, key: tuple[str, int]) -> Log:
    return world.target.log(*target_key(partition(world, key)))


@pytest.fixture
def ended(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> World:
    return end(worlds, monkeypatch)


def end(worlds: Worlds, monkeypatch: pytest.MonkeyPatch, before: Callable[[World], object] = lambda _: None) -> World:
    """Mirror what is there, pause, let something happen, and end."""
    without_probes(monkeypatch)
    world = worlds.at("tail", **SECTIONS)
    mirror_until(world, lambda: ask(world, "paused"))
    before(world)
    ask(world, "ended")
    world.restart()
    finish.run(world.context())
    world.restart()
    made = type("Made", (Sender,), {"world": world, "sent": []})
    monkeypatch.setattr(module, "StateSender", made)
    return world


def sent() -> list[tuple[bytes, bytes | None]]:
    return [(item.key, item.value) for item in module.StateSender.sent]  # type: ignore[attr-defined]


def test_the_last_mirrored_offsets_are_written_once(ended: World) -> None:
    found = hand_over(ended.context())
    assert (found.topic, found.positions, found.refused) == (TOPIC, POSITIONS, {})
    assert sent()[0] == (b'["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"orders"}]', b'{"offset":4}')
    assert len(ended.target.topics[TOPIC].logs) == 25
    assert ended.target.topics[TOPIC].configs["cleanup.policy"] == "compact"
    assert hand_over(ended.context()).positions == POSITIONS
    assert len(sent()) == 3, "nothing is left to write"


def test_a_connect_cluster_has_names_of_its_own(ended: World) -> None:
    ended.target.create("connect-offsets", 1)
    assert hand_over(ended.context(), offsets_topic="connect-offsets", connector="mine").topic == "connect-offsets"
    assert sent()[0][0].startswith(b'["mine",')
    assert TOPIC not in ended.target.topics


def test_positions_of_a_former_life_are_replaced(ended: World) -> None:
    ended.target.create(TOPIC, 25)
    key = b'["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"orders"}]'
    _write(ended, TOPIC, key, b'{"offset":4000}')
    _write(ended, TOPIC, key.replace(b"Source", b"Other"), b'{"offset":1}')
    hand_over(ended.context())
    assert sent()[0] == (key, b'{"offset":4}')


@pytest.mark.parametrize("what", ["written behind", "created again", "may not be described"])
def test_nothing_is_written_if_one_partition_cannot_go_on(ended: World, what: str) -> None:
    if what == "written behind":
        ended.target.log(*target_key(ended.context().record.partitions()[STATE])).write(b"by MirrorMaker 2")
    elif what == "created again":
        del ended.source.topics["state"]
        ended.source.create("state").logs[0].write(b"a", b"b", b"c", b"d", b"e")
    else:
        error = ItemError(29, "TOPIC_AUTHORIZATION_FAILED")
        ended.outside.fail(
            "source.admin.describe_topics",
            lambda found: {
                name: replace(item, error=error) if name == "state" else item for name, item in found.items()
            },
        )
    found = hand_over(ended.context())
    assert found.refused.keys() == {STATE}
    assert sent() == []
    assert TOPIC not in ended.target.topics
    assert target_log(ended, ORDERS).end == 5, "nobody is fenced for nothing"


def test_a_topic_that_was_deleted_on_the_source_holds_up_no_other(ended: World) -> None:
    """The end cannot be undone. A position of it would let MirrorMaker 2 skip records of a topic that comes back."""
    del ended.source.topics["state"]
    ended.target.create(TOPIC, 25)
    key = b'["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"state"}]'
    _write(ended, TOPIC, key, b'{"offset":4}')
    found = hand_over(ended.context())
    assert (found.positions, found.refused) == ({ORDERS: 4, CUT: 9}, {})
    assert found.gone.keys() == {STATE}
    assert (key, None) in sent()


def test_a_topic_that_one_broker_does_not_know_is_not_deleted(ended: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has just started. Without a position MirrorMaker 2 would copy the topic again, behind the complete copy."""
    real = SimAdmin.describe_topics

    def by_one_broker(admin: SimAdmin, names: Any = None, **options: Any) -> dict[str, TopicFacts]:
        found = real(admin, names, **options)
        return {
            name: TopicFacts(name, error=UNKNOWN_TOPIC) if name == "state" else item for name, item in found.items()
        }

    monkeypatch.setattr(SimAdmin, "describe_topics", by_one_broker)
    found = hand_over(ended.context())
    assert (found.gone, sent()) == ({}, [])
    assert "not all of them say that it was deleted" in found.refused[STATE]


def test_copiers_are_fenced_before_mirror_maker_begins(ended: World) -> None:
    """Whatever a suspended copier sends after its fence is refused; a second fence is not written."""
    ids = ended.context().record.producer_ids()
    for _ in range(2):
        assert hand_over(ended.context()).positions == POSITIONS
        for key, position in POSITIONS.items():
            log = target_log(ended, key)
            marker = RawBatch(memoryview(log.batches[-1]))
            assert (marker.is_control, marker.producer_id) == (True, ids.data_producer_id)
            assert marker.producer_epoch > ids.data_producer_epoch
            assert log.end == marker.base_offset + 1 == position + 2


def test_what_a_suspended_copier_wrote_before_its_fence_is_seen(ended: World, monkeypatch: pytest.MonkeyPatch) -> None:
    former = module.fence.fence_markers

    def late(*args: Any) -> Any:
        target_log(ended, ORDERS).write(b"late", producer_id=ended.context().record.producer_ids().data_producer_id)
        return former(*args)

    monkeypatch.setattr(module.fence, "fence_markers", late)
    found = hand_over(ended.context())
    assert found.refused.keys() == {ORDERS}
    assert "written behind it" in found.refused[ORDERS]
    assert sent() == []


def test_a_partition_that_cannot_be_fenced_is_refused(ended: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = PermissionMissing("ClusterAction is missing", next_step="grant it")
    monkeypatch.setattr(module.fence, "fence_markers", lambda *_: ({}, {target_key(partition(ended, STATE)): refusal}))
    found = hand_over(ended.context())
    assert found.refused.keys() == {STATE}
    assert "ClusterAction is missing" in found.refused[STATE]
    assert sent() == []


def test_without_a_fence_by_decision_of_the_spec(ended: World) -> None:
    ended.change_spec(cutover={"fence_copiers": False})
    assert hand_over(ended.context()).positions == POSITIONS
    assert target_log(ended, ORDERS).end == 5


@pytest.mark.parametrize("naming", ["rename", "custom"])
def test_names_that_mirror_maker_cannot_give_are_refused(ended: World, naming: str) -> None:
    context = ended.context()
    section = context.spec.mirror.model_copy(update={"naming": naming})
    context = replace(context, spec=context.spec.model_copy(update={"mirror": section}))
    with pytest.raises(IllegalTransition, match=f"naming: {naming} is not handed over"):
        hand_over(context)
    assert TOPIC not in ended.target.topics


def test_records_that_others_wrote_before_the_end_are_not_mirrored(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source has gone on as far as the target's log: MirrorMaker 2 must not skip what was never copied."""

    def others_write(world: World) -> None:
        world.source.log(*ORDERS).write(b"f", b"g", b"h")
        target_log(world, ORDERS).write(b"a client's", b"another's")

    world = end(worlds, monkeypatch, others_write)
    document = world.context().record.offset_map()
    assert document is not None
    found = closed_maps(document)[ORDERS]
    assert (found.source_end_offset, found.target_end_offset) == (5, 5)
    refused = hand_over(world.context()).refused
    assert refused.keys() == {ORDERS}
    assert "the copy at 5" in refused[ORDERS]
    assert sent() == []


def test_what_a_killed_copier_did_not_report_is_mirrored_before_the_end(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records have the mirror's own producer id; those of others behind them do not count."""

    def copier_dies(world: World) -> None:
        ids = world.context().record.producer_ids()
        world.source.log(*ORDERS).write(b"f", b"g")
        target_log(world, ORDERS).write(b"f", producer_id=ids.data_producer_id)
        target_log(world, ORDERS).write(b"g", producer_id=ids.data_producer_id)
        world.source.log(*STATE).write(b"f", b"g")
        target_log(world, STATE).write(b"f", producer_id=ids.data_producer_id)
        target_log(world, STATE).write(b"a client's")

    world = end(worlds, monkeypatch, copier_dies)
    document = world.context().record.offset_map()
    assert document is not None
    maps = closed_maps(document)
    assert [maps[key].source_end_offset for key in (ORDERS, CUT, STATE)] == [7, 10, 6]
    assert hand_over(world.context()).refused.keys() == {STATE}


def test_only_an_ended_mirror_is_handed_over(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)
    world = worlds.at("tail", **SECTIONS)
    mirror_until(world, lambda: ask(world, "paused"))
    with pytest.raises(IllegalTransition, match="this one is paused"):
        hand_over(world.context())


def test_what_the_target_has_not_taken_is_an_error(ended: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.StateSender, "loses", True)
    with pytest.raises(BrokerRefused, match="3 source offsets in mm2-offsets"):
        hand_over(ended.context())
