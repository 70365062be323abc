"""The comparison of both sides of a mirror: what it finds, what it excuses, and what it never calls equal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from phase_world.jobs import compare_ranges
from phase_world.logs import NOW_MS, Log
from phase_world.outside import Killed
from phase_world.world import World, Worlds, without_probes
from test_mirror_phase import ask, mirror_until

from airflow_provider_kafka_migration.compare import mirrored
from airflow_provider_kafka_migration.documents.mirror import MirrorVerification, VerifiedPartition
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    Interrupted,
    NotInMigration,
    OffsetMapInvalid,
    PermissionMissing,
    StorageUnavailable,
)
from airflow_provider_kafka_migration.jobs.copy_jobs import provenance_settings
from airflow_provider_kafka_migration.kafka.admin.topics import Configs
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, records
from airflow_provider_kafka_migration.mirrors import comparison_job, retention, verification
from airflow_provider_kafka_migration.mirrors.retention import retain_once
from airflow_provider_kafka_migration.mirrors.verification import Scope, last_verification, verify
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.store import RunLog
from airflow_provider_kafka_migration.offset_map.transactional import Position
from airflow_provider_kafka_migration.phases.mirrors import finish, mirror
from airflow_provider_kafka_migration.record import keys, offset_maps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.partition_names import target_key
from airflow_provider_kafka_migration.state import State

SECTIONS: dict[str, Any] = {"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}
ORDERS, CUT, STATE = ("orders", 0), ("orders", 1), ("state", 0)
Key = tuple[str, int]
#: The producer id of a copy in transactions.
OURS = 7


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)
    monkeypatch.setattr(retention, "_CATCH_UP_SECONDS", 0.0)
    monkeypatch.setattr(verification, "_PATIENCE_SECONDS", 0.0)


@pytest.fixture(autouse=True, params=["in one process", "as a job"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in both ways of comparing."""
    if request.param == "as a job":
        monkeypatch.setattr(sys.modules[__name__], "verify", compare_as_job)


#: Tests of what only the way in one process does.
in_one_process = pytest.mark.parametrize("how", ["in one process"], indirect=True)


