"""Where schema ids are in a record, against confluent-kafka's own serializers and made-up payloads."""

from __future__ import annotations

import struct
import uuid

import pytest
from confluent_kafka.schema_registry import header_schema_id_serializer, prefix_schema_id_serializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext

from airflow_provider_kafka_migration.schema_ids.wire_format import (
    FoundId,
    encode_id,
    id_in_header,
    id_in_payload,
    ids_in_record,
)

GUID = "89791762-2336-4186-9674-299b90a802e2"


def prefixed(number: int, rest: bytes = b"rest") -> bytes:
    return struct.pack(">bi", 0, number) + rest


def long_prefixed(number: int, rest: bytes = b"rest") -> bytes:
    return struct.pack(">bq", 0, number) + rest


def test_prefix_of_confluent_kafka() -> None:
    value = prefix_schema_id_serializer(b"body", None, SchemaId("AVRO", 17))
    protobuf = prefix_schema_id_serializer(b"body", None, SchemaId("PROTOBUF", 18, message_indexes=[1, 0]))
    assert ids_in_record(protobuf, value, []) == [
        FoundId("key", "id32", 18, "payload"),
        FoundId("value", "id32", 17, "payload"),
    ]


@pytest.mark.parametrize("schema_type", ["AVRO", "PROTOBUF"])
def test_header_of_confluent_kafka(schema_type: str) -> None:
    indexes = [2, 1] if schema_type == "PROTOBUF" else None
    headers: list[tuple[str, bytes]] = []
    for field in (MessageField.KEY, MessageField.VALUE):
        context = SerializationContext("topic", field, headers)
        header_schema_id_serializer(b"body", context, SchemaId(schema_type, 1, GUID, indexes))
    found = ids_in_record(b"body", b"body", [(name.encode(), content) for name, content in headers])
    assert found == [FoundId("key", "guid", GUID, "header"), FoundId("value", "guid", GUID, "header")]


def test_header_with_an_id() -> None:
    assert ids_in_record(None, b"body", [(b"__value_schema_id", prefixed(5, b""))]) == [
        FoundId("value", "id32", 5, "header")
    ]


def test_part_with_an_id_in_a_header_is_not_searched() -> None:
    headers = [(b"__value_schema_id", b"\x01" + uuid.UUID(GUID).bytes)]
    assert ids_in_record(prefixed(1), prefixed(2), headers) == [
        FoundId("key", "id32", 1, "payload"),
        FoundId("value", "guid", GUID, "header"),
    ]


def test_header_that_occurs_twice() -> None:
    headers = [(b"__key_schema_id", prefixed(1)), (b"x", None), (b"__key_schema_id", prefixed(2))]
    assert [found.value for found in ids_in_record(b"k", None, headers)] == [1, 2]


@pytest.mark.parametrize("content", [None, b"", b"\x00\x00\x00\x01", b"\x01" + bytes(15), b"\x02" + bytes(20)])
def test_header_without_an_id_leaves_the_payload(content: bytes | None) -> None:
    headers = [(b"__value_schema_id", content)]
    assert ids_in_record(None, prefixed(3), headers) == [FoundId("value", "id32", 3, "payload")]


def test_prefix_of_eight_bytes() -> None:
    assert ids_in_record(long_prefixed(7), long_prefixed(2**31 - 1, b""), []) == [
        FoundId("key", "id64", 7, "payload"),
        FoundId("value", "id64", 2**31 - 1, "payload"),
    ]


def test_id_0_decides_between_the_prefixes() -> None:
    data = long_prefixed(7)
    assert id_in_payload(data, 0, len(data)) == ("id64", 7)
    assert id_in_payload(data, 0, len(data), zero_is_id=True) == ("id32", 0)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00\x00\x00\x01",
        b"\x01\x00\x00\x00\x05rest",
        b'{"a": 1}',
        # Registries count from 1, in int32.
        prefixed(0, b""),
        prefixed(-1),
        long_prefixed(0),
        long_prefixed(2**31),
        long_prefixed(5)[:8],
    ],
)
def test_payload_that_has_no_id(payload: bytes) -> None:
    assert ids_in_record(payload, payload, []) == []


def test_payload_inside_a_buffer() -> None:
    buffer = b"\x00" + prefixed(300, b"")
    assert id_in_payload(buffer, 1, 6) == ("id32", 300)
    assert id_in_payload(buffer, 1, 5) is None


def test_encoded_ids_fit_into_their_place() -> None:
    assert encode_id("id32", 7) == b"\x00\x00\x00\x07"
    assert encode_id("id64", 7) == bytes(7) + b"\x07"
    assert encode_id("guid", GUID) == uuid.UUID(GUID).bytes
    assert id_in_header(b"\x01" + encode_id("guid", GUID)) == ("guid", GUID)
    with pytest.raises(ValueError, match="not a schema id"):
        encode_id("id32", 2**31)
