"""Each operation against a registry that answers as Confluent's, and against those with other habits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import (
    ImportModeRefused,
    NotInImportMode,
    RegistryReadOnly,
    RegistryRefused,
    RegistryUnreachable,
    SchemaIdConflict,
    SchemaIdIgnored,
    SchemaIncompatible,
    SchemaInvalid,
    SchemaNotFound,
    SchemaReferenced,
)
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.registry.model import Reference, RegisteredSchema, Schema
from harness.fake_registry import FakeRegistry
from harness.fake_registry.server import Reply, Request

pytestmark = pytest.mark.slow

#: Slashes, spaces, percent signs, queries, fragments, umlauts, contexts: all are legal names of subjects.
ODD = ["a/b", "a b", "50%", "%2F", "a?b=c&d", "a#b", "ä-value", "a+b", ":.x:y", "..", ".", "a:b"]


def avro(name: str, **fields: Any) -> Schema:
    described = [{"name": key, "type": kind} for key, kind in fields.items()]
    return Schema("AVRO", json.dumps({"type": "record", "name": name, "fields": described}, separators=(",", ":")))


A = avro("A", x="int")
B = avro("B", x="int")


def open_client(url: str) -> Registry:
    return Registry(RegistryAccess.from_dict({"url": url}, timeout_seconds=20, retry_seconds=0), "target")


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as server:
        yield server


@pytest.fixture
def registry(fake: FakeRegistry) -> Iterator[Registry]:
    with open_client(fake.url) as client:
        yield client


# -- read -------------------------------------------------------------------------------------------------------------


def test_an_empty_registry(registry: Registry) -> None:
    assert registry.kind() == "confluent"
    assert registry.apicurio() is None
    assert registry.contexts() == ["."]
    assert registry.subjects() == registry.subjects(deleted=True) == []
    assert registry.versions("none") == []
    assert registry.config(None) == {"compatibilityLevel": "BACKWARD"}
    assert registry.mode(None) == "READWRITE"
    assert registry.schema_by_id(1) is None
    assert registry.lookup("none", A) is None
    with pytest.raises(SchemaNotFound, match="read version 1 of none"):
        registry.schema("none", 1)


def test_versions_with_gaps_and_deletions(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("s", A.text, id=10, version=3)
    fake.seed("s", B.text, id=12, version=7, deleted=True)
    fake.seed("gone", B.text, id=12, version=2, deleted=True)
    assert registry.subjects() == ["s"]
    assert registry.subjects(deleted=True) == ["gone", "s"]
    assert (registry.versions("s"), registry.versions("s", deleted=True)) == ([3], [3, 7])
    assert (registry.versions("gone"), registry.versions("gone", deleted=True)) == ([], [2])
    found = registry.schema("s", 3)
    assert (found.subject, found.version, found.id, found.schema, found.deleted) == ("s", 3, 10, A, False)
    assert found.guid
    with pytest.raises(SchemaNotFound):
        registry.schema("s", 7)
    assert registry.schema("s", 7, deleted=True).deleted
    assert registry.schema("gone", 2, deleted=True).id == 12
    assert registry.schema_by_id(12) == B


def test_all_that_a_schema_carries_is_read_and_written(registry: Registry) -> None:
    registry.register("order", A)
    cart = Schema(
        "AVRO",
        '{"type":"record","name":"Cart","fields":[{"name":"o","type":"A"}]}',
        (Reference("A", "order", 1),),
        {"properties": {"owner": "me"}, "tags": {"**.o": ["PII"]}},
    )
    made = registry.register("cart", cart)
    assert made == registry.schema("cart", 1)
    assert made.schema == cart
    assert registry.lookup("cart", cart) == made
    assert registry.schema_by_id(made.id) == cart


@pytest.mark.parametrize("type_", ["JSON", "PROTOBUF"])
def test_other_types(registry: Registry, type_: Any) -> None:
    text = {"JSON": '{"type":"object"}', "PROTOBUF": 'syntax = "proto3";\n\nmessage M {\n  string c = 1;\n}\n'}[type_]
    schema = Schema(type_, text)
    made = registry.register("s", schema)
    assert made.schema == schema
    assert registry.schema_by_id(made.id) == schema
    assert registry.lookup("s", schema) == made


@pytest.mark.parametrize("subject", ODD)
def test_odd_names_reach_the_registry_as_they_are(fake: FakeRegistry, registry: Registry, subject: str) -> None:
    made = registry.register(subject, A)
    assert made.subject == subject
    assert list(fake.store.subjects) == [subject]
    assert registry.subjects() == [subject]
    assert registry.versions(subject) == [1]
    assert registry.schema(subject, 1) == registry.lookup(subject, A) == made
    registry.set_config(subject, {"compatibilityLevel": "FULL"})
    assert registry.config(subject) == {"compatibilityLevel": "FULL"}
    registry.set_mode(subject, "READONLY")
    assert registry.mode(subject) == "READONLY"
    registry.delete_mode(subject)
    registry.delete_version(subject, 1)
    assert registry.delete_subject(subject, permanent=True) == [1]
    assert registry.subjects(deleted=True) == []


def test_ids_belong_to_contexts(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("s", A.text, id=1)
    fake.seed(":.x:s", B.text, id=1)
    fake.seed(":.y:s", B.text, id=5)
    assert registry.contexts() == [".", ".x", ".y"]
    assert registry.subjects() == [":.x:s", ":.y:s", "s"]
    assert registry.schema_by_id(1) == A
    assert registry.schema_by_id(1, context=".x") == B
    assert registry.schema_by_id(5, context=".y") == B
    assert registry.schema_by_id(5, context=".x") is None
    assert registry.schema_by_id(9, context=".none") is None


def test_a_schema_of_another_context_is_none_of_this_one(fake: FakeRegistry, registry: Registry) -> None:
    """Newer registries search all contexts if the asked one does not have an id."""
    fake.seed("s", A.text, id=1)
    found = {"subject": ":.x:s", "version": 1, "schemaType": "AVRO", "schema": B.text}
    fake.after = lambda request, reply: Reply.json(found) if request.path.startswith("/schemas/ids/") else None
    assert registry.schema_by_id(2) is None
    assert registry.schema_by_id(2, context=".x") == B


def test_subjects_of_contexts_that_the_plain_list_leaves_out(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("s", A.text, id=1)
    fake.seed(":.x:s", B.text, id=1)

    def only_default(request: Request, reply: Reply) -> Reply | None:
        return Reply.json(["s"]) if request.path == "/subjects" and "subjectPrefix" not in request.query else None

    fake.after = only_default
    assert registry.subjects() == [":.x:s", "s"]


def test_lists_that_the_registry_caps_are_read_to_their_end(fake: FakeRegistry, registry: Registry) -> None:
    for number in range(25):
        fake.seed(f"s{number:02}", A.text, id=1)

    def capped(request: Request, reply: Reply) -> Reply | None:
        if request.path != "/subjects":
            return None
        begin = int(request.query.get("offset", 0))
        return Reply.json([f"s{number:02}" for number in range(25)][begin : begin + 10])

    fake.after = capped
    assert registry.subjects() == [f"s{number:02}" for number in range(25)]


def test_changes_are_seen_at_once(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("s", A.text, id=1)
    for _ in range(2):
        assert registry.versions("s") == [1]
        assert registry.schema_by_id(1) == A
        assert registry.lookup("s", B) is None
    fake.store.subjects.clear()
    fake.seed("s", B.text, id=1, version=2)
    assert registry.versions("s") == [2]
    assert registry.schema_by_id(1) == B
    found = registry.lookup("s", B)
    assert found is not None
    assert found.version == 2


# -- write ------------------------------------------------------------------------------------------------------------


def test_registering_twice_changes_nothing(registry: Registry) -> None:
    first = registry.register("s", A)
    assert registry.register("s", A) == first
    assert registry.versions("s") == [1]


def test_fixed_ids_and_versions_in_mode_import(registry: Registry) -> None:
    registry.set_mode("s", "IMPORT")
    made = registry.register("s", A, id=42, version=7)
    assert (made.id, made.version) == (42, 7)
    assert registry.register("s", A, id=42, version=7) == made
    registry.register("s", B, id=40, version=5)
    assert registry.versions("s") == [5, 7]
    with pytest.raises(SchemaIdConflict, match="Overwrite new schema with id 42"):
        registry.register("s", avro("C", z="int"), id=42, version=8)
    with pytest.raises(RegistryReadOnly):
        registry.register("s", avro("C", z="int"))


def test_a_fixed_id_needs_mode_import(registry: Registry) -> None:
    with pytest.raises(NotInImportMode, match="not in import mode"):
        registry.register("s", A, id=42, version=7)


def test_a_readonly_subject(registry: Registry) -> None:
    registry.set_mode("s", "READONLY")
    with pytest.raises(RegistryReadOnly, match="read-only mode"):
        registry.register("s", A)


def test_incompatible_and_invalid_schemas(registry: Registry) -> None:
    registry.register("s", A)
    with pytest.raises(SchemaIncompatible) as caught:
        registry.register("s", avro("A", x="int", must="string"))
    assert caught.value.details == {"status": 409, "error_code": 40901}
    with pytest.raises(SchemaInvalid):
        registry.register("s", Schema("AVRO", '{"type":"nope"}'))


def test_deletions(registry: Registry) -> None:
    registry.register("order", A)
    registry.register("cart", Schema("AVRO", '{"type":"array","items":"A"}', (Reference("A", "order", 1),)))
    with pytest.raises(SchemaReferenced):
        registry.delete_version("order", 1)
    registry.delete_version("cart", 1)
    registry.delete_version("cart", 1)  # changes nothing
    assert registry.delete_subject("cart") == []
    assert registry.versions("cart", deleted=True) == [1]
    registry.delete_version("cart", 1, permanent=True)
    assert registry.versions("cart", deleted=True) == []
    with pytest.raises(RegistryRefused, match="not deleted first"):
        registry.delete_subject("order", permanent=True)
    assert registry.delete_subject("order") == [1]
    assert registry.delete_subject("order", permanent=True) == [1]
    for call in (registry.delete_subject, lambda name: registry.delete_version(name, 1)):
        with pytest.raises(SchemaNotFound):
            call("order")


# -- levels and modes -------------------------------------------------------------------------------------------------


def test_levels_of_subject_context_and_registry(registry: Registry) -> None:
    assert registry.config("s") is None
    assert registry.config(":.x:") is None
    full = {"compatibilityLevel": "FULL", "normalize": True, "compatibilityGroup": "g"}
    registry.set_config("s", full)
    registry.set_config(":.x:", {"compatibilityLevel": "NONE"})
    registry.set_config(None, {"compatibilityLevel": "FORWARD"})
    assert registry.config("s") == full
    assert registry.config(":.x:") == {"compatibilityLevel": "NONE"}
    assert registry.config(None) == {"compatibilityLevel": "FORWARD"}
    registry.delete_config("s")
    registry.delete_config("s")
    assert registry.config("s") is None


def test_modes_of_subject_context_and_registry(registry: Registry) -> None:
    assert registry.mode("s") is None
    registry.set_mode("s", "READONLY")
    registry.set_mode(":.x:", "IMPORT")
    assert (registry.mode("s"), registry.mode(":.x:"), registry.mode(None)) == ("READONLY", "IMPORT", "READWRITE")
    registry.delete_mode("s")
    registry.delete_mode("s")
    assert registry.mode("s") is None


def test_import_for_a_registry_with_subjects_needs_force(fake: FakeRegistry, registry: Registry) -> None:
    registry.register(":.x:s", A)
    with pytest.raises(ImportModeRefused):
        registry.set_mode(":.x:", "IMPORT")
    registry.set_mode(None, "IMPORT", force=True)
    assert registry.mode(None) == "IMPORT"
    assert fake.requests[-2].query == {"force": "true"}


# -- other products ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["karapace", "redpanda", "apicurio"])
def other(request: pytest.FixtureRequest) -> Iterator[tuple[FakeRegistry, Registry]]:
    with FakeRegistry(request.param) as server, open_client(server.url) as client:
        yield server, client


def test_others_answer_less_and_it_is_read_right(other: tuple[FakeRegistry, Registry]) -> None:
    _, registry = other
    assert registry.contexts() == ["."]
    made = registry.register("s", A)
    assert (made.subject, made.version, made.schema) == ("s", 1, A)
    proto = Schema("PROTOBUF", 'syntax = "proto3";\n\nmessage M {\n  string c = 1;\n}\n')
    assert registry.register("p", proto).schema == proto
    found = registry.lookup("p", proto)
    assert found is not None
    assert found.schema == proto
    assert registry.subjects() == ["p", "s"]
    assert registry.versions("none") == []
    with pytest.raises(SchemaNotFound):
        registry.schema("s", 9)
    registry.set_config(None, {"compatibilityLevel": "BACKWARD"})
    with pytest.raises(SchemaIncompatible):
        registry.register("s", avro("A", x="int", must="string"))


def test_a_default_is_no_level(other: tuple[FakeRegistry, Registry]) -> None:
    """Apicurio answers 200 NONE for a subject without a level, the others 404."""
    _, registry = other
    registry.register("s", A)
    registry.set_config(None, {"compatibilityLevel": "FULL"})
    assert registry.config("s") is None
    registry.set_config("s", {"compatibilityLevel": "BACKWARD"})
    assert registry.config("s") == {"compatibilityLevel": "BACKWARD"}
    registry.delete_config("s")
    assert registry.config("s") is None
    assert registry.mode("s") is None


@pytest.mark.parametrize("kind", ["karapace", "apicurio"])
def test_a_registry_that_ignores_ids_does_not_pass_for_one_that_keeps_them(kind: str) -> None:
    with FakeRegistry(kind) as server, open_client(server.url) as registry:
        registry.register("first", B)
        with pytest.raises(SchemaIdIgnored) as caught:
            registry.register("s", A, id=42, version=7)
        assert caught.value.details["got"] == [2, 1]


def test_an_answer_with_the_id_only_is_completed_by_a_lookup(fake: FakeRegistry, registry: Registry) -> None:
    fake.after = lambda request, reply: Reply.json({"id": 1}) if request.writes else None
    made = registry.register("s", A)
    assert made == RegisteredSchema("s", 1, 1, A, guid=made.guid)
    assert fake.requests[-1].path == "/subjects/s"


def test_one_schema_in_two_versions_of_a_registry_that_answers_with_the_id_only() -> None:
    with FakeRegistry("redpanda") as server, open_client(server.url) as registry:
        for version in (2, 5):
            server.seed("s", A.text, id=42, version=version)
        registry.set_mode("s", "IMPORT", force=True)
        for version in (2, 5):
            made = registry.register("s", A, id=42, version=version)
            assert (made.id, made.version) == (42, version)


# -- which product ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "reply", "expected"),
    [
        ("/_health", Reply.json({"karapace_version": "6.2.0", "process_uptime_sec": 5}), "karapace"),
        ("/subjects", Reply(200, b"[]", {"Server": "Seastar httpd", "Content-Type": "application/json"}), "redpanda"),
        ("/v1/metadata/id", Reply.json({"scope": {}}), "confluent"),
        ("/v1/metadata/id", Reply(200, b"<html>", {"Content-Type": "text/html"}), "unknown"),
        ("/v1/metadata/id", Reply.error(403, 40301, "no"), "unknown"),
    ],
)
def test_each_product_is_recognized(
    fake: FakeRegistry, registry: Registry, path: str, reply: Reply, expected: str
) -> None:
    def before(request: Request) -> Reply | None:
        if request.path == path:
            return reply
        return Reply.error(404, 404, "HTTP 404 Not Found") if request.path == "/v1/metadata/id" else None

    fake.before = before
    assert registry.kind() == expected


def test_a_gateway_that_fails_for_unknown_paths_does_not_stop_anything(fake: FakeRegistry, registry: Registry) -> None:
    def bad_gateway(request: Request) -> Reply | None:
        return Reply.error(502, 502, "bad gateway") if request.path in ("/v1/metadata/id", "/_health") else None

    fake.before = bad_gateway
    assert registry.kind() == "unknown"
    fake.before = None
    assert registry.kind() == "confluent"  # what was uncertain is asked again


def test_the_kind_of_a_registry_that_is_down_is_no_kind(fake: FakeRegistry, registry: Registry) -> None:
    fake.before = lambda request: Reply.error(503, 503, "down")
    with pytest.raises(RegistryUnreachable):
        registry.kind()
    fake.before = None
    assert registry.kind() == "confluent"


def test_apicurio_is_recognized_by_its_base_url() -> None:
    with FakeRegistry("apicurio", base_path="/apis/ccompat/v7") as server, open_client(server.url) as registry:
        assert registry.kind() == "apicurio"
        assert registry.apicurio() is None  # this one has no API of its own
        registry.register("s", A)
        assert registry.config("s") is None
