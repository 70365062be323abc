"""A migration that adopts the end of another one: planned, checked, brought to the target, and copied in memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from phase_world.admin import UNKNOWN_TOPIC
from phase_world.outside import Killed
from phase_world.way_back import WayBack
from phase_world.world import KEYS, ORDER, World, Worlds

from airflow_provider_kafka_migration.adoption import boundary
from airflow_provider_kafka_migration.adoption.boundary import boundary_of
from airflow_provider_kafka_migration.checks.adoption import check_adoption
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import ForeignData, PrecheckBlocked, SpecInvalid, Terminal
from airflow_provider_kafka_migration.groups.commit import GroupTranslator, read_groups
from airflow_provider_kafka_migration.kafka.admin.producers import PartitionProducers
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.offset_map.below import BelowRange
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.state import State


@pytest.fixture
def switched(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> World:
    """A migration whose clients write to the new cluster."""
    world = worlds.at("validate")
    monkeypatch.setattr(precheck, "CHECKS", {"adopted partitions": check_adoption})
    for key in KEYS:
        world.target.log(*key).write(b"new", b"newer")
    return world


def fields(back: WayBack) -> dict[tuple[str, int], tuple[int, int]]:
    """(source start, target start) of the adopted partitions of the plan."""
    plan = back.context().record.plan()
    return {
        (topic.name, item.partition): (item.source_start_offset, item.target_start_offset)
        for topic in plan.topics
        for item in topic.partitions
        if item.adopted is not None
    }


def findings(back: WayBack) -> dict[str, list[str]]:
    """Subjects of the precheck's findings by code."""
    found: dict[str, list[str]] = {}
    for item in precheck.find_all(back.context(), back.context().record.plan()):
        found.setdefault(item.code, []).append(item.subject)
    return found


def test_each_partition_begins_where_the_copy_ended(switched: World) -> None:
    back = WayBack(switched)
    ends = {key: switched.source.log(*key).end for key in KEYS}
    result = back.run("plan")
    assert "3 partitions adopted" in result.summary
    assert fields(back) == {key: (end, end) for key, end in ends.items()}
    plan, adoption = back.context().record.plan(), back.context().record.adoption()
    assert adoption is not None
    assert {item.verdict for topic in plan.topics for item in topic.partitions} == {Verdict.EQUAL}
    assert plan.estimate is not None
    assert plan.estimate.filler_offsets == 0
    assert (adoption.boundary_of, adoption.refused) == ("m1", [])
    assert adoption.boundary_digest == switched.steps("ready_for_client_switch")[-1].hash
    assert all(item.start.compared_records > 0 and not item.start.note for item in adoption.partitions)
    assert back.run("plan").details["digest"] == result.details["digest"], "two plans are equal"


def test_the_fence_is_the_hole_at_the_boundary(switched: World) -> None:
    fence = switched.context().record.fence()
    assert fence is not None
    assert fence.unfenced == {}
    boundaries = boundary_of(switched.context().record)
    assert fence.markers == {key: item.start.source_offset for key, item in boundaries.items()}


@pytest.mark.parametrize(
    ("producers", "said"),
    [
        (PartitionProducers(), "its leader has forgotten the fence"),
        (PartitionProducers(error=ItemError(29, "TOPIC_AUTHORIZATION_FAILED")), "TOPIC_AUTHORIZATION_FAILED"),
        (None, "its broker cannot describe producers"),
    ],
)
def test_a_fence_that_brokers_have_forgotten_is_named(
    switched: World, monkeypatch: pytest.MonkeyPatch, producers: PartitionProducers | None, said: str
) -> None:
    back = WayBack(switched)
    back.run("plan")
    assert "W126" not in findings(back), "each leader still knows the fence"
    context = back.context()
    describe = context.source.admin.producers

    def answer(keys: Any) -> dict[Any, PartitionProducers]:
        found = describe(keys)
        del found["orders", 1]
        return found if producers is None else {**found, ("orders", 1): producers}

    monkeypatch.setattr(context.source.admin, "producers", answer)
    [warned] = [item for item in precheck.find_all(context, context.record.plan()) if item.code == "W126"]
    assert warned.subject == "m1"
    assert "orders-1: " in warned.seen
    assert said in warned.seen
    assert "orders-0" not in warned.seen


def test_what_clients_wrote_comes_back_at_equal_offsets(switched: World) -> None:
    back = WayBack(switched)
    below = {key: dict(switched.source.log(*key).values()) for key in KEYS}
    for phase in ("plan", "precheck", "topology_copy", "seed"):
        back.run(phase)
    for key in KEYS:
        old, new = switched.source.log(*key), switched.target.log(*key)
        assert old.end == new.end
        assert below[key].items() <= old.values().items(), "nothing below the boundary has changed"
        news = {offset: value for offset, value in new.values().items() if value in (b"new", b"newer")}
        assert news.items() <= old.values().items()
        assert old.start == (5 if key == ("orders", 1) else 0), "no log start is moved"
    assert back.copiers.submitted[-1].partitions[0].adopted


