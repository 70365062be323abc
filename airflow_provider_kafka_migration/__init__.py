"""Moves a live Kafka cluster to another one, keeping the offsets, with signed proof."""

from __future__ import annotations

#: The version of the distribution; a test compares it with pyproject.toml.
__version__ = "0.1.0"
