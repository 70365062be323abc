"""Field types of the spec: durations, sizes, regular expressions, object storage addresses."""

from __future__ import annotations

import re
import warnings
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

_UNIT_SECONDS = {
    "ms": 0.001,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86400,
    "w": 7 * 86400,
    "y": 365 * 86400,
}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|y)?\s*$")
_UNIT_BYTES = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}
_SIZE = re.compile(r"^\s*(\d+)\s*([A-Za-z]*)\s*$")


def parse_duration(value: Any) -> timedelta:
    """Parse ``30s``, ``5m``, ``2h``, ``7d``, ``7y`` or a number of seconds."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return _seconds(value)
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a duration is a number with a unit ms, s, m, h, d, w or y, for instance 30s or 7y")
    return _seconds(float(match[1]) * _UNIT_SECONDS[match[2] or "s"])


def _seconds(value: float) -> timedelta:
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise ValueError("this duration is too long") from None


def format_duration(value: timedelta) -> str:
    """Return the shortest text that :func:`parse_duration` reads back as the same value."""
    seconds = value.total_seconds()
    for unit in ("y", "w", "d", "h", "m"):
        if seconds and seconds % _UNIT_SECONDS[unit] == 0:
            return f"{int(seconds // _UNIT_SECONDS[unit])}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def parse_bytes(value: Any) -> int:
    """Parse ``32MiB``, ``1GB`` or a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None or match[2].upper() not in _UNIT_BYTES:
        raise ValueError("a size is a whole number with a unit B, KB, MB, GB, KiB, MiB or GiB, for instance 32MiB")
    return int(match[1]) * _UNIT_BYTES[match[2].upper()]


class _NotCached(str):
    """A pattern that :mod:`re` has not compiled before, so that it warns of it again."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def check_regex(value: str, info: ValidationInfo) -> str:
    """Check that a regular expression compiles, and means in Python what its author means."""
    try:
        with warnings.catch_warnings(record=True) as ambiguous:
            warnings.simplefilter("always", FutureWarning)
            re.compile(_NotCached(value))
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if ambiguous and not (info.context or {}).get("recorded"):
        raise ValueError(
            "a set inside of [...], an intersection (&&) or a difference (--) is Java's and has another meaning here: "
            "write the set out, or use exclude"
        )
    return value


def check_location(value: str) -> str:
    """Check for ``s3://bucket/prefix`` or ``file:///folder``, and strip trailing slashes."""
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/.*)?|file:///.+", value):
        # The text is not repeated: a person may have put a login into it.
        raise ValueError(
            "a location is s3://bucket/prefix or file:///folder; the name of a bucket has at least two lower case "
            "letters, digits, dots and hyphens, and begins with a letter or digit"
        )
    return value.rstrip("/")


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _DURATION.pattern}, {"type": "number"}]}),
]
ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _SIZE.pattern}, {"type": "integer"}]}),
]
Regex = Annotated[str, AfterValidator(check_regex)]
Location = Annotated[str, AfterValidator(check_location)]
