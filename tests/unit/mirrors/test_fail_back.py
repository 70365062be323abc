"""A promoted mirror fails back between simulated clusters: exactly, and past records nobody mirrored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from phase_world.jobs import SimCopiers, SimVerifier
from phase_world.logs import NOW_MS
from phase_world.outside import Killed
from phase_world.world import KEYS, World, Worlds
from test_mirror_phase import ask, mirror_until

from airflow_provider_kafka_migration.adoption.boundary import boundary_of
from airflow_provider_kafka_migration.adoption.make import make_adoption
from airflow_provider_kafka_migration.checks.adoption import check_adoption
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import IllegalTransition, PrecheckBlocked, SpecInvalid, Terminal
from airflow_provider_kafka_migration.freeze import fence
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.mirrors import group_sync, requests, retention
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.phases.mirrors import finish, mirror
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.way_back import fail_back

SECTIONS: dict[str, Any] = {"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}
ORDERS = ("orders", 0)
REMOTE = {key: (f"A.{key[0]}", key[1]) for key in KEYS}
PHASES = ("plan", "precheck", "topology_copy", "seed")


class MirrorBack(World):
    """The mirror that fails back from a world's promoted mirror, by the derived spec."""

    def __init__(self, world: World, *, first: Any = None, **options: Any) -> None:
        self.world = world
        self.sections = {}
        self.clock, self.outside, self.registries = world.clock, world.outside, world.registries
        self.source, self.target = world.target, world.source
        self.journal_store, self.archive_store = world.journal_store, world.archive_store
        self.evidence_store = world.evidence_store
        world.restart()
        data = fail_back.derive(world.context().record, first=first, **options).model_dump(mode="json", by_alias=True)
        data["adopt"]["stable_window"] = 0
        self.spec = parse_spec(data)
        self.migration_id = self.spec.migration_id
        self.copiers = SimCopiers(self.source, self.target, self.journal_store, self.outside)
        self.verifier = SimVerifier(self.source, self.target, self.outside)
        self._context: PhaseContext | None = None

    def seeded(self) -> MirrorBack:
        for phase in PHASES:
            self.run(phase)
        return self


