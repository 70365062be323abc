"""One entry of a migration's journal: ``<migration_id>/journal/00000000000000000042.json``.

The stored bytes are RFC 8785 canonical JSON. ``hash`` is SHA-256 over the canonical form of all other fields, and
``prev_hash`` is the ``hash`` of the previous entry, so that no entry can be altered, dropped or inserted unnoticed.
(A writer that can rewrite all entries up to the tip can build another valid chain; the signed evidence exposes that.)
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import rfc8785
from pydantic import ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.canonical_json import canonical_json
from airflow_provider_kafka_migration.errors import DocumentUnreadable, Where
from airflow_provider_kafka_migration.state import State

#: The version that this release writes; it reads this and all earlier versions.
JOURNAL_VERSION = 1

#: ``prev_hash`` of the first entry.
NO_HASH = "0" * 64

#: Largest integer that canonical JSON can hold exactly (RFC 8785 numbers are IEEE doubles).
MAX_SAFE_INTEGER = 2**53 - 1

#: Steps that the journal itself writes; other steps belong to the phases.
CREATED = "created"
CLAIMED = "claimed"
RELEASED = "released"
FAILED_AGAIN = "failed_again"
SPEC_RECORDED = "spec_recorded"
SPEC_CHANGED = "spec_changed"

_HASH_PATTERN = "^[0-9a-f]{64}$"


class JournalEntry(Document):
    """A transition (``from`` differs from ``to``) or a step inside a state (``from`` equals ``to``).

    ``generation`` is the generation of the claim under which the entry was written, 0 before the first claim.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True, validate_by_alias=True)

    version: int = JOURNAL_VERSION
    seq: int = Field(ge=0)
    prev_hash: str = Field(pattern=_HASH_PATTERN)
    migration_id: str
    from_state: State = Field(alias="from")
    to_state: State = Field(alias="to")
    at: str = Field(description="UTC, ISO 8601 with milliseconds")
    reason: str
    actor: str = Field(description="the user, task or program that wrote the entry")
    generation: int = Field(ge=0)
    step: str | None = Field(None, description="name of the step, for entries inside a state")
    step_key: str | None = Field(None, description="the subject of the step: a topic, a group, a lane")
    details: dict[str, Any] = Field(default_factory=dict)
    hash: str = Field(pattern=_HASH_PATTERN)

    @property
    def is_step(self) -> bool:
        """Whether the entry leaves the state unchanged."""
        return self.from_state is self.to_state


def seal(fields: dict[str, Any]) -> tuple[JournalEntry, bytes]:
    """Return an entry with these fields (stored names, without ``version`` and ``hash``), and the bytes to store."""
    content = _safe(to_jsonable_python({"version": JOURNAL_VERSION, **fields}))
    content["hash"] = content_hash(content)
    return JournalEntry.model_validate(content), canonical_json(content)


def content_hash(content: dict[str, Any]) -> str:
    """Return the SHA-256, 64 hex digits, over the canonical form of an entry's fields without ``hash``."""
    return hashlib.sha256(canonical_json({key: content[key] for key in content if key != "hash"})).hexdigest()


def parse_entry(data: bytes, *, path: str) -> tuple[JournalEntry, str]:
    """Return the entry in stored bytes, and the hash that these bytes should have.

    The hash is computed over all stored fields, not only over those that this release knows.

    :raises DocumentUnreadable: a later release wrote the entry.
    :raises ValueError: not an entry, or not in canonical form: something other than this package wrote it.
    """
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    version = content.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError("it has no version")
    if version > JOURNAL_VERSION:
        raise DocumentUnreadable(
            f"the entry has version {version}, but this release reads only versions up to {JOURNAL_VERSION}",
            where=Where(path=path),
            next_step="use the release that wrote the journal, or a later one",
        )
    try:
        canonical = canonical_json(content)
        entry = JournalEntry.model_validate(content)
    except ValidationError as error:
        fields = sorted({".".join(map(str, item["loc"])) for item in error.errors(include_input=False)})
        raise ValueError(f"wrong fields: {', '.join(fields)}") from None
    except rfc8785.CanonicalizationError:
        raise ValueError("not canonical JSON") from None
    if canonical != data:
        raise ValueError("not canonical JSON")
    return entry, content_hash(content)


def _safe(value: Any) -> Any:
    """Convert JSON data to what canonical JSON can hold: a large number must not prevent a journal entry.

    Integers beyond 2**53, NaN and infinities become text; lone surrogates are escaped.
    """
    if isinstance(value, dict):
        return {_safe(str(key)): _safe(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_safe(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
