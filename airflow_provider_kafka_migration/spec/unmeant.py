"""Values that are valid, and that nobody means: numbers beyond any use, and what came with a copied text. Pure."""

from __future__ import annotations

import re
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
    "seed.segment_max_bytes": (1 << 30, "a copier holds a segment in memory, and puts it as one object"),
    "seed.slice_seconds": (86_400, "nobody takes a lane over from a dead copier before its slice ends"),
    "tail.slice_seconds": (86_400, "nobody takes a lane over from a dead copier before its slice ends"),
}
_NO_LIMIT = "leave it out for no limit; 0 would stop the copy"
_LEAST: Mapping[str, tuple[int, str]] = {
    "seed.max_bytes_per_second": (1, _NO_LIMIT),
    "tail.max_bytes_per_second": (1, _NO_LIMIT),
    "validation.max_bytes_per_second": (1, "leave it empty for no limit; 0 would compare nothing"),
    "validation.independent_sample": (1, "to leave the second comparison out, set validation.independent: off"),
}
_BUSY = "longer than 0: each round asks a cluster"
#: Durations for which nothing is too short.
_NOT_ZERO: Mapping[str, str] = {
    "topology.refresh_interval": _BUSY,
    "groups.sync_interval": _BUSY,
    "groups.early_sync_interval": _BUSY,
    "mirror.sync_interval": _BUSY,
    "way_back.sync_interval": _BUSY,
    "tail.drain_ready_timeout": "longer than 0: the sensor would give up before it has looked",
    "cutover.max_producer_freeze": "longer than 0: every freeze would be lifted before it is verified",
    "cutover.drain_timeout": "longer than 0: the final drain would fail before it has begun",
    "approvals.max_age": "longer than 0: every answer would be too old",
    "approvals.response_timeout": "longer than 0: leave it out to wait without an end",
    "evidence.retention": "longer than 0: the lock would have ended before it begins",
}
#: Sentences for people, and arguments of somebody else's class.
_PROSE = ("description", "source.name", "target.name", "waive", "notifications.kwargs")
#: Texts that may have several lines: options of Java, scripts.
_LINES = ("spark.conf.", "spark.engine_args.")
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
    elif isinstance(value, timedelta):
        if value > _LONGEST:
            yield path, "at most 100y"
        elif path in _NOT_ZERO and not value:
            yield path, _NOT_ZERO[path]
    elif isinstance(value, int):
        yield from _in_number(path, value)


def _in_number(path: str, value: int) -> Iterator[Mistake]:
    most, least = _MOST.get(path), _LEAST.get(path)
    if most is not None and value > most[0]:
        yield path, f"at most {most[0]}: {most[1]}"
    elif least is not None and value < least[0]:
        yield path, f"at least {least[0]}: {least[1]}"


def _in_text(path: str, text: str) -> Iterator[Mistake]:
    if path.startswith(_LINES):
        text = re.sub(r"[ \t\r\n]+", " ", text).strip(" ")
    if text.strip(_QUOTES) != text:
        yield (
            path,
            "it begins or ends with a typographic quote, which is part of the text: in YAML only \" and ' are quotes",
        )
    elif text != text.strip():
        yield path, "it begins or ends with white space, which is part of the text: remove it"
    elif any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") or char == "\u00a0" for char in text):
        yield path, "it has a character that cannot be seen, such as a non-breaking space: write it anew"