@pytest.fixture
def world(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(precheck, "CHECKS", {"adopted partitions": check_adoption})
    return worlds.at("tail", **SECTIONS)


@pytest.fixture
def promoted(world: World) -> World:
    """Promoted as planned; clients write to the other side."""
    world.source.log(*ORDERS).write(b"last")
    mirror_until(world, lambda: ask(world, "promoted"))
    for key in KEYS:
        world.target.log(*REMOTE[key]).write(b"new", b"newer")
    return world


def without_source(world: World, *late: bytes, is_marked: bool = False) -> World:
    """Promoted because the source was gone; it had more records by then, or a transaction's marker."""
    mirror_until(world, lambda: ask(world, "paused"))
    if is_marked:
        world.source.log(*ORDERS).write(b"in a transaction", producer_id=9)
        ask(world, "run")
        world.restart()
        mirror_until(world, lambda: ask(world, "paused"))
        marker = Record(0, NOW_MS, b"\x00\x00\x00\x01", bytes(6), [])
        data = encode_batch([marker], producer_id=9, producer_epoch=0, transactional=True, control=True)
        world.source.log(*ORDERS).append(data)
    if late:
        world.source.log(*ORDERS).write(*late)
    ask(world, "promoted", source_gone=True)
    world.restart()
    finish.run(world.context())
    for key in KEYS:
        world.target.log(*REMOTE[key]).write(b"new", b"newer")
    return world


def starts(back: World) -> dict[tuple[str, int], tuple[int, int]]:
    return {
        (topic.name, item.partition): (item.source_start_offset, item.target_start_offset)
        for topic in back.context().record.plan().topics
        for item in topic.partitions
        if item.adopted is not None
    }


def test_a_promotion_fences_its_copiers(promoted: World) -> None:
    record = promoted.context().record
    fence = record.fence()
    assert fence is not None
    assert fence.unfenced == {}
    ends = {REMOTE[key]: promoted.source.log(*key).end for key in KEYS}
    assert fence.markers == ends, "behind the last mirrored record, before those of clients"
    assert {key: item.start.source_offset for key, item in boundary_of(record).items()} == ends


def test_only_what_clients_wrote_comes_back(promoted: World) -> None:
    before = {key: dict(promoted.source.log(*key).values()) for key in KEYS}
    ends = {key: promoted.source.log(*key).end for key in KEYS}
    back = MirrorBack(promoted).seeded()
    assert starts(back) == {REMOTE[key]: (ends[key], ends[key]) for key in KEYS}
    for key in KEYS:
        old, new = promoted.source.log(*key), promoted.target.log(*REMOTE[key])
        assert old.end == new.end, "equal offsets"
        assert before[key].items() <= old.values().items()
        since = {offset: value for offset, value in new.values().items() if offset >= ends[key]}
        assert since == {offset: value for offset, value in old.values().items() if offset >= ends[key]}
        assert sorted(since.values()) == [b"new", b"newer"]
    assert set(promoted.source.topics) == {"orders", "state"}, "no topic under another name"


def test_it_goes_on_is_promoted_and_leads_forth_again(promoted: World) -> None:
    groups = promoted.spec.groups.model_copy(update={"on_deleted": "repair"})
    first = promoted.spec.model_copy(update={"groups": groups})
    back = MirrorBack(promoted).seeded()
    promoted.target.group("billing", **{"A.orders_0": 8, "A.orders_1": 11})
    mirror_until_of(back, "promoted")
    assert back.state is State.PROMOTED
    assert {key: item.offset for key, item in promoted.source.groups["billing"].offsets.items()} == {
        ("orders", 0): 8,
        ("orders", 1): 11,
    }
    for key in KEYS:
        promoted.source.log(*key).write(b"at home")
    forth = MirrorBack(back, first=first).seeded()
    assert (forth.spec.mirror.naming, forth.spec.groups.on_deleted) == ("default", "repair")
    for key in KEYS:
        assert promoted.target.log(*REMOTE[key]).values() == promoted.source.log(*key).values()
    assert "A.A.orders" not in promoted.target.topics


def mirror_until_of(world: World, want: Any, act: Callable[[], object] = lambda: None) -> None:
    def then() -> None:
        world.copiers.then = lambda: None
        act()
        requests.write(world.journal_store, world.migration_id, want, by="ann", at="2026-04-24T11:00:00Z")
        requests.stop_if_asked(world.context().record, world.context().source)
        world.copiers.copy(world.copiers.submitted[-1])

    world.enter(State.TAIL)
    world.copiers.then = then
    mirror.run(world.context())


def test_records_that_nobody_mirrored_block_by_name(world: World) -> None:
    back = MirrorBack(without_source(world, b"lost", b"too"))
    back.run("plan")
    adoption = back.context().record.adoption()
    assert adoption is not None
    assert [(item.topic, item.partition) for item in adoption.refused] == [("A.orders", 0)]
    assert "offsets 5 to 6 of orders-0 were never mirrored" in adoption.refused[0].reason
    with pytest.raises(PrecheckBlocked, match="B120"):
        back.run("precheck")


def test_diverged_partitions_are_left_out_and_all_others_go_on(world: World) -> None:
    back = MirrorBack(without_source(world, b"lost", b"too"), on_diverged="note")
    kept = dict(world.source.log(*ORDERS).values())
    back.run("plan")
    findings = {item.code: item.seen for item in precheck.find_all(back.context(), back.context().record.plan())}
    assert "A.orders-0: offsets 5 to 6 of orders-0 were never mirrored" in findings["W125"]
    for phase in PHASES[1:]:
        back.run(phase)
    assert world.source.log(*ORDERS).values() == kept, "nothing is appended, nothing is overwritten"
    assert REMOTE[ORDERS] not in back.context().record.partitions()
    for key in KEYS[1:]:
        assert world.source.log(*key).values() == world.target.log(*REMOTE[key]).values()
    back.enter(State.TAIL)
    mirror_until_of(back, "paused", lambda: follow.follow(back.context()))
    assert REMOTE[ORDERS] not in back.context().record.partitions()
    assert back.steps(steps.PLAN_SUPPLEMENTED) == [], "it is not taken for a new partition"
    assert world.source.log(*ORDERS).values() == kept


def test_records_follow_behind_those_that_nobody_mirrored(world: World) -> None:
    back = MirrorBack(without_source(world, b"lost", b"too"), on_diverged="repair").seeded()
    assert starts(back)[REMOTE[ORDERS]] == (5, 7)
    assert starts(back)["A.orders", 1] == (10, 10)
    values = [value for _, value in sorted(world.source.log(*ORDERS).values().items())]
    assert values == [b"a", b"b", b"c", b"d", b"e", b"lost", b"too", b"new", b"newer"]
    verdicts = {
        (topic.name, item.partition): item.verdict
        for topic in back.context().record.plan().topics
        for item in topic.partitions
    }
    assert verdicts[REMOTE[ORDERS]] is Verdict.SHIFTED
    assert verdicts["A.orders", 1] is Verdict.EQUAL


def test_a_source_that_ends_in_markers_has_lost_nothing(world: World) -> None:
    """The fence took the marker's offset on the promoted side, so offsets stay equal."""
    back = MirrorBack(without_source(world, is_marked=True)).seeded()
    assert starts(back)[REMOTE[ORDERS]] == (7, 7)
    assert world.source.log(*ORDERS).values() == world.target.log(*REMOTE[ORDERS]).values()


def test_a_mirror_that_is_not_promoted_has_no_boundary(world: World) -> None:
    with pytest.raises(Terminal, match="nothing to fail back from: the mirror is seeding"):
        fail_back.derive(world.context().record)
    with pytest.raises(Terminal, match="has no boundary to fail back from"):
        boundary_of(world.context().record)


def test_a_mirror_is_not_the_way_back_of_a_migration(worlds: Worlds, promoted: World) -> None:
    back = MirrorBack(promoted)
    back.spec = parse_spec(
        {**back.spec.model_dump(mode="json", by_alias=True), "adopt": {"from": "way_back", "migration_id": "m1"}}
    )
    back.restart()
    with pytest.raises(SpecInvalid, match=r"m1 is a mirror, but adopt\.from asks for the end of a migration"):
        back.run("plan")


@pytest.mark.parametrize("naming", ["identity", "default"])
def test_names_lead_back(worlds: Worlds, naming: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precheck, "CHECKS", {"adopted partitions": check_adoption})
    world = worlds.at("tail", kind="mirror", mirror={"source_alias": "A", "target_alias": "B", "naming": naming})
    mirror_until(world, lambda: ask(world, "promoted"))
    spec = fail_back.derive(world.context().record)
    prefix = "" if naming == "identity" else "A."
    assert [spec.topics.target_name(f"{prefix}{name}") for name in ("orders", "state")] == ["orders", "state"]
    assert spec.topics.selects(f"{prefix}orders")
    assert spec.topics.selects("appeared") is (naming == "identity")
    assert (spec.mirror.source_alias, spec.mirror.target_alias) == ("B", "A")
    assert spec.topology.on_config_drift == "note"


def test_no_group_of_the_old_side_is_deleted(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precheck, "CHECKS", {"adopted partitions": check_adoption})
    world = worlds.at("tail", **SECTIONS, groups={"on_deleted": "repair", "sync_interval": "9s"})
    mirror_until(world, lambda: ask(world, "promoted"))
    first = world.spec
    back = fail_back.derive(world.context().record)
    assert (back.groups.on_deleted, back.groups.sync_interval) == ("note", first.groups.sync_interval)


def test_under_equal_names_new_topics_go_back_too(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precheck, "CHECKS", {"adopted partitions": check_adoption})
    world = worlds.at("tail", kind="mirror", mirror={"source_alias": "A", "target_alias": "B", "naming": "identity"})
    mirror_until(world, lambda: ask(world, "promoted"))
    world.target.log(*ORDERS).write(b"new")
    world.target.create("appeared").logs[0].write(b"first")
    MirrorBack(world).seeded()
    for key in (*KEYS, ("appeared", 0)):
        assert world.source.log(*key).values() == world.target.log(*key).values()
    assert b"new" in world.source.log(*ORDERS).values().values()


def test_a_promotion_that_dies_after_its_journal_entry_is_completed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    real = fence.write_fence
    monkeypatch.setattr(fence, "write_fence", dies)
    with pytest.raises(KeyboardInterrupt):
        mirror_until(world, lambda: ask(world, "promoted"))
    monkeypatch.setattr(fence, "write_fence", real)
    assert world.state is State.TAIL
    world.restart()
    # Whatever is asked for now, clients may have been told already.
    ask(world, "run")
    submitted = len(world.copiers.submitted)
    mirror.run(world.context())
    assert len(world.copiers.submitted) == submitted, "nothing is copied any more"
    assert world.state is State.PROMOTED
    fenced = world.context().record.fence()
    assert fenced is not None
    assert len(fenced.markers) == 3
    ask(world, "ended")
    with pytest.raises(IllegalTransition):
        finish.run(world.context())


def tailing(back: MirrorBack, monkeypatch: pytest.MonkeyPatch) -> MirrorBack:
    """The mirror back has copied everything, and still mirrors by its journal."""
    monkeypatch.setattr(retention, "_CATCH_UP_SECONDS", 0.0)

    def die() -> None:
        raise Killed

    back.enter(State.TAIL)
    back.copiers.reported = die
    with pytest.raises(Killed):
        mirror.run(back.context())
    back.copiers.reported = lambda: None
    back.restart()
    return back


@pytest.mark.parametrize("policy", ["own", "source"])
def test_what_the_mirror_back_never_wrote_stays(promoted: World, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """The promoted side has not what the old side has: its log start says nothing about that."""
    back = MirrorBack(promoted).seeded()
    assert back.spec.mirror.target_retention == "own"
    section = back.spec.mirror.model_copy(update={"target_retention": policy})
    back.spec = back.spec.model_copy(update={"mirror": section})
    back.restart()
    tailing(back, monkeypatch)
    before = dict(promoted.source.log(*ORDERS).values())
    promoted.target.log(*REMOTE[ORDERS]).cut(promoted.target.log(*REMOTE[ORDERS]).end - 1)
    for _ in range(2):
        assert retention.retain_once(back.context()).moved == {}
    assert promoted.source.log(*ORDERS).values() == before
    assert promoted.source.topics["orders"].configs["retention.ms"] == "86400000", "the brokers delete by it"


@pytest.mark.parametrize("policy", ["source", "own", "keep"])
def test_the_derived_spec_never_follows_log_starts(world: World, policy: str) -> None:
    world.change_spec(mirror={**SECTIONS["mirror"], "target_retention": policy})
    mirror_until(world, lambda: ask(world, "promoted"))
    wanted = "keep" if policy == "keep" else "own"
    assert fail_back.derive(world.context().record).mirror.target_retention == wanted
    assert fail_back.derive(world.context().record, first=world.spec).mirror.target_retention == wanted


def test_what_was_left_out_once_is_left_out_on_the_next_way(world: World) -> None:
    """Both sides have records that the other lacks; nobody is told to delete clients' records."""
    first = world.spec
    without_source(world, b"lost", b"too")
    back = MirrorBack(world, on_diverged="note").seeded()
    mirror_until_of(back, "promoted")
    before = world.target.log(*REMOTE[ORDERS]).values()
    forth = MirrorBack(back, first=first).seeded()
    adoption = forth.context().record.adoption()
    assert adoption is not None
    assert adoption.refused == []
    [left] = adoption.left_out
    assert (left.topic, left.partition) == ORDERS
    assert left.reason.startswith(f"{back.migration_id} copied nothing to this partition")
    mirror_until_of(forth, "paused")
    assert world.target.log(*REMOTE[ORDERS]).values() == before


def test_records_without_a_boundary_are_refused_by_the_plan(world: World) -> None:
    """A topic that both sides have, and that was never mirrored."""
    without_source(world)
    for state in (world.source, world.target):
        state.create("elsewhere", 1)
        state.log("elsewhere").write(b"of somebody")
    back = MirrorBack(world)
    back.spec = back.spec.model_copy(
        update={"topics": back.spec.topics.model_copy(update={"include": [*back.spec.topics.include, "elsewhere"]})}
    )
    back.run("plan")
    adoption = back.context().record.adoption()
    assert adoption is not None
    refused = {item.topic: item.reason for item in adoption.refused}
    assert list(refused) == ["elsewhere"]
    assert refused["elsewhere"].endswith("so nobody knows where a copy would begin; exclude the topic")
    with pytest.raises(PrecheckBlocked):
        back.run("precheck")
    result = back.context().record.precheck()
    assert result is not None
    found = {item.code: item.fix for item in result.findings if item.subject.startswith("elsewhere")}
    assert "B120" in found
    assert "delete" not in " ".join(found.values())


@pytest.mark.parametrize("again", [False, True])
def test_a_former_source_that_has_lost_records_is_left_out_by_policy(world: World, again: bool) -> None:
    """Its unclean leader has other records below the boundary, or ends below it."""
    without_source(world)
    log = world.source.log(*ORDERS)
    log.batches, log.end = log.batches[:0], 0
    log.write(b"a", b"b", b"c", *([b"x", b"y"] if again else []))
    refused = MirrorBack(world)
    refused.run("plan")
    adoption = refused.context().record.adoption()
    assert adoption is not None
    assert [(item.topic, item.partition) for item in adoption.refused] == [REMOTE[ORDERS]]
    spec = refused.spec.adopt
    assert spec is not None
    policy = refused.spec.model_copy(update={"adopt": spec.model_copy(update={"on_diverged": "note"})})
    context = replace(refused.context(), spec=policy)
    made = make_adoption(context, refused.context().record.plan().topics)
    assert made is not None
    assert made.document.refused == []
    [left] = made.document.left_out
    assert ("the logs differ" if again else "has lost records that were mirrored") in left.reason
    assert left.reason.endswith("nothing is copied to this partition (adopt.on_diverged)")


def test_groups_of_a_partition_that_is_left_out_are_told_so(world: World) -> None:
    without_source(world, b"lost", b"too")
    world.target.group("billing", **{"A.orders_0": 6})
    back = MirrorBack(world, on_diverged="note").seeded()
    results: list[Any] = []
    mirror_until_of(back, "paused", lambda: results.append(group_sync.sync_once(back.context())))
    [found] = [
        item for group in results[0].groups for item in group.offsets if (item.topic, item.partition) == REMOTE[ORDERS]
    ]
    assert found.target_offset is None
    assert found.reason.startswith("nothing is copied to the partition: ")
