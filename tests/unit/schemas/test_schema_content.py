"""When two schemas are the same, although a server has printed one of them in another form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_snapshots import registered

from airflow_provider_kafka_migration.registry.model import Reference, Schema, SchemaType
from airflow_provider_kafka_migration.schemas.content import (
    canonical_text,
    qualified_reference,
    record_names,
    reference_subject,
    same_schema,
    schema_digest,
)

NESTED = {
    "type": "record",
    "name": "Cart",
    "namespace": "t",
    "fields": [
        {"name": "o", "type": "t.Order"},
        {"name": "a", "type": {"type": "record", "name": "Addr", "fields": [{"name": "z", "type": ["null", "Zip"]}]}},
    ],
}


def same(type_: SchemaType, first: object, second: object) -> bool:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in (first, second)]
    return same_schema(Schema(type_, texts[0]), Schema(type_, texts[1]))


def field(type_: object, **more: object) -> dict[str, object]:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": type_, **more}]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NESTED, json.loads(json.dumps(NESTED).replace("t.Order", "Order"))),
        (NESTED, {**NESTED, "name": "t.Cart", "namespace": "ignored"}),
        (NESTED, json.loads(json.dumps(NESTED).replace('"Addr"', '"t.Addr"').replace('"Zip"', '"t.Zip"'))),
        (field("string"), field({"type": "string"})),
        (field("int", order="ascending", aliases=[]), field("int")),
        (field("double", default=1), field("double", default=1.0)),
        ({"type": "array", "items": {"type": "int"}}, {"items": "int", "type": "array"}),
        ('"string"', ' {"type": "string"}\n'),
        (field("int", aliases=["g"]), json.dumps(field("int", aliases=["g"]), indent=4)),
    ],
)
def test_avro_that_only_looks_different(first: object, second: object) -> None:
    assert same("AVRO", first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NESTED, {**NESTED, "namespace": "u"}),
        (NESTED, {**NESTED, "doc": "a cart"}),
        (field("int"), field("long")),
        (field("int", default=0), field("int", default=1)),
        (field("boolean", default=True), field("boolean", default=1)),
        (field(["null", "int"]), field(["int", "null"])),
        (field({"type": "long", "logicalType": "timestamp-millis"}), field("long")),
        (field("int", order="descending"), field("int")),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "enum", "name": "E", "symbols": ["B", "A"]}),
        ("not json", "not  json"),
    ],
)
def test_avro_that_is_different(first: object, second: object) -> None:
    assert not same("AVRO", first, second)


def test_json_schema_is_compared_as_json() -> None:
    assert same("JSON", '{"type":"object","maximum":1.0}', '{ "maximum": 1, "type": "object" }')
    assert not same("JSON", {"required": ["a", "b"]}, {"required": ["b", "a"]})
    assert not same("JSON", {"const": True}, {"const": 1})


PROTO = """// a comment
syntax = 'proto3';
package t;
import "b.proto"; import "a.proto";
option java_package = "x;y"; /* two
lines */
message Outer {
  message Inner { int32 x = 1; }
  enum Kind { NONE = 0; OTHER = 1; }
  oneof choice { string s = 2; Inner i = 3; }
  map<string, int32> counts = 4 [deprecated = true];
  reserved 7, 9 to 11;
}
message Second {}
"""
PRINTED = """syntax = "proto3";
package t;

import "a.proto";
import "b.proto";

option java_package = "x;y";

