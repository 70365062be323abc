"""An object store in a folder, for trials, tests and the CLI. Durable, and safe among processes of one machine."""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from airflow_provider_kafka_migration.errors import ObjectExists, StorageRefused, StorageUnavailable, Where
from airflow_provider_kafka_migration.storage.base import TEMPORARY_PREFIX, Bytes, ObjectInfo, check_key

log = logging.getLogger(__name__)

_REFUSED = {
    errno.EACCES: "check the owner and the mode of the folder",
    errno.EPERM: "check the owner and the mode of the folder; the file system must support hard links",
    errno.EROFS: "use a folder that is not mounted read-only",
    errno.ENAMETOOLONG: "use a shorter prefix",
    errno.ENOTDIR: "an object and a folder need the same name; use another folder",
    errno.EEXIST: "an object and a folder need the same name; use another folder",
    errno.EISDIR: "an object and a folder need the same name; use another folder",
    errno.ENOTSUP: "the file system lacks hard links and cannot create an object exactly once; use another one or S3",
}


class LocalStore:
    """A folder as :class:`~.base.ObjectStore`.

    An object is written to a temporary file (``O_EXCL``), flushed to disk and then given its name: by a link, which
    fails if the name is taken (:meth:`put_new`), or by an atomic replace (:meth:`put`). A reader therefore never sees
    half an object, and exactly one of many creators of one key wins, whatever is killed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()

    def __repr__(self) -> str:
        return f"LocalStore({self.uri!r})"

    @property
    def uri(self) -> str:
        """``file:///folder``."""
        return self.folder.as_uri()

    def put_new(self, key: str, data: Bytes, *, sha256: str | None = None) -> None:
        """See :meth:`~.base.ObjectStore.put_new`."""
        path = self._path(key)
        with self._errors(key), self._temporary(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise ObjectExists(
                    "the object already exists",
                    where=Where(path=f"{self.uri}/{key}"),
                    next_step="read the existing object and decide how to proceed",
                ) from None

    def put(self, key: str, data: Bytes) -> None:
        """See :meth:`~.base.ObjectStore.put`."""
        path = self._path(key)
        with self._errors(key), self._temporary(path, data) as temporary:
            os.replace(temporary, path)

    def put_locked(self, key: str, data: bytes, retain_until: datetime, *, new: bool = False) -> bool:
        """Write without a lock, which a folder does not support. Always returns ``False``."""
        if retain_until.tzinfo is None:
            raise ValueError("retain_until needs a time zone")
        (self.put_new if new else self.put)(key, data)
        log.warning("%s/%s is not locked: a folder cannot prevent the deletion of objects", self.uri, key)
        return False

    def get(self, key: str) -> bytes | None:
        """See :meth:`~.base.ObjectStore.get`."""
        path = self._path(key)
        with self._errors(key):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def delete(self, key: str) -> None:
        """See :meth:`~.base.ObjectStore.delete`."""
        path = self._path(key)
        with self._errors(key):
            path.unlink(missing_ok=True)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See :meth:`~.base.ObjectStore.list`."""
        folder, _, _ = prefix.rpartition("/")
        start = self._path(folder) if folder else self.folder
        after = start_after.encode() if start_after is not None else b""
        with self._errors(prefix):
            # Followers list the folder repeatedly: a file's size is read only if its name matches.
            keys = (key for key in self._keys(start) if key.startswith(prefix) and key.encode() > after)
            found = [self._info(key) for key in sorted(keys, key=str.encode)]
        return iter([info for info in found if info is not None])

    def _keys(self, start: Path) -> Iterator[str]:
        for parent, _, names in os.walk(start, onerror=_unless_absent):
            inner = os.path.relpath(parent, self.folder)
            for name in names:
                if not name.startswith(TEMPORARY_PREFIX):
                    yield name if inner == os.curdir else f"{inner}/{name}"

    def _info(self, key: str) -> ObjectInfo | None:
        try:
            return ObjectInfo(key, os.stat(f"{self.folder}/{key}").st_size)
        except FileNotFoundError:
            return None

    def _path(self, key: str) -> Path:
        return self.folder / check_key(key)

    @contextmanager
    def _temporary(self, path: Path, data: Bytes) -> Iterator[Path]:
        """Write the data to a flushed temporary file next to ``path``; afterwards remove it and flush the folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        _flush_folder(path.parent)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = Where(path=f"{self.uri}/{key}")
            what = f"the file system refused the operation: {error.strerror}"
            if error.errno in _REFUSED:
                raise StorageRefused(what, where=where, next_step=_REFUSED[error.errno]) from error
            raise StorageUnavailable(
                what, where=where, next_step="free space or repair the file system, then try again"
            ) from error


def _unless_absent(error: OSError) -> None:
    """Ignore a missing folder, which contains nothing; raise for an unreadable one, which must not look empty."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _flush_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
