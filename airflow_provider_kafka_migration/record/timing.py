"""Times of the phases: one text form for machines, words for people, and bounded waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import pendulum

_T = TypeVar("_T")


def iso(at: datetime) -> str:
    """``2026-04-24T10:40:00.123456Z``; the time needs a zone."""
    if at.tzinfo is None:
        raise ValueError("a time without a zone")
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_iso(text: str) -> datetime:
    """Reads what :func:`iso` writes (and any ISO 8601 time with a zone)."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"a time without a zone: {text}")
    return at


def words(seconds: float) -> str:
    """A duration for people: ``1 minute 35 seconds``; below ten seconds with a tenth: ``2.5 s``."""
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    return pendulum.duration(seconds=round(seconds)).in_words(locale="en")


def wait_until(
    check: Callable[[], _T | None],
    *,
    timeout_seconds: float,
    every_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _T | None:
    """Call ``check`` until it answers something; ``None`` after the time-out. Checks at least once, and at the end."""
    deadline = clock() + timeout_seconds
    while True:
        found = check()
        left = deadline - clock()
        if found is not None or left <= 0:
            return found
        sleep(min(every_seconds, left))