message Outer {
  reserved 7, 9 to 11;
  map<string, int32> counts = 4 [deprecated = true];

  oneof choice {
    string s = 2;
    Inner i = 3;
  }

  message Inner {
    int32 x = 1;
  }
  enum Kind {
    NONE = 0;
    OTHER = 1;
  }
}
message Second {
}
"""


def test_protobuf_that_a_server_has_printed_afresh() -> None:
    assert same("PROTOBUF", PROTO, PRINTED)
    assert same("PROTOBUF", "message M {}", 'syntax = "proto2"; message M {;}')
    assert same("PROTOBUF", "message M { optional int32 message = 1; }", "message M{optional int32 message=1;}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int32 x = 1", "int32 x = 2"),
        ("int32 x = 1", "int64 x = 1"),
        ("x;y", "x; y"),
        ('"a.proto"', '"c.proto"'),
        ("NONE = 0;\n    OTHER = 1;", "OTHER = 1;\n    NONE = 0;"),
        ("package t;", "package u;"),
        ("reserved 7", "reserved 8"),
        ("map<string, int32>", "map<string, int64>"),
        ('syntax = "proto3";', ""),
    ],
)
def test_protobuf_that_is_different(old: str, new: str) -> None:
    assert old in PRINTED
    assert not same("PROTOBUF", PROTO, PRINTED.replace(old, new))


def test_the_order_of_messages_counts_because_records_have_message_indexes() -> None:
    assert not same("PROTOBUF", "message A {} message B {}", "message B {} message A {}")
    assert not same("PROTOBUF", "message O { message A {} message B {} }", "message O { message B {} message A {} }")


@pytest.mark.parametrize("text", ["message M {", "}", "message M { string s = 1 }", "option x = (;", '"'])
def test_broken_protobuf_equals_only_itself(text: str) -> None:
    assert same("PROTOBUF", text, f" {text}\n")
    assert not same("PROTOBUF", text, f"{text}x")


def test_text_that_is_nested_without_end_is_compared_as_text() -> None:
    deep = "[" * 100_000
    assert canonical_text("AVRO", deep) == deep
    assert canonical_text("PROTOBUF", "message M {" * 100_000).startswith("message")


@pytest.mark.parametrize("text", ["/*" * 500_000, '\\"' * 500_000, "'" + "\\'" * 500_000])
def test_text_without_an_end_is_scanned_once(text: str) -> None:
    assert canonical_text("PROTOBUF", text) == text


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.sampled_from(["AVRO", "JSON", "PROTOBUF"]),
    st.one_of(
        st.text(),
        st.text(alphabet=" \n{}[]()<>;=,.\"'/*\\am1"),
        st.lists(st.sampled_from(["message", "M", "{", "}", ";", "=", "1", "option", "enum", "package", "group"])).map(
            " ".join
        ),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(
                    st.sampled_from(["type", "name", "namespace", "fields", "items", "aliases", "x"]), inner, max_size=4
                ),
            ),
        ).map(json.dumps),
    ),
)
def test_any_text_has_a_canonical_form_that_is_its_own(type_: SchemaType, text: str) -> None:
    record_names(Schema(type_, text))
    assert same_schema(Schema(type_, text), Schema(type_, f" {text}\n"))


def test_type_references_and_metadata_count() -> None:
    base = Schema("AVRO", '"int"', (Reference("n", "s", 1), Reference("m", "s", 2)))
    assert same_schema(base, Schema("AVRO", '"int"', (Reference("m", "s", 2), Reference("n", "s", 1))))
    assert not same_schema(base, Schema("AVRO", '"int"', (Reference("n", "s", 1),)))
    assert not same_schema(base, Schema("AVRO", '"int"', (Reference("n", "s", 1), Reference("m", "s", 3))))
    assert not same_schema(Schema("AVRO", '"int"'), Schema("JSON", '"int"'))
    owned = Schema("AVRO", '"int"', metadata={"properties": {"owner": "me"}})
    assert not same_schema(owned, Schema("AVRO", '"int"'))
    assert same_schema(owned, Schema("AVRO", '"int"'), metadata=False)
    ruled = Schema("AVRO", '"int"', rule_set={"domainRules": []})
    assert not same_schema(ruled, Schema("AVRO", '"int"'))
    assert same_schema(ruled, Schema("AVRO", '"int"'), rule_set=False)


def test_references_without_a_context_are_those_of_the_own_one() -> None:
    assert qualified_reference(Reference("n", "s", 1), ".a") == ":.a:s"
    assert qualified_reference(Reference("n", ":.b:s", 1), ".a") == ":.b:s"
    assert reference_subject(":.a:s", ":.a:t") == "s"
    assert reference_subject("s", "t") == "s"
    assert reference_subject("s", ":.a:t") == ":.:s"
    inside = Schema("AVRO", '"int"', (Reference("n", "s", 1),))
    outside = Schema("AVRO", '"int"', (Reference("n", ":.a:s", 1),))
    assert same_schema(inside, outside, first_context=".a")
    assert not same_schema(inside, outside)


def test_digests_differ_where_schemas_do() -> None:
    texts = [
        registered("s", 1, 1, '"int"'),
        registered("s", 1, 1, '"long"'),
        registered("s", 1, 1, '"int"', refs=[("n", "t", 1)]),
        registered("s", 1, 1, '"int"', type="JSON"),
        registered("s", 1, 1, '"int"', metadata={"owner": "me"}),
    ]
    assert len({schema_digest(item.schema) for item in texts}) == len(texts)
    assert schema_digest(texts[0].schema) == schema_digest(registered("t", 2, 9, '"int"').schema)


def test_names_of_records() -> None:
    assert record_names(Schema("AVRO", json.dumps(NESTED))) == {"t.Cart"}
    assert record_names(Schema("AVRO", '"string"')) == set()
    assert record_names(Schema("PROTOBUF", PROTO)) == {"t.Outer", "t.Second"}
    assert record_names(Schema("JSON", '{"title": "P"}')) == {"P"}
    assert record_names(Schema("JSON", "true")) == set()
