"""Puts the files of a job (the Spark main and this package as a zip) where machines without this one's files read them.

A file is stored under the digest of its content, so it is uploaded once, two tasks that upload it at the same time do
not disturb each other, and a running job never sees its files change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from airflow_provider_kafka_migration.errors import ObjectExists, StagingRefused, Where
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store

#: Opens the store at a location; engines pass one that has their own credentials, or that knows other schemes.
Opener = Callable[[str], ObjectStore]

#: Services split and quote argument lists in different ways, so a URI may hold nothing that any of them interprets.
_PLAIN_URI = re.compile(r"[a-z0-9]+://[A-Za-z0-9._/=+@:-]+")


class Staging:
    """A place for files of jobs.

    :param location: ``s3://bucket/prefix``, ``file:///folder``, or what ``opener`` understands.
    :param schemes: the schemes that the engine's machines can read.
    :param opener: opens the store at the location. Nothing is read or written before :meth:`put`.
    :raises StagingRefused: no location, another scheme, or characters that a command line would interpret.
    """

    def __init__(self, location: str, *, schemes: tuple[str, ...] = ("s3",), opener: Opener = open_store) -> None:
        scheme = location.partition("://")[0] if "://" in location else ""
        if scheme not in schemes:
            # A wrong location may contain credentials, so the error does not quote it.
            raise StagingRefused(
                "the job has no staging location that the engine's machines can read"
                + (f": {scheme}:// is not one of them" if scheme else ""),
                next_step=f"use a location that begins with {' or '.join(f'{name}://' for name in schemes)}",
            )
        if not _PLAIN_URI.fullmatch(location):
            raise StagingRefused(
                "the staging location contains spaces or other characters that a command line interprets",
                next_step="use letters, digits and . _ - / in the location",
            )
        self._store = opener(location)

    def put(self, path: Path) -> str:
        """Upload a file unless it is already there, and return its URI.

        :raises StagingRefused: the file cannot be read, or another file is stored under its digest.
        :raises StorageUnavailable: the store did not answer.
        :raises StorageRefused: the store does not permit it.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StagingRefused(
                f"a file of the job cannot be read: {error.strerror}",
                where=Where(path=str(path)),
                next_step="reinstall the package, or correct [kafka_migration] spark_jobs_folder",
            ) from None
        digest = hashlib.sha256(data).hexdigest()
        key = f"{digest[:16]}/{path.name}"
        uri = f"{self._store.uri}/{key}"
        if not _PLAIN_URI.fullmatch(uri):
            raise StagingRefused(
                "the name of a file of the job contains characters that a command line interprets",
                where=Where(path=str(path)),
                next_step="rename the file: letters, digits and . _ -",
            )
        found = self._store.get(key)
        if found is None:
            try:
                self._store.put_new(key, data, sha256=digest)
                return uri
            except ObjectExists:
                found = self._store.get(key)
        if found is None or hashlib.sha256(found).hexdigest() != digest:
            raise StagingRefused(
                "another file is stored under the digest of a file of the job",
                where=Where(path=uri),
                next_step="find out who wrote it; then delete it and clear the task",
            )
        return uri
