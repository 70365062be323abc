"""Whether two schemas are the same, although servers reformat them; and their references, names and digests.

Servers store a schema as they print it: Confluent shortens the type name ``t.Order`` to ``Order`` inside the namespace
``t``, prints Protobuf without comments and in another layout, and does not keep the whitespace of JSON. Therefore
schemas are compared in a canonical form:

* Avro: parsed JSON with full type names; ``{"type": "string"}`` is ``"string"``; the order of attributes, the default
  order of fields and empty lists of aliases do not count. Documentation, aliases, defaults and logical types do.
* JSON Schema: parsed JSON; ``1`` and ``1.0`` are one number, the order of keys does not count, that of lists does.
* Protobuf: tokens without comments, with one kind of quotes; the order of imports, options, fields and definitions does
  not count, except the order of messages (message indexes in records depend on it) and of enum values.

What it does not see: two spellings of one Protobuf type name (``Addr``, ``t.Addr``, ``.t.Addr``), of one number
(``16``, ``0x10``) or of an option's default (``packed``, ``json_name``); a Protobuf option list in another order; a
JSON Schema or an Avro default that means the same in other words. Such pairs count as different, never the other way
round; ``schemas.equality`` then asks the registry. Two JSON texts that differ only in a key which occurs twice in one
object count as equal if the last values do, as they do for parsers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.registry.model import DEFAULT_CONTEXT, Reference, Schema, Subject

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = frozenset({"record", "error", "enum", "fixed"})
_CACHED_TEXTS = 65536
_EXACT_FLOAT = 2**53

#: What a parser raises for text that is not what its type promises, or is nested too deeply.
_UNPARSABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def same_schema(
    first: Schema,
    second: Schema,
    *,
    first_context: str = DEFAULT_CONTEXT,
    second_context: str = DEFAULT_CONTEXT,
    metadata: bool = True,
    rule_set: bool = True,
) -> bool:
    """Return whether two schemas mean the same: type, content, references, and by choice metadata and rule set.

    :param first_context: the context in which references without a context are looked up.
    :param metadata: False where one of the servers does not keep metadata.
    :param rule_set: likewise.
    """
    if first.type != second.type:
        return False
    if references_of(first, first_context) != references_of(second, second_context):
        return False
    if metadata and _plain(first.metadata) != _plain(second.metadata):
        return False
    if rule_set and _plain(first.rule_set) != _plain(second.rule_set):
        return False
    return first.text == second.text or canonical_text(first.type, first.text) == canonical_text(
        second.type, second.text
    )


def references_of(schema: Schema, context: str) -> tuple[tuple[str, str, int], ...]:
    """Return (name, qualified subject, version) of all references, ascending; their order means nothing."""
    return tuple(
        sorted((item.name, qualified_reference(item, context), item.version) for item in set(schema.references))
    )


#: type, text and references: what Apicurio takes for the identity of a schema
ContentKey = tuple[str, str, tuple[tuple[str, str, int], ...]]


def content_key(schema: Schema, subject: str) -> ContentKey:
    """Return what identifies the content of a subject's schema, as it is written."""
    return schema.type, schema.text, references_of(schema, Subject.parse(subject).context)


def qualified_reference(reference: Reference, context: str) -> str:
    """Return the qualified subject of a reference that a schema of this context has.

    >>> qualified_reference(Reference("t.Order", "order-value", 1), ".payments")
    ':.payments:order-value'
    >>> qualified_reference(Reference("t.Order", ":.:order-value", 1), ".payments")
    'order-value'
    """
    if reference.subject.startswith(":."):
        return Subject.parse(reference.subject).qualified
    return Subject(context, reference.subject).qualified


def reference_subject(target: str, referrer: str, *, qualified: bool = False) -> str:
    """Return how a schema of subject ``referrer`` has to write a reference to the subject ``target``.

    Inside one context the name alone is enough. From another context it is qualified, also in the default context.

    :param target: qualified, as is ``referrer``.
    :param qualified: always write the context, unless it is the default one for both.

    >>> reference_subject("order-value", ":.payments:cart-value")
    ':.:order-value'
    """
    to, by = Subject.parse(target), Subject.parse(referrer)
    if to.context == by.context and not (qualified and to.context != DEFAULT_CONTEXT):
        return to.name
    return f":{to.context}:{to.name}"


def schema_digest(schema: Schema) -> str:
    """Return the SHA-256 over type, text, references, metadata and rule set as they are, as 64 hex digits."""
    content: dict[str, Any] = {
        "type": schema.type,
        "text": schema.text,
        "references": sorted([item.name, item.subject, item.version] for item in schema.references),
    }
    # Absent on most servers: leave the digest of such a schema independent of whether a server knows them.
    if schema.metadata:
        content["metadata"] = _plain(schema.metadata)
    if schema.rule_set:
        content["rule_set"] = _plain(schema.rule_set)
    return canonical_digest(content)


