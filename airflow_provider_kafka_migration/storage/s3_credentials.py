"""Credentials that change while a client uses them: of an assumed role, or from a file that is kept up to date.

A client reads its keys for every request, so it never signs with keys that have been replaced.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from botocore.credentials import CredentialProvider, CredentialResolver, Credentials
from botocore.exceptions import CredentialRetrievalError
from botocore.session import Session

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where

log = logging.getLogger(__name__)

#: How often keys in a file are checked and replaced. Roles issue new keys 15 minutes before the old ones expire.
RENEW_SECONDS = 60.0


class S3Keys(NamedTuple):
    """One set of keys. Secret: never log it."""

    access_key: str
    secret_key: str
    token: str | None = None

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> S3Keys:
        """Read the keys from S3 settings (``aws_access_key_id`` ...).

        :raises KeyError: the settings have no keys.
        """
        return cls(
            settings["aws_access_key_id"], settings["aws_secret_access_key"], settings.get("aws_session_token") or None
        )


_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")

#: Returns the current keys. Many threads call it, for every request: it must be cheap and thread-safe.
ReadKeys = Callable[[], Any]


class LiveCredentials(Credentials):
    """Reads its keys whenever a request is signed.

    :param read: returns an object with ``access_key``, ``secret_key`` and ``token``.
    """

    def __init__(self, read: ReadKeys) -> None:
        super().__init__("", "", method="kafka-migration")
        self._read = read

    def get_frozen_credentials(self) -> Any:
        """Return the current keys.

        :raises CredentialRetrievalError: there are none. Any other error becomes this one, because callers treat it as
            a reason to retry, and the text of the other one may quote secrets.
        """
        try:
            keys = self._read()
        except Exception as error:
            log.warning("The credentials of the storage connection could not be renewed: %s", type(error).__name__)
            raise CredentialRetrievalError(provider=self.method, error_msg=type(error).__name__) from error
        return Credentials(keys.access_key, keys.secret_key, keys.token).get_frozen_credentials()


class _Live(CredentialProvider):
    METHOD = "kafka-migration"
    CANONICAL_NAME = None

    def __init__(self, read: ReadKeys) -> None:
        super().__init__()
        self._read = read

    def load(self) -> LiveCredentials:
        return LiveCredentials(self._read)


def live_session(read: ReadKeys) -> Session:
    """Create a botocore session that has no other credentials than these."""
    session = Session()
    session.register_component("credential_provider", CredentialResolver([_Live(read)]))
    return session


class KeysFile:
    """Keys in a file that another program replaces: S3 settings as JSON, mode 0600. Reread when the file changes."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._keys: S3Keys | None = None

    def __call__(self) -> S3Keys:
        """Return the keys of the file; the last ones read if the file no longer exists.

        :raises OSError: the file never existed. :raises ValueError: it is not JSON. :raises KeyError: it has no keys.
        """
        with self._lock:
            try:
                found = self._path.stat()
            except OSError:
                if self._keys is None:
                    raise
                return self._keys
            mark = (found.st_ino, found.st_mtime_ns, found.st_size)
            if self._keys is None or mark != self._seen:
                self._keys = S3Keys.of_settings(json.loads(self._path.read_text(encoding="utf-8")))
                self._seen = mark
            return self._keys

    def check(self) -> KeysFile:
        """Check the file before the first request: later its errors look transient.

        :raises ConnectionInvalid: it does not exist, other users may read it, or it has no keys. It is never quoted.
        """
        where = Where(path=str(self._path))
        try:
            mode = self._path.stat().st_mode
            self()
        except OSError as error:
            raise ConnectionInvalid(
                f"credentials_file cannot be read: {error.strerror}",
                where=where,
                next_step="correct credentials_file in the storage settings; the file must exist on every worker",
            ) from None
        except (ValueError, KeyError, TypeError):
            raise ConnectionInvalid(
                "credentials_file is not JSON with aws_access_key_id and aws_secret_access_key",
                where=where,
                next_step="write the keys as one JSON object; replace the file by a rename, so that it is read whole",
            ) from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConnectionInvalid(
                "credentials_file contains secrets, but other users may read it",
                where=where,
                next_step=f"chmod 600 {self._path}, and make the program that writes it use that mode",
            )
        return self


def write_keys(path: Path, keys: S3Keys) -> None:
    """Replace a file of keys so that no reader ever sees half of it. Only this user may read it."""
    settings = {
        "aws_access_key_id": keys.access_key,
        "aws_secret_access_key": keys.secret_key,
        "aws_session_token": keys.token,
    }
    # mkstemp creates the file with mode 0600.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(settings, file)
    Path(name).replace(path)


def with_keys_file(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return S3 settings whose keys come from a file."""
    own = {key: value for key, value in settings.items() if key not in _KEYS}
    return {**own, "credentials_file": str(path)}


@contextmanager
def keys_kept_in(path: Path, read: ReadKeys) -> Iterator[None]:
    """Write keys to a file, and rewrite them whenever they change, until the block ends.

    :raises Exception: the first keys cannot be read. Later failures are logged and retried.
    """
    present = S3Keys(*_three(read()))
    write_keys(path, present)
    stop = threading.Event()

    def renew() -> None:
        last = present
        while not stop.wait(RENEW_SECONDS):
            try:
                now = S3Keys(*_three(read()))
                if now != last:
                    write_keys(path, now)
                    last = now
            except Exception as error:  # the text may quote secrets
                log.warning("The storage credentials for Spark could not be renewed: %s", type(error).__name__)

    thread = threading.Thread(target=renew, name="storage-credentials", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=10)


def _three(keys: Any) -> tuple[str, str, str | None]:
    return keys.access_key, keys.secret_key, keys.token
