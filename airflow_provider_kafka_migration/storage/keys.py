"""Rules for keys, the same in every store."""

from __future__ import annotations

from airflow_provider_kafka_migration.errors import StorageRefused, Where

#: S3's limit for a key, in bytes of UTF-8.
MAX_KEY_BYTES = 1024

#: Files of a local store that are being written; no object can have such a name.
TEMPORARY_PREFIX = ".tmp-"


def check_key(key: str) -> str:
    """Return the key; raise :class:`StorageRefused` for one that would leave the store or not survive it.

    Good keys are relative, use ``/``, have no empty, ``.`` or ``..`` parts and at most 1024 bytes.
    """
    parts = key.split("/")
    bad = any(part in ("", ".", "..") or part.startswith(TEMPORARY_PREFIX) or "\0" in part for part in parts)
    if bad or len(key.encode("utf-8")) > MAX_KEY_BYTES:
        raise StorageRefused(
            f"not a usable key: {key[:200]!r}",
            where=Where(path=key[:200]),
            next_step="use a relative key of at most 1024 bytes without empty parts, '.' or '..'",
        )
    return key
