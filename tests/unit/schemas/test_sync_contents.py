"""What schemas are made of, through whole passes: JSON references, rule sets, normalized texts, latest versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from registry_world import World, avro, reference, world

from airflow_provider_kafka_migration.documents.schemas import SchemaCheck, SchemaPlan
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.schemas.sync import selection_of
from airflow_provider_kafka_migration.schemas.verify import FoundInRecords, compare_registries
from harness.fake_registry import CONFLUENT_WITH_RULES

pytestmark = pytest.mark.slow

MODES = pytest.mark.parametrize("ids", ["keep", "translate"])
RULES = {"domainRules": [{"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "message.x > 0"}]}


def planned(at: World) -> SchemaPlan:
    """The plan of the last pass, which must have changed something."""
    record = at.context.record
    result = record.schemas_result()
    assert result is not None
    data = record.journal_store.get(record.key(keys.schema_plan(result.plan_digest)))
    assert data is not None
    return SchemaPlan.parse(data)


def validated(at: World) -> SchemaCheck:
    """Both registries compared as validation does it, with all ids of the source in records."""
    document, plan = at.id_map(), planned(at)
    found = FoundInRecords(ids={(context, source): "orders-0 at offset 3" for context, source, _ in document.ids})
    selection = selection_of(at.context.record)
    with at.pair() as pair:
        return compare_registries(
            pair.source, pair.target, plan, document, found, selection=selection, at="2026-01-01T00:00:00Z"
        )


def assert_equal_and_settled(at: World, *, unread: tuple[str, ...] = ()) -> None:
    """The target holds the source's schemas, and another pass writes nothing."""
    check = validated(at)
    assert check.differences == []
    assert tuple(check.unread) == unread
    assert check.ids_resolved == check.ids_in_records == len(at.id_map().ids)
    at.target.requests.clear()
    again = at.synchronize()
    assert (again.registered, again.failed, at.target.writes) == (0, [], [])


def notes(at: World) -> str:
    return "\n".join(planned(at).notes)


# -- JSON Schema ---


def json_schema(title: str, **properties: Any) -> str:
    shape = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "title": title}
    return json.dumps({**shape, "properties": properties})


@MODES
def test_json_references_over_two_levels_follow_renames(tmp_path: Path, ids: str) -> None:
    rename = {"prefix": "eu-", "subjects": {"city": "places.city"}}
    with world(tmp_path, ids=ids, include=["orders-value", "city"], rename=rename) as at:
        at.target.seed("foreign", avro("F", "x"), id=70)
        at.source.seed("city", json_schema("Old", name={"type": "integer"}), id=7, version=2, kind="JSON")
        at.source.seed("city", json_schema("City", name={"type": "string"}), id=8, version=5, kind="JSON")
        at.source.store.configs["city"] = {"compatibilityLevel": "NONE"}
        address = json_schema("Address", city={"$ref": "city.json"})
        at.source.seed("address", address, id=9, kind="JSON", references=[reference("city.json", "city", 5)])
        order = json_schema("Order", to={"$ref": "address.json#/properties/city"})
        at.source.seed("orders-value", order, id=12, kind="JSON", references=[reference("address.json", "address")])
        result = at.synchronize()
        # The filter leaves out the address, which moves because the order refers to it.
        assert (result.registered, result.failed) == (4, [])
        contents = {
            (name, number): version.content
            for name, versions in at.target.store.subjects.items()
            for number, version in versions.items()
        }
        city = 5 if ids == "keep" else 2
        assert contents[("eu-orders-value", 1)].references == (("address.json", "eu-address", 1),)
        assert contents[("eu-address", 1)].references == (("city.json", "places.city", city),)
        assert json.loads(contents[("places.city", city)].text)["title"] == "City"
        # The names by which the texts refer to others stay as they are.
        assert '"$ref":"address.json#/properties/city"' in contents[("eu-orders-value", 1)].text
        kept = {7: 7, 8: 8, 9: 9, 12: 12}
        assert at.ids() == (kept if ids == "keep" else {7: 71, 8: 72, 9: 73, 12: 74})
        assert_equal_and_settled(at)


def test_json_references_that_the_target_refuses_are_named(tmp_path: Path) -> None:
    with world(tmp_path, kind="karapace", ids="translate") as at:
        at.source.seed("city", json_schema("City"), id=1, kind="JSON")
        address = json_schema("Address", city={"$ref": "city.json"})
        at.source.seed("address", address, id=2, kind="JSON", references=[reference("city.json", "city")])
        result = at.synchronize()
        assert [(item.subject, item.error["code"]) for item in result.failed] == [("address", "SCHEMA_INVALID")]
        assert at.ids() == {1: 1}


# -- metadata and rule sets ---


@MODES
def test_rule_sets_arrive_where_the_target_keeps_them(tmp_path: Path, ids: str) -> None:
    with world(tmp_path, kind=CONFLUENT_WITH_RULES, source_kind=CONFLUENT_WITH_RULES, ids=ids) as at:
        metadata = {"properties": {"owner": "me"}, "tags": {"**.x": ["PII"]}}
        at.source.seed("a-value", avro("A", "x"), id=5, metadata=metadata, rule_set=RULES)
        at.source.seed("b-value", avro("B", "x"), id=6)
        assert at.synchronize().failed == []
        content = at.target.store.subjects["a-value"][1].content
        assert (content.rule_set, content.metadata["properties"]) == (RULES, {"owner": "me"})
        assert "1 subject (a-value)" in notes(at)
        assert at.target.store.subjects["b-value"][1].content.rule_set == {}
        assert_equal_and_settled(at)