def test_another_partition_of_an_adopted_topic_is_copied_from_its_start(switched: World) -> None:
    switched.target.topics["orders"].logs.append(type(switched.target.log("orders"))(0, 0))
    switched.target.log("orders", 2).write(b"grown")
    back = WayBack(switched)
    for phase in ("plan", "precheck", "topology_copy", "seed"):
        back.run(phase)
    assert ("orders", 2) not in fields(back)
    assert list(switched.source.log("orders", 2).values().values()) == [b"grown"]


def test_a_foreign_write_on_the_old_side_is_refused_by_name(switched: World) -> None:
    switched.source.log("orders", 0).write(b"late")
    back = WayBack(switched)
    back.run("plan")
    adoption = back.context().record.adoption()
    assert adoption is not None
    assert [(item.topic, item.partition) for item in adoption.refused] == [("orders", 0)]
    assert "somebody has written there" in adoption.refused[0].reason
    assert findings(back)["B120"] == ["orders-0"]
    [found] = [item for item in precheck.find_all(back.context(), back.context().record.plan()) if item.code == "B120"]
    assert "way_back.exclude" in found.fix
    with pytest.raises(PrecheckBlocked, match="B120"):
        back.run("precheck")


def test_a_foreign_write_after_the_plan_is_found_by_the_precheck(switched: World) -> None:
    back = WayBack(switched)
    back.run("plan")
    assert "B121" not in findings(back)
    switched.source.log("orders", 0).write(b"late")
    assert findings(back)["B121"] == ["orders-0"]
    [found] = [item for item in precheck.find_all(back.context(), back.context().record.plan()) if item.code == "B121"]
    assert "way_back.exclude" in found.fix
    assert "delete nothing" in found.fix


def test_an_old_topic_that_was_deleted_before_the_plan_is_refused_by_name(switched: World) -> None:
    """A topic that one broker does not show is not one that has never been there."""
    del switched.source.topics["orders"]
    back = WayBack(switched)
    back.run("plan")
    assert findings(back)["B120"] == ["orders-0", "orders-1"]
    adoption = back.context().record.adoption()
    assert adoption is not None
    for item in adoption.refused:
        assert "does not show this topic (UNKNOWN_TOPIC_OR_PARTITION), on which m1 has ended" in item.reason
        assert "clear plan" in item.reason
    with pytest.raises(PrecheckBlocked, match="B120"):
        back.run("precheck")
    assert fields(back).keys() == {("state", 0)}
    assert "orders" not in switched.source.topics


def test_a_partition_that_an_old_topic_does_not_have_any_more_is_refused(switched: World) -> None:
    switched.source.topics["orders"].logs.pop()
    back = WayBack(switched)
    back.run("plan")
    assert findings(back)["B120"] == ["orders-1"]
    assert fields(back).keys() == set(KEYS) - {("orders", 1)}


def test_an_old_topic_that_a_broker_did_not_show_for_a_moment_is_taken_over_by_the_next_plan(switched: World) -> None:
    def hide(answer: dict[str, TopicFacts]) -> dict[str, TopicFacts]:
        return {**answer, "orders": TopicFacts("orders", error=UNKNOWN_TOPIC)} if "orders" in answer else answer

    back = WayBack(switched)
    switched.outside.fail("target.admin.describe_topics", hide)
    back.run("plan")
    switched.outside.heal()
    assert findings(back)["B120"] == ["orders-0", "orders-1"]
    back.run("plan")
    assert "B120" not in findings(back)
    assert fields(back).keys() == set(KEYS)


def test_an_adopted_topic_that_is_deleted_is_never_made_again(switched: World) -> None:
    """On an ordinary target it is created and copied again; here it had content that nobody could copy."""
    back = WayBack(switched)
    for phase in ("plan", "precheck", "topology_copy", "seed"):
        back.run(phase)
    del back.target.topics["orders"]
    with pytest.raises(ForeignData, match="orders-0: it does not exist on the target any more"):
        back.run("seed")
    assert "orders" not in back.target.topics


def test_the_plan_page_shows_where_partitions_begin(switched: World) -> None:
    back = WayBack(switched)
    back.run("plan")
    page = back.stored("plan/plan.md")
    assert page is not None
    end = switched.source.log("orders", 0).end
    assert f"| orders-0 | {end} | {end} | boundary |" in page.decode()
    assert "adopted (way_back, the end of m1): 3 partitions" in page.decode()


