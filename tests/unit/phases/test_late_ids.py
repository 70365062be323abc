"""Topics whose records get their first schema ids after the plan: judged again, copied again, or named."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.outside import Killed
from phase_world.registries import SECTION, avro, with_id
from phase_world.world import ORDER, World, Worlds

from airflow_provider_kafka_migration.documents.proof import CheckResult
from airflow_provider_kafka_migration.errors import (
    DocumentUnreadable,
    RegistryUnreachable,
    SchemaIdsAppeared,
    SchemaIdsUnsampled,
    Transient,
    ValidationFailed,
)
from airflow_provider_kafka_migration.phases import freeze, tail
from airflow_provider_kafka_migration.planning import follow, late_ids
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.schemas import check
from airflow_provider_kafka_migration.state import State

pytestmark = pytest.mark.slow

TRANSLATE = {**SECTION, "ids": "translate"}
DOWN = RegistryUnreachable("nobody answers")
PLAIN = [b"plain 1", b"plain 2"]


def with_topic(worlds: Worlds, schemas: dict[str, Any], values: list[bytes], until: str) -> World:
    """Return a world with another topic, in which all phases before one have run."""
    world = worlds.at("plan", schemas=schemas)
    log = world.source.create("late").logs[0]
    if values:
        log.write(*values)
    for phase in ORDER[: ORDER.index(until)]:
        world.clock.sleep(1)
        world.run(phase)
    return world


def ids_on_target(world: World, topic: str) -> list[int]:
    values = world.target.log(topic).values().values()
    return [int.from_bytes(value[1:5], "big") for value in values if value is not None and value[:1] == b"\0"]


def id_map(world: World) -> dict[int, int]:
    document = world.context().record.schema_id_map()
    assert document is not None
    return {source: target for _, source, target in document.ids}


def parts_of(world: World, topic: str) -> str:
    found = {item.topic: item.parts for item in world.context().record.schema_topics()}
    return found[topic]


def schema_check(world: World) -> CheckResult:
    result = world.context().record.validation()
    assert result is not None
    found = result.check("schemas")
    assert found is not None
    return found


def assert_named_only(found: CheckResult) -> None:
    """All is right, and the evidence says that no subject is named after the topic."""
    assert (found.outcome, len(found.findings)) == ("WARNING", 1)
    assert "no subject is named late-value" in found.findings[0]


def run_from(world: World, first: str, last: str) -> None:
    for phase in ORDER[ORDER.index(first) : ORDER.index(last) + 1]:
        world.clock.sleep(1)
        world.run(phase)


# -- translated -------------------------------------------------------------------------------------------------------


def test_ids_that_appear_before_the_first_copy_are_translated(worlds: Worlds) -> None:
    world = with_topic(worlds, TRANSLATE, [], "seed")
    assert parts_of(world, "late") == "none"
    world.source.log("late").write(with_id(9))
    world.run("seed")
    assert parts_of(world, "late") == "value"
    assert ids_on_target(world, "late") == [id_map(world)[9]]
    (entry,) = world.steps(steps.SCHEMA_TOPICS_JUDGED)
    assert entry.details["topics"] == {"late": "value"}
    run_from(world, "tail", "validate")
    assert_named_only(schema_check(world))
    assert len(world.steps(steps.SCHEMA_TOPICS_JUDGED)) == 1


@pytest.mark.parametrize("values", [[], PLAIN], ids=["empty", "plain"])
def test_ids_that_appear_in_the_tail_stop_the_cutover_before_the_producers(worlds: Worlds, values: list[bytes]) -> None:
    world = with_topic(worlds, TRANSLATE, values, "tail")
    world.source.log("late").write(with_id(9))
    run_from(world, "tail", "approve_cutover")
    assert ids_on_target(world, "late") == [9], "nobody knew; the id of the source is in the record"
    with pytest.raises(SchemaIdsAppeared, match="late: 1 of 1 sampled values with an id have one") as caught:
        world.run("cutover.freeze")
    assert list(caught.value.details["topics"]) == ["late"]
    assert "delete these topics on the target, then clear tail" in caught.value.next_step
    assert not world.denied
    assert world.state is State.TAIL
    assert parts_of(world, "late") == "none", "never changed while the target has records"


def test_the_next_step_of_the_error_cures_it(worlds: Worlds) -> None:
    world = with_topic(worlds, TRANSLATE, PLAIN, "tail")
    world.source.log("late").write(with_id(9), with_id(3))
    run_from(world, "tail", "approve_cutover")
    with pytest.raises(SchemaIdsAppeared):
        world.run("cutover.freeze")
    world.target.topics.pop("late")
    world.restart()
    run_from(world, "tail", "validate")
    assert ids_on_target(world, "late") == [id_map(world)[9], id_map(world)[3]]
    assert_named_only(schema_check(world))
    assert "3 of 3 ids in records resolve" in schema_check(world).summary


def test_a_run_of_the_tail_changes_no_topic_that_has_records(worlds: Worlds) -> None:
    world = with_topic(worlds, TRANSLATE, PLAIN, "tail")
    world.source.log("late").write(with_id(9))
    world.run("tail")
    world.source.log("late").write(with_id(3))
    world.run("tail")
    assert ids_on_target(world, "late") == [9, 3]
    assert world.steps(steps.SCHEMA_TOPICS_JUDGED) == []


def copied_again(worlds: Worlds) -> World:
    """Return a world whose topic has got ids and was deleted on the target."""
    world = with_topic(worlds, TRANSLATE, PLAIN, "tail")
    world.source.log("late").write(with_id(9))
    world.run("tail")
    world.target.topics.pop("late")
    return world


def test_the_job_has_the_decision_before_the_topic_exists(worlds: Worlds) -> None:
    """A copier that outlives a killed task must not find the new topic with the former decision."""
    world = copied_again(worlds)
    world.outside.fail("target.admin.create_topics", Killed())
    with pytest.raises(Killed):
        tail.run(world.context())
    job = world.context().record.job("tail")
    assert job is not None
    assert job.schema_ids is not None
    assert job.schema_ids.topics["late"].parts == "value"
    assert "late" not in world.target.topics
    world.outside.heal()
    world.restart()
    world.run("tail")
    assert ids_on_target(world, "late") == [id_map(world)[9]]
    assert len(world.steps(steps.SCHEMA_TOPICS_JUDGED)) == 1


def test_a_kill_anywhere_before_the_copy_leaves_no_record_with_the_former_decision(worlds: Worlds) -> None:
    whole = copied_again(worlds)
    # The next run waits for as long as the killed one may own its lanes.
    whole.change_spec(tail={"slice_seconds": 2})
    copy_again = whole.fork()
    copy_again.context()
    copy_again.outside.revive()
    copy_again.outside.fail("copiers.tail", Killed())
    with pytest.raises(Killed):
        tail.run(copy_again.context())
    changes = copy_again.outside.changes
    first = next(number for number, change in enumerate(changes) if "schemas/topics-" in change)
    assert "target.admin.create_topics" in changes[first + 5]
    for count in range(first, len(changes)):
        world = whole.fork()
        world.context()
        world.outside.revive()
        world.outside.dies_after = count
        with pytest.raises(Killed):
            tail.run(world.context())
        world.restart()
        world.run("tail")
        assert ids_on_target(world, "late") == [id_map(world)[9]], count
        assert len(world.steps(steps.SCHEMA_TOPICS_JUDGED)) == 1, count


def test_a_topic_that_appeared_empty_in_the_tail_is_judged_again(worlds: Worlds) -> None:
    world = worlds.at("drain_ready", schemas=TRANSLATE)
    world.source.create("new")
    assert follow.follow(world.context()) == [("new", 0)]
    world.source.log("new").write(with_id(9))
    world.run("tail")
    run_from(world, "drain_ready", "approve_cutover")
    with pytest.raises(SchemaIdsAppeared, match="new: 1 of 1 sampled values"):
        world.run("cutover.freeze")
    assert not world.denied


def test_a_part_that_had_no_ids_so_far_counts_as_well(worlds: Worlds) -> None:
    world = worlds.at("plan", schemas=TRANSLATE)
    late = world.source.create("late").logs[0]
    late.write(with_id(9))
    run_from(world, "plan", "tail")
    assert parts_of(world, "late") == "value"
    before = {item.topic: item for item in world.context().record.schema_topics()}["late"]
    later = before.model_copy(update={"parts": "both", "key_ids": 2, "key_known_ids": 2})
    assert late_ids._late_parts(before, later) == {"key"}
    assert late_ids._late_parts(before, before) == frozenset()
    assert late_ids._late_parts(before, later.model_copy(update={"key_known_ids": 0})) == frozenset(), "by name only"
    assert late_ids._together(before, later.model_copy(update={"parts": "key"})).parts == "both"
    by_spec = before.model_copy(update={"parts": "none", "decided_by": "spec"})
    assert late_ids._sampled(world.context(), ["late"], {"late": by_spec}) == []


def test_what_the_spec_decides_is_never_judged(worlds: Worlds) -> None:
    by_topic = [{"topics": ["late"], "rewrite": "none"}]
    world = with_topic(worlds, {**TRANSLATE, "by_topic": by_topic}, [], "tail")
    world.source.log("late").write(with_id(9))
    run_from(world, "tail", "validate")
    assert ids_on_target(world, "late") == [9]
    assert schema_check(world).outcome == "PASSED"


def test_ids_that_come_with_the_last_records_fail_the_validation_by_name(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = with_topic(worlds, TRANSLATE, [], "cutover.freeze")
    check_before = late_ids.check_before_freeze

    def then_write(context: Any) -> None:
        check_before(context)
        world.source.log("late").write(with_id(9))

    monkeypatch.setattr(freeze.late_ids, "check_before_freeze", then_write)
    run_from(world, "cutover.freeze", "approve_switch")
    with pytest.raises(ValidationFailed, match="topic late: 1 of 1 sampled values"):
        world.run("validate")
    found = schema_check(world)
    assert found.outcome == "FAILED"
    assert "Copy the topic by a migration of its own" in found.findings[0]


def test_a_registry_that_is_down_stops_the_cutover_and_the_validation(worlds: Worlds) -> None:
    world = with_topic(worlds, TRANSLATE, [], "validate")
    world.outside.fail("source.registry.*", DOWN)
    with pytest.raises(RegistryUnreachable):
        world.run("validate")
    assert world.steps(steps.VALIDATED) == []


def test_a_topic_that_cannot_be_sampled_again_stops_the_cutover_before_the_producers(worlds: Worlds) -> None:
    world = with_topic(worlds, TRANSLATE, PLAIN, "cutover.freeze")
    world.source.log("late").write(with_id(9))
    world.outside.fail("source.wire.fetch_once", Transient("the broker does not answer"))
    with pytest.raises(SchemaIdsUnsampled, match="late: the broker does not answer") as caught:
        late_ids.check_before_freeze(world.context())
    assert "late" in caught.value.details["topics"]
    world.outside.heal()
    with pytest.raises(SchemaIdsAppeared):
        late_ids.check_before_freeze(world.context())


def test_one_sample_that_fails_does_not_stop_the_cutover(worlds: Worlds) -> None:
    world = with_topic(worlds, TRANSLATE, PLAIN, "cutover.freeze")
    world.outside.fail("source.wire.fetch_once", Transient("the broker does not answer"), times=1)
    world.run("cutover.freeze")


def test_a_topic_that_cannot_be_sampled_again_fails_the_validation_of_translated_ids(worlds: Worlds) -> None:
    world = with_topic(worlds, TRANSLATE, PLAIN, "validate")
    found = late_ids.judge_again(world.context())
    assert found == late_ids.LateIds()
    world.outside.fail("source.wire.fetch_once", Transient("the broker does not answer"))
    found = late_ids.judge_again(world.context())
    assert not found.missed
    assert "late" in found.unread
    passed = CheckResult(name="schemas", outcome="PASSED", summary="s", findings=[])  # type: ignore[arg-type]
    assert check.with_late_ids(passed, {}, found.unread, translated=False).outcome == "WARNING"
    result = check.with_late_ids(passed, {}, found.unread, translated=True)
    assert result.outcome == "FAILED"
    assert "topic late: its records could not be sampled again" in result.findings[0]
    assert check.with_late_ids(passed, {"late": "x"}, found.unread, translated=False).outcome == "FAILED"


def test_a_decision_that_was_altered_is_refused(worlds: Worlds) -> None:
    world = with_topic(worlds, TRANSLATE, [], "seed")
    world.source.log("late").write(with_id(9))
    world.run("seed")
    (entry,) = world.steps(steps.SCHEMA_TOPICS_JUDGED)
    key = world.context().key(entry.details["document"])
    data = world.journal_store.objects[key]
    world.journal_store.objects[key] = data.replace(b'"value"', b'"key"')
    with pytest.raises(DocumentUnreadable, match="not what was journaled"):
        world.context().record.schema_topics()
    del world.journal_store.objects[key]
    with pytest.raises(DocumentUnreadable, match="missing"):
        world.context().record.schema_topics()


def test_a_seed_that_was_killed_after_the_decision_repeats_nothing(worlds: Worlds) -> None:
    world = with_topic(worlds, TRANSLATE, [], "seed")
    world.source.log("late").write(with_id(9))

    def die() -> None:
        raise Killed

    world.copiers.then = die
    with pytest.raises(Killed):
        world.run("seed")
    world.copiers.then = lambda: None
    world.restart()
    world.source.log("late").write(with_id(3))
    world.run("seed")
    assert len(world.steps(steps.SCHEMA_TOPICS_JUDGED)) == 1
    assert ids_on_target(world, "late") == [id_map(world)[9]]


# -- kept -------------------------------------------------------------------------------------------------------------


def test_kept_ids_that_appear_are_gathered_and_resolved(worlds: Worlds) -> None:
    world = with_topic(worlds, {**SECTION, "ids": "keep"}, PLAIN, "tail")
    world.source.log("late").write(with_id(9), with_id(7))
    run_from(world, "tail", "validate")
    assert parts_of(world, "late") == "value"
    assert schema_check(world).outcome == "PASSED"
    assert "4 of 4 ids in records resolve to the same schema" in schema_check(world).summary


def test_kept_ids_that_appear_and_do_not_resolve_fail_the_validation(worlds: Worlds) -> None:
    world = with_topic(worlds, {**SECTION, "ids": "keep"}, [], "tail")
    world.source.log("late").write(with_id(9))
    run_from(world, "tail", "approve_switch")
    world.registries.seed("target", "state-value", avro("Customer", "another"), id=9)
    with pytest.raises(ValidationFailed, match="schemas"):
        world.run("validate")
    assert any("occurs in records (late-0 at offset 0)" in item for item in schema_check(world).findings)