def compare_as_job(context: PhaseContext, scope: Scope) -> MirrorVerification:
    """What a task and its executors do, in this process."""
    job = comparison_job.write(context, scope, "dag/run/verify")
    compare_ranges(context, job)
    found, _ = comparison_job.collect(context, job)
    context.record.put_result(keys.VERIFICATION, found)
    comparison_job.remove(context.record, job.name)
    return found


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A mirror that has copied everything, and still mirrors by its journal."""
    return running(worlds)


def running(worlds: Worlds, act: Callable[[World], object] = lambda _: None, **sections: Any) -> World:
    made = worlds.at("tail", **{**SECTIONS, **sections})
    act(made)

    def die() -> None:
        raise Killed

    made.copiers.reported = die
    with pytest.raises(Killed):
        mirror.run(made.context())
    made.copiers.reported = lambda: None
    made.restart()
    return made


def target_log(world: World, key: Key = ORDERS) -> Log:
    return world.target.log(*target_key(world.context().record.partitions()[key]))


def compared(world: World, key: Key = ORDERS, **scope: Any) -> VerifiedPartition:
    found = verify(world.context(), Scope(**scope))
    return next(item for item in found.partitions if (item.topic, item.partition) == key)


def outcomes(found: MirrorVerification) -> dict[Key, str]:
    return {(item.topic, item.partition): item.outcome for item in found.partitions}


def rewrite(log: Log, change: Callable[[list[Record]], list[Record]]) -> None:
    """Write a log again with other records at the offsets that it has."""
    start = log.start
    found = [item for data in log.batches for item in records(RawBatch(memoryview(data)))]
    changed = change(found)
    log.batches, end = [], log.end
    for item in changed:
        log.put(encode_batch([item._replace(offset=0)]), item.offset)
    log.start, log.end = start, max(end, log.end)


def kinds(found: VerifiedPartition) -> list[tuple[str, int | None, int | None]]:
    return [(item.kind, item.source_offset, item.target_offset) for item in found.differences]


@in_one_process
def test_everything_is_equal_while_it_mirrors(world: World) -> None:
    before = list(world.outside.changes)
    found = verify(world.context(), Scope())
    assert outcomes(found) == {ORDERS: "equal", CUT: "equal", STATE: "equal"}
    assert [item.compared for item in found.partitions] == [5, 5, 5]
    assert found.is_equal
    assert found.state == "mirroring"
    assert [item for item in world.outside.changes[len(before) :] if "results/verification.json" not in item] == []
    assert last_verification(world.context().record) == found


@pytest.mark.parametrize("last", [1, 3, 5, 1000])
def test_only_the_last_offsets(world: World, last: int) -> None:
    found = compared(world, last=last)
    assert (found.outcome, found.compared, found.source_end_offset) == ("equal", min(last, 5), 5)
    rewrite(target_log(world), lambda items: [items[0]._replace(value=b"other"), *items[1:]])
    assert compared(world, last=last).outcome == ("different" if last >= 5 else "equal")


@pytest.mark.parametrize("pattern", ["orders", r"A\.orders", "or.*"])
def test_topics_by_their_names_on_either_side(world: World, pattern: str) -> None:
    assert outcomes(verify(world.context(), Scope((pattern,)))).keys() == {ORDERS, CUT}


def test_a_pattern_that_matches_nothing_is_an_error(world: World) -> None:
    with pytest.raises(NotInMigration, match="nothing is mirrored that matches"):
        verify(world.context(), Scope(("rders",)))


# -- broken contents ---------------------------------------------------------------------------------------------------


def _swapped(items: list[Record]) -> list[Record]:
    one, two = items[1], items[2]
    return [items[0], two._replace(offset=1), one._replace(offset=2), *items[3:]]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda items: [*items[:2], *items[3:]], [("missing", 2, 2)]),
        (lambda items: [items[0], items[0]._replace(offset=1), *items[2:]], [("duplicate", 1, 1)]),
        (_swapped, [("order", 1, 1), ("order", 2, 2)]),
        (lambda items: [items[0], items[1]._replace(value=b"B"), *items[2:]], [("changed", 1, 1)]),
        (lambda items: [items[0], items[1]._replace(key=None), *items[2:]], [("changed", 1, 1)]),
        (lambda items: [items[0], items[1]._replace(timestamp=NOW_MS + 1), *items[2:]], [("changed", 1, 1)]),
        (lambda items: [items[0], items[1]._replace(headers=[(b"h", None)]), *items[2:]], [("changed", 1, 1)]),
    ],
    ids=["lost", "doubled", "reordered", "value", "key", "timestamp", "header"],
)
def test_each_way_of_breaking_contents_is_found(
    world: World, change: Callable[[list[Record]], list[Record]], wanted: list[tuple[str, int, int]]
) -> None:
    rewrite(target_log(world), change)
    result = verify(world.context(), Scope())
    assert outcomes(result) == {ORDERS: "different", CUT: "equal", STATE: "equal"}
    assert not result.is_equal
    found = result.partitions[0]
    assert (kinds(found), found.difference_count) == (wanted, len(wanted))


def test_a_record_too_many_is_found(worlds: Worlds) -> None:
    """A gap of the source in which the target has something."""

    def leave_gap(world: World) -> None:
        log = world.source.log(*ORDERS)
        log.put(encode_batch([Record(0, NOW_MS, b"key", b"f", [])]), 7)

    world = running(worlds, leave_gap)
    assert compared(world).outcome == "equal"
    target_log(world).put(encode_batch([Record(0, NOW_MS, b"key", b"not ours", [])]), 5)
    target_log(world).end = 8
    target_log(world).batches.sort(key=lambda data: RawBatch(memoryview(data)).base_offset)
    assert kinds(compared(world)) == [("extra", 5, 5)]


def test_a_log_that_lost_its_end_differs(world: World) -> None:
    """After an unclean election, what was confirmed is gone."""
    log = target_log(world)
    log.batches.pop()
    log.end = 3
    assert kinds(compared(world)) == [("missing", 3, 3), ("missing", 4, 4)]


# -- the end of the copy -----------------------------------------------------------------------------------------------


def test_what_is_not_confirmed_is_not_compared(world: World) -> None:
    """Others have written to the target, and the source is ahead: neither is a difference."""
    target_log(world).write(b"of others")
    world.source.log(*ORDERS).write(b"new")
    found = compared(world)
    assert (found.outcome, found.source_end_offset, found.compared) == ("equal", 5, 5)


def test_nothing_reported_is_nothing_checked(world: World) -> None:
    for name in ("seed", "tail"):
        world.journal_store.objects.pop(f"m1/progress/{name}.json", None)
    world.journal_store.answers.clear()
    found = verify(world.context(), Scope())
    assert set(outcomes(found).values()) == {"unchecked"}
    assert "have not reported yet" in found.partitions[0].reason


def test_an_empty_partition_is_not_equal(worlds: Worlds) -> None:
    def empty(world: World) -> None:
        for key in (ORDERS, CUT, STATE):
            log = world.source.log(*key)
            log.cut(log.end)

    world = running(worlds, empty)
    for key in (ORDERS, CUT, STATE):
        log = target_log(world, key)
        log.cut(log.end)
    found = verify(world.context(), Scope())
    assert set(outcomes(found).values()) == {"nothing"}
    assert not found.is_equal
    assert "are no longer on both sides" in found.partitions[0].reason


def test_a_copy_with_an_error_is_compared_up_to_its_end(world: World) -> None:
    world.source.log(*ORDERS).write(b"f")
    world.copiers.leaves[ORDERS] = 5
    world.copiers.fails[ORDERS] = {"code": "SOURCE_GAP", "what": "records are missing", "next_step": "find them"}
    with pytest.raises(Exception, match="records are missing"):
        mirror.run(world.context())
    world.restart()
    found = compared(world)
    assert (found.outcome, found.source_end_offset) == ("equal", 5)
    assert found.notes == ["its copy has an error and goes no further: records are missing"]


# -- what is deleted ---------------------------------------------------------------------------------------------------


def test_it_begins_above_both_log_starts(worlds: Worlds) -> None:
    world = running(worlds, mirror={**SECTIONS["mirror"], "target_retention": "own"})
    world.source.log(*ORDERS).cut(2)
    found = compared(world)
    assert (found.outcome, found.source_start_offset, found.compared) == ("equal", 2, 3)
    assert found.notes == [
        "source offsets 0 to 1 are no longer on both sides (log starts: 2 on the source, 0 on the target)"
    ]
    target_log(world).cut(4)
    found = compared(world)
    assert (found.outcome, found.source_start_offset, found.compared) == ("equal", 4, 1)


@pytest.mark.parametrize("retention_of_target", ["source", "keep"])
def test_a_target_that_lost_records_of_the_source_is_not_equal(worlds: Worlds, retention_of_target: str) -> None:
    """By ``mirror.target_retention`` it must have what the source has, until the mirror ends."""
    world = running(worlds, mirror={**SECTIONS["mirror"], "target_retention": retention_of_target})
    target_log(world).cut(3)
    found = compared(world)
    assert (found.outcome, found.compared) == ("unchecked", 2)
    assert "the target has deleted source offsets 0 to 2, which the source still has" in found.reason
    assert not verify(world.context(), Scope(("orders",))).is_equal
    assert compared(world, last=2).outcome == "equal", "the last offsets are all there"
    world.source.log(*ORDERS).cut(3)
    assert compared(world).outcome == "equal"


def test_log_starts_that_the_mirror_moves_meanwhile_are_no_loss(world: World) -> None:
    """Between the answers of source and target, both log starts move."""
    calls = []

    def cut(answer: Any) -> Any:
        calls.append(answer)
        if len(calls) == 1:
            world.source.log(*ORDERS).cut(3)
            target_log(world).cut(3)
        return answer

    world.outside.fail("source.wire.list_offsets*", cut)
    assert compared(world).outcome == "equal"
    assert calls


@pytest.mark.parametrize("retention_of_target", ["source", "own"])
def test_an_emptied_target_is_never_nothing(worlds: Worlds, retention_of_target: str) -> None:
    world = running(worlds, mirror={**SECTIONS["mirror"], "target_retention": retention_of_target})
    target_log(world).cut(5)
    found = compared(world)
    assert (found.outcome, found.compared) == ("unchecked", 0)
    assert "the source still has offsets 0 to 4" in found.reason


def test_records_that_the_source_deleted_before_they_were_copied_are_named(world: World) -> None:
    log = world.source.log(*ORDERS)
    log.write(b"f", b"g", b"h", b"i", b"j")
    log.cut(8)
    found = compared(world)
    assert found.outcome == "unchecked"
    assert found.reason == "the source has deleted offsets 5 to 7 before copiers have confirmed them"


def test_a_partition_of_which_nothing_is_copied_yet_is_not_empty(worlds: Worlds) -> None:
    world = running(worlds)
    data = json.loads(world.journal_store.objects["m1/progress/tail.json"])
    for row in data["partitions"]:
        row["source_offset"] = 0 if row["topic"] == "orders" and row["partition"] == 0 else row["source_offset"]
    world.journal_store.answers.clear()
    world.journal_store.objects["m1/progress/tail.json"] = json.dumps(data).encode()
    found = compared(world)
    assert (found.outcome, found.compared) == ("unchecked", 0)
    assert found.reason == "nothing of it is copied yet; the source has offsets 0 to 4"


def test_a_partition_that_the_mirror_does_not_follow_yet_is_named(world: World) -> None:
    world.source.topics["orders"].logs.append(Log())
    world.source.log("orders", 2).write(b"new")
    found = verify(world.context(), Scope())
    assert outcomes(found) == {ORDERS: "equal", CUT: "equal", ("orders", 2): "unchecked", STATE: "equal"}
    assert not found.is_equal
    assert "does not follow it yet" in found.partitions[2].reason


@pytest.mark.parametrize("side", ["source", "target"])
def test_records_that_are_deleted_meanwhile_are_no_differences(world: World, side: str) -> None:
    """Retention works on both sides of a mirror that runs: it may delete between two fetches."""
    log = world.source.log(*ORDERS) if side == "source" else target_log(world)

    def cut(answer: Any) -> Any:
        log.cut(3)
        return answer

    # The log ends are known by then; the reader asks for the log start again.
    world.outside.fail(f"{side}.admin.topic_configs", cut, times=1)
    found = compared(world)
    assert (found.outcome, found.compared, found.deleted_meanwhile) == ("equal", 2, 3)
    assert "meanwhile" in found.notes[-1]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_partition_that_is_deleted_meanwhile_as_a_whole_is_not_equal(world: World, side: str) -> None:
    log = world.source.log(*ORDERS) if side == "source" else target_log(world)

    def cut(answer: Any) -> Any:
        log.cut(5)
        return answer

    world.outside.fail(f"{side}.admin.topic_configs", cut, times=1)
    found = compared(world)
    assert (found.outcome, found.compared) == ("unchecked", 0)
    assert "none of its records could be compared" in found.reason


def _keyed(log: Log, *items: tuple[bytes, bytes | None]) -> None:
    for key, value in items:
        log.append(encode_batch([Record(0, NOW_MS, key, value, [])]))


def _drop(log: Log, *offsets: int) -> None:
    rewrite(log, lambda items: [item for item in items if item.offset not in offsets])


@pytest.fixture
def compacting(worlds: Worlds) -> World:
    """The topic ``state`` with keys of its own, and compacted on both sides."""
    items = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None), (b"c", b"1"), (b"d", b"1")]
    made = running(worlds, lambda world: _keyed(world.source.log(*STATE), *items))
    retain_once(made.context())
    name = made.context().record.partitions()[STATE].target_topic
    assert made.target.topics[name].configs["cleanup.policy"] == "compact"
    return made


def test_both_sides_compact_on_their_own(compacting: World) -> None:
    _drop(compacting.source.log(*STATE), 5)  # a: 1
    found = compared(compacting, STATE)
    assert (found.outcome, found.only_on_target) == ("equal", {"compacted": 1})
    _drop(target_log(compacting, STATE), 6, 5)  # b: 1, a: 1
    found = compared(compacting, STATE)
    assert (found.outcome, found.only_on_source, found.only_on_target) == ("equal", {"compacted": 1}, {})


def test_the_last_record_of_a_key_is_never_excused(compacting: World) -> None:
    _drop(target_log(compacting, STATE), 9)  # c: 1
    found = compared(compacting, STATE)
    assert (found.outcome, kinds(found)) == ("different", [("missing", 9, 9)])


def test_a_tombstone_is_excused_when_its_time_is_over(compacting: World) -> None:
    name = compacting.context().record.partitions()[STATE].target_topic
    _drop(target_log(compacting, STATE), 6, 8)  # b: 1, b: tombstone
    compacting.target.topics[name].configs["delete.retention.ms"] = str(10**15)
    assert kinds(compared(compacting, STATE)) == [("missing", 6, 6), ("missing", 8, 8)]
    compacting.target.topics[name].configs["delete.retention.ms"] = "0"
    found = compared(compacting, STATE)
    assert (found.outcome, found.only_on_source) == ("equal", {"compacted": 1, "expired": 1})


def test_a_tombstone_is_lost_while_its_key_lives_on(compacting: World) -> None:
    name = compacting.context().record.partitions()[STATE].target_topic
    compacting.target.topics[name].configs["delete.retention.ms"] = "0"
    _drop(target_log(compacting, STATE), 8)  # b: tombstone
    found = compared(compacting, STATE)
    assert (found.outcome, kinds(found)) == ("different", [("missing", 8, 8)])
    assert compared(compacting, STATE, last=3).outcome == "different", "b: 1 lies before these offsets"


def test_a_tombstone_from_the_future_cannot_be_compared(worlds: Worlds) -> None:
    def fill(world: World) -> None:
        log = world.source.log(*STATE)
        _keyed(log, (b"b", b"1"))
        log.append(encode_batch([Record(0, NOW_MS + 10**12, b"b", None, [])]))
        _keyed(log, (b"z", b"1"))

    world = running(worlds, fill)
    retain_once(world.context())
    _drop(target_log(world, STATE), 5, 6)
    found = compared(world, STATE)
    assert (found.outcome, found.difference_count, found.compared) == ("unchecked", 0, 6)
    assert "timestamps in the future" in found.reason


def test_nothing_is_excused_where_nothing_is_compacted(world: World) -> None:
    _drop(target_log(world), 1)  # all have the same key
    assert compared(world).outcome == "different"


# -- what cannot be checked --------------------------------------------------------------------------------------------


def test_an_open_transaction_hides_the_rest(world: World) -> None:
    target_log(world).open_from = 3
    found = compared(world)
    assert (found.outcome, found.source_end_offset, found.compared) == ("unchecked", 3, 3)
    assert "hides what is copied from target offset 3 on" in found.reason
    _drop(target_log(world), 1)
    assert compared(world).outcome == "different", "a difference counts more than what is hidden"


@in_one_process
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("call", ["admin.describe_topics", "wire.list_offsets.*", "wire.metadata", "wire.fetch_once"])
def test_a_cluster_that_is_down_makes_nothing_equal(world: World, side: str, call: str) -> None:
    world.outside.fail(f"{side}.{call}", BrokerUnreachable("nobody answers", next_step="start it"))
    if (side, call) == ("target", "admin.describe_topics"):
        world.outside.fail("target.wire.*", BrokerUnreachable("nobody answers", next_step="start it"))
    found = verify(world.context(), Scope())
    assert set(outcomes(found).values()) == {"unchecked"}
    assert not found.is_equal
    assert "nobody answers" in found.partitions[0].reason


def test_one_partition_without_a_leader_stops_no_other(world: World) -> None:
    world.source.leaderless.add(ORDERS)
    found = verify(world.context(), Scope())
    assert outcomes(found) == {ORDERS: "unchecked", CUT: "equal", STATE: "equal"}
    assert not found.is_equal


@pytest.mark.parametrize("side", ["source", "target"])
def test_configs_that_may_not_be_read(world: World, side: str) -> None:
    def refused(answer: dict[str, Configs]) -> dict[str, Configs]:
        error = ItemError(29, "TOPIC_AUTHORIZATION_FAILED")
        return {name: Configs(name, error=error) if "state" in name else item for name, item in answer.items()}

    world.outside.fail(f"{side}.admin.topic_configs", refused)
    found = verify(world.context(), Scope())
    assert outcomes(found) == {ORDERS: "equal", CUT: "equal", STATE: "unchecked"}
    assert "the configs of" in found.partitions[2].reason


def test_records_that_may_not_be_read(world: World) -> None:
    world.outside.fail("target.wire.fetch_once", PermissionMissing("Read is missing", next_step="grant it"))
    found = verify(world.context(), Scope())
    assert set(outcomes(found).values()) == {"unchecked"}
    assert "Read is missing" in found.partitions[0].reason


def test_a_topic_that_was_created_again_is_not_compared(world: World) -> None:
    del world.source.topics["orders"]
    for log in world.source.create("orders", 2).logs:
        log.write(b"a", b"b", b"c", b"d", b"e")
    found = verify(world.context(), Scope())
    assert outcomes(found) == {ORDERS: "unchecked", CUT: "unchecked", STATE: "equal"}
    assert "created again" in found.partitions[0].reason


def test_a_topic_that_is_gone_is_not_equal(world: World) -> None:
    del world.source.topics["orders"]
    del world.target.topics[world.context().record.partitions()[STATE].target_topic]
    assert set(outcomes(verify(world.context(), Scope())).values()) == {"unchecked"}


@in_one_process
def test_a_result_that_cannot_be_stored_is_still_an_answer(world: World) -> None:
    context = world.context()  # the claim needs a store that takes objects
    world.outside.fail("journal_store.put*", StorageUnavailable("full", next_step="make room"))
    assert verify(context, Scope()).is_equal
    world.outside.heal()
    assert last_verification(world.context().record) is None


@in_one_process
def test_it_stops_on_request(world: World) -> None:
    with pytest.raises(Interrupted):
        verify(world.context(), Scope(), stop=lambda: True)


# -- after the mirror --------------------------------------------------------------------------------------------------


def test_a_paused_mirror(worlds: Worlds) -> None:
    world = worlds.at("tail", **SECTIONS)
    mirror_until(world, lambda: ask(world, "paused"))
    world.source.log(*ORDERS).write(b"since")
    found = verify(world.context(), Scope())
    assert (found.state, found.is_equal, found.partitions[0].compared) == ("paused", True, 5)


def test_a_promoted_mirror_is_compared_up_to_its_boundary(worlds: Worlds) -> None:
    """The fence and the records of clients lie behind it."""
    world = worlds.at("tail", **SECTIONS)
    world.source.log(*ORDERS).write(b"last")
    mirror_until(world, lambda: ask(world, "promoted"))
    assert world.state is State.PROMOTED
    log = target_log(world)
    assert log.end == 7, "a marker follows the last record"
    log.write(b"of a client")
    world.source.log(*ORDERS).write(b"too late")
    found = verify(world.context(), Scope())
    assert (found.state, found.is_equal) == ("promoted", True)
    assert (found.partitions[0].source_end_offset, found.partitions[0].compared) == (6, 6)
    _drop(log, 5)
    assert kinds(compared(world)) == [("missing", 5, 5)]


def test_an_ended_mirror(worlds: Worlds) -> None:
    world = running(worlds)
    ask(world, "ended")
    finish.run(world.context())
    assert world.state is State.ENDED
    world.restart()
    assert verify(world.context(), Scope()).is_equal


@pytest.fixture
def shared_and_ended(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> World:
    """A mirror that has ended, with partitions to which others write; an offset of others lies behind two records."""

    def read(_wire: object, _group: str, places: Iterable[Key]) -> dict[Key, Position]:
        runs = (OffsetRange(0, 0, 2), OffsetRange(2, 3, 3))
        own = Position(5, 6, OffsetRange(0, 0), runs=runs, producer_ids=(OURS,))
        ends = {ORDERS: own, CUT: Position(10, 0, OffsetRange(5, 0)), STATE: Position(5, 0, OffsetRange(0, 0))}
        return {place: ends[place] for place in places}

    monkeypatch.setattr(offset_maps, "read_positions", read)
    monkeypatch.setattr(mirrored, "read_positions", read)
    naming = {"naming": "identity", "two_way": True, "sync_groups": False}
    world = running(
        worlds,
        mirror={**SECTIONS["mirror"], **naming},
        offsets={"mode": "transactional"},
        acls={"policy": "skip", "quotas": "skip"},
        topology={"follow_new": True, "on_source_drift": "repair"},
    )
    log = target_log(world)
    log.end = 6
    record = world.context().record
    marks = provenance_settings(record.spec, record.plan())
    assert marks is not None

    def copied(item: Record) -> Record:
        place = f"{marks.source_cluster_id}/{ORDERS[0]}/{ORDERS[1]}/{item.offset}"
        headers = [*item.headers, (marks.header.encode(), place.encode())]
        return item._replace(offset=item.offset + (item.offset >= 2), headers=headers)

    rewrite(log, lambda items: [copied(item) for item in items])
    ask(world, "ended")
    finish.run(world.context())
    world.restart()
    return world


def _put_between(log: Log, producer_id: int) -> None:
    log.put(encode_batch([Record(0, NOW_MS, b"key", b"b", [])], producer_id=producer_id, producer_epoch=0), 2)
    log.batches.sort(key=lambda data: RawBatch(memoryview(data)).base_offset)
    log.end = 6


def test_a_doubled_record_among_those_of_others_is_found_after_the_end(shared_and_ended: World) -> None:
    log = target_log(shared_and_ended)
    before = list(log.batches)
    _put_between(log, OURS + 1)
    assert compared(shared_and_ended).outcome == "equal", "others may write what they want"
    log.batches = before
    _put_between(log, OURS)
    found = compared(shared_and_ended)
    assert (found.outcome, [(item.kind, item.target_offset) for item in found.differences]) == (
        "different",
        [("extra", 2)],
    )


def test_without_its_producer_ids_a_finished_partition_is_not_checked(shared_and_ended: World) -> None:
    """Those of a mirror that ended before they were kept."""
    for key in [key for key in shared_and_ended.journal_store.objects if key.endswith("/final.json")]:
        del shared_and_ended.journal_store.objects[key]
    found = compared(shared_and_ended)
    assert found.outcome == "unchecked"
    assert "the producer ids of its copy are not known" in found.reason


def test_a_mirror_that_ended_without_a_map_is_not_compared(worlds: Worlds) -> None:
    world = worlds.at("seed", **SECTIONS)
    ask(world, "ended")
    finish.run(world.context())
    world.restart()
    with pytest.raises(OffsetMapInvalid, match="no finished offset map"):
        verify(world.context(), Scope())


# -- maps --------------------------------------------------------------------------------------------------------------


def _with_runs(world: World, key: Key, *runs: tuple[int, int]) -> None:
    """Store more runs of a partition, as a copier does."""
    item = world.context().record.partitions()[key]
    base = OffsetRange(item.source_start_offset, item.target_start_offset)
    log = RunLog(world.journal_store, "m1", *key, base, topic_id=item.topic_id)
    log.take_over(runs[0][1])
    log.write_ahead([OffsetRange(*run) for run in runs])


def test_a_mapped_partition_is_compared_by_its_runs(world: World) -> None:
    """From source offset 3 on, everything lies one offset lower: a hole was left out."""
    _drop(world.source.log(*ORDERS), 2)
    rewrite(
        target_log(world),
        lambda items: [item._replace(offset=item.offset - (item.offset > 2)) for item in items if item.offset != 2],
    )
    target_log(world).end = 4
    assert compared(world).outcome == "different", "without its runs"
    _with_runs(world, ORDERS, (3, 2))
    found = compared(world)
    assert (found.outcome, found.compared, found.target_end_offset) == ("equal", 4, 4)
    assert compared(world, last=1).compared == 1
    world.source.log(*ORDERS).cut(2)
    target_log(world).cut(2)
    found = compared(world)
    assert (found.outcome, found.source_start_offset, found.compared) == ("equal", 2, 2)
