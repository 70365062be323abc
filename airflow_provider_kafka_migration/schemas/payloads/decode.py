"""Whether payloads decode with a schema: the evidence that bytes which begin like a serialized record are one.

A payload decodes if all of its bytes behind the id, the last one included, are one value of the schema:

* **Avro**: one value in Avro's binary form. Logical types do not count: an application may read the plain value.
  Of the plain type ``bytes``, anything is a value, so nobody can tell.
* **JSON Schema**: one JSON text in UTF-8, and valid by the schema. White space may follow it.
* **Protobuf**: message indexes (as Confluent, Karapace and Redpanda write them) or the name of a message (as Apicurio
  does) that lead to a message of the schema, then fields of this message only, each with its own wire type. What a
  field of another message holds is not looked into.

By chance, a few bytes may be a value of a small schema. So one payload proves nothing, and the caller counts many.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jsonschema
from fastavro.schema import parse_schema
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from airflow_provider_kafka_migration.registry.model import Schema, Subject
from airflow_provider_kafka_migration.schemas.content import messages_of, qualified_reference
from airflow_provider_kafka_migration.schemas.payloads.avro import is_value
from airflow_provider_kafka_migration.schemas.payloads.protobuf import is_message

#: Tells whether the bytes behind an id decode.
Decodes = Callable[[bytes], bool]
#: Finds the schema of a (qualified subject, version); None: it is not known.
FindSchema = Callable[[str, int], Schema | None]

_MAX_REFERENCES = 1000


class CannotDecode(Exception):
    """Nobody can tell: the schema, or one that it refers to, cannot be read by the library. The text says why."""


def decoder(schema: Schema, context: str, find: FindSchema) -> Decodes:
    """Return what decides about payloads.

    :param context: in which names of references without a context are meant.
    :raises CannotDecode: see there.
    """
    try:
        if schema.type == "AVRO":
            return _avro(schema, context, find)
        if schema.type == "JSON":
            return _json(schema, context, find)
        messages = messages_of(schema)
    except CannotDecode:
        raise
    except Exception as error:
        # These libraries raise whatever a text that they do not expect leads to.
        raise CannotDecode(f"its text cannot be read: {type(error).__name__}") from None
    if not messages:
        raise CannotDecode("its text has no message")
    return partial(is_message, messages)


def _referenced(schema: Schema, context: str, find: FindSchema) -> Iterator[tuple[str, Schema, str]]:
    """Yield (name, schema, its context) of all that a schema refers to, over any depth; what is needed comes first.

    :raises CannotDecode: one of them is not known.
    """
    seen: set[tuple[str, int]] = set()

    def walk(item: Schema, inside: str) -> Iterator[tuple[str, Schema, str]]:
        for reference in item.references:
            key = (qualified_reference(reference, inside), reference.version)
            if key in seen:
                continue
            seen.add(key)
            found = find(*key)
            if found is None or len(seen) > _MAX_REFERENCES:
                raise CannotDecode(f"version {key[1]} of {key[0]}, to which it refers, is not known")
            there = Subject.parse(key[0]).context
            yield from walk(found, there)
            yield reference.name, found, there

    yield from walk(schema, context)


# -- Avro -------------------------------------------------------------------------------------------------------------


def _avro(schema: Schema, context: str, find: FindSchema) -> Decodes:
    named: dict[str, Any] = {}
    for _, item, _ in _referenced(schema, context, find):
        parse_schema(_plain(json.loads(item.text)), named_schemas=named)
    parsed = parse_schema(_plain(json.loads(schema.text)), named_schemas=named)

    if parsed == "bytes" or (isinstance(parsed, dict) and parsed["type"] == "bytes"):
        # Confluent's serializer for Java writes them as they are, without a length.
        raise CannotDecode("any bytes are a value of Avro's type bytes")
    return partial(is_value, parsed, named)


def _plain(node: Any) -> Any:
    """A schema without its logical types."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if isinstance(node, dict):
        return {key: _plain(item) for key, item in node.items() if key != "logicalType"}
    return node


# -- JSON Schema ------------------------------------------------------------------------------------------------------


def _json(schema: Schema, context: str, find: FindSchema) -> Decodes:
    parsed = json.loads(schema.text)
    validator = validator_for(parsed, default=jsonschema.Draft7Validator)
    validator.check_schema(parsed)
    # A registry of its own: without one, references to other places would be fetched over the network.
    registry: Any = Registry()
    for name, item, _ in _referenced(schema, context, find):
        content = json.loads(item.text)
        resource = Resource.from_contents(content, default_specification=DRAFT7)
        registry = registry.with_resource(name, resource)
    checks = validator(parsed, registry=registry)

    def decodes(payload: bytes) -> bool:
        try:
            value = json.loads(payload.decode("utf-8"))
        except (ValueError, RecursionError):
            return False
        try:
            return checks.is_valid(value)
        except OverflowError:
            return False  # a number beyond any float
        except (Unresolvable, RecursionError) as error:
            raise CannotDecode(f"its references cannot be resolved: {type(error).__name__}") from None
        except Exception as error:
            # Of a schema that it refers to, for instance: an unknown type, or a pattern that only Java can read.
            raise CannotDecode(f"it cannot be checked: {type(error).__name__}") from None

    return decodes
