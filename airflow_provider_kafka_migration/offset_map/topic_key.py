"""Topic names as parts of object keys."""

from __future__ import annotations


def topic_key(topic: str) -> str:
    """A topic's name as one part of a key. Kafka allows ``[a-zA-Z0-9._-]``; only a leading dot needs care."""
    return f"%2E{topic[1:]}" if topic.startswith(".") else topic


def topic_of_key(part: str) -> str:
    """The topic's name back from :func:`topic_key`."""
    return f".{part[3:]}" if part.startswith("%2E") else part