@lru_cache(maxsize=_CACHED_TEXTS)
def canonical_text(type_: str, text: str) -> str:
    """Return the canonical form of a schema's text; text that cannot be parsed is returned without outer whitespace."""
    try:
        if type_ == "AVRO":
            return _dump(_avro(json.loads(text), ""))
        if type_ == "JSON":
            return _dump(json.loads(text))
        if type_ == "PROTOBUF":
            return _dump(_protobuf(text))
    except _UNPARSABLE:
        pass
    return text.strip()


def message_order(schema: Schema) -> tuple[Any, ...]:
    """Return the names of a Protobuf schema's messages in their order, each with those inside it; else empty.

    Records refer to a message by its position, so two schemas in which this differs are never the same for them.
    """
    return _message_order(schema.text) if schema.type == "PROTOBUF" else ()


@lru_cache(maxsize=_CACHED_TEXTS)
def _message_order(text: str) -> tuple[Any, ...]:
    try:
        return _messages(_protobuf(text))
    except _UNPARSABLE:
        return ()


@dataclass(frozen=True)
class ProtobufMessage:
    """A message of a Protobuf text.

    :param fields: number to (name of the type, may occur several times); a map is of type ``map``.
    :param messages: inside of it, in their order.
    :param is_extensible: other texts may add fields.
    """

    name: str
    fields: Mapping[int, tuple[str, bool]]
    messages: tuple[ProtobufMessage, ...] = ()
    is_extensible: bool = False


def messages_of(schema: Schema) -> tuple[ProtobufMessage, ...]:
    """Return the messages of a Protobuf schema in their order; empty for a text that has none.

    :raises ValueError: the text cannot be parsed.
    """
    try:
        return tuple(_message(item) for item in _protobuf(schema.text) if _is_message(item))
    except _UNPARSABLE as error:
        raise ValueError(f"the Protobuf text cannot be parsed: {error}") from None


def _is_message(statement: _Statement) -> bool:
    return (
        len(statement) > 1 and isinstance(statement[-1], list) and (statement[0] == "message" or _is_group(statement))
    )


def _is_group(statement: _Statement) -> bool:
    return "group" in statement[:2] and "=" in statement


def _message(statement: _Statement) -> ProtobufMessage:
    inside = [item for item in statement[-1] if item]
    flat = [item for each in inside for item in (each[-1] if each[0] == "oneof" else [each])]
    fields = {}
    for item in flat:
        if "=" not in item or item[0] in ("option", "enum", "extend", "extensions", "reserved"):
            continue
        at = item.index("=")
        kind = "map" if item[0] == "map" else item[at - 2]
        fields[int(item[at + 1], 0)] = (kind, item[0] in ("repeated", "map"))
    name = statement[1] if statement[0] == "message" else statement[statement.index("=") - 1]
    return ProtobufMessage(
        name,
        fields,
        tuple(_message(item) for item in inside if _is_message(item)),
        is_extensible=any(item[0] == "extensions" for item in inside),
    )


def _messages(statements: list[_Statement]) -> tuple[Any, ...]:
    return tuple(
        (item[1], _messages(item[-1])) for item in statements if item[0] == "message" and isinstance(item[-1], list)
    )


def record_names(schema: Schema) -> frozenset[str]:
    """Return the names by which a record name strategy may call this schema; empty if it has none."""
    return _record_names(schema.type, schema.text)


@lru_cache(maxsize=_CACHED_TEXTS)
def _record_names(type_: str, text: str) -> frozenset[str]:
    try:
        if type_ == "AVRO":
            node = _avro(json.loads(text), "")
            return frozenset({str(node["name"])} if isinstance(node, dict) and "name" in node else ())
        if type_ == "JSON":
            title = json.loads(text).get("title")
            return frozenset({title} if isinstance(title, str) else ())
        return _message_names(text)
    except _UNPARSABLE:
        return frozenset()


