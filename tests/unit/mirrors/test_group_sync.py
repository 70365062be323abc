"""Groups on a mirror's target from the moment that a partition is mirrored: while the seed runs, too."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from phase_world.admin import BUSY
from phase_world.jobs import MIGRATION
from phase_world.world import KEYS, World, Worlds
from test_mirror_phase import ask, mirror_until

from airflow_provider_kafka_migration.documents.cutover import Translation
from airflow_provider_kafka_migration.documents.mirror import GroupSyncReport
from airflow_provider_kafka_migration.errors import BrokerBusy, OffsetMapInvalid, PermissionMissing
from airflow_provider_kafka_migration.groups import sync
from airflow_provider_kafka_migration.groups.sync import confirmed_positions
from airflow_provider_kafka_migration.metrics.groups import read_failing_since
from airflow_provider_kafka_migration.mirrors import group_sync
from airflow_provider_kafka_migration.offset_map.recent import KeptMaps
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.transactional import MapPages, Position
from airflow_provider_kafka_migration.phases.mirrors import finish
from airflow_provider_kafka_migration.planning import tail_job
from airflow_provider_kafka_migration.record import offset_maps, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.offset_maps import write_open_map
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.translate import Translator
from harness.processes import wait_for

SECTIONS: dict[str, Any] = {
    "kind": "mirror",
    "mirror": {"source_alias": "A", "target_alias": "B", "sync_interval": "20ms"},
}
#: Only the test itself runs a pass.
BY_HAND: dict[str, Any] = {**SECTIONS, "mirror": {**SECTIONS["mirror"], "sync_interval": "1h"}}


def committed(world: World, group: str) -> dict[tuple[str, int], int]:
    found = world.target.groups.get(group)
    return {} if found is None else {key: item.offset for key, item in found.offsets.items()}


def during_the_seed(world: World, look: Any) -> None:
    """Run the seed; this happens when ``copiers.leaves`` is all that is left."""

    def then() -> None:
        look()
        world.copiers.leaves.clear()
        world.copiers.copy(world.copiers.submitted[-1])

    world.copiers.then = then
    world.run("seed")


def test_groups_follow_while_the_seed_runs(worlds: Worlds) -> None:
    """``audit`` has read all of ``state``, of which three records are on the target."""
    world = worlds.at("seed", **SECTIONS)
    world.copiers.leaves[KEYS[2]] = 3
    during_the_seed(
        world, lambda: wait_for("the group", lambda: committed(world, "audit") == {("A.state", 0): 3}, 30.0)
    )
    group_sync.sync_once(world.context())
    assert committed(world, "audit") == {("A.state", 0): 5}


def test_no_offset_is_written_where_nothing_is_mirrored(worlds: Worlds) -> None:
    """The log of ``orders-1`` begins at 5: until then the target has fillers there, or nothing."""
    world = worlds.at("seed", **SECTIONS)
    world.copiers.leaves[KEYS[1]] = 5
    results: list[Any] = []
    during_the_seed(world, lambda: results.append(group_sync.sync_once(world.context())))
    billing = next(item for item in results[0].groups if item.group == "billing")
    assert {item.partition: (item.target_offset, item.translation) for item in billing.offsets} == {
        0: (2, Translation.EQUAL),
        1: (None, Translation.SKIPPED),
    }
    assert results[0].groups[1].offsets[1].reason == "nothing of the partition is mirrored yet"


def test_a_new_group_follows_and_one_with_members_is_left_alone(worlds: Worlds) -> None:
    world = worlds.at("tail", **SECTIONS)
    world.source.group("late", orders_0=4)
    world.target.group("audit").state = "Stable"
    world.target.groups["audit"].members = ("reader",)
    group_sync.sync_once(world.context())
    assert committed(world, "late") == {("A.orders", 0): 4}
    assert committed(world, "audit") == {}


def test_groups_of_a_migration_wait_for_the_cutover(worlds: Worlds) -> None:
    world = worlds.at("seed", groups={"sync_interval": "20ms"})
    started: list[Any] = []
    during_the_seed(world, lambda: started.extend(item for item in threading.enumerate() if item.name == "group-sync"))
    assert started == []
    assert world.target.groups == {}


def test_no_pass_writes_groups_of_a_promoted_mirror(worlds: Worlds) -> None:
    """Clients' records have the offsets that records of the source had which nobody mirrored."""
    world = worlds.at("tail", **BY_HAND)
    mirror_until(world, lambda: ask(world, "paused"))
    world.source.log("orders", 0).write(b"lost", b"too")
    world.source.group("billing", orders_0=7)
    ask(world, "promoted", source_gone=True)
    world.restart()
    finish.run(world.context())
    assert world.state is State.PROMOTED
    before = committed(world, "billing")
    world.target.log("A.orders", 0).write(b"new", b"newer")
    assert group_sync.sync_once(world.context()) is None
    assert committed(world, "billing") == before


