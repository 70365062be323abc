"""A running mirror writes MirrorMaker 2's state topics: what is there, when it stops, and who must not write."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from phase_world.admin import GROUP_NOT_PERMITTED
from phase_world.outside import Killed
from phase_world.state_records import SimSender, beats, checkpoints, syncs, use_sim_senders
from phase_world.world import KEYS, World, Worlds
from test_group_sync import during_the_seed
from test_mirror_phase import ask, mirror_until

from airflow_provider_kafka_migration.documents.mirror import Promotion, StateTopicsReport
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    ClaimLost,
    ForeignData,
    OffsetMapInvalid,
    PermissionMissing,
)
from airflow_provider_kafka_migration.groups.commit import read_groups
from airflow_provider_kafka_migration.groups.sync import HeldTranslator, TooLate
from airflow_provider_kafka_migration.journal.journal import Journal, Owner
from airflow_provider_kafka_migration.metrics.groups import read_heartbeat
from airflow_provider_kafka_migration.mirror_maker import heartbeats as heartbeats_module
from airflow_provider_kafka_migration.mirror_maker.formats import Checkpoint
from airflow_provider_kafka_migration.mirror_maker.state_writer import StateMessage
from airflow_provider_kafka_migration.mirrors import mirror_maker_state as state
from airflow_provider_kafka_migration.mirrors.mirror_maker_state import Checkpoints, HeartbeatPasses
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from airflow_provider_kafka_migration.phases.mirrors import finish, mirror
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Progress
from airflow_provider_kafka_migration.state import State
from harness.processes import wait_for

MIRROR = {"source_alias": "A", "target_alias": "B", "sync_groups": False}
ON = {"checkpoints": True, "heartbeats": True, "checkpoints_interval": "1h", "heartbeats_interval": "1h"}
OTHER = Owner("cli", "other", "other")
CHECKPOINTS, SYNCS = "A.checkpoints.internal", "mm2-offset-syncs.A.internal"
EXACT = {
    ("audit", "A.state", 0): (5, 5),
    ("billing", "A.orders", 0): (2, 2),
    ("billing", "A.orders", 1): (10, 10),
}


def sections(**more: Any) -> dict[str, Any]:
    return {"kind": "mirror", "mirror": {**MIRROR, "state_topics": {**ON, **more}}}


@pytest.fixture(autouse=True)
def _sim(monkeypatch: pytest.MonkeyPatch) -> None:
    use_sim_senders(monkeypatch)
    monkeypatch.setattr(state, "_FIRST_SECONDS", 0.0)


def mirrored(worlds: Worlds, **more: Any) -> World:
    """A mirror that has copied everything, and still mirrors by its journal; only the test runs passes."""
    world = worlds.at("tail", **sections(checkpoints=False, heartbeats=False))

    def die() -> None:
        raise Killed

    world.copiers.reported = die
    with pytest.raises(Killed):
        mirror.run(world.context())
    world.copiers.reported = lambda: None
    world.change_spec(**sections(**more))
    world.restart()
    return world


def write(world: World) -> Any:
    return state.write_once(world.context(), state.open_writer(world.context()))[0]


def test_a_running_mirror_writes_checkpoints_and_heartbeats(worlds: Worlds) -> None:
    world = worlds.at("tail", **sections())

    def act() -> None:
        wait_for("the checkpoints", lambda: checkpoints(world.target, CHECKPOINTS) == EXACT, 30.0)
        wait_for("a heartbeat", lambda: bool(beats(world.target, "A.heartbeats")), 30.0)
        ask(world, "paused")

    mirror_until(world, act)
    assert world.state is State.PAUSED
    assert {item.topic for item in syncs(world.target, SYNCS)} == {"orders", "state"}
    assert world.source.created == ["orders", "state"], "nothing is created on the source"
    for topic in (CHECKPOINTS, SYNCS, "heartbeats", "A.heartbeats"):
        assert world.target.topics[topic].configs == {"cleanup.policy": "compact"}
    reports = state.last_reports(world.context().record)
    assert {name: item.problem for name, item in reports.items()} == {"checkpoints": "", "heartbeats": ""}


def test_nothing_is_written_unless_the_spec_says_so(worlds: Worlds) -> None:
    world = worlds.at("tail", kind="mirror", mirror=MIRROR)
    mirror_until(world, lambda: ask(world, "promoted"))
    assert world.state is State.PROMOTED
    assert not [name for name in world.target.topics if "heartbeats" in name or "internal" in name]


def test_offset_syncs_on_the_source(worlds: Worlds) -> None:
    world = mirrored(worlds, offset_syncs="source")
    write(world)
    assert {item.topic for item in syncs(world.source, "mm2-offset-syncs.B.internal")} == {"orders", "state"}
    assert SYNCS not in world.target.topics
    assert checkpoints(world.target, CHECKPOINTS) == EXACT


def test_a_separator_of_internal_topics(worlds: Worlds) -> None:
    world = mirrored(worlds, internal_separator="_")
    write(world)
    assert checkpoints(world.target, "A_checkpoints_internal") == EXACT


def test_a_group_that_is_ahead_has_the_end_of_the_copy(worlds: Worlds) -> None:
    """While the seed runs, too: ``audit`` has read all of ``state``, of which three records are on the target.

    Of ``orders-1`` nothing is there yet, so it has no checkpoint.
    """
    world = worlds.at("seed", **sections())
    world.copiers.leaves.update({KEYS[1]: 5, KEYS[2]: 3})
    seen: list[dict[Any, Any]] = []

    def look() -> None:
        write(world)
        seen.append(checkpoints(world.target, CHECKPOINTS))

    during_the_seed(world, look)
    assert seen[0] == {("billing", "A.orders", 0): (2, 2), ("audit", "A.state", 0): (3, 3)}
    assert ("state", 0, 3, 3) not in syncs(world.target, SYNCS), "there is no record yet"
    write(world)
    assert checkpoints(world.target, CHECKPOINTS) == EXACT


def test_the_end_of_a_copy_with_other_offsets(worlds: Worlds) -> None:
    """Both offsets of the checkpoint are those of the end."""
    world = mirrored(worlds)
    context = world.context()
    translator = HeldTranslator.live(context.record, context.target)
    end = translator.source_ends["A.orders", 0]
    shifted = PartitionMap([OffsetRange(0, 100)])
    moved = replace(
        translator, maps={**translator.maps, KEYS[0]: shifted}, ends={**translator.ends, ("A.orders", 0): end + 100}
    )
    world.source.group("billing", orders_0=end + 7)
    group = next(item for item in read_groups(context.record, context.source) if item.group == "billing")
    last = {KEYS[0]: (end - 1, end + 99)}
    found = next(item for item in state._positions(group, moved, last) if item.source_topic == "orders")
    assert (found.upstream_offset, found.downstream_offset, found.has_record) == (end, end + 100, False)
    unknown = replace(moved, source_ends={})
    assert not [
        item for item in state._positions(group, unknown, last) if (item.source_topic, item.partition) == KEYS[0]
    ]


def test_a_topic_that_is_gone_from_the_target_holds_up_no_other(worlds: Worlds) -> None:
    world = mirrored(worlds)
    del world.target.topics["A.state"]
    write(world)
    assert checkpoints(world.target, CHECKPOINTS) == {key: item for key, item in EXACT.items() if key[0] == "billing"}


def test_a_round_writes_what_differs_from_what_the_topic_holds(worlds: Worlds) -> None:
    """A former writer of the alias has been suspended, and its record arrives behind that of its successor."""
    world = mirrored(worlds)
    context = world.context()
    writer = state.open_writer(context)
    assert state.write_once(context, writer)[0].checkpoints == 3
    assert state.write_once(context, writer)[0].checkpoints == 0
    late = Checkpoint("billing", "A.orders", 0, 1, 1).encode()
    SimSender(None, context.target.wire).send([StateMessage(CHECKPOINTS, *late, partition=0)])
    assert checkpoints(world.target, CHECKPOINTS)["billing", "A.orders", 0] == (1, 1)
    assert state.write_once(context, writer)[0].checkpoints == 1
    assert checkpoints(world.target, CHECKPOINTS) == EXACT


def test_a_topic_that_was_created_again_is_written_again(worlds: Worlds) -> None:
    world = mirrored(worlds)
    passes = Checkpoints(world.context())
    passes._pass(world.context())
    del world.target.topics[CHECKPOINTS]
    passes._attempt(passes._pass, world.context())
    assert isinstance(passes.error, BrokerBusy)
    passes._pass(world.context())
    assert checkpoints(world.target, CHECKPOINTS) == EXACT
    world.target.create(CHECKPOINTS)
    passes._pass(world.context())
    assert checkpoints(world.target, CHECKPOINTS) == EXACT


def test_a_record_of_others_is_named_and_nothing_is_written(worlds: Worlds) -> None:
    world = mirrored(worlds)
    world.target.create(CHECKPOINTS).logs[0].write(b"not a checkpoint")
    with pytest.raises(ForeignData, match="another format"):
        write(world)
    assert world.target.log(CHECKPOINTS).end == 1


# -- who may write ----------------------------------------------------------------------------------------------------


def take_over(world: World) -> None:
    """Another owner claims the mirror; this process does not know yet."""
    Journal(world.journal_store, world.migration_id, clock=world.clock.now).claim(OTHER, takeover=True)


@pytest.mark.parametrize("what", ["everything", "checkpoints only"])
@pytest.mark.parametrize("how", ["taken over", "promoted", "over"])
def test_a_pass_that_has_slept_writes_nothing(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, how: str, what: str
) -> None:
    """It has read everything before."""
    world = mirrored(worlds)
    context = world.context()
    writer = state.open_writer(context)
    if what == "checkpoints only":
        state.write_once(context, writer)
        world.source.group("billing", orders_0=1)  # it was set back, so it needs no offset sync
    before = checkpoints(world.target, CHECKPOINTS), syncs(world.target, SYNCS)
    real, over = writer._read, threading.Event()

    def sleep() -> None:
        real()
        if how == "taken over":
            take_over(world)
        elif how == "promoted":
            context.journal.step(steps.PROMOTED)
        else:
            over.set()

    monkeypatch.setattr(writer, "_read", sleep)
    with pytest.raises(ClaimLost if how == "taken over" else TooLate):
        state.write_once(context, writer, over.is_set)
    assert (checkpoints(world.target, CHECKPOINTS), syncs(world.target, SYNCS)) == before


def test_no_heartbeat_of_a_process_that_has_lost_the_mirror(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_CHECK_SECONDS", 0.0)
    world = mirrored(worlds)
    passes = HeartbeatPasses(world.context())
    passes._pass(world.context())
    before = len(beats(world.target, "heartbeats"))
    assert before == 1
    take_over(world)
    with pytest.raises(ClaimLost):
        passes._pass(world.context())
    assert len(beats(world.target, "heartbeats")) == before


def test_the_claim_is_asked_for_now_and_then_only(worlds: Worlds) -> None:
    """A beat each second for years must not be a request to the storage each second."""
    world = mirrored(worlds)
    passes = HeartbeatPasses(world.context())
    passes._pass(world.context())
    world.outside.calls.clear()
    for _ in range(20):
        passes._pass(world.context())
    assert not [name for name in world.outside.calls if name.startswith("journal.")]


@pytest.mark.parametrize("what", ["checkpoints", "heartbeats"])
def test_a_paused_mirror_writes_nothing(worlds: Worlds, what: str) -> None:
    world = worlds.at("tail", **sections(checkpoints=False, heartbeats=False))
    mirror_until(world, lambda: ask(world, "paused"))
    world.change_spec(**sections())
    world.restart()
    kind: Callable[..., Any] = Checkpoints if what == "checkpoints" else HeartbeatPasses
    kind(world.context()).once({})
    assert CHECKPOINTS not in world.target.topics
    assert "heartbeats" not in world.target.topics


# -- a promotion ------------------------------------------------------------------------------------------------------


def test_the_last_round_comes_before_the_promotion(worlds: Worlds) -> None:
    world = worlds.at("tail", **sections(heartbeats=False))

    def act() -> None:
        wait_for("the checkpoints", lambda: checkpoints(world.target, CHECKPOINTS) == EXACT, 30.0)
        world.source.group("billing", orders_0=4)
        ask(world, "promoted")

    mirror_until(world, act)
    assert world.state is State.PROMOTED
    assert checkpoints(world.target, CHECKPOINTS)["billing", "A.orders", 0] == (4, 4)
    promotion = Promotion.parse(world.stored("results/promotion.json") or b"")
    assert promotion.problems == []
    end = world.target.log(CHECKPOINTS).end
    world.source.group("billing", orders_0=5)
    world.restart()
    Checkpoints(world.context()).once({})
    finish.run(world.context())
    assert world.target.log(CHECKPOINTS).end == end, "afterwards it stays as it is"


def test_a_last_round_that_fails_is_named_and_the_promotion_goes_on(worlds: Worlds) -> None:
    world = worlds.at("tail", **sections(heartbeats=False))

    def act() -> None:
        wait_for("the checkpoints", lambda: CHECKPOINTS in world.target.topics, 30.0)
        world.target.log(CHECKPOINTS).write(b"not a checkpoint")
        ask(world, "promoted")

    mirror_until(world, act)
    assert world.state is State.PROMOTED
    (problem,) = Promotion.parse(world.stored("results/promotion.json") or b"").problems
    assert problem.startswith("checkpoints: a state topic holds a record of another format")


def test_an_unexpected_error_in_the_last_round_does_not_hold_up_a_promotion(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("tail", **sections(heartbeats=False))

    def broken(*_: Any) -> Any:
        raise KeyError("orders")

    monkeypatch.setattr(state, "open_writer", broken)
    mirror_until(world, lambda: ask(world, "promoted"))
    assert world.state is State.PROMOTED
    (problem,) = Promotion.parse(world.stored("results/promotion.json") or b"").problems
    assert "KeyError" in problem


# -- problems ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Checkpoints, HeartbeatPasses])
def test_a_problem_is_told_once_stored_and_withdrawn(worlds: Worlds, kind: Callable[..., Any]) -> None:
    world = mirrored(worlds)
    told: list[Progress] = []
    context = replace(world.context(), progress=told.append)
    world.outside.fail("target.admin.create_topics", PermissionMissing("Create is missing"))
    passes = kind(context)
    for _ in range(3):
        passes._attempt(passes._pass, context)
    assert [item.message for item in told] == [f"{kind.what}: Create is missing"]
    stored = state.last_report(context.record, kind.result)
    assert stored is not None
    assert (stored.problem, stored.written_at) == ("Create is missing", "")
    world.outside.heal()
    passes._attempt(passes._pass, context)
    stored = state.last_report(context.record, kind.result)
    assert stored is not None
    assert stored.problem == ""
    assert stored.written_at


def test_a_group_that_cannot_be_read_is_counted_and_the_others_are_written(worlds: Worlds) -> None:
    world = mirrored(worlds)

    def one_refused(found: Any) -> Any:
        return {**found, "audit": replace(found["audit"], offsets={}, error=GROUP_NOT_PERMITTED)}

    world.outside.fail("source.admin.groups_offsets", one_refused)
    passes = Checkpoints(world.context())
    passes._pass(world.context())
    found = checkpoints(world.target, CHECKPOINTS)
    assert found == {key: value for key, value in EXACT.items() if key[0] == "billing"}
    stored = state.last_report(world.context().record, Checkpoints.result)
    assert stored is not None
    assert stored.problem == "1 groups could not be read on the source"


def test_the_passes_never_stop_the_copy(worlds: Worlds) -> None:
    world = worlds.at("tail", **sections())
    world.outside.fail("target.wire.produce", BrokerBusy("away"))
    world.outside.fail("target.admin.create_topics", OSError("connection reset by peer"))
    mirror_until(world, lambda: ask(world, "paused"))
    assert world.state is State.PAUSED


def test_the_age_of_the_replicated_heartbeat_grows_while_the_source_is_away(worlds: Worlds) -> None:
    world = mirrored(worlds)
    context = world.context()
    passes = HeartbeatPasses(context)
    passes._pass(context)
    first = read_heartbeat(world.journal_store, world.migration_id)
    assert first == context.now().timestamp()
    world.clock.sleep(60)
    world.outside.fail("source.wire.*", BrokerBusy("nobody answers"))
    passes._attempt(passes._pass, context)
    assert read_heartbeat(world.journal_store, world.migration_id) == first
    assert len(beats(world.target, "heartbeats")) == 2
    world.outside.heal()
    passes._attempt(passes._pass, context)
    assert read_heartbeat(world.journal_store, world.migration_id) == first + 60


def test_a_restarted_process_knows_the_last_heartbeat_of_the_source(worlds: Worlds) -> None:
    """Also if the source is away when it starts: its age must neither start again nor vanish."""
    world = mirrored(worlds)
    HeartbeatPasses(world.context())._pass(world.context())
    first = read_heartbeat(world.journal_store, world.migration_id)
    world.clock.sleep(60)
    world.outside.fail("source.wire.*", BrokerBusy("nobody answers"))
    passes = HeartbeatPasses(world.context())
    passes._attempt(passes._pass, world.context())
    assert read_heartbeat(world.journal_store, world.migration_id) == first


def test_a_missing_page_of_one_map_holds_up_no_other_partition(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = mirrored(worlds)
    translator, real = HeldTranslator.live(world.context().record, world.context().target), PartitionMap.source_of

    def source_of(self: PartitionMap, target_offset: int) -> int:
        if self is translator.maps["orders", 0]:
            raise OffsetMapInvalid("a page of the map is missing")
        return real(self, target_offset)

    whole = state.last_records(translator)
    monkeypatch.setattr(PartitionMap, "source_of", source_of)
    left = state.last_records(translator)
    assert left
    assert whole.keys() - left.keys() == {("orders", 0)}


def test_a_source_that_has_never_answered_has_an_age_too(worlds: Worlds) -> None:
    """Without one, no alert could tell of it. The age goes on in the next process, until the first heartbeat."""
    world = mirrored(worlds)
    world.outside.fail("source.wire.*", BrokerBusy("nobody answers"))
    began = world.context().now().timestamp()
    for _ in range(2):
        passes = HeartbeatPasses(world.context())
        passes._attempt(passes._pass, world.context())
        assert read_heartbeat(world.journal_store, world.migration_id) == began
        world.clock.sleep(60)
    world.outside.heal()
    passes = HeartbeatPasses(world.context())
    passes._attempt(passes._pass, world.context())
    assert read_heartbeat(world.journal_store, world.migration_id) == began + 120
    stored = StateTopicsReport.parse(world.stored("results/mirror-maker-heartbeats.json") or b"")
    assert stored.never_since == ""


def test_a_report_is_withdrawn_when_heartbeats_are_switched_off(worlds: Worlds) -> None:
    world = mirrored(worlds)
    HeartbeatPasses(world.context())._pass(world.context())
    assert read_heartbeat(world.journal_store, world.migration_id) is not None
    world.change_spec(**sections(heartbeats=False))
    world.restart()
    with HeartbeatPasses(world.context()):
        pass
    assert read_heartbeat(world.journal_store, world.migration_id) is None


# -- a task that wakes up now and then --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Checkpoints, HeartbeatPasses])
def test_a_task_that_wakes_up_runs_what_is_due(worlds: Worlds, kind: Callable[..., Any]) -> None:
    world = mirrored(worlds)
    topic = CHECKPOINTS if kind is Checkpoints else "heartbeats"
    memory: dict[str, Any] = {}
    kind(world.context()).once(memory)
    assert world.target.topics[topic].logs[0].end > 0
    memory = json.loads(json.dumps(memory))
    world.outside.calls.clear()
    kind(world.context()).once(memory)
    assert not [name for name in world.outside.calls if name.startswith("target.")], "an hour is not over"
    world.clock.sleep(3601)
    kind(world.context()).once(memory)
    assert [name for name in world.outside.calls if name.startswith("target.")]


# -- kills ------------------------------------------------------------------------------------------------------------


def test_a_process_may_die_before_each_change(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one goes on: the newest value of each key is right, and syncs of a partition ascend."""
    monkeypatch.setattr(heartbeats_module, "_LIST_SECONDS", 0.0)
    base = mirrored(worlds, heartbeats_on_source=True)

    def passes(world: World) -> None:
        for kind in (Checkpoints, HeartbeatPasses):
            kind(world.context())._pass(world.context())

    whole = base.fork()
    whole.outside.changes.clear()
    passes(whole)
    count = len(whole.outside.changes)
    assert count > 10
    for number in range(count):
        world = base.fork()
        world.context()
        world.outside.changes.clear()
        world.outside.dies_after = number
        with pytest.raises(Killed):
            passes(world)
        world.restart()
        passes(world)
        assert checkpoints(world.target, CHECKPOINTS) == EXACT
        found = syncs(world.target, SYNCS)
        for topic in ("orders", "state"):
            for partition in (0, 1):
                offsets = [item.upstream_offset for item in found if (item.topic, item.partition) == (topic, partition)]
                assert offsets == sorted(set(offsets))
        assert beats(world.target, "A.heartbeats")[-1] == beats(world.source, "heartbeats")[-1]


def test_the_report_is_a_document(worlds: Worlds) -> None:
    world = mirrored(worlds)
    Checkpoints(world.context())._pass(world.context())
    found = StateTopicsReport.parse(world.stored("results/mirror-maker-checkpoints.json") or b"")
    assert found.written_at == found.at