def _plain(value: Any) -> str:
    return _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(_numbers(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _numbers(value: Any) -> Any:
    """Write whole floats as integers: 1.0 and 1 are one number in JSON, and servers print either."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOAT:
        return int(value)
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(item) for item in value]
    return value


# -- Avro -------------------------------------------------------------------------------------------------------------


def _avro(node: Any, namespace: str) -> Any:
    """Return a schema with full names. ``namespace`` is that of the enclosing type."""
    if isinstance(node, str):
        return node if node in _PRIMITIVES else _full_name(node, namespace)
    if isinstance(node, list):
        return [_avro(item, namespace) for item in node]
    kind = node["type"]
    if kind in _NAMED if isinstance(kind, str) else False:
        return _avro_named(node, namespace)
    found = {key: value for key, value in node.items() if key not in ("type", "items", "values")}
    if kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        return {**found, "type": kind, inner: _avro(node[inner], namespace)}
    inside = _avro(kind, namespace)
    return {**found, "type": inside} if found else inside


def _avro_named(node: dict[str, Any], enclosing: str) -> dict[str, Any]:
    given = node.get("namespace")
    full = _full_name(node["name"], enclosing if given is None else given)
    namespace = full.rpartition(".")[0]
    found = {key: value for key, value in node.items() if key not in ("name", "namespace", "fields", "aliases")}
    found["name"] = full
    if node.get("aliases"):
        found["aliases"] = [_full_name(alias, namespace) for alias in node["aliases"]]
    if "fields" in node:
        found["fields"] = [_avro_field(field, namespace) for field in node["fields"]]
    return found


def _avro_field(field: dict[str, Any], namespace: str) -> dict[str, Any]:
    found = {**field, "type": _avro(field["type"], namespace)}
    if found.get("order") == "ascending":
        del found["order"]
    if not found.get("aliases", True):
        del found["aliases"]
    return found


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


# -- Protobuf ---------------------------------------------------------------------------------------------------------

#: Comments and strings also match without their end, so that no text is scanned for an end again and again.
_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*(?:[^*]|\*(?!/))*(?P<comment>(?:\*/)?)
    | (?P<string>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?) | (?P<word>[\w.+-]+) | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
#: Statements whose block holds statements; the block of any other one is the value of an option.
_BLOCKS = frozenset({"message", "enum", "service", "oneof", "extend", "rpc"})
#: Order in which statements are compared; the ones that are missing here are fields and enum values.
_RANKS = {
    name: rank
    for rank, name in enumerate(
        ("syntax", "edition", "package", "import", "option", "reserved", "extensions", "", "oneof", "extend", "message")
    )
}
_AFTER_MESSAGES = len(_RANKS)

_Statement = list[Any]


def _protobuf(text: str) -> list[_Statement]:
    tokens = list(_tokens(text))
    statements, end = _statements(tokens, 0, "file")
    if end != len(tokens):
        raise ValueError("a block of the Protobuf text is closed twice")
    if not any(item[0] in ("syntax", "edition") for item in statements):
        statements.insert(0, ["syntax", "=", '"proto2"'])
    return statements


def _tokens(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        quoted = match["string"]
        if match["comment"] == "" or (quoted is not None and (len(quoted) < 2 or quoted[-1] != quoted[0])):
            raise ValueError("a comment or a string of the Protobuf text has no end")
        if quoted is not None:
            yield quoted if '"' in quoted[1:-1] else f'"{quoted[1:-1]}"'
        elif match["word"] is not None or match["mark"] is not None:
            yield match[0]


def _statements(tokens: list[str], position: int, inside: str) -> tuple[list[_Statement], int]:
    """Return the statements up to the end of a block, in canonical order, and the position of its closing brace."""
    found: list[_Statement] = []
    while position < len(tokens) and tokens[position] != "}":
        statement, position = _statement(tokens, position)
        if statement:
            found.append(statement)
    if inside in ("file", "message", "oneof", "service", "extend"):
        found.sort(key=_rank)
    elif inside == "enum":
        # The order of values counts: the first one is the default.
        found.sort(key=lambda item: _rank(item) if item[0] in ("option", "reserved") else (_AFTER_MESSAGES, ""))
    return found, position


def _statement(tokens: list[str], position: int) -> tuple[_Statement, int]:
    found: _Statement = []
    depth = 0
    while True:
        piece = tokens[position] if position < len(tokens) else None
        if piece is None:
            raise ValueError("a Protobuf statement has no end")
        position += 1
        if piece == ";" and not depth:
            return found, position
        if piece == "{" and not depth and _is_block(found):
            block, position = _statements(tokens, position, found[0] if found[0] in _BLOCKS else "message")
            if position >= len(tokens):
                raise ValueError("a block of the Protobuf text is not closed")
            return [*found, block], position + 1
        depth += (piece in "{[(<") - (piece in "}])>")
        if depth < 0:
            raise ValueError("a bracket of the Protobuf text is closed twice")
        found.append(piece)


def _is_block(found: _Statement) -> bool:
    """Whether the brace after these tokens opens a block of statements; a field may be called ``message``, too."""
    return bool(found) and (found[0] in _BLOCKS or "group" in found[:2]) and "=" not in found[:2]


def _rank(statement: _Statement) -> tuple[int, str]:
    is_field = len(statement) < 2 or (statement[1] == "=" and statement[0] not in ("syntax", "edition"))
    head = "" if is_field else statement[0]
    if head in ("enum", "service"):
        return _AFTER_MESSAGES, json.dumps(statement)
    if head == "message":
        # Message indexes in records count messages in their order; the sort is stable.
        return _RANKS["message"], ""
    return _RANKS.get(head, _RANKS[""]), json.dumps(statement)


def _message_names(text: str) -> frozenset[str]:
    statements = _protobuf(text)
    package = next((item[1] for item in statements if item[0] == "package"), "")
    return frozenset(
        _full_name(item[1], package) for item in statements if item[0] == "message" and isinstance(item[-1], list)
    )
