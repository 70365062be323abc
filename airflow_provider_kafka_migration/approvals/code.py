"""The code that binds an answer to what a person was shown."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.documents.base import canonical_digest

CODE_DIGITS = 8


def code_of(binding: dict[str, Any]) -> str:
    """Return the code of a binding: 8 hex digits."""
    return canonical_digest(binding)[:CODE_DIGITS]
