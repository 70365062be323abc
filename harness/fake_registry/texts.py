"""How the fake registry reads schema texts: canonical form, named types, and what Avro calls compatible.

Avro: parsed and printed as Avro's Java library prints it (compact, type names shortened inside their namespace).
JSON Schema: compact. Protobuf: comments removed, one statement per line, indented by two spaces; a descriptor in base64
is kept as it is, which Confluent would print as text. The compatibility rule covers Avro only: record fields without
default, types and promotions, unions, enums, fixed, arrays and maps. JSON Schema and Protobuf always count as
compatible.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = ("record", "error", "enum", "fixed")
_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_BUILT_IN_IMPORTS = ("google/protobuf/", "google/type/", "confluent/")


class InvalidSchema(Exception):
    """The text is no schema of its type; the message is the detail of the registry's answer."""


def compact(value: Any) -> str:
    """JSON as the registry prints it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def canonical(kind: str, text: str, referenced: dict[str, str], *, normalize: bool = False) -> str:
    """The text that the registry keeps.

    :param referenced: reference name -> text of the schema of the same type, over any depth.
    :raises InvalidSchema:
    """
    if kind == "AVRO":
        return avro_names(text, list(referenced.values())).text
    if kind == "JSON":
        return compact(_sorted(_json(text)) if normalize else _json(text))
    return _protobuf(text, referenced, normalize)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidSchema(f"the text is not JSON: {error}") from None


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


# -- Avro ---


@dataclass
class Avro:
    """A parsed Avro schema: its printed form, its tree with full type names, and all named types it can refer to."""

    text: str = ""
    tree: Any = None
    names: dict[str, Any] = field(default_factory=dict)


def avro_names(text: str, referenced: list[str]) -> Avro:
    """Parse an Avro schema and those it refers to (in any order).

    :raises InvalidSchema:
    """
    parsed = Avro()
    waiting = list(referenced)
    while waiting:
        left = []
        for item in waiting:
            try:
                _full(_json(item), "", parsed.names)
            except InvalidSchema:
                left.append(item)
        if len(left) == len(waiting):
            break
        waiting = left
    value = _json(text)
    parsed.tree = _full(value, "", parsed.names)
    parsed.text = compact(_printed(value, ""))
    return parsed


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _place(node: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Full name and namespace of a named type."""
    name = node.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidSchema(f"No name in schema: {compact(node)}")
    own = node.get("namespace", namespace) or ""
    full = _full_name(name, own)
    return full, full.rpartition(".")[0]


def _full(node: Any, namespace: str, names: dict[str, Any]) -> Any:
    """The tree with full type names; adds the named types to ``names``."""
    if isinstance(node, str):
        if node in PRIMITIVES:
            return node
        full = _full_name(node, namespace)
        if full not in names:
            raise InvalidSchema(f"Undefined name: {compact(node)}")
        return full
    if isinstance(node, list):
        return [_full(item, namespace, names) for item in node]
    if not isinstance(node, dict) or "type" not in node:
        raise InvalidSchema(f"No type: {compact(node)}")
    kind = node["type"]
    if isinstance(kind, str) and kind in _NAMED:
        return _full_named(node, kind, namespace, names)
    if kind == "array":
        return {"type": "array", "items": _full(_part(node, "items"), namespace, names)}
    if kind == "map":
        return {"type": "map", "values": _full(_part(node, "values"), namespace, names)}
    if isinstance(kind, str) and kind not in PRIMITIVES and _full_name(kind, namespace) not in names:
        raise InvalidSchema(f"Unknown schema type: {kind}")
    return _full(kind, namespace, names)


def _part(node: dict[str, Any], name: str) -> Any:
    if name not in node:
        raise InvalidSchema(f"No {name}: {compact(node)}")
    return node[name]