@pytest.mark.parametrize("how", ["promoted", "stopped"])
def test_a_pass_that_has_slept_writes_no_group_behind_a_promotion(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It has read and translated everything before."""
    world = worlds.at("tail", **BY_HAND)
    over = threading.Event()
    real = sync.commit

    def sleep_and_commit(context: PhaseContext, *more: Any, **options: Any) -> Any:
        over.set() if how == "stopped" else context.journal.step(steps.PROMOTED)
        return real(context, *more, **options)

    monkeypatch.setattr(sync, "commit", sleep_and_commit)
    assert group_sync.sync_once(world.context(), over.is_set) is None
    assert world.target.groups == {}


def test_each_group_is_checked_before_it_is_written(worlds: Worlds) -> None:
    world = worlds.at("tail", **BY_HAND)
    assert group_sync.sync_once(world.context(), lambda: bool(world.target.groups)) is None
    assert list(world.target.groups) == ["audit"]


def test_a_block_waits_for_a_pass_that_is_under_way(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes: what follows would meet it."""
    world = worlds.at("tail", **SECTIONS)
    monkeypatch.setattr(sync.PeriodicSync, "patience_seconds", 0.0)
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def one_pass(_context: PhaseContext, is_over: Callable[[], bool]) -> None:
        begun.set()
        go_on.wait(30)
        assert is_over()
        done.set()

    with sync.PeriodicSync(world.context(), one_pass, world.spec.mirror.sync_interval, phase="mirror"):
        assert begun.wait(30)
        threading.Timer(0.2, go_on.set).start()
    assert done.is_set()


def test_records_of_others_do_not_count_as_copied(worlds: Worlds) -> None:
    """Somebody writes to the remote topic: a group that has read on must not skip what is mirrored behind that."""
    world = worlds.at("tail", **BY_HAND)
    results: list[Any] = []

    def act() -> None:
        world.target.log("A.orders", 0).write(b"foreign", b"foreign")
        world.source.log("orders", 0).write(b"s5", b"s6", b"s7")
        world.source.group("billing", orders_0=7, orders_1=10)
        results.append(group_sync.sync_once(world.context()))
        ask(world, "paused")

    mirror_until(world, act)
    assert committed(world, "billing") == {("A.orders", 0): 5, ("A.orders", 1): 10}
    [held] = [item for group in results[0].groups for item in group.offsets if item.source_offset == 7]
    assert held.reason.endswith("it is held at the end of the copy, 5")


def test_what_was_reported_of_a_deleted_topic_does_not_count(worlds: Worlds) -> None:
    world = worlds.at("tail", **BY_HAND)
    known, _ = confirmed_positions(world.context().record)
    assert known[KEYS[0]] > 0
    data = json.loads(world.journal_store.objects["m1/progress/seed.json"])
    for row in data["partitions"]:
        row["topic_id"] = "of another life" if row["topic"] == KEYS[0][0] else row["topic_id"]
    world.journal_store.objects["m1/progress/seed.json"] = json.dumps(data).encode()
    found, _ = confirmed_positions(world.context().record)
    assert KEYS[0] not in found
    assert {key: found[key] for key in found} == {key: known[key] for key in known if key[0] != KEYS[0][0]}


def test_a_partition_whose_copy_has_an_error_is_left_alone(worlds: Worlds) -> None:
    world = worlds.at("tail", **BY_HAND)
    results: list[Any] = []

    def act() -> None:
        world.copiers.fails[KEYS[0]] = {"what": "somebody else writes to it", "kind": "transient"}
        world.copiers.copy(world.copiers.submitted[-1])
        results.append(group_sync.sync_once(world.context()))
        world.copiers.fails.clear()
        ask(world, "paused")

    mirror_until(world, act)
    assert set(committed(world, "billing")) == {("A.orders", 1)}
    [left] = [item for group in results[0].groups for item in group.offsets if (item.topic, item.partition) == KEYS[0]]
    assert left.reason.endswith("so nobody knows how far it is: somebody else writes to it")


@pytest.mark.parametrize("how", ["its topic is gone", "it has no leader"])
def test_a_partition_that_the_target_cannot_be_asked_for_holds_up_no_other(worlds: Worlds, how: str) -> None:
    world = worlds.at("tail", **BY_HAND)
    gone = world.target.topics.pop("A.state") if how == "its topic is gone" else None
    if gone is None:
        world.target.leaderless.add(("A.state", 0))
    result = group_sync.sync_once(world.context())
    assert result is not None
    assert committed(world, "billing") == {("A.orders", 0): 2, ("A.orders", 1): 10}
    assert committed(world, "audit") == {}
    failures = {item.group: [failure["code"] for failure in item.failures] for item in result.groups}
    assert failures == {"audit": ["BROKER_BUSY"], "billing": []}, "the group may be behind there, and that is told"
    world.target.leaderless.clear()
    if gone is not None:
        world.target.topics["A.state"] = gone
    result = group_sync.sync_once(world.context())
    assert result is not None
    assert committed(world, "audit") == {("A.state", 0): 5}
    assert not any(item.failures for item in result.groups)


def test_a_sync_that_fails_is_stored_until_one_succeeds(worlds: Worlds) -> None:
    """Also if none has ever succeeded, and over a restart."""
    world = worlds.at("tail", **BY_HAND)
    world.outside.fail("source.admin.list_groups", PermissionMissing("Describe is missing"))

    def attempt() -> GroupSyncReport | None:
        passes = group_sync.GroupSync(world.context())
        passes._attempt(passes._pass, world.context())
        return group_sync.last_report(world.context().record)

    first = attempt()
    assert first is not None
    assert (first.problem, first.failing_since) == ("Describe is missing", first.at)
    assert read_failing_since(world.journal_store, MIGRATION) == world.clock.now().timestamp()
    world.clock.sleep(60)
    world.outside.heal()
    world.outside.fail("source.admin.list_groups", BrokerBusy("no answer"))
    second = attempt()
    assert second is not None
    assert (second.problem, second.failing_since) == ("no answer", first.at)
    world.outside.heal()
    last = attempt()
    assert last is not None
    assert (last.problem, last.failing_since) == ("", "")
    assert read_failing_since(world.journal_store, MIGRATION) is None


def test_a_sync_that_succeeds_stores_no_report(worlds: Worlds) -> None:
    world = worlds.at("tail", **BY_HAND)
    passes = group_sync.GroupSync(world.context())
    passes._attempt(passes._pass, world.context())
    assert group_sync.last_report(world.context().record) is None


def test_nothing_counts_as_copied_before_a_copier_has_confirmed_it(worlds: Worlds) -> None:
    """Its driver has just begun; what is in the log may be anybody's."""
    world = worlds.at("seed", **BY_HAND)
    world.copiers.leaves.update({KEYS[0]: 0, KEYS[1]: 5})
    results: list[Any] = []

    def act() -> None:
        del world.journal_store.objects["m1/progress/seed.json"]
        world.target.log("A.orders", 0).write(*[b"foreign"] * 5)
        world.source.group("billing", orders_0=3)
        results.append(group_sync.sync_once(world.context()))

    during_the_seed(world, act)
    assert ("A.orders", 0) not in committed(world, "billing")


# -- copies in transactions -------------------------------------------------------------------------------------------


class Merged:
    """A mirror whose partitions are copied in transactions: ``orders-0`` has many pages, the others nothing."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.reads: list[str] = []
        pages = MapPages(world.journal_store, MIGRATION, "orders", 0)
        position = Position(0, 0, OffsetRange(0, 0))
        self._position = position
        for number in range(40):
            run = OffsetRange(number * 10, number * 11, 10)
            self._position = pages.put(self._position.extended([run], number * 10 + 10, 7, 1))
        real, real_list = world.journal_store.get, world.target.log("A.orders", 0)
        real_list.end = self._position.target_offset

        def get(key: str) -> bytes | None:
            if "/transactional-map/" in key:
                self.reads.append(key)
            return real(key)

        def read(_wire: object, _group: str, places: Any) -> dict[Any, Any]:
            return {place: self._position if place == ("A.orders", 0) else None for place in places}

        monkeypatch.setattr(world.journal_store, "get", get)
        monkeypatch.setattr(offset_maps, "read_positions", read)


@pytest.fixture
def merged(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> Merged:
    world = worlds.begin(**BY_HAND, offsets={"mode": "transactional"}, acls={"policy": "skip", "quotas": "skip"})
    seeded = Position(100, 0, OffsetRange(0, 0))
    monkeypatch.setattr(offset_maps, "read_positions", lambda _wire, _group, places: dict.fromkeys(places, seeded))
    for phase in ("plan", "precheck", "topology_copy", "seed"):
        world.run(phase)
    world.enter(State.TAIL)
    world.source.groups.clear()
    return Merged(world, monkeypatch)


def test_passes_read_a_map_only_as_far_back_as_groups_lie(merged: Merged) -> None:
    """A group at the tip, and one that died long ago: nothing is read a second time."""
    world, kept = merged.world, KeptMaps()
    world.source.group("tip", orders_0=395)
    group_sync.sync_once(world.context(), kept=kept)
    assert committed(world, "tip") == {("A.orders", 0): 434}
    assert len(merged.reads) == 1
    world.source.group("dead", orders_0=12)
    group_sync.sync_once(world.context(), kept=kept)
    assert committed(world, "dead") == {("A.orders", 0): 13}
    assert len(merged.reads) == 39, "from the newest page to the second one"
    for _ in range(3):
        group_sync.sync_once(world.context(), kept=kept)
    assert len(merged.reads) == 39


def test_the_passes_of_a_mirror_keep_what_they_have_read(merged: Merged) -> None:
    world = merged.world
    world.source.group("dead", orders_0=12)
    passes = group_sync.GroupSync(world.context())
    for _ in range(3):
        passes.once({})
    assert committed(world, "dead") == {("A.orders", 0): 13}
    assert len(merged.reads) == 39


@pytest.mark.parametrize("what", ["position", "page"])
def test_a_map_that_cannot_be_read_holds_up_no_other_partition(
    merged: Merged, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Somebody has altered a position in the mirror's group on the target, or a page of a map is gone."""
    world, good = merged.world, offset_maps.read_positions
    problem = OffsetMapInvalid("somebody has altered it", next_step="look")
    paged = Position(30, 30, OffsetRange(0, 0), page="00000007-gone")
    bad = {("A.state", 0): problem if what == "position" else paged}
    monkeypatch.setattr(offset_maps, "read_positions", lambda *asked: {**good(*asked), **bad})
    world.target.log("A.state", 0).end = 30
    world.source.group("both", orders_0=395, state_0=2)
    result = group_sync.sync_once(world.context())
    assert committed(world, "both") == {("A.orders", 0): 434}
    assert result is not None
    reasons = {item.topic: item.reason for group in result.groups for item in group.offsets}
    text = "altered" if what == "position" else "missing"
    assert text in reasons["state"]
    with Translator(world.context()) as translator:
        assert translator.offset("orders", 0, 395).to_offset == 434
        with pytest.raises(OffsetMapInvalid, match=text):
            translator.offset("state", 0, 2)
        with pytest.raises(OffsetMapInvalid, match=text):
            translator.offset("A.state", 0, 2, "to_source")
        found = {item.from_topic: item for item in translator.group("both")}
    assert found["orders"].to_offset == 434
    assert found["state"].to_offset is None
    assert text in found["state"].reason


def test_nobody_reads_a_growing_map_for_offset_map_json(merged: Merged) -> None:
    """Nothing is decided by it while a mirror runs, and it would have to be read and written as a whole each time."""
    world = merged.world
    world.evidence_store.objects.pop(f"{MIGRATION}/offset-map.json", None)
    tail_job.follow(world.context(), {})
    assert not write_open_map(world.context().record, world.context().target)
    assert merged.reads == []
    assert world.evidence_store.get(f"{MIGRATION}/offset-map.json") is None
    document = offset_maps.build_document(world.context().record, world.context().target, *_ends(world))
    assert len(document.partitions) == 3, "the end of the mirror writes all of them"
    assert len(merged.reads) == 40


def _ends(world: World) -> tuple[dict[Any, int], dict[Any, int]]:
    keys = world.context().record.partitions()
    return dict.fromkeys(keys, 400), dict.fromkeys(keys, 440)


# -- offsets that would expire ----------------------------------------------------------------------------------------

DAYS = 24 * 3600.0


def commits_of(world: World, group: str) -> int:
    return sum(name == group for name, _ in world.target.commits)


@pytest.fixture
def mirrored(worlds: Worlds) -> World:
    world = worlds.at("tail", **SECTIONS)
    world.run("tail")
    group_sync.sync_once(world.context())
    world.target.commits.clear()
    return world


def test_offsets_are_written_again_before_they_are_half_as_old_as_the_target_keeps_them(mirrored: World) -> None:
    """Nobody has joined these groups there: a promotion may come on any day, and the consumers a week later."""
    mirrored.clock.sleep(3 * DAYS)
    group_sync.sync_once(mirrored.context())
    assert mirrored.target.commits == []
    mirrored.clock.sleep(0.5 * DAYS)
    for _ in range(3):
        group_sync.sync_once(mirrored.context())
    assert (commits_of(mirrored, "billing"), commits_of(mirrored, "audit")) == (1, 1)
    mirrored.clock.sleep(3.5 * DAYS)
    group_sync.sync_once(mirrored.context())
    assert commits_of(mirrored, "billing") == 2


def test_the_target_says_for_how_long_it_keeps_them(worlds: Worlds) -> None:
    world = worlds.at("tail", **SECTIONS)
    world.target.broker_configs["offsets.retention.minutes"] = "60"
    world.run("tail")
    group_sync.sync_once(world.context())
    world.target.commits.clear()
    world.clock.sleep(29 * 60)
    group_sync.sync_once(world.context())
    assert world.target.commits == []
    world.clock.sleep(60)
    group_sync.sync_once(world.context())
    assert commits_of(world, "billing") == 1


def test_a_mirror_that_comes_back_from_a_pause_writes_them_again(mirrored: World) -> None:
    """Other processes, for instance: only the journal knows when it was."""
    mirrored.clock.sleep(5 * DAYS)
    mirrored.restart()
    group_sync.sync_once(mirrored.context())
    assert commits_of(mirrored, "billing") == 1


def test_a_group_whose_refresh_fails_is_written_by_the_next_pass(mirrored: World) -> None:
    mirrored.clock.sleep(4 * DAYS)
    refused = mirrored.outside.fail(
        "target.admin.alter_group_offsets", lambda answers: dict.fromkeys(answers, BUSY), times=1
    )
    for _ in range(3):
        group_sync.sync_once(mirrored.context())
    assert refused.times == 0
    assert (commits_of(mirrored, "audit"), commits_of(mirrored, "billing")) == (2, 1), "the first one was refused"
    assert [entry.details["failed"] for entry in mirrored.steps("groups_refreshed")] == [[], ["audit"], []]
    mirrored.clock.sleep(3 * DAYS)
    group_sync.sync_once(mirrored.context())
    assert commits_of(mirrored, "billing") == 1, "the age of all counts from the pass for all"
    mirrored.clock.sleep(0.5 * DAYS)
    group_sync.sync_once(mirrored.context())
    assert commits_of(mirrored, "billing") == 2


def test_a_group_that_clients_use_on_the_target_is_not_written_again(mirrored: World) -> None:
    group = mirrored.target.groups["billing"]
    group.state, group.members = "Stable", ("c1",)
    mirrored.clock.sleep(4 * DAYS)
    group_sync.sync_once(mirrored.context())
    assert commits_of(mirrored, "billing") == 0
