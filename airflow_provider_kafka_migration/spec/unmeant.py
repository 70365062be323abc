"""Values that are valid, and that nobody means: numbers beyond any use, and what came with a copied text. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

#: (path in the spec, reason)
Mistake = tuple[str, str]

#: S3 keeps an object under a lock for no longer, and dates further on may not exist.
_LONGEST = timedelta(days=100 * 365)
_MOST: Mapping[str, tuple[int, str]] = {
    "seed.lanes": (10_000, "each lane is a task of Spark, with connections to all brokers of both clusters"),
    "seed.max_concurrent_partitions": (10_000, "each has buffers of its own"),
    "seed.slice_seconds": (86_400, "nobody takes a lane over from a dead copier before its slice ends"),
    "tail.slice_seconds": (86_400, "nobody takes a lane over from a dead copier before its slice ends"),
}
#: Sentences for people, and arguments of somebody else's class.
_PROSE = ("description", "source.name", "target.name", "waive", "notifications.kwargs")
_QUOTES = "\u201c\u201d\u201e\u201f\u2018\u2019\u201a\u201b\u00ab\u00bb\u2039\u203a\u0060\u00b4"


def unmeant(path: str, value: Any) -> Iterator[Mistake]:
    """Find such values in a value of the spec, such as a section, and below it."""
    if path in _PROSE:
        return
    if isinstance(value, BaseModel):
        for key, item in value:
            yield from unmeant(f"{path}.{key.rstrip('_')}", item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _in_text(path, str(key))
            yield from unmeant(f"{path}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from unmeant(f"{path}[{index}]", item)
    else:
        yield from _scalar(path, value)


def _scalar(path: str, value: Any) -> Iterator[Mistake]:
    if isinstance(value, str):
        yield from _in_text(path, value)
    elif isinstance(value, timedelta) and value > _LONGEST:
        yield path, "at most 100y"
    elif isinstance(value, int) and path in _MOST and value > _MOST[path][0]:
        most, why = _MOST[path]
        yield path, f"at most {most}: {why}"


def _in_text(path: str, text: str) -> Iterator[Mistake]:
    if text.strip(_QUOTES) != text:
        yield (
            path,
            "it begins or ends with a typographic quote, which is part of the text: in YAML only \" and ' are quotes",
        )
    elif text != text.strip():
        yield path, "it begins or ends with white space, which is part of the text: remove it"
    elif any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") or char == "\u00a0" for char in text):
        yield path, "it has a character that cannot be seen, such as a non-breaking space: write it anew"