def _full_named(node: dict[str, Any], kind: str, namespace: str, names: dict[str, Any]) -> Any:
    full, inside = _place(node, namespace)
    named: dict[str, Any] = {"type": kind, "name": full}
    names[full] = named
    if kind == "enum":
        named.update(symbols=_part(node, "symbols"), default=node.get("default"))
    elif kind == "fixed":
        named["size"] = _part(node, "size")
    else:
        named["fields"] = [
            {**each, "type": _full(_part(each, "type"), inside, names)} for each in _part(node, "fields")
        ]
    return named


def _printed(node: Any, namespace: str) -> Any:
    if isinstance(node, str):
        place, _, name = node.rpartition(".")
        return name if place and place == namespace else node
    if isinstance(node, list):
        return [_printed(item, namespace) for item in node]
    kind = node["type"]
    if isinstance(kind, str) and kind in _NAMED:
        return _printed_named(node, kind, namespace)
    rest = {name: value for name, value in node.items() if name not in ("type", "items", "values")}
    if kind in ("array", "map"):
        part = "items" if kind == "array" else "values"
        return {"type": kind, part: _printed(node[part], namespace), **rest}
    inner = _printed(kind, namespace)
    return {"type": inner, **rest} if rest else inner


def _printed_named(node: dict[str, Any], kind: str, namespace: str) -> dict[str, Any]:
    full, inside = _place(node, namespace)
    printed: dict[str, Any] = {"type": kind, "name": full.rpartition(".")[2]}
    if inside != namespace:
        printed["namespace"] = inside
    for name in ("doc", "symbols", "size"):
        if name in node:
            printed[name] = node[name]
    if "fields" in node:
        printed["fields"] = [_printed_field(each, inside) for each in node["fields"]]
    known = {"type", "name", "namespace", "doc", "symbols", "size", "fields"}
    return {**printed, **{name: value for name, value in node.items() if name not in known}}


def _printed_field(each: dict[str, Any], namespace: str) -> dict[str, Any]:
    printed = {"name": each["name"], "type": _printed(each["type"], namespace)}
    for name in ("doc", "default", "order"):
        if name in each:
            printed[name] = each[name]
    return {**printed, **{name: value for name, value in each.items() if name not in printed}}


def incompatibilities(reader: Avro, writer: Avro, *, reader_is_new: bool = True) -> list[str]:
    """Why ``reader`` cannot read what ``writer`` wrote, in the words of the registry; empty: it can."""
    check = _Check(reader.names, writer.names, ("new", "old") if reader_is_new else ("old", "new"))
    return list(check.compare(reader.tree, writer.tree, ""))


