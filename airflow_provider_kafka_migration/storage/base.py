"""What the product needs of an object store: create-only puts, ordered lists, locked objects, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

#: Content to be stored; a bytearray must not change meanwhile.
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
        """Where the store is, for people: ``s3://bucket/prefix`` or ``file:///folder``."""

    def put_new(self, key: str, data: Bytes, *, sha256: str | None = None) -> None:
        """Create an object; raise :class:`~..errors.ObjectExists` if it is already there.

        :param sha256: of the content, in hex, if it is known: then no other checksum is computed.
        """

    def put(self, key: str, data: Bytes) -> None:
        """Write an object, replacing what was there."""

    def put_locked(self, key: str, data: bytes, retain_until: datetime, *, new: bool = False) -> bool:
        """Write an object that nobody can delete before ``retain_until`` (S3 Object Lock, COMPLIANCE mode).

        Where the store cannot lock objects, it is written without a lock.

        :param retain_until: a time with a time zone.
        :param new: create-only, as :meth:`put_new`.
        :returns: whether the lock was applied.
        """

    def get(self, key: str) -> bytes | None:
        """The content, or ``None`` if there is no such object."""

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects whose key starts with ``prefix``, in ascending order of their keys (as UTF-8 bytes)."""
