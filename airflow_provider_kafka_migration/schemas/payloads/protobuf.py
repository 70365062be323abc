"""Whether bytes are a message of a Protobuf schema, by the schema's text alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from airflow_provider_kafka_migration.schemas.content import ProtobufMessage

_VARINT_BITS = 64
_MAX_FIELD = 2**29
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_WIRE_TYPES: Mapping[str, int] = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool"), _VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), _FIXED64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), _FIXED32),
    **dict.fromkeys(("string", "bytes"), _BYTES),
}


class _Malformed(Exception):
    pass


class _Field(NamedTuple):
    number: int
    wire_type: int
    start: int
    stop: int


def is_message(messages: Sequence[ProtobufMessage], payload: bytes) -> bool:
    """Return whether the bytes behind an id lead to a message and are fields of it, to the last byte.

    :param messages: of the schema, in their order.
    """
    for lead in (_by_indexes, _by_name):
        try:
            message, position = lead(messages, payload)
            if all(_belongs(message, field) for field in _fields(payload, position, len(payload))):
                return True
        except _Malformed:
            continue
    return False


def _by_indexes(messages: Sequence[ProtobufMessage], payload: bytes) -> tuple[ProtobufMessage, int]:
    """Follow message indexes: a count and so many numbers, or 0 for the first message."""
    count, position = _zigzag(payload, 0)
    if not 0 <= count <= len(payload):
        raise _Malformed
    indexes = [] if count else [0]
    for _ in range(count):
        index, position = _zigzag(payload, position)
        indexes.append(index)
    found: ProtobufMessage | None = None
    for index in indexes:
        inside = messages if found is None else found.messages
        if not 0 <= index < len(inside):
            raise _Malformed
        found = inside[index]
    assert found is not None, "there is always an index"
    return found, position


def _by_name(messages: Sequence[ProtobufMessage], payload: bytes) -> tuple[ProtobufMessage, int]:
    """Read what Apicurio puts in front: a length, and a message whose only field, 1, is the name of the record's."""
    length, position = _varint(payload, 0)
    end = position + length
    if end > len(payload):
        raise _Malformed
    fields = list(_fields(payload, position, end))
    if [(item.number, item.wire_type) for item in fields] != [(1, _BYTES)]:
        raise _Malformed
    name = payload[fields[0].start : fields[0].stop].decode("utf-8", "replace").rpartition(".")[2]
    for message in messages:
        if message.name == name:
            return message, end
    raise _Malformed


def _belongs(message: ProtobufMessage, field: _Field) -> bool:
    """Whether a message has a field. Records have the fields of the very schema that their id names."""
    if field.number not in message.fields:
        return message.is_extensible
    kind, is_repeated = message.fields[field.number]
    if kind not in _WIRE_TYPES:
        # Enums are numbers, messages are bytes or groups; the text of an import, which would tell, is not here.
        return field.wire_type in (_VARINT, _BYTES, _GROUP)
    return field.wire_type == _WIRE_TYPES[kind] or (is_repeated and field.wire_type == _BYTES)


def _fields(data: bytes, position: int, end: int) -> Iterator[_Field]:
    """Yield the fields up to an end.

    :raises _Malformed: these bytes are not fields.
    """
    while position < end:
        field = _field(data, position)
        if field.stop > end or field.wire_type == _GROUP_END:
            raise _Malformed
        yield field
        position = field.stop


def _field(data: bytes, position: int) -> _Field:
    number, wire_type, start = _tag(data, position)
    if wire_type == _GROUP:
        return _Field(number, wire_type, start, _behind_group(data, start, number))
    start, stop = _content(data, start, wire_type)
    return _Field(number, wire_type, start, stop)


def _tag(data: bytes, position: int) -> tuple[int, int, int]:
    """Return the number of a field, its wire type, and the place behind both."""
    tag, start = _varint(data, position)
    number, wire_type = tag >> 3, tag & 7
    if not 0 < number < _MAX_FIELD or wire_type > _FIXED32:
        raise _Malformed
    return number, wire_type, start


def _content(data: bytes, start: int, wire_type: int) -> tuple[int, int]:
    """Return where the content of a field that is no group begins and ends."""
    if wire_type == _VARINT:
        return start, _varint(data, start)[1]
    if wire_type == _BYTES:
        length, start = _varint(data, start)
        return start, start + length
    return start, start + {_FIXED64: 8, _FIXED32: 4}.get(wire_type, 0)


def _behind_group(data: bytes, position: int, number: int) -> int:
    """Return the place behind a group; groups inside of it cost no stack."""
    opened = [number]
    while opened:
        number, wire_type, position = _tag(data, position)
        if wire_type == _GROUP:
            opened.append(number)
        elif wire_type == _GROUP_END:
            if opened.pop() != number:
                raise _Malformed
        else:
            _, position = _content(data, position, wire_type)
    return position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return an unsigned number and the place behind it."""
    number = 0
    for shift in range(0, _VARINT_BITS + 6, 7):
        if position >= len(data):
            raise _Malformed
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise _Malformed


def _zigzag(data: bytes, position: int) -> tuple[int, int]:
    number, position = _varint(data, position)
    return number >> 1 ^ -(number & 1), position