def test_a_foreign_write_after_the_precheck_is_found_before_anything_is_changed(switched: World) -> None:
    back = WayBack(switched)
    back.run("plan")
    back.run("precheck")
    switched.source.log("orders", 0).write(b"late")
    configs = {name: dict(topic.configs) for name, topic in switched.source.topics.items()}
    with pytest.raises(ForeignData, match="orders-0: its log ends at") as caught:
        back.run("topology_copy")
    assert "way-back leave-out FILE orders" in caught.value.next_step
    assert "delete nothing" in caught.value.next_step
    assert {name: topic.configs for name, topic in switched.source.topics.items()} == configs


def test_an_open_transaction_on_the_old_side_is_refused(switched: World) -> None:
    log = switched.source.log("orders", 0)
    log.open_from = log.end - 1
    back = WayBack(switched)
    back.run("plan")
    adoption = back.context().record.adoption()
    assert adoption is not None
    assert "a transaction is open" in adoption.refused[0].reason


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_topic_that_was_made_again_is_refused(switched: World, side: str) -> None:
    getattr(switched, side).topics["orders"].topic_id = "another"
    back = WayBack(switched)
    back.run("plan")
    adoption = back.context().record.adoption()
    assert adoption is not None
    assert {item.partition for item in adoption.refused} == {0, 1}
    assert "deleted and created again" in adoption.refused[0].reason


def test_different_last_records_are_refused(switched: World) -> None:
    log = switched.source.log("orders", 0)
    wrong = type(log)(0, 0)
    for _ in range(log.end):
        wrong.write(b"different")
    log.batches = wrong.batches
    back = WayBack(switched)
    back.run("plan")
    adoption = back.context().record.adoption()
    assert adoption is not None
    assert [item.partition for item in adoption.refused] == [0]
    assert "differs" in adoption.refused[0].reason


