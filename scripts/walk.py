"""Follow a function's calls through the rooms of the package: ``make walk FROM=phases.final_drain:run``.

A room is a folder of the package, or a module beside them. The walk enters each function of the package that is
called, in the order of the text, once, and goes back to the caller. It counts the rooms that it sees, and its returns:
steps into another room that it has seen before. Few of both means that a reader needs to know few places.

Calls are found as text: names that are imported or defined, methods of ``self``, and methods whose name only one class
of the package has. What is passed around as a value is not followed.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "airflow_provider_kafka_migration"
ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Module:
    """One module: what its names mean, and its functions and classes."""

    name: str
    #: Name in this module -> dotted name it was imported from.
    imported: dict[str, str] = field(default_factory=dict)
    functions: dict[str, ast.AST] = field(default_factory=dict)
    #: Class -> names of its bases, as written.
    bases: dict[str, list[str]] = field(default_factory=dict)

    @property
    def room(self) -> str:
        """The folder below the package, or the module itself."""
        return self.name.split(".")[1] if "." in self.name else self.name


class House:
    """All modules of the package."""

    def __init__(self, root: Path) -> None:
        self.modules: dict[str, Module] = {}
        for path in sorted((root / PACKAGE).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.modules[name] = _read(name, ast.parse(path.read_text(encoding="utf-8")))
        owners: dict[str, list[tuple[Module, str]]] = defaultdict(list)
        for module in self.modules.values():
            for place in module.functions:
                if "." in place:
                    owners[place.rpartition(".")[2]].append((module, place))
        self._only_owner = {name: found[0] for name, found in owners.items() if len(found) == 1}

    def find(self, dotted: str, seen: frozenset[str] = frozenset()) -> tuple[Module, str] | None:
        """Return the module and the place of a function or class by its dotted name, also where it is re-exported."""
        head, _, rest = dotted.rpartition(".")
        while head:
            module = self.modules.get(head)
            if module is not None:
                if rest in module.functions:
                    return module, rest
                if rest in module.bases:
                    return self._method(module, rest, "__init__", frozenset())
                first, _, more = rest.partition(".")
                origin = module.imported.get(first)
                if origin is None or dotted in seen:
                    return None
                return self.find(f"{origin}.{more}" if more else origin, seen | {dotted})
            head, _, last = head.rpartition(".")
            rest = f"{last}.{rest}"
        return None

    def called(self, module: Module, place: str, call: ast.Call) -> tuple[Module, str] | None:
        """Return what a call in a function leads to; None: outside of the package, or unknown."""
        text = _dotted(call.func)
        if text is None:
            # The object is an expression: only the name of the method is known.
            return self._only_owner.get(call.func.attr) if isinstance(call.func, ast.Attribute) else None
        first, _, more = text.partition(".")
        if first in ("self", "cls") and "." in place:
            if more and "." not in more:
                return self._method(module, place.rpartition(".")[0], more, frozenset())
            return self._only_owner.get(text.rpartition(".")[2])
        if first in module.imported:
            return self.find(f"{module.imported[first]}.{more}" if more else module.imported[first])
        found = self.find(f"{module.name}.{text}")
        return found or (self._only_owner.get(text.rpartition(".")[2]) if more else None)

    def _method(self, module: Module, owner: str, name: str, seen: frozenset[str]) -> tuple[Module, str] | None:
        """Return a method of a class or of its bases."""
        if f"{owner}.{name}" in module.functions:
            return module, f"{owner}.{name}"
        for base in module.bases.get(owner, ()):
            place = f"{module.name}.{owner}"
            holder, local = module, base
            if base in module.imported:
                head, _, local = module.imported[base].rpartition(".")
                holder = self.modules.get(head, module)
            if place not in seen and local in holder.bases:
                found = self._method(holder, local, name, seen | {place})
                if found is not None:
                    return found
        return None


def _read(name: str, tree: ast.Module) -> Module:
    module = Module(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for item in node.names:
                module.imported[item.asname or item.name] = f"{node.module}.{item.name}"
        elif isinstance(node, ast.Import):
            for item in node.names:
                top = item.name.partition(".")[0]
                module.imported[item.asname or top] = item.name if item.asname else top
    _collect(module, tree.body, "")
    return module


def _collect(module: Module, body: list[ast.stmt], above: str) -> None:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            module.functions[f"{above}{node.name}"] = node
        elif isinstance(node, ast.ClassDef):
            module.bases[f"{above}{node.name}"] = [text for base in node.bases if (text := _dotted(base))]
            _collect(module, node.body, f"{above}{node.name}.")


def _dotted(node: ast.expr) -> str | None:
    """Return ``a.b.c`` of names and attributes; None for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = _dotted(node.value)
        return None if above is None else f"{above}.{node.attr}"
    return None


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a function in the order of the text; arguments come before the call that gets them."""
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)
    if isinstance(node, ast.Call):
        yield node


@dataclass
class Walk:
    """What a walk has seen. ``rooms``: entries into each; ``returns``: entries into a room that was seen before."""

    rooms: Counter[str] = field(default_factory=Counter)
    functions: int = 0
    returns: int = 0
    here: str = ""

    def enter(self, room: str) -> None:
        """Step into a room, if the walk is not in it."""
        if room == self.here:
            return
        self.returns += self.rooms[room] > 0
        self.rooms[room] += 1
        self.here = room


def walk(house: House, module: Module, place: str) -> Walk:
    """Follow the calls of a function."""
    found, seen = Walk(), set()

    def visit(module: Module, place: str) -> None:
        seen.add((module.name, place))
        found.enter(module.room)
        found.functions += 1
        for call in _calls(module.functions[place]):
            target = house.called(module, place, call)
            if target is None or (target[0].name, target[1]) in seen:
                continue
            visit(*target)
            found.enter(module.room)

    sys.setrecursionlimit(20_000)
    visit(module, place)
    return found


def main() -> int:
    """Print the walk of a function."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", metavar="MODULE:FUNCTION", help="for example phases.final_drain:run")
    start = parser.parse_args().start
    house = House(ROOT)
    name, _, function = start.partition(":")
    found = house.find(f"{PACKAGE}.{name}.{function or 'run'}")
    if found is None:
        print(f"there is no function {start}; write it as phases.final_drain:run", file=sys.stderr)
        return 2
    seen = walk(house, *found)
    print(f"{start}: {len(seen.rooms)} rooms, {seen.returns} returns, {seen.functions} functions")
    for room, entries in sorted(seen.rooms.items(), key=lambda item: (-item[1], item[0])):
        print(f"{entries:5} {room}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