@dataclass
class _Check:
    reader_names: dict[str, Any]
    writer_names: dict[str, Any]
    sides: tuple[str, str]
    seen: set[tuple[str, str]] = field(default_factory=set)

    def compare(self, reader: Any, writer: Any, path: str) -> Iterator[str]:
        reader, writer = self._resolved(reader, self.reader_names), self._resolved(writer, self.writer_names)
        if isinstance(writer, list):
            for number, branch in enumerate(writer):
                yield from self.compare(reader, branch, f"{path}/{number}")
        elif isinstance(reader, list):
            if not any(not list(self.compare(branch, writer, path)) for branch in reader):
                yield self._mismatch("MISSING_UNION_BRANCH", path, _kind(writer))
        elif _kind(reader) != _kind(writer):
            if _kind(reader) not in _PROMOTIONS.get(_kind(writer), ()):
                yield self._mismatch("TYPE_MISMATCH", path, f"{_kind(reader)} and {_kind(writer)}")
        else:
            rules: dict[str, Callable[[Any, Any, str], Iterator[str]]] = {
                "record": self._records,
                "error": self._records,
                "enum": self._enums,
                "fixed": self._fixed,
                "array": lambda new, old, at: self.compare(new["items"], old["items"], f"{at}/items"),
                "map": lambda new, old, at: self.compare(new["values"], old["values"], f"{at}/values"),
            }
            if rule := rules.get(_kind(reader)):
                yield from rule(reader, writer, path)

    def _resolved(self, node: Any, names: dict[str, Any]) -> Any:
        return names[node] if isinstance(node, str) and node not in PRIMITIVES else node

    def _mismatch(self, kind: str, path: str, info: str) -> str:
        text = (
            f"The type at path '{path or '/'}' in the {self.sides[0]} schema does not match the {self.sides[1]} schema"
        )
        return f"{{errorType:'{kind}', description:'{text}', additionalInfo:'{info}'}}"

    def _names(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        if reader["name"].rpartition(".")[2] != writer["name"].rpartition(".")[2]:
            yield self._mismatch("NAME_MISMATCH", f"{path}/name", f"expected: {writer['name']}")

    def _records(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        pair = (reader["name"], writer["name"])
        if pair in self.seen:
            return
        self.seen.add(pair)
        yield from self._names(reader, writer, path)
        written = {each["name"]: each for each in writer["fields"]}
        for number, each in enumerate(reader["fields"]):
            at = f"{path}/fields/{number}"
            known = [written[name] for name in (each["name"], *each.get("aliases", ())) if name in written]
            if known:
                yield from self.compare(each["type"], known[0]["type"], f"{at}/type")
            elif "default" not in each:
                text = (
                    f"The field '{each['name']}' at path '{at}' in the {self.sides[0]} schema has no default value "
                    f"and is missing in the {self.sides[1]} schema"
                )
                yield (
                    f"{{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'{text}', "
                    f"additionalInfo:'{each['name']}'}}"
                )

    def _enums(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        yield from self._names(reader, writer, path)
        missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
        if missing and reader["default"] is None:
            yield self._mismatch("MISSING_ENUM_SYMBOLS", f"{path}/symbols", ", ".join(missing))

    def _fixed(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        yield from self._names(reader, writer, path)
        if reader["size"] != writer["size"]:
            yield self._mismatch("FIXED_SIZE_MISMATCH", f"{path}/size", f"expected: {writer['size']}")


def _kind(node: Any) -> str:
    return node if isinstance(node, str) else str(node["type"])


# -- Protobuf ---

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<token>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[\w.+-]+|[{}=;<>,\[\]():])""", re.DOTALL
)
#: A field: what precedes its type, and the type.
_FIELD = re.compile(r"^(?P<before>(?:(?:repeated|optional|required) )?(?:map<\w+, ?)?)(?P<type>[\w.]+)(?=>? \w+ = \d)")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{8,}={0,2}")
_NO_SPACE_BEFORE = frozenset(";,>])<:")
_NO_SPACE_AFTER = frozenset("<[(")


def _protobuf(text: str, referenced: dict[str, str], normalize: bool) -> str:
    references = set(referenced)
    if _BASE64.fullmatch(text):
        return _descriptor(text, references)
    statements = _file(text)
    if normalize:
        statements = _normalized(
            statements, [_file(each) for each in referenced.values() if not _BASE64.fullmatch(each)]
        )
    groups: dict[str, list[str]] = {"syntax": [], "package": [], "import": [], "option": []}
    blocks: list[str] = []
    for head, inner in statements:
        word = head.split()[0]
        if inner is None and word in groups:
            groups[word].append(f"{head};\n")
        else:
            blocks.append(_rendered(head, inner, 0))
    _check_imports((head.split('"')[1] for head in groups["import"] if '"' in head), references)
    parts = ["".join(groups["syntax"] + groups["package"]), "".join(groups["import"]), "".join(groups["option"])]
    return "\n".join(part for part in (*parts, *blocks) if part)


def _file(text: str) -> _Statements:
    statements, rest = _block(list(_tokens(text)), 0)
    if rest != -1 or not statements:
        raise InvalidSchema("Syntax error: a brace closes nothing" if statements else "Syntax error: no statement")
    return statements


def _normalized(statements: _Statements, referenced: list[_Statements]) -> _Statements:
    """Imports sorted, and the types of fields by their full names, as Confluent's sources do it. Not recorded."""
    known = {name for file in (statements, *referenced) for name in _type_names(file, _package(file))}
    imports = sorted(head for head, _ in statements if head.startswith("import "))
    others = [each for each in statements if not each[0].startswith("import ")]
    return [*((head, None) for head in imports), *_with_full_names(others, _package(statements), known)]


def _package(statements: _Statements) -> str:
    return next((head.split()[1] for head, inner in statements if inner is None and head.startswith("package ")), "")


def _type_names(statements: _Statements, scope: str) -> Iterator[str]:
    for head, inner in statements:
        if inner is not None and head.split()[0] in ("message", "enum"):
            name = _full_name_in(head.split()[1], scope)
            yield name
            yield from _type_names(inner, name)


def _with_full_names(statements: _Statements, scope: str, known: set[str]) -> _Statements:
    found: _Statements = []
    for head, inner in statements:
        if inner is None:
            found.append(
                (_FIELD.sub(lambda match: match["before"] + _resolved(match["type"], scope, known), head), None)
            )
        elif head.split()[0] in ("message", "oneof"):
            inside = _full_name_in(head.split()[1], scope) if head.startswith("message ") else scope
            found.append((head, _with_full_names(inner, inside, known)))
        else:
            found.append((head, inner))
    return found


def _resolved(name: str, scope: str, known: set[str]) -> str:
    """The full name of a type, which is searched for from the innermost scope outwards."""
    while not name.startswith("."):
        if (full := _full_name_in(name, scope)) in known:
            return f".{full}"
        if not scope:
            break
        scope = scope.rpartition(".")[0]
    return name


def _full_name_in(name: str, scope: str) -> str:
    return f"{scope}.{name}" if scope else name


def _check_imports(names: Iterable[str], references: set[str]) -> None:
    for name in names:
        if name not in references and not name.startswith(_BUILT_IN_IMPORTS):
            raise InvalidSchema(f'No such import: "{name}"')


def _descriptor(text: str, references: set[str]) -> str:
    """A file descriptor in base64, as some serializers register it."""
    from google.protobuf import descriptor_pb2, message

    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(text, validate=True))
    except (ValueError, message.DecodeError) as error:
        raise InvalidSchema(f"the descriptor cannot be read: {error}") from None
    _check_imports(file.dependency, references)
    return text


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidSchema(f"Syntax error at {position}: {text[position : position + 20]!r}")
        if token := match["token"]:
            yield token
        position = match.end()


_Statements = list[tuple[str, Any]]


def _block(tokens: list[str], position: int) -> tuple[_Statements, int]:
    """Statements up to the closing brace, and the position behind it (-1: the text has ended)."""
    statements: _Statements = []
    words: list[str] = []
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token == ";":
            if words:
                statements.append((_joined(words), None))
            words = []
        elif token == "{":
            inner, position = _block(tokens, position)
            if position == -1 or not words:
                raise InvalidSchema("Syntax error: a brace is open at the end")
            statements.append((_joined(words), inner))
            words = []
        elif token == "}":
            return statements, position
        else:
            words.append(token)
    if words:
        raise InvalidSchema(f"Syntax error: {_joined(words)!r} has no end")
    return statements, -1


def _joined(words: list[str]) -> str:
    text = words[0]
    for before, word in itertools.pairwise(words):
        tight = word in _NO_SPACE_BEFORE or before in _NO_SPACE_AFTER
        text += word if tight else f" {word}"
    return text


def _rendered(head: str, inner: Any, depth: int) -> str:
    indent = "  " * depth
    if inner is None:
        return f"{indent}{head};\n"
    body = [_rendered(inner_head, deeper, depth + 1) for inner_head, deeper in inner]
    return f"{indent}{head} {{\n{''.join(body)}{indent}}}\n"