def test_a_partition_that_is_not_fenced_is_named(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.at("validate", cutover={"freeze": "acl", "fence_copiers": False})
    monkeypatch.setattr(precheck, "CHECKS", {"adopted partitions": check_adoption})
    back = WayBack(world)
    back.run("plan")
    found = findings(back)
    assert "W123" in found
    assert "B120" not in found
    assert fields(back).keys() == set(KEYS)


def test_other_findings_of_copiers_before_us_are_shown(switched: World, monkeypatch: pytest.MonkeyPatch) -> None:
    back = WayBack(switched)
    back.run("plan")
    record = type(back.context().record)
    adoption = back.context().record.adoption()
    assert adoption is not None
    item = adoption.partitions[0]
    earlier = item.start.earlier.model_copy(update={"duplicates": 482})
    changed = item.model_copy(update={"start": item.start.model_copy(update={"earlier": earlier})})
    other = adoption.model_copy(update={"partitions": [changed]})
    monkeypatch.setattr(record, "adoption", lambda _self: other)
    found = findings(back)
    assert found["W122"] == ["orders-0"]
    assert found["I124"] == ["way_back"]


def test_topics_that_were_copied_in_transactions_are_named_with_the_reason(
    switched: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MigrationRecord.offset_map

    def transactional(record: MigrationRecord) -> Any:
        found = real(record)
        if found is None or record.migration_id != "m1":
            return found
        changed = [
            item.model_copy(update={"verdict": Verdict.TRANSACTIONAL}) if item.topic == "state" else item
            for item in found.partitions
        ]
        return found.model_copy(update={"partitions": changed})

    monkeypatch.setattr(MigrationRecord, "offset_map", transactional)
    back = WayBack(switched, topics={"exclude": ["state"]})
    back.run("plan")
    [named] = [item for item in precheck.find_all(back.context(), back.context().record.plan()) if item.code == "W125"]
    assert named.subject == "m1"
    assert "copied in transactions next to other producers" in named.seen
    assert "state" in named.seen
    assert "orders" not in named.seen


def test_a_migration_that_has_not_switched_has_no_boundary(worlds: Worlds) -> None:
    back = WayBack(worlds.at("cutover.freeze"))
    with pytest.raises(Terminal, match="has not handed its clients over"):
        back.run("plan")


def test_an_unknown_migration_has_no_boundary(switched: World) -> None:
    back = WayBack(switched, {"migration_id": "m0"})
    with pytest.raises(SpecInvalid, match="no journal of the migration m0"):
        back.run("plan")


def test_groups_that_lag_behind_the_boundary_keep_their_place(switched: World) -> None:
    switched.target.group("slow", orders_0=1, orders_1=0, state_0=2)
    back = WayBack(switched)
    for phase in ("plan", "precheck", "topology_copy", "seed"):
        back.run(phase)
    context = back.context()
    translator = GroupTranslator.live(context.record, context.target)
    (slow,) = [item for item in read_groups(context.record, context.source) if item.group == "slow"]
    found = {(item.topic, item.partition): item.target_offset for item in translator.translate(slow)}
    assert found == {("orders", 0): 1, ("orders", 1): 5, ("state", 0): 2}


@pytest.mark.parametrize("mapped", [True, False])
def test_below_a_start_that_was_taken_over_without_an_exact_map_nothing_is_skipped(
    switched: World, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    """The migration itself had adopted orders-0 at offset 3, with some offsets of the tool before it, or none."""
    boundaries = boundary_of

    def of_adopted(record: Any) -> Any:
        found = boundaries(record)
        left = found["orders", 0]
        end = left.start.source_offset
        ranges = [BelowRange(1, 1, 1)] if mapped else []
        changed = replace(left, below=[*ranges, BelowRange(3, 3, end - 3)], is_exact=False, copied_from_offset=3)
        return {**found, ("orders", 0): changed}

    monkeypatch.setattr(boundary, "boundary_of", of_adopted)
    switched.target.group("late", orders_0=2)
    back = WayBack(switched)
    back.run("plan")
    assert ("orders", 0) in fields(back), "unknown places are no difference"
    record = back.context().record
    assert not record.maps_below()["orders", 0].is_exact
    translator = GroupTranslator.live(record, back.context().target)
    late = next(item for item in read_groups(record, back.context().source) if item.group == "late")
    answer = translator.translate(late)[0].target_offset
    assert answer is None or answer <= 2
    assert (answer is not None) == mapped


def test_a_way_back_with_translated_ids_says_that_it_compares_nothing(
    switched: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = boundary._compare
    translated = SimpleNamespace(spec=SimpleNamespace(schemas=SimpleNamespace(ids="translate")))

    def of_translated(context: Any, _record: Any, *rest: Any) -> Any:
        return compare(context, translated, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(boundary, "_compare", of_translated)
    back = WayBack(switched)
    back.run("plan")
    adoption = back.context().record.adoption()
    assert adoption is not None
    assert {item.start.compared_records for item in adoption.partitions} == {0}
    assert all("no record before the boundary was compared" in item.start.note for item in adoption.partitions)
    assert "W123" in findings(back)


def through(world: World) -> None:
    """Run all phases of a migration, up to its signed evidence."""
    for phase in ORDER:
        world.clock.sleep(1)
        world.run(phase)
    assert world.state is State.FINALIZED


def test_there_and_back_and_there_again(switched: World) -> None:
    """Each way is a whole migration with cutover, groups, validation and evidence; each begins at the last one's end.

    The fence of each of them takes one offset, which everything that compares ends and counts knows.
    """
    for phase in ("validate", "evidence"):
        switched.run(phase)
    world: World = switched
    ends = {key: switched.target.log(*key).end for key in KEYS}
    for life, name in enumerate((b"back", b"there"), 1):
        way = WayBack(world)
        through(way)
        for key in KEYS:
            here, there = way.source.log(*key), way.target.log(*key)
            assert there.end == here.end + 1, "the fence of this migration"
            assert here.values() == there.values()
            assert there.end > ends[key]
            ends[key] = there.end
            there.write(b"%s-%d" % (name, life))
        artifacts = way.context().record.adoption()
        assert artifacts is not None
        assert artifacts.boundary_of == world.spec.migration_id
        assert artifacts.refused == []
        world = way
    assert world.spec.migration_id == "m1.back.back"


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["plan", "topology_copy", "seed"])
def test_a_killed_phase_ends_where_it_would_have(switched: World, phase: str) -> None:
    before = ["plan", "precheck", "topology_copy", "seed"]

    def begun(world: World) -> WayBack:
        back = WayBack(world)
        for name in before[: before.index(phase)]:
            back.run(name)
        back.context()
        world.outside.revive()
        return back

    def outcome(back: WayBack) -> Any:
        world = back.world
        logs = {key: (world.source.log(*key).end, world.source.log(*key).values()) for key in KEYS}
        configs = {name: topic.configs for name, topic in world.source.topics.items()}
        return logs, configs, fields(back)

    whole = begun(switched.fork())
    whole.run(phase)
    count = len(whole.world.outside.changes)
    assert count > 1
    for number in range(count):
        back = begun(switched.fork())
        back.world.outside.dies_after = number
        with pytest.raises(Killed):
            back.run(phase)
        back.restart()
        back.run(phase)
        assert outcome(back) == outcome(whole), f"killed after change {number}"


def test_the_journals_are_two(switched: World) -> None:
    entries = len(switched.context().journal.entries())
    WayBack(switched).run("plan")
    switched.context().journal.refresh()
    assert len(switched.context().journal.entries()) == entries
    assert any(key.startswith("m1.back/") for key in switched.journal_store.objects)
