"""Whether the bytes behind an id are a value of its schema."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from airflow_provider_kafka_migration.registry.model import Reference, Schema, SchemaType
from airflow_provider_kafka_migration.schemas.payloads.decode import CannotDecode, decoder


def decodes(type_: SchemaType, text: Any, payload: bytes, **others: Schema) -> bool:
    """``others``: schemas by the subject and the name under which they are referred to."""
    references = tuple(Reference(name.replace("_", "."), name, 1) for name in others)
    schema = Schema(type_, text if isinstance(text, str) else json.dumps(text), references)
    return decoder(schema, ".", lambda subject, _: others.get(subject))(payload)


RECORD = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "name", "type": ["null", "string"]},
    ],
}


def encoded(value: dict[str, Any], schema: Any = RECORD) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def test_avro() -> None:
    payload = encoded({"at": 1, "name": "x"})
    assert decodes("AVRO", RECORD, payload)
    assert not decodes("AVRO", RECORD, payload[:-1])
    assert not decodes("AVRO", RECORD, payload + b"\0"), "the whole payload is one value"
    assert not decodes("AVRO", RECORD, b"")


def test_a_number_that_is_no_date_decodes() -> None:
    assert decodes("AVRO", RECORD, encoded({"at": 2**62, "name": None}))


def test_avro_with_references_over_two_levels() -> None:
    inner = Schema("AVRO", json.dumps({"type": "enum", "name": "t.Inner", "symbols": ["A", "B"]}))
    middle = {"type": "record", "name": "t.Middle", "fields": [{"name": "i", "type": "t.Inner"}]}
    outer = {"type": "record", "name": "t.Outer", "fields": [{"name": "m", "type": "t.Middle"}]}
    others = {"m": Schema("AVRO", json.dumps(middle), (Reference("t.Inner", "i", 1),)), "i": inner}
    schema = Schema("AVRO", json.dumps(outer), (Reference("t.Middle", "m", 1),))
    check = decoder(schema, ".", lambda subject, _: others.get(subject))
    assert check(b"\2")
    assert not check(b"\4"), "there is no third symbol"
    with pytest.raises(CannotDecode, match="version 1 of m"):
        decoder(schema, ".", lambda *_: None)


PERSON = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}


def test_json() -> None:
    assert decodes("JSON", PERSON, b'{"id": 7} \n')
    assert not decodes("JSON", PERSON, b'{"id": "7"}'), "the schema counts"
    assert not decodes("JSON", PERSON, b'{"id": 7}{')
    assert not decodes("JSON", PERSON, b'{"id": 7')
    assert not decodes("JSON", PERSON, b"\xff\xfe")
    assert decodes("JSON", "true", b'"anything"')


def test_json_with_a_reference_and_no_network() -> None:
    text = {"properties": {"p": {"$ref": "person.json"}}}
    assert decodes("JSON", text, b'{"p": {"id": 1}}', person_json=Schema("JSON", json.dumps(PERSON)))
    assert not decodes("JSON", text, b'{"p": {}}', person_json=Schema("JSON", json.dumps(PERSON)))
    with pytest.raises(CannotDecode):
        decodes("JSON", {"$ref": "http://127.0.0.1:9/x"}, b"{}")


PROTO = """
syntax = "proto3";
package t;
import "other.proto";
message First {
  string name = 1; oneof o { fixed64 f = 2; int32 i = 3; } repeated sint32 r = 4; map<string, int32> m = 5;
}
message Second { message In { double d = 1; } In in = 1; Color c = 2; enum Color { RED = 0; } }
"""


def in_protobuf() -> Any:
    """The class of ``First``, as the library of Protobuf makes it."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="first.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="First")
    for name, number, type_, label in (
        ("name", 1, field.TYPE_STRING, field.LABEL_OPTIONAL),
        ("f", 2, field.TYPE_FIXED64, field.LABEL_OPTIONAL),
        ("r", 4, field.TYPE_SINT32, field.LABEL_REPEATED),
    ):
        message.field.add(name=name, number=number, type=type_, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.First"))


def test_protobuf() -> None:
    payload = in_protobuf()(name="x", f=3, r=[1, -2, 300]).SerializeToString()
    assert decodes("PROTOBUF", PROTO, b"\0" + payload)
    assert decodes("PROTOBUF", PROTO, b"\2\0" + payload), "the first message, written out"
    assert not decodes("PROTOBUF", PROTO, b"\2\2" + payload), "the second message has no such fields"
    assert not decodes("PROTOBUF", PROTO, b"\2\6" + payload), "there is no fourth message"
    assert not decodes("PROTOBUF", PROTO, b"\0" + payload + b"\x08"), "a field is cut"
    assert not decodes("PROTOBUF", PROTO, b"\0" + b"\x08\x01"), "the name is no number"
    assert not decodes("PROTOBUF", PROTO, b"\0" + b"\x52\x00"), "there is no field 10"
    assert decodes("PROTOBUF", PROTO, b"\4\2\0" + b"\x09" + bytes(8)), "a message inside of another"


def test_protobuf_as_apicurio_writes_it() -> None:
    payload = in_protobuf()(name="x").SerializeToString()
    name = b"\x0a\x05First"
    assert decodes("PROTOBUF", PROTO, bytes([len(name)]) + name + payload)
    assert not decodes("PROTOBUF", PROTO, b"\x07\x0a\x05Third" + payload)


def test_protobuf_of_the_second_kind() -> None:
    text = "message M { required group G = 1 { optional int32 x = 2; } extensions 100 to 199; }"
    assert decodes("PROTOBUF", text, b"\0" + b"\x0b\x10\x05\x0c")
    assert decodes("PROTOBUF", text, b"\0" + b"\xa0\x06\x01"), "an extension of another text"
    assert not decodes("PROTOBUF", text, b"\0" + b"\x0b\x10\x05")


@pytest.mark.parametrize("text", ["{", "message M {", "", '{"type": "nothing"}'])
@pytest.mark.parametrize("type_", ["AVRO", "JSON", "PROTOBUF"])
def test_a_text_that_cannot_be_read_is_no_answer(type_: SchemaType, text: str) -> None:
    with pytest.raises(CannotDecode):
        decodes(type_, text, b"\2")


@pytest.mark.parametrize(("type_", "text"), [("AVRO", RECORD), ("JSON", PERSON), ("PROTOBUF", PROTO)])
def test_numbers_do_not_decode(type_: SchemaType, text: Any) -> None:
    """Seconds and a shard, of which the first five bytes have been taken for an id."""
    payloads = [((1_764_000_000 + n).to_bytes(8, "big") + n.to_bytes(4, "big"))[5:] for n in range(300)]
    assert sum(decodes(type_, text, payload) for payload in payloads) == 0


LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
ITSELF = {"type": "record", "name": "I", "fields": [{"name": "i", "type": "I"}]}


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (LIST, b"\2" * 200_000),  # 200,000 levels, and no end
        (ITSELF, b"\0"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\x7f\0"),  # a quadrillion items
        ('"boolean"', b"\x17"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\1"),  # symbol -1
        (["null", "string"], b"\1\2x"),  # branch -1
        ('"int"', b"\xfe\xff\xff\xff\xff\x01"),  # beyond 32 bits
        ('"long"', b"\xff" * 11 + b"\1"),
        ('"string"', b"\xc8\1abc"),  # a hundred bytes, of which there are three
        ('"string"', b"\3"),
        ('"string"', b"\4\xff\xfe"),
        ({"type": "map", "values": "int"}, b"\2\2k\2"),  # no block of length 0 at its end
    ],
)
def test_bytes_that_only_look_like_avro_crash_and_pass_nothing(schema: Any, payload: bytes) -> None:
    assert not decodes("AVRO", schema, payload)


def test_avro_of_all_kinds() -> None:
    kinds: dict[str, tuple[Any, Any]] = {
        "a": ("boolean", True),
        "b": ("int", -(2**31)),
        "c": ("long", 2**63 - 1),
        "d": ("float", 1.5),
        "e": ("double", -1.5),
        "f": ("bytes", b"\xff\0"),
        "g": ("string", "ü"),
        "h": ({"type": "fixed", "name": "t.F", "size": 3}, b"abc"),
        "i": ({"type": "enum", "name": "t.E", "symbols": ["A", "B"]}, "B"),
        "j": ({"type": "array", "items": ["null", "t.E"]}, [None, "A", "B"]),
        "k": ({"type": "map", "values": {"type": "array", "items": "long"}}, {"x": [1, 2], "y": []}),
        "l": (["null", "t.F"], b"xyz"),
        "m": ({"type": "string", "avro.java.string": "String"}, "s"),
    }
    fields = [{"name": name, "type": type_} for name, (type_, _) in kinds.items()]
    schema = {"type": "record", "name": "t.R", "fields": fields}
    payload = encoded({name: value for name, (_, value) in kinds.items()}, schema)
    assert decodes("AVRO", schema, payload)
    assert not any(decodes("AVRO", schema, payload[:cut]) for cut in range(len(payload)))
    assert decodes("AVRO", {"type": "array", "items": "int"}, b"\3\4\2\4\0"), "a block with its size in bytes"
    assert decodes("AVRO", LIST, b"\2" * 5_000 + b"\0"), "a long list is a list"


@pytest.mark.parametrize("schema", ['"bytes"', {"type": "bytes", "logicalType": "decimal", "precision": 4}])
def test_any_bytes_are_bytes(schema: Any) -> None:
    """Confluent's serializer for Java writes them without a length."""
    with pytest.raises(CannotDecode, match="any bytes"):
        decodes("AVRO", schema, b"hello")


@pytest.mark.parametrize("payload", [b"1" + b"0" * 400, b"1e400"])
def test_a_number_beyond_any_float_does_not_decode(payload: bytes) -> None:
    assert not decodes("JSON", {"multipleOf": 0.01}, payload)


@pytest.mark.parametrize("other", [{"type": "sring"}, {"pattern": r"\p{L}+"}])
def test_what_a_schema_refers_to_may_be_readable_by_others_only(other: Any) -> None:
    with pytest.raises(CannotDecode):
        decodes("JSON", {"$ref": "other.json"}, b'"x"', other_json=Schema("JSON", json.dumps(other)))


def test_groups_inside_of_groups_cost_no_stack() -> None:
    text = "message M { required group G = 1 { optional int32 x = 2; } }"
    assert not decodes("PROTOBUF", text, b"\0" + b"\x0b" * 100_000)
    assert not decodes("PROTOBUF", text, b"\0" + b"\x0b\x13\x0c\x14"), "closed in the wrong order"
    assert decodes("PROTOBUF", text, b"\0" + b"\x0b\x13\x14\x0c")
