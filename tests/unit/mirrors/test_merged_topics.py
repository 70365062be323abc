"""Topics with the records of both clusters (identity in both directions): no flow changes what is on the other side."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.logs import Log
from phase_world.world import World, Worlds, without_probes

from airflow_provider_kafka_migration.access import permissions
from airflow_provider_kafka_migration.checks import access, merged
from airflow_provider_kafka_migration.checks.topics import check_present
from airflow_provider_kafka_migration.copy.provenance import ProvenanceMarker
from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange, TopicRules
from airflow_provider_kafka_migration.drift.source_drift import read_drift
from airflow_provider_kafka_migration.errors import Terminal, Where
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch
from airflow_provider_kafka_migration.mirrors import ending, verification
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from airflow_provider_kafka_migration.planning import make
from airflow_provider_kafka_migration.planning.verdicts import topic_plan
from airflow_provider_kafka_migration.topics import bring, copy_settings, topics_gone

MERGED: dict[str, Any] = {
    "kind": "mirror",
    "mirror": {
        "source_alias": "A",
        "target_alias": "B",
        "naming": "identity",
        "two_way": True,
        "sync_groups": False,
        "max_hops": 2,
    },
    "offsets": {"mode": "transactional"},
    "acls": {"policy": "skip", "quotas": "skip"},
    "topology": {"follow_new": True, "on_source_drift": "repair"},
}


@pytest.fixture(autouse=True)
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


@pytest.fixture
def world(worlds: Worlds) -> World:
    """``orders`` is on both clusters, with other configs and records of its own; ``state`` is only on the source."""
    world = worlds.begin(**MERGED)
    orders = world.target.create("orders", 2, retention_ms="1000", message_timestamp_type="LogAppendTime")
    orders.logs[0].write(b"first written here")
    for phase in ("plan", "precheck", "topology_copy"):
        world.run(phase)
    return world


def test_no_config_is_set_and_a_missing_topic_gets_its_own(world: World) -> None:
    there = world.target.topics
    assert there["orders"].configs == {"retention.ms": "1000", "message.timestamp.type": "LogAppendTime"}
    assert there["state"].configs == {"cleanup.policy": "compact"}, "not those of a copy: producers may begin"
    assert list(there["orders"].logs[0].values().values()) == [b"first written here"]
    plan = world.context().record.plan()
    assert {item.verdict for topic in plan.topics for item in topic.partitions} == {Verdict.TRANSACTIONAL}
    assert all(topic.merged and topic.shared for topic in plan.topics)
    settings = world.context().record.copy_settings()
    assert settings is not None
    assert settings.topics == {}


def test_configs_that_people_change_stay_whatever_the_mirror_does(world: World) -> None:
    there = world.target.topics
    for topic in there.values():
        topic.configs["retention.ms"] = "77"
    world.source.topics["orders"].configs["retention.ms"] = "5"
    context = world.context()
    assert not read_drift(context.record, context.source, context.target, context.record.plan()).configs
    world.run("topology_copy")
    copy_settings.restore_producer_visible(context.record, context.target)
    assert ending.put_back(context) == []
    copy_settings.set_copy_time_again(context.record, context.target)
    assert [topic.configs["retention.ms"] for topic in there.values()] == ["77", "77"]


def test_partitions_grow_on_both_sides(world: World) -> None:
    """A key has the same partition on both, so the other side grows, too; it never shrinks."""
    context = world.context()
    world.source.topics["orders"].logs.append(Log(0, 0))
    world.target.topics["state"].logs.append(Log(0, 0))
    world.run("topology_copy")
    assert len(world.target.topics["orders"].logs) == 3
    assert len(world.target.topics["state"].logs) == 2
    plan = context.record.plan()
    bring.make_new_partitions(context, plan, {("orders", 2)})
    assert world.target.topics["orders"].configs["retention.ms"] == "1000"


def test_a_topic_that_was_created_by_the_mirror_stays_merged_in_a_later_plan(world: World) -> None:
    context = world.context()
    found = make.source_snapshot.read_source(context)
    target = make.target_topics(context.record, context.target, context.record.plan().target, sorted(found.topics), {})
    assert "state" in target.ours
    assert topic_plan(context.spec, found.topics["state"], found, target).merged


def test_copiers_get_the_ids_of_both_clusters(world: World) -> None:
    record = world.context().record
    assert copy_jobs.provenance_settings(record.spec, record.plan()) == ProvenanceSettings(
        header="kafka-migration.provenance", source_cluster_id="source-id", target_cluster_id="target-id", max_hops=2
    )
    nameless = record.plan().model_copy(update={"target": record.plan().target.model_copy(update={"cluster_id": ""})})
    with pytest.raises(Terminal, match="reports no cluster id"):
        copy_jobs.provenance_settings(record.spec, nameless)


def test_other_mirrors_mark_nothing(worlds: Worlds) -> None:
    sections = {**MERGED, "mirror": {**MERGED["mirror"], "two_way": False}}
    record = worlds.at("precheck", **sections).context().record
    assert copy_jobs.provenance_settings(record.spec, record.plan()) is None
    assert not any(topic.merged for topic in record.plan().topics)


def test_content_without_the_header_is_named(world: World) -> None:
    (item,) = check_present(world.context(), world.context().record.plan())
    assert (item.code, item.subject) == ("W028", "orders")
    assert "without the header kafka-migration.provenance count as first written there" in item.seen


@pytest.mark.parametrize("is_marked", [True, False])
def test_contents_are_compared_with_the_mark(world: World, monkeypatch: pytest.MonkeyPatch, is_marked: bool) -> None:
    monkeypatch.setattr(verification, "_map_again", lambda *_: None)
    context = world.context()
    settings = copy_jobs.provenance_settings(context.spec, context.record.plan())
    assert settings is not None
    marker = ProvenanceMarker(settings, "orders", 0)
    source, target = world.source.topics["orders"].logs[0], world.target.topics["orders"].logs[0]
    first, shift = target.end, target.end - source.start
    for data in source.batches:
        batch = RawBatch(memoryview(data))
        marked = marker.mark(batch)
        assert isinstance(marked, RawBatch)
        target.put(bytes(marked.data if is_marked else data), batch.base_offset + shift)
    lanes = copy_jobs.lanes_of(
        context.record, context.record.plan(), copy_jobs.planned_partitions(context.spec, context.record.plan())
    )
    item = next(item for lane in lanes for item in lane.partitions if item.key == ("orders", 0))
    compared = ContentRange(
        topic="orders",
        target_topic="orders",
        partition=0,
        verdict=Verdict.TRANSACTIONAL,
        source_start_offset=source.start,
        source_end_offset=source.end,
        target_start_offset=first,
        target_end_offset=target.end,
    )
    offset_map = PartitionMap(
        [OffsetRange(source.start, first)], source_end_offset=source.end, target_end_offset=target.end
    )
    piece = verification._Piece(item, source.end, offset_map, compared)
    rules = TopicRules(compacted=False, delete_retention_ms=86_400_000)
    both = {"orders": verification._Rules(rules, rules)}
    verification._compare_all(context, [piece], both, verification.mirror_settings(context.record), 1, lambda: False)
    assert piece.found is not None
    assert piece.found.outcome == ("equal" if is_marked else "different"), piece.found


def test_nothing_is_compared_in_the_background_where_the_brokers_delete(worlds: Worlds) -> None:
    """Also with ``keep``, which says nothing about topics with the records of both clusters."""
    for two_way in (True, False):
        mirror = {**MERGED["mirror"], "two_way": two_way, "target_retention": "keep"}
        sections = {**MERGED, "mirror": mirror, "validation": {"before_cutover": True}}
        context = worlds.at("precheck", **sections).context()
        found = copy_jobs.proof_settings(context.record, context.source, context.record.plan())
        assert (found is None) == two_way


# -- precheck ----------------------------------------------------------------------------------------------------------


def _copied(world: World, place: str) -> None:
    """Put a record with a header between the local ones of the target."""
    log = world.target.topics["orders"].logs[0]
    headers = [(b"kafka-migration.provenance", place.encode())]
    log.append(encode_batch([Record(0, 1, b"k", b"first written here", [])]))
    log.append(encode_batch([Record(0, 1, b"k", b"copied", headers)]))
    log.append(encode_batch([Record(0, 1, b"k", b"first written here, too", [])]))


@pytest.mark.parametrize(
    ("place", "position", "is_blocked"),
    [
        ("source-id/orders/0/7", None, True),
        ("source-id/orders/0/7", object(), False),
        ("source-id/orders/1/7", None, False),
        ("source-id/other/0/7", None, False),
        ("another-id/orders/0/7", None, False),
    ],
)
def test_a_mirror_that_forgot_what_it_has_copied_does_not_begin_again(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str, position: object, is_blocked: bool
) -> None:
    monkeypatch.setattr(merged, "read_positions", lambda _wire, _group, keys: dict.fromkeys(keys, position))
    context = world.context()
    _copied(world, place)
    found = [item for item in merged.check_merged(context, context.record.plan()) if item.code == "B037"]
    assert [(item.subject, item.seen) for item in found] == (
        [("orders", "partition 0 at offset 2")] if is_blocked else []
    )
    assert all("arrive twice" in item.fix for item in found)


@pytest.mark.parametrize(("behind", "is_seen"), [(10, True), (400, True), (2000, False)])
def test_copies_are_looked_for_among_the_last_records(
    world: World, monkeypatch: pytest.MonkeyPatch, behind: int, is_seen: bool
) -> None:
    monkeypatch.setattr(merged, "read_positions", lambda _wire, _group, keys: dict.fromkeys(keys))
    _copied(world, "source-id/orders/0/7")
    log = world.target.topics["orders"].logs[0]
    for _ in range(behind // 10):
        log.write(*[b"first written here"] * 10)
    found = merged.check_merged(world.context(), world.context().record.plan())
    assert any(item.code == "B037" for item in found) == is_seen


def test_positions_that_cannot_be_read_are_no_positions_that_are_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = Terminal("no right", where=Where())
    monkeypatch.setattr(merged, "read_positions", lambda _wire, _group, keys: dict.fromkeys(keys, error))
    _copied(world, "source-id/orders/0/7")
    with pytest.raises(Terminal, match="no right"):
        list(merged.check_merged(world.context(), world.context().record.plan()))


def test_a_cluster_without_an_id_is_found_before_anything_is_copied(world: World) -> None:
    plan = world.context().record.plan()
    nameless = plan.model_copy(update={"source": plan.source.model_copy(update={"cluster_id": ""})})
    found = [item for item in merged.check_merged(world.context(), nameless) if item.code == "B038"]
    assert [item.subject for item in found] == ["source"]


def test_what_no_flow_brings_into_line_is_named(world: World) -> None:
    world.target.topics["state"].configs["cleanup.policy"] = "delete"
    context = world.context()
    plan = context.record.plan()
    plan = plan.model_copy(
        update={"topics": [topic.model_copy(update={"exists_on_target": True}) for topic in plan.topics]}
    )
    found = {(item.code, item.subject): item for item in merged.check_merged(context, plan)}
    assert found.keys() == {("W016", "orders"), ("W016", "state"), ("W039", "")}
    assert (
        found["W016", "orders"].seen
        == "message.timestamp.type is LogAppendTime on the target, CreateTime on the source"
    )
    assert found["W016", "state"].seen == "cleanup.policy is delete on the target, compact on the source"
    assert found["W039", ""].details["topics"] == ["state"]
    assert world.target.topics["state"].configs["cleanup.policy"] == "delete"


def test_no_right_is_asked_for_that_changes_configs_or_deletes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    context = world.context()
    plan = context.record.plan()
    for item in permissions.needed(context.spec, plan):
        if (item.side, item.resource_type) == ("target", "TOPIC") and not item.name.startswith("kafka-migration-probe"):
            assert not {"ALTER_CONFIGS", "DELETE"} & set(item.operations), item
    asked: dict[str, set[str]] = {}

    def note(_cluster: object, names: list[str], wanted: dict[str, str]) -> list[object]:
        asked.update({name: set(wanted) for name in names})
        return []

    monkeypatch.setattr(access, "_topics", note)
    list(access._target_topics(context.spec, context.target, plan))
    assert asked == {"orders": {"DESCRIBE_CONFIGS", "READ", "WRITE"}}


def test_nobody_is_told_to_delete_what_was_first_written_there(world: World) -> None:
    context = world.context()
    plan = context.record.plan()
    lanes = copy_jobs.lanes_of(context.record, plan, copy_jobs.planned_partitions(context.spec, plan))
    job = copy_jobs.build_job(context.record, context.source, "tail", lanes)
    texts = [
        job.after_foreign_data("orders", "delete the target topic"),
        topics_gone._gone_error(context.record, "orders", {"why": "it was deleted on the source"}).next_step,
    ]
    for text in texts:
        assert "delete nothing" in text or "delete" not in text.replace("topic_deleted", ""), text
