"""Times of a migration: one text form for machines, durations for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pendulum

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(at: datetime) -> str:
    """``2026-04-24T10:40:00.123456Z``; the time must have a zone."""
    if at.tzinfo is None:
        raise ValueError("a time without a zone")
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def iso_of_ms(since_1970_ms: int) -> str:
    """Return the time of a timestamp that a client has chosen, to the second.

    Producers may write any 64 bits, for instance micro- or nanoseconds: what no calendar has is shown as the number.
    """
    try:
        return (_EPOCH + timedelta(milliseconds=since_1970_ms)).isoformat(timespec="seconds")
    except OverflowError:
        return f"timestamp {since_1970_ms}"


def parse_iso(text: str) -> datetime:
    """Read what :func:`iso` writes (and any ISO 8601 time with a zone)."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"a time without a zone: {text}")
    return at


def words(seconds: float) -> str:
    """A duration for people: ``1 minute 35 seconds``; below ten seconds with a tenth: ``2.5 s``."""
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    return pendulum.duration(seconds=round(seconds)).in_words(locale="en")
