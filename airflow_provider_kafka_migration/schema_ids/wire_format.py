"""Where serializers put schema ids into a record.

Three forms are in use. In all of them the id has a fixed length, so that another id fits into its place:

* **prefix, 4 bytes** (Confluent, Karapace, Redpanda, Apicurio's default since 3.0): the key or value begins with the
  byte 0 and the id as a big-endian int32. Protobuf message indexes follow the id; they do not depend on it.
* **prefix, 8 bytes** (Apicurio before 3.0, and later by configuration): the byte 0 and the id as a big-endian int64.
* **header** (Confluent): the header ``__key_schema_id`` or ``__value_schema_id`` holds the byte 1 and a GUID of 16
  bytes, or the byte 0 and the id as an int32. The key or value then has no prefix, so it is not searched for one.

How the two prefixes are distinguished: registries count ids from 1 and hand out int32 numbers only (also Apicurio,
through the API that all of them share). Therefore a first int32 above 0 is an id of 4 bytes, and a first int32 of 0
followed by an int32 above 0 is an id of 8 bytes. Confluent's registry accepts an imported id 0. If, and only if, the
registry is known to have that id, a first int32 of 0 is the id 0: Apicurio's registry never has it.

A deserializer also accepts a GUID in front of a payload, but no serializer writes one there; it is not searched for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

Part = Literal["key", "value"]
#: id32, id64: a number of 4 or 8 bytes; guid: 16 bytes
Kind = Literal["id32", "id64", "guid"]
Place = Literal["payload", "header"]

#: Names of the headers, as bytes.
ID_HEADERS: Final[dict[bytes, Part]] = {b"__key_schema_id": "key", b"__value_schema_id": "value"}

#: The magic byte and an id: a shorter payload has no id.
MIN_PREFIX_BYTES: Final = 5
_LONG_PREFIX_BYTES: Final = 9
_GUID_HEADER_BYTES: Final = 17
#: Ids are int32 numbers in the API of the registries.
MAX_ID: Final = 2**31 - 1


class FoundId(NamedTuple):
    """A schema id that a record refers to.

    ``value`` is a number, or a GUID as 36 characters of lower case.
    """

    part: Part
    kind: Kind
    value: int | str
    place: Place


def ids_in_record(
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[bytes, bytes | None]],
    *,
    zero_is_id: bool = False,
) -> list[FoundId]:
    """Return the ids that a record refers to: keys before values; of a header that occurs twice, both.

    Any payload that happens to begin like a serialized one is included: only a registry knows whether an id exists.

    :param zero_is_id: the source registry has a schema with the id 0.
    """
    found: dict[Part, list[FoundId]] = {"key": [], "value": []}
    for name, content in headers:
        part = ID_HEADERS.get(name)
        if part is not None and content is not None and (header := id_in_header(content)) is not None:
            found[part].append(FoundId(part, *header, "header"))
    payloads: tuple[tuple[Part, bytes | None], ...] = (("key", key), ("value", value))
    for part, payload in payloads:
        if not found[part] and payload is not None:
            prefix = id_in_payload(payload, 0, len(payload), zero_is_id=zero_is_id)
            if prefix is not None:
                found[part].append(FoundId(part, *prefix, "payload"))
    return found["key"] + found["value"]


def id_in_payload(data: bytes, start: int, stop: int, *, zero_is_id: bool = False) -> tuple[Kind, int] | None:
    """Return the kind and the id of the key or value in ``data[start:stop]``, or None if it does not begin with one.

    The id is at ``start + 1``.
    """
    if stop - start < MIN_PREFIX_BYTES or data[start] != 0:
        return None
    number = int.from_bytes(data[start + 1 : start + 5], "big")
    if number or zero_is_id:
        return ("id32", number) if number <= MAX_ID else None
    if stop - start < _LONG_PREFIX_BYTES:
        return None
    number = int.from_bytes(data[start + 5 : start + _LONG_PREFIX_BYTES], "big")
    return ("id64", number) if 0 < number <= MAX_ID else None


def id_in_header(content: bytes) -> tuple[Kind, int | str] | None:
    """Return the kind and the id in the value of an id header, or None if it has none. The id is at index 1."""
    if len(content) >= _GUID_HEADER_BYTES and content[0] == 1:
        return "guid", str(uuid.UUID(bytes=bytes(content[1:_GUID_HEADER_BYTES])))
    if len(content) >= MIN_PREFIX_BYTES and content[0] == 0:
        number = int.from_bytes(content[1:MIN_PREFIX_BYTES], "big")
        return ("id32", number) if number <= MAX_ID else None
    return None


def prefix_bytes(kind: Kind) -> int:
    """Return how many bytes of a payload the magic byte and an id of this kind take."""
    return MIN_PREFIX_BYTES if kind == "id32" else _LONG_PREFIX_BYTES


def encode_id(kind: Kind, value: int | str) -> bytes:
    """Return the bytes of an id: 4, 8 or 16 of them.

    :raises ValueError: the value is not one of this kind.
    """
    if kind == "guid":
        return uuid.UUID(str(value)).bytes
    number = int(value)
    if not 0 <= number <= MAX_ID:
        raise ValueError(f"{number} is not a schema id")
    return number.to_bytes(4 if kind == "id32" else 8, "big")
