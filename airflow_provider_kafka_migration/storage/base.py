"""The object store interface that the product needs: create-only puts, ordered lists, locked objects, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from airflow_provider_kafka_migration.errors import StorageRefused, Where

#: Content to be stored; a bytearray must not change while it is being stored.
Bytes = bytes | bytearray


@dataclass(frozen=True)
class ObjectInfo:
    """One listed object: key relative to the store's root, size in bytes."""

    key: str
    size_bytes: int


class ObjectStore(Protocol):
    """A bucket and prefix (or a folder). Keys are relative, with ``/`` as separator.

    Implementations: :class:`~.s3.S3Store` (``If-None-Match: *``) and :class:`~.local.LocalStore`
    (an exclusive link). Both pass one test suite. Errors: :class:`~..errors.StorageUnavailable` after bounded
    retries, :class:`~..errors.StorageRefused` for a missing bucket, denied access or a bad key.
    """

    @property
    def uri(self) -> str:
        """The location of the store, for people: ``s3://bucket/prefix`` or ``file:///folder``."""

    def put_new(self, key: str, data: Bytes, *, sha256: str | None = None) -> None:
        """Create an object; raise :class:`~..errors.ObjectExists` if it already exists.

        :param sha256: SHA-256 of the content, in hex, if known: then no other checksum is computed.
        """

    def put(self, key: str, data: Bytes) -> None:
        """Write an object, replacing an existing one."""

    def put_locked(self, key: str, data: bytes, retain_until: datetime, *, new: bool = False) -> bool:
        """Write an object that nobody can delete before ``retain_until`` (S3 Object Lock, COMPLIANCE mode).

        Where the store cannot lock objects, the object is written without a lock.

        :param retain_until: a time with a time zone.
        :param new: create-only, like :meth:`put_new`.
        :returns: whether the lock was applied, as read back from the store.
        """

    def get(self, key: str) -> bytes | None:
        """Return the content, or ``None`` if the object does not exist."""

    def delete(self, key: str) -> None:
        """Delete an object, if it exists. Only what a later object has replaced is ever deleted: leases that ended."""

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List objects whose key starts with ``prefix``, in ascending order of their keys (as UTF-8 bytes)."""


# -- keys -------------------------------------------------------------------------------------------------------------
#
# Rules for keys; they are the same in every store.


#: S3's limit for a key, in bytes of UTF-8.
MAX_KEY_BYTES = 1024

#: Prefix of files that a local store is writing; no object can have such a name.
TEMPORARY_PREFIX = ".tmp-"


def check_key(key: str) -> str:
    """Return the key; raise :class:`StorageRefused` if it would leave the store or could not be stored unchanged.

    Valid keys are relative, use ``/``, and have no empty, ``.`` or ``..`` parts and at most 1024 bytes.
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
