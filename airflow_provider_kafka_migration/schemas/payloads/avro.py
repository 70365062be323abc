"""Whether bytes are a value of an Avro schema, by a walk that no bytes can make crash or last.

A library that builds values is no judge of foreign bytes: its C code overflows the stack where a recursive schema meets
a long run of one byte, counts to 2^60 for an array of nulls, and takes the index -1 of an enum or union for its last
item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_INT_BITS, _LONG_BITS = 32, 64
_SIZES = {"float": 4, "double": 8}
#: Steps without a byte: a record that holds itself, or so many empty items, is no value that anybody has written.
_MAX_IDLE_STEPS = 100_000


class _Malformed(Exception):
    pass


class _Items(NamedTuple):
    """The rest of a block of an array or a map, and the blocks that follow it.

    :param each: the schemas of one item.
    """

    each: tuple[Any, ...]
    left: int


def is_value(schema: Any, named: Mapping[str, Any], data: bytes) -> bool:
    """Return whether all bytes together are one value.

    :param schema: as ``fastavro`` parses it.
    :param named: the named types that it refers to, by full name.
    """
    walk = _Walk(named, data)
    try:
        walk.run(schema)
    except _Malformed:
        return False
    return walk.position == len(data)


class _Walk:
    """A position in the bytes, and what has to follow there, the next one last. Depth costs no stack of the process."""

    def __init__(self, named: Mapping[str, Any], data: bytes) -> None:
        self._named = named
        self._data = data
        self.position = 0
        self._next: list[Any] = []

    def run(self, schema: Any) -> None:
        """Go through one value.

        :raises _Malformed: these bytes are none.
        """
        self._next.append(schema)
        idle, reached = 0, 0
        while self._next:
            self._step(self._next.pop())
            idle = idle + 1 if self.position == reached else 0
            reached = self.position
            if idle > _MAX_IDLE_STEPS:
                raise _Malformed

    def _step(self, schema: Any) -> None:
        if isinstance(schema, _Items):
            self._items(schema)
        elif isinstance(schema, list):
            self._next.append(schema[self._index(len(schema))])
        elif isinstance(schema, dict):
            self._complex(schema)
        elif schema in self._named:
            self._next.append(self._named[schema])
        else:
            self._primitive(schema)

    def _complex(self, schema: Mapping[str, Any]) -> None:
        kind = schema["type"]
        if kind in ("record", "error"):
            self._next += [field["type"] for field in reversed(schema["fields"])]
        elif kind == "enum":
            self._index(len(schema["symbols"]))
        elif kind == "fixed":
            self._take(schema["size"])
        elif kind == "array":
            self._next.append(_Items((schema["items"],), 0))
        elif kind == "map":
            self._next.append(_Items((schema["values"], "string"), 0))
        else:
            self._next.append(kind)

    def _items(self, items: _Items) -> None:
        left = items.left
        if not left:
            left = self._number(_LONG_BITS)
            if left < 0:
                left = -left
                self._number(_LONG_BITS)  # the size of the block in bytes
            if not left:
                return
        self._next.append(items._replace(left=left - 1))
        self._next += items.each

    def _primitive(self, kind: str) -> None:
        if kind == "boolean":
            if self._take(1)[0] > 1:
                raise _Malformed
        elif kind in ("int", "long"):
            self._number(_INT_BITS if kind == "int" else _LONG_BITS)
        elif kind in _SIZES:
            self._take(_SIZES[kind])
        elif kind in ("bytes", "string"):
            content = self._take(self._number(_LONG_BITS))
            if kind == "string":
                try:
                    content.decode()
                except UnicodeDecodeError:
                    raise _Malformed from None
        elif kind != "null":
            raise _Malformed

    def _index(self, count: int) -> int:
        index = self._number(_INT_BITS)
        if not 0 <= index < count:
            raise _Malformed
        return index

    def _take(self, size: int) -> bytes:
        start, self.position = self.position, self.position + size
        if size < 0 or self.position > len(self._data):
            raise _Malformed
        return self._data[start : self.position]

    def _number(self, bits: int) -> int:
        """Read a zigzag number of at most so many bits."""
        number, data = 0, self._data
        for place, shift in enumerate(range(0, bits, 7), self.position):
            if place >= len(data):
                break
            byte = data[place]
            number |= (byte & 127) << shift
            if byte < 128:
                if number >> bits:
                    break
                self.position = place + 1
                return number >> 1 ^ -(number & 1)
        raise _Malformed