@MODES
def test_a_rule_set_that_is_added_later_arrives(tmp_path: Path, ids: str) -> None:
    """The text is the same, so only the rule set makes it another schema, with another id."""
    with world(tmp_path, kind=CONFLUENT_WITH_RULES, source_kind=CONFLUENT_WITH_RULES, ids=ids) as at, at.pair() as pair:
        at.source.seed("a-value", avro("A", "x"), id=5)
        at.synchronize("tail", pair)
        at.source.seed("a-value", avro("A", "x"), id=9, version=2, rule_set=RULES)
        result = at.synchronize("tail", pair)
        assert (result.registered, result.failed) == (1, [])
        versions = at.target.store.subjects["a-value"]
        assert [item.content.rule_set for item in versions.values()] == [{}, RULES]
        assert at.ids() == ({5: 5, 9: 9} if ids == "keep" else {5: 1, 9: 2})
        assert_equal_and_settled(at)


def test_a_rule_set_that_the_target_drops_is_named(tmp_path: Path) -> None:
    with world(tmp_path, source_kind=CONFLUENT_WITH_RULES, ids="translate") as at:
        at.source.seed("a-value", avro("A", "x"), id=5)
        at.source.seed("a-value", avro("A", "x"), id=9, version=2, rule_set=RULES)
        assert at.synchronize().failed == []
        assert "does not show before" in notes(at)
        assert at.ids() == {5: 1, 9: 1}
        at.source.seed("b-value", avro("B", "x"), id=10)
        at.synchronize()
        assert "has schemas of 1 subject (a-value) without their rule sets" in notes(at)
        assert_equal_and_settled(at, unread=("rule set of a-value, version 2",))


# -- normalized texts ---

BASE = 'syntax = "proto3";\npackage b;\nmessage Addr { string city = 1; }\n'
ORDER = (
    'syntax = "proto3";\npackage t;\nimport "google/protobuf/timestamp.proto";\nimport "addr.proto";\n'
    "message Order {\n  message Line { int32 n = 1; }\n  repeated Line lines = 1;\n  b.Addr to = 2;\n}\n"
)


def seed_protobuf(at: World) -> None:
    at.source.seed("addr", BASE, id=4, kind="PROTOBUF")
    at.source.seed(
        "orders-value", ORDER, id=6, version=3, kind="PROTOBUF", references=[reference("addr.proto", "addr")]
    )


def test_protobuf_that_the_target_normalizes(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", normalize=True) as at:
        at.target.seed("foreign", avro("F", "x"), id=70)
        seed_protobuf(at)
        result = at.synchronize()
        assert (result.registered, result.failed) == (2, [])
        assert at.ids() == {4: 71, 6: 72}
        assert "repeated .t.Order.Line lines = 1;\n  .b.Addr to = 2;" in at.text("orders-value", 1)
        assert_equal_and_settled(at)


def test_protobuf_under_a_level_that_normalizes_keeps_its_id(tmp_path: Path) -> None:
    """The target registry normalizes whatever it registers; the id in records stays."""
    with world(tmp_path, ids="keep") as at:
        at.target.store.config = {"normalize": True, "compatibilityLevel": "BACKWARD"}
        seed_protobuf(at)
        result = at.synchronize()
        assert (result.registered, result.failed) == (2, [])
        assert list(at.target_subjects()["orders-value"]) == [3]
        assert "repeated .t.Order.Line lines = 1;" in at.text("orders-value", 3)
        assert at.ids() == {4: 4, 6: 6}
        assert_equal_and_settled(at)


@MODES
def test_protobuf_that_the_source_has_normalized(tmp_path: Path, ids: str) -> None:
    with world(tmp_path, ids=ids) as at:
        at.source.store.config = {"normalize": True, "compatibilityLevel": "BACKWARD"}
        seed_protobuf(at)
        assert at.synchronize().failed == []
        version = 3 if ids == "keep" else 1
        assert at.text("orders-value", version) == at.source.store.subjects["orders-value"][3].content.text
        assert ".b.Addr to = 2;" in at.text("orders-value", version)
        assert_equal_and_settled(at)


# -- latest versions ---


def test_only_the_latest_versions_with_new_ids(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", versions="latest") as at, at.pair() as pair:
        at.target.seed("foreign", avro("F", "x"), id=70)
        at.source.seed("a-dep", avro("Dep", "x"), id=1)
        at.source.seed("a-dep", avro("Dep", "x", "y", y=0), id=2, version=2)
        user = '{"type":"record","name":"User","fields":[{"name":"d","type":"Dep"}]}'
        at.source.seed("b-value", avro("User", "d"), id=3)
        at.source.seed("b-value", user, id=4, version=2, references=[reference("Dep", "a-dep", 1)])
        at.source.seed("b-value", avro("User", "gone"), id=5, version=3, deleted=True)
        at.source.store.configs["b-value"] = {"compatibilityLevel": "NONE"}
        result = at.synchronize("tail", pair)
        # The first version of a-dep moves because the latest one of b-value refers to it.
        assert (result.registered, result.failed) == (3, [])
        # The two that need only the first are registered at the same time, in either order.
        first = at.ids()
        assert (sorted(first), first[1], {first[2], first[4]}) == ([1, 2, 4], 71, {72, 73})
        assert at.target.store.subjects["b-value"][1].content.references == (("Dep", "a-dep", 1),)
        assert {name: list(versions) for name, versions in at.target_subjects().items()} == {
            "a-dep": [1, 2],
            "b-value": [1],
            "foreign": [1],
        }
        at.source.seed("a-dep", avro("Dep", "x", "y", "z", y=0, z=0), id=8, version=4)
        assert at.synchronize("tail", pair).registered == 1
        # What was copied as the latest version stays in the map, because records have been rewritten with it.
        assert at.ids() == {**first, 8: 74}
        assert [item["deleted"] for item in at.target_subjects()["a-dep"].values()] == [False] * 3
